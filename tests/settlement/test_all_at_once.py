"""A broken wallet, an unreadable deposit and a node that has lost its accounts, together in test
mode: the payments of other wallets, in both modes, go on at their usual rate.

40 spends by default; 500 with BURSAR_LONG=1, which prints both rates.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from solders.keypair import Keypair

from bursar.chain.networks import usdc_mint
from bursar.config import Config, Mode
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.localnet.support import Rpc
from tests.processes import clean_environment, running_api, until
from tests.settlement.support import in_front_of, nothing_there, times_made
from tests.settlement.test_set_aside import poisoned
from tests.settlement.test_unread_deposits import garbled
from tests.support import Service, new_agent
from tests.webhooks.conftest import running_worker

SPENDS = 500 if os.environ.get("BURSAR_LONG") else 40
WALLETS = 5
MICROS = 1_000
# What the others reach of their usual rate. One round proves nothing on a busy machine: what is
# held up by a fault is so in each.
SHARE = 0.7
ROUNDS = 10


@dataclass
class Payer:
    client: httpx.AsyncClient
    rpc: Rpc
    mint: str
    agent: dict[str, Any]
    payee: str

    async def spend(self) -> str:
        body = {"agentId": self.agent["id"], "amount": "0.001", "recipient": self.payee}
        answer = await self.client.post("/v1/spend/authorise", json=body)
        assert answer.json()["data"]["status"] == "approved", answer.text
        return answer.json()["data"]["id"]

    async def balance(self) -> str:
        answer = await self.client.get(f"/v1/wallets/{self.agent['id']}/balance")
        return answer.json()["data"]["balance"]


@pytest.fixture
async def own(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
) -> AsyncGenerator[Service]:
    """An API process on a database of its own, before the chains of both modes; no worker yet."""
    async with own_database(postgres) as (dsn, db):
        alone = replace(config, database_url=dsn, data_dir=tmp_path, rate_limits=False)
        async with running_api(alone) as url:
            yield Service(url, alone, db)


async def test_faults_together_slow_nobody_else(own: Service):
    """Goal: transfers on the chain, each once, at no less than 0.7 of the rate without the faults;
    the broken wallet and the deposit are shown, and nothing is frozen."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        payers: list[Payer] = []
        modes: tuple[Mode, Mode] = ("test", "live")
        for mode in modes:
            client = await stack.enter_async_context(await own.admin(mode=mode))
            live = mode == "live"
            port = own.config.live_localnet_port if live else own.config.localnet_port
            rpc = Rpc(port, session)
            mint = usdc_mint(own.config, mode)
            payers += [await payer(client, rpc, mint) for _ in range(WALLETS)]
        others = payers[1:]
        bad = payers[0]

        async with running_worker(own.config):
            await until(lambda: funded(payers), seconds=60)
            usual = max([await rate(own, others) for _ in range(2)])

        unread = await bad.rpc("bursar_faucet", others[0].agent["wallet"]["address"], 1)
        unreadable = garbled(unread)

        def lost(method: str, result: Any) -> Any:
            return nothing_there(method, unreadable(method, result))

        first = await stack.enter_async_context(in_front_of(bad.rpc, lost))
        second = await stack.enter_async_context(in_front_of(bad.rpc, unreadable))
        await stack.enter_async_context(poisoned(own.db, bad.agent, "settling"))
        stuck = await bad.spend()
        async with worker_behind(own.config, first, second):
            await until(lambda: is_set_aside(own, bad), seconds=60)
            await until(lambda: is_noted(own, unread), seconds=60)
            reached: list[float] = []
            while len(reached) < ROUNDS and max(reached, default=0) < SHARE * usual:
                reached.append(await rate(own, others))
        told = f"{usual:.1f} spends/s without the faults, {max(reached):.1f} with them"
        if SPENDS > 40:
            print(told)
        assert max(reached) >= SHARE * usual, told
        async with own.db.connection() as tx:
            assert await tx.fetchval("SELECT status FROM spend WHERE id = $1", stuck) == "approved"
            assert await tx.fetchval("SELECT count(*) FROM wallet WHERE is_frozen") == 0


@asynccontextmanager
async def worker_behind(config: Config, *nodes: str) -> AsyncGenerator[None]:
    """A worker whose test mode asks these nodes, in this order."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.settlement.behind_nodes", "worker"),
        env=clean_environment() | config.child_environment() | {"TEST_NODES": ",".join(nodes)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def payer(client: httpx.AsyncClient, rpc: Rpc, mint: str) -> Payer:
    agent = await new_agent(client, policy={"dailyCap": "1000.00", "allowlist": ["*"]})
    await rpc("bursar_faucet", agent["wallet"]["address"], 100_000_000)
    return Payer(client, rpc, mint, agent, str(Keypair().pubkey()))


async def funded(payers: list[Payer]) -> bool:
    return [await each.balance() for each in payers] == ["100.000000"] * len(payers)


async def rate(own: Service, payers: list[Payer]) -> float:
    """Spends per second from the first question until the last is settled, each seen on the chain
    once."""
    clock = asyncio.get_running_loop().time
    began = clock()
    made: list[tuple[Payer, str]] = []
    for number in range(0, SPENDS, len(payers)):
        some = payers[: SPENDS - number]
        made += zip(some, await asyncio.gather(*(each.spend() for each in some)), strict=True)

    async def settled() -> bool:
        async with own.db.connection() as tx:
            return await tx.fetchval(
                "SELECT bool_and(status = 'settled') FROM spend WHERE id = ANY($1::text[])",
                [spend_id for _, spend_id in made],
            )

    await until(settled, seconds=60 + SPENDS, every=0.05)
    seconds = clock() - began
    for each, spend_id in made:
        owner = each.agent["wallet"]["address"]
        assert await times_made(each.rpc, owner, spend_id, MICROS, each.mint) == 1
    return len(made) / seconds


async def is_set_aside(own: Service, bad: Payer) -> bool:
    async with own.db.connection() as tx:
        return await tx.fetchval(
            "SELECT count(*) > 0 FROM quarantine WHERE agent_id = $1", bad.agent["id"]
        )


async def is_noted(own: Service, signature: str) -> bool:
    async with own.db.connection() as tx:
        return await tx.fetchval(
            "SELECT count(*) > 0 FROM unread_deposit WHERE signature = $1", signature
        )
