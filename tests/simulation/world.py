"""Two API processes on one PostgreSQL of their own, and short ways to drive them from a test."""

import os
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from bursar.config import Config, load_config
from bursar.cost import store as cost_store
from bursar.db import Database, Tx
from bursar.ledger.audit import audit
from bursar.ledger.lock import lock_agents
from bursar.migrations.migrate import migrate
from bursar.policy.engine import RejectCode
from bursar.recipient.resolve import test_address as sandbox_address
from bursar.service.postgres import EmbeddedPostgres, running_postgres
from bursar.settlement import payment_store
from bursar.spend.close import reject_spends
from tests.processes import running_api
from tests.simulation.wire import NO_TURNS, Connection, Turns
from tests.support import Service, new_account

LONG = os.environ.get("BURSAR_LONG") == "1"
HOST = "api.example.com"


@dataclass(frozen=True)
class World:
    """`urls` are the processes; `service` knows the database under them."""

    postgres: EmbeddedPostgres
    config: Config
    db: Database
    urls: Sequence[str]

    @property
    def service(self) -> Service:
        return Service(self.urls[0], self.config, self.db)

    async def admin_key(self) -> str:
        return await self.service.key(account=new_account())

    async def note_payee(self, agent_id: str, hostname: str = HOST) -> None:
        """As if the account of the agent had paid this host before: its token account is open, so
        spends need no look at the database to be decided."""
        await self.note_address(agent_id, sandbox_address(hostname))

    async def note_address(self, agent_id: str, address: str) -> None:
        async with self.db.transaction() as tx:
            realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
            await cost_store.note_open(tx, {(realm_id, address): 0})

    async def fail(self, spend_id: str, agent_id: str) -> None:
        """What settlement does when the payment of an approved spend failed for good."""

        async def work(tx: Tx) -> None:
            realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
            locked = await lock_agents(tx, [agent_id], [realm_id])
            await payment_store.fail_payment(tx, spend_id, "failed for good", "waiting")
            await reject_spends(
                tx,
                locked[agent_id].wallet,
                [spend_id],
                expected="approved",
                code=RejectCode.SETTLEMENT_FAILED,
                decided_by=None,
                reason=None,
            )

        await self.db.transact(work)

    async def decided(self, way: str) -> float:
        """How many spends the processes have decided in this way."""
        return await self._counted(f'bursar_spends_decided_total{{way="{way}"}}')

    async def decided_again(self) -> float:
        """How many they had to decide again, once for each time."""
        return await self._counted("bursar_spends_decided_again_total")

    async def _counted(self, name: str) -> float:
        found = 0.0
        async with httpx.AsyncClient() as client:
            for url in self.urls:
                text = (await client.get(f"{url}/metrics")).text
                found += sum(
                    float(line.rpartition(" ")[2])
                    for line in text.splitlines()
                    if line.startswith(f"{name} ")
                )
        return found

    def connect(self, key: str, number: int = 0, turns: Turns = NO_TURNS) -> Connection:
        """A connection to the `number`th process, counted around."""
        return Connection(self.urls[number % len(self.urls)], key, turns)


@asynccontextmanager
async def scratch_database(
    folder: Path, **settings: Any
) -> AsyncGenerator[tuple[EmbeddedPostgres, Config, Database]]:
    """A PostgreSQL of one's own, migrated, for tests that disturb others."""
    async with running_postgres(folder / "postgres", durable=False) as server:
        await migrate(server.dsn)
        made = load_config(
            {}, data_dir=folder / "data", port=0, live_network="localnet", log_level="error"
        )
        made.data_dir.mkdir(mode=0o700)
        config = replace(made, database_url=server.dsn, rate_limits=False, **settings)
        db = await Database.open(server.dsn, 10, 10)
        try:
            yield server, config, db
        finally:
            await db.close()


@asynccontextmanager
async def make_world(folder: Path, processes: int = 2) -> AsyncGenerator[World]:
    async with AsyncExitStack() as stack:
        server, config, db = await stack.enter_async_context(scratch_database(folder))
        urls = [await stack.enter_async_context(running_api(config)) for _ in range(processes)]
        yield World(server, config, db, urls)


def seeded(name: str) -> tuple[str, random.Random]:
    """A seed and its source of chance. pytest shows what a failing test printed, so the seed is
    printed; BURSAR_SEED brings a run back."""
    seed = f"{name}/{os.environ.get('BURSAR_SEED') or random.SystemRandom().randrange(10**9)}"
    print(f"seed: {seed} (set BURSAR_SEED to the number to run this again)")
    return seed, random.Random(seed)


async def make_agent(connection: Connection, **policy: Any) -> dict[str, Any]:
    body = {"name": "agent", "policy": {"dailyCap": "1000.00", "allowlist": [HOST], **policy}}
    return (await connection.request("POST", "/v1/agents", body)).data


async def assert_clean(db: Database) -> None:
    wrong = [f for f in await audit(db, lambda _: None) if not f.clean]
    assert not wrong, "\n".join(f"{f.question}: {f.differences}" for f in wrong)
