"""Payments while everything around them is killed and lies, and the books afterwards.

Every process is a real one and dies by SIGKILL; the chain drops, delays, doubles, refuses and lies.
`BURSAR_LONG=1` makes 10,000 payments, `BURSAR_SEED` chooses the accidents.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import httpx
import pytest
from solders.keypair import Keypair

from bursar.chain.message import token_account
from bursar.config import Config, load_config
from bursar.db import OUT_OF_REACH, Database
from bursar.migrations.migrate import migrate
from bursar.service import serve
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.ports import free_port
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.supervisor import Child, Supervisor
from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import Rpc, RpcFailed
from tests.processes import bursar, clean_environment, until
from tests.settlement.books import ledger_is_chain, nothing_open, paid_times
from tests.support import Service, new_agent

LONG: Final = os.environ.get("BURSAR_LONG") == "1"
SEED: Final = int(os.environ.get("BURSAR_SEED", "5"))
PAYMENTS: Final = 10_000 if LONG else 120
WALLETS: Final = 24 if LONG else 6
CLIENTS: Final = 16 if LONG else 4
# Blocks are short, so that attempts expire while the fire burns.
SLOT_MS: Final = "40"
# Between two accidents.
PAUSE_SECONDS: Final = (0.1, 0.6)
# Between two kills: what was killed needs about so long to be back.
REST_SECONDS: Final = 2.0
# From the end of the fire until nothing is on its way: a lease, a blockhash, and some.
CALM_SECONDS: Final = 600 if LONG else 75

SENDS = ["sendTransaction"]
LOOKS = ["getSignatureStatuses", "getTransaction", "getSignaturesForAddress"]
BAD_NODES: Final[list[list[dict[str, Any]]]] = [
    [{"action": "drop", "methods": SENDS, "percent": 60}],
    [{"action": "drop", "methods": SENDS, "at": "request", "percent": 60}],
    [{"action": "drop", "percent": 15}, {"action": "duplicate", "percent": 30}],
    [{"action": "delay", "ms": 400, "percent": 40}],
    [{"action": "fail", "percent": 25}, {"action": "fail", "httpStatus": 503, "percent": 10}],
    [{"action": "lie", "methods": ["getSignatureStatuses"], "claim": "absent", "percent": 70}],
    [{"action": "lie", "methods": ["getSignatureStatuses"], "claim": "failed", "percent": 50}],
    [{"action": "lie", "methods": ["getSignatureStatuses"], "claim": "landed", "percent": 50}],
    [{"action": "fail", "methods": LOOKS, "percent": 50}],
    [],
]
LAGS: Final = ({"confirmed": 0, "finalized": 0}, {"confirmed": 2, "finalized": 32})
VICTIMS: Final = ("worker-1", "worker-2", "api", "localnet", "postgres")


@dataclass
class Fire:
    """The running parts, and what happened to them."""

    config: Config
    supervisor: Supervisor
    rpc: Rpc
    db: Database
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)

    async def burn(self) -> None:
        """Accidents, one after the other, until cancelled."""
        deck: list[str] = []
        killed = time.monotonic()
        while True:
            await asyncio.sleep(self.chance.uniform(*PAUSE_SECONDS))
            match self.chance.randrange(10):
                case 0 | 1 | 2 if time.monotonic() - killed > REST_SECONDS:
                    # Shuffled, so that each dies as often as the others.
                    deck = deck or self.chance.sample(VICTIMS, len(VICTIMS))
                    victim = deck.pop()
                    if victim == "localnet":
                        await self.misbehave([])  # to count what struck before it forgets
                    self.kill(victim)
                    killed = time.monotonic()
                case 3:
                    await self.lose("bursar_expireBlockhashes")
                case 4 | 5:
                    await self.lose("bursar_fork", await self.newest())
                case _:
                    await self.misbehave(self.chance.choice(BAD_NODES))

    async def misbehave(self, rules: list[dict[str, Any]]) -> None:
        switches: dict[str, Any] = {"seed": self.chance.randrange(1_000_000), "rules": rules}
        if rules:
            switches["lag"] = self.chance.choice(LAGS)
        with suppress(aiohttp.ClientError, OSError, RpcFailed):
            self.struck.update((await self.rpc("bursar_faults"))["struck"])
            await self.rpc("bursar_faults", switches)

    async def lose(self, method: str, *params: Any) -> None:
        """Blocks that pass unused, or a fork that is lost with a transaction in it."""
        with suppress(aiohttp.ClientError, OSError, RpcFailed):
            lost = await self.rpc(method, *params)
            self.struck[method.removeprefix("bursar_")] += len(lost) if params else 1

    async def newest(self) -> str:
        """A payment that has just landed."""
        try:
            async with self.db.connection() as tx:
                newest = "SELECT signature FROM submission ORDER BY signed_at DESC LIMIT 1"
                return await tx.fetchval(newest) or ""
        except (*OUT_OF_REACH, asyncpg.PostgresError):
            return ""

    def kill(self, name: str) -> None:
        pid = self.supervisor.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self.kills[name] += 1

    async def calm(self) -> None:
        """No more faults; waits for the chain, which may be starting again."""

        async def quiet() -> bool:
            await self.misbehave([])
            try:
                return not (await self.rpc("bursar_faults"))["rules"]
            except (aiohttp.ClientError, OSError):
                return False

        await until(quiet, seconds=30)


@asynccontextmanager
async def burning(folder: Path) -> AsyncGenerator[Fire]:
    """PostgreSQL, a chain that can be faulty, the HTTP process and two workers."""
    config = load_config(
        {},
        data_dir=folder,
        port=0,
        localnet_port=0,
        rate_limits="off",
        log_level="error",
        chain_timeout_seconds=1,
        sweep_seconds=1,
    )
    config = choose_ports(replace(config, port=free_port("127.0.0.1", 0)))
    database = EmbeddedPostgres(folder, max_connections=60)
    async with Supervisor(folder) as supervisor:
        await database.prepare()
        await supervisor.start(database.child())
        config = replace(config, database_url=database.dsn)
        await migrate(database.dsn)
        environment = clean_environment() | config.child_environment()
        (chain,) = localnet_children(config)
        await supervisor.start(
            replace(chain, argv=[*chain.argv, "--faults", "--slot-ms", SLOT_MS, "--ws-port", "0"])
        )
        await supervisor.start(replace(serve._api(config), env=environment))
        for name in ("worker-1", "worker-2"):
            argv = [*serve.PROCESS, "worker"]
            await supervisor.start(Child(name=name, argv=argv, env=environment))
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            rpc = Rpc(config.localnet_port, session)
            chance = random.Random(SEED)
            db = await Database.open(database.dsn, 4, 10)
            yield Fire(config, supervisor, rpc, db, chance)
            await db.close()


@dataclass(frozen=True)
class Plan:
    """One payment to be asked for."""

    number: int
    agent_id: str
    withdrawal: bool
    amount: str
    destination: str


def _plan(chance: random.Random, agents: list[dict[str, Any]]) -> list[Plan]:
    strangers = [str(Keypair().pubkey()) for _ in range(10)]
    wallets = [agent["wallet"]["address"] for agent in agents]
    # Nobody's wallet: paying there must fail, and release the money.
    wrong = token_account(wallets[0], TEST_MINT)
    plans: list[Plan] = []
    for number in range(PAYMENTS):
        agent = chance.choice(agents)
        others = [a for a in (*strangers, *wallets) if a != agent["wallet"]["address"]]
        destination = wrong if chance.random() < 0.03 else chance.choice(others)
        micros = chance.randrange(1, 2_000_000)
        plans.append(
            Plan(
                number,
                agent["id"],
                withdrawal=chance.random() < 0.25,
                amount=f"{micros // 1_000_000}.{micros % 1_000_000:06d}",
                destination=destination,
            )
        )
    return plans


async def _ask(client: httpx.AsyncClient, plan: Plan) -> str | None:
    """The payment's id, however often it takes to get an answer; None if it was refused."""
    if plan.withdrawal:
        path = f"/v1/wallets/{plan.agent_id}/withdraw"
        body = {"amount": plan.amount, "destination": plan.destination, "allowOffCurve": True}
    else:
        path = "/v1/spend/authorise"
        body = {
            "agentId": plan.agent_id,
            "amount": plan.amount,
            "recipient": plan.destination,
            "allowOffCurve": True,
        }
    for _ in range(600):
        with suppress(httpx.TransportError):
            answer = await client.post(
                path, json=body, headers={"Idempotency-Key": f"payment-{plan.number}"}
            )
            if answer.status_code == 201:
                return answer.json()["data"]["id"]
            assert answer.status_code in (409, 503), answer.text
            if "insufficient_funds" in answer.text:
                return None
        await asyncio.sleep(0.1)
    raise AssertionError(f"no answer for {plan}")


async def _pay(fire: Fire, client: httpx.AsyncClient, plans: list[Plan]) -> list[str]:
    """Asks for all of them, a few at a time; the ids of those that were accepted."""
    left = iter(plans)
    ids: list[str] = []

    async def work() -> None:
        for plan in left:
            made = await _ask(client, plan)
            if made is not None:
                ids.append(made)
            # Spread out, so that the fire meets every step of them.
            await asyncio.sleep(fire.chance.uniform(0, 0.1 if LONG else 0.6))

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return ids


_ENDED = (
    "SELECT s.id, s.agent_id, s.status = 'settled' AS settled, s.amount_micros, w.address"
    " FROM spend s JOIN wallet w USING (agent_id) UNION ALL"
    " SELECT s.id, s.agent_id, s.status = 'settled', s.amount_micros, w.address"
    " FROM withdrawal s JOIN wallet w USING (agent_id)"
)


@pytest.mark.timeout(7_200 if LONG else 1_200)
async def test_every_payment_is_made_once_or_never(tmp_path: Path):
    """Goal: no crash and no lie makes a payment twice, loses one, or leaves one stuck."""
    async with burning(tmp_path) as fire:
        assert fire.config.database_url is not None
        db = fire.db
        service = Service(f"http://127.0.0.1:{fire.config.port}", fire.config, db)
        async with await service.admin() as client:
            agents = [await _funded_agent(client) for _ in range(WALLETS)]
            plans = _plan(fire.chance, agents)
            began = time.monotonic()
            burn = asyncio.create_task(fire.burn())
            try:
                ids = await _pay(fire, client, plans)
            finally:
                burn.cancel()
            burned = time.monotonic() - began
            await fire.calm()
            calm = await until(lambda: nothing_open(db), seconds=CALM_SECONDS, every=0.5)
            same = await until(lambda: ledger_is_chain(fire.rpc, db), seconds=30, every=0.5)
        await _check(fire.rpc, db, set(ids))
        await _report(fire, db, burned=burned, calm=calm + same)
        audit = await bursar(
            "audit",
            data_dir=str(fire.config.data_dir),
            database_url=fire.config.database_url,
            localnet_port=str(fire.config.localnet_port),
        )
        assert audit.code == 0, audit.out + audit.err


async def _funded_agent(client: httpx.AsyncClient) -> dict[str, Any]:
    made = await new_agent(client, policy={"dailyCap": "100000.00", "allowlist": ["*"]})
    amount = "1000" if LONG else "60"
    answer = await client.post(f"/v1/test/wallets/{made['id']}/fund", json={"amount": amount})
    assert answer.status_code == 201, answer.text
    return made


async def _check(rpc: Rpc, db: Database, ids: set[str]) -> None:
    async with db.connection() as tx:
        ended = await tx.fetch(_ENDED)
        frozen = await tx.fetchval("SELECT count(*) FROM wallet WHERE is_frozen")
    assert ids <= {row["id"] for row in ended}, "an acknowledged payment is gone"
    assert len(ended) <= PAYMENTS, "an answer that was lost made a second payment"
    memos = await paid_times(rpc, {row["address"] for row in ended})
    wrong = [
        (row["id"], row["settled"], memos[row["address"], row["id"]])
        for row in ended
        if memos[row["address"], row["id"]] != int(row["settled"])
    ]
    assert wrong == [], f"(payment, settled, times on the chain); seed {SEED}"
    assert frozen == 0


async def _report(fire: Fire, db: Database, *, burned: float, calm: float) -> None:
    async with db.connection() as tx:
        ended = await tx.fetch("SELECT state, count(*) AS n FROM payment GROUP BY 1")
        attempts = await tx.fetch("SELECT state, count(*) AS n FROM submission GROUP BY 1")
    states = {row["state"]: row["n"] for row in ended}
    tries = {row["state"]: row["n"] for row in attempts}
    print(
        f"\nunder fire: seed {SEED}, {PAYMENTS} payments over {WALLETS} wallets in {burned:.0f} s,"
        f" all ended {calm:.0f} s after the last fault: {states}; attempts {tries};"
        f" kills {dict(fire.kills)}; faults {dict(fire.struck)}"
    )
