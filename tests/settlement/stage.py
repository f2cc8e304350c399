"""A service with a chain of its own, and a worker that is told when to work."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import asyncpg
import httpx
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from bursar.chain.networks import usdc_mint
from bursar.chain.pin import check_network
from bursar.chain.solana import Solana
from bursar.clock import SystemClock
from bursar.config import Config, load_config
from bursar.custody import store as custody_store
from bursar.custody.setup import ensure_fee_payer, open_vault
from bursar.custody.vault import Vault
from bursar.db import Database
from bursar.ledger.audit import audit as ask_books
from bursar.migrations.migrate import migrate
from bursar.policy.cache import PolicyCache
from bursar.service.api import Api
from bursar.service.networks import ensure_fee_payer_funded, open_chain
from bursar.service.ports import free_port
from bursar.service.postgres import ADMIN_ROLE, ROLE, EmbeddedPostgres
from bursar.settlement.adopt import adopt as adopt_payment
from bursar.settlement.deposits import DepositWatcher
from bursar.settlement.reconcile import Reconciler, audit_chain, audit_payments
from bursar.settlement.worker import Settler
from bursar.spend.model import bounds_of
from bursar.withdrawal.model import WithdrawalRow
from bursar_localnet.rpc import Node, Settings, serve
from tests.localnet.support import MINT, Rpc, payment
from tests.processes import Finished, bursar
from tests.support import Service, events_of, new_agent

_numbers = itertools.count(1)
# Long enough for a busy machine; nothing here waits by the clock.
PATIENCE_SECONDS = 20.0


@dataclass
class Stage:
    service: Service
    node: Node
    rpc: Rpc
    chain: Solana
    vault: Vault
    settler: Settler
    watcher: DepositWatcher
    reconciler: Reconciler
    fee_payer: str
    # The superuser, for what nobody else may do to the books.
    admin_dsn: str

    @property
    def config(self) -> Config:
        return self.service.config

    @property
    def db(self) -> Database:
        return self.service.db

    async def work(self) -> None:
        """One round of everything the worker does with the chain."""
        await self.settler.sign()
        await self.settler.follow()
        await self.reconciler.sweep()

    async def work_until(self, condition: Callable[[], Awaitable[Any]]) -> Any:
        ends = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not (answer := await condition()):
            assert asyncio.get_running_loop().time() < ends, "it never came to that"
            await self.work()
            await asyncio.sleep(0.02)
        return answer

    async def expire(self) -> None:
        """So many blocks pass that nothing signed until now can land."""
        await self.rpc("bursar_expireBlockhashes")
        await self.rpc("bursar_expireBlockhashes")

    # Wallets -------------------------------------------------------------------------------------

    async def fund(self, client: httpx.AsyncClient, agent_id: str, amount: str) -> dict[str, Any]:
        """Through the API, credited when it is answered."""
        answer = await client.post(f"/v1/test/wallets/{agent_id}/fund", json={"amount": amount})
        assert answer.status_code == 201, answer.text
        deposit = answer.json()["data"]
        assert deposit["status"] == "credited"
        return deposit

    async def funded_agent(
        self, client: httpx.AsyncClient, amount: str, **fields: Any
    ) -> dict[str, Any]:
        agent = await new_agent(client, **fields)
        await self.fund(client, agent["id"], amount)
        return agent

    async def wallet(self, client: httpx.AsyncClient, agent_id: str) -> dict[str, Any]:
        return await get(client, f"/v1/wallets/{agent_id}")

    async def withdraw(
        self, client: httpx.AsyncClient, agent_id: str, amount: str, destination: str, **more: Any
    ) -> dict[str, Any]:
        body = {"amount": amount, "destination": destination, **more}
        answer = await client.post(f"/v1/wallets/{agent_id}/withdraw", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["data"]

    async def ended(self, client: httpx.AsyncClient, payment_id: str) -> dict[str, Any]:
        """The spend or withdrawal once it is settled or never will be."""
        kind = "withdrawals" if payment_id.startswith("wdr_") else "transactions"

        async def end() -> dict[str, Any] | None:
            shown = await get(client, f"/v1/{kind}/{payment_id}")
            return shown if shown["status"] in ("settled", "failed", "rejected") else None

        return await self.work_until(end)

    async def events(self, agent_id: str, *types: str) -> list[tuple[str, dict[str, Any]]]:
        """(type, data) in the order they were written; those of `types`, or all."""
        async with self.db.connection() as tx:
            told = await events_of(tx, agent_id)
        events = [(event.type, cast("dict[str, Any]", _decode(event.data))) for event in told]
        return [event for event in events if not types or event[0] in types]

    # The chain -----------------------------------------------------------------------------------

    async def tokens(self, owner: str) -> int:
        """Micro-units at finalized; 0 without an account."""
        return (await self.chain.token_balances([owner], str(MINT))).micros[owner]

    async def key_of(self, agent_id: str) -> Keypair:
        """The wallet's own key, for what only a thief would do."""
        async with self.db.connection() as tx:
            sealed = (await custody_store.wallet_keys(tx, [agent_id]))[agent_id]
        secret = self.vault._unseal(sealed)  # pyright: ignore[reportPrivateUsage]
        return Keypair.from_seed(secret)

    async def steal(self, agent_id: str, micros: int, to: str | None = None) -> str:
        """Moves tokens out of a wallet behind Bursar's back; returns the signature."""
        owner = await self.key_of(agent_id)
        thief = Pubkey.from_string(to) if to else Keypair().pubkey()
        await self.rpc("requestAirdrop", str(owner.pubkey()), 10_000_000_000)
        blockhash = await self.rpc.blockhash()
        stolen = payment(owner, thief, micros, blockhash, "not by Bursar")
        return await self.rpc.send(stolen)

    async def differences(self) -> list[str]:
        """What `bursar audit` would name, asked without a process of its own."""
        findings = await ask_books(self.db, lambda _: None)
        chain = open_chain(self.config, "test")
        try:
            findings.append(await audit_chain(self.db, chain, "test"))
            findings.append(await audit_payments(self.db, chain, "test", everything=True))
        finally:
            await chain.close()
        assert all(finding.problem is None for finding in findings)
        return [line for finding in findings for line in finding.differences]

    async def audit(self, *options: str, **settings: str) -> Finished:
        """`bursar audit` as an operator runs it."""
        assert self.config.database_url is not None
        settings = {
            "database_url": self.config.database_url,
            "data_dir": str(self.config.data_dir),
            "localnet_port": str(self.config.localnet_port),
            **settings,
        }
        return await bursar("audit", *options, **settings)


async def get(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def _decode(text: str) -> Any:
    return httpx.Response(200, text=text).json()


def token_account_of(owner: str) -> str:
    return str(get_associated_token_address(Pubkey.from_string(owner), MINT))


def name_of(dsn: str) -> str:
    return dsn.partition("@/")[2].partition("?")[0]


@asynccontextmanager
async def database(postgres: EmbeddedPostgres) -> AsyncGenerator[str]:
    """An empty database of the schema as it is; its address."""
    name = f"stage_{next(_numbers)}"
    admin = await asyncpg.connect(postgres.admin_dsn)
    await admin.execute(f'CREATE DATABASE {name} OWNER "{ROLE}"')
    await admin.close()
    dsn = postgres.dsn_for(name)
    await migrate(dsn)
    yield dsn


@asynccontextmanager
async def running_stage(
    postgres: EmbeddedPostgres, folder: Path, *, funded: bool = True
) -> AsyncGenerator[Stage]:
    """With a fee payer that has SOL, unless `funded` is false."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(database(postgres))
        settings = Settings(folder / "chain", port=0, ws_port=0, faults=True)
        node = await stack.enter_async_context(serve(settings, SystemClock()))
        loaded = load_config(
            {},
            data_dir=folder / "data",
            port=0,
            localnet_port=node.port,
            # Live keys can be made, but nothing answers there.
            live_network="localnet",
            live_localnet_port=free_port("127.0.0.1", 0),
            chain_timeout_seconds=5,
            rate_limits="off",
            log_level="error",
        )
        loaded.data_dir.mkdir()
        config = replace(loaded, database_url=dsn)
        db = await Database.open(dsn, 10, 10)
        stack.push_async_callback(db.close)
        api = await Api.start(config, SystemClock())
        stack.push_async_callback(api.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        chain = open_chain(config, "test")
        stack.push_async_callback(chain.close)
        mint = usdc_mint(config, "test")
        pinned = await check_network(db, chain, "test", mint)
        vault, policies = await open_vault(db, config), PolicyCache()
        fee_payer = await ensure_fee_payer(db, vault, "test")
        if funded:
            await ensure_fee_payer_funded(config, chain, "test", fee_payer.address)
        watcher = DepositWatcher(db, chain, policies, "test", mint, config.cold_sweep_seconds)
        yield Stage(
            service=Service(f"http://127.0.0.1:{api.port}", config, db),
            node=node,
            rpc=Rpc(node.port, session),
            chain=chain,
            vault=vault,
            settler=Settler(db, chain, vault, policies, "test", pinned.decimals, bounds_of(config)),
            watcher=watcher,
            reconciler=Reconciler(db, watcher),
            fee_payer=fee_payer.address,
            admin_dsn=postgres.dsn_for(name_of(dsn), ADMIN_ROLE),
        )


async def balance(client: Any, agent: dict[str, Any]) -> str:
    return (await get(client, f"/v1/wallets/{agent['id']}/balance"))["balance"]


def address(agent: dict[str, Any]) -> Pubkey:
    return Pubkey.from_string(agent["wallet"]["address"])


async def adopt(stage: Stage, agent_id: str, signature: str) -> WithdrawalRow:
    return await adopt_payment(
        stage.db,
        stage.chain,
        mode="test",
        mint=str(MINT),
        network="localnet",
        agent_id=agent_id,
        signature=signature,
    )
