"""How fast payments settle, beside what the localnet itself takes of the same transfers.

`python -m bench.settlement` prints the rows; `rows()` hands them to whoever draws them.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import uvloop
from solders.keypair import Keypair
from tests.localnet.support import Rpc, start_node
from tests.processes import until
from tests.settlement.support import Stage, staged
from tests.support import Service

from bench.localnet import Row, payments_per_second
from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.service.api import Api
from bursar.service.collector import spare_the_collector
from bursar.service.duty import Duties
from bursar.service.postgres import running_postgres
from bursar.service.worker import settling
from bursar.settlement.worker import CALLS_AT_ONCE, Settler

PAYMENTS = 1_000
WALLETS = 64
RECIPIENTS = 64
_ASK_AT_ONCE = 32


async def rows(rounds: int = 3) -> list[Row]:
    """Medians of rounds in turns: a round takes two seconds, and no machine is equally busy all the
    time."""
    # As a worker does. The bare clients, which share this process, gain by it too.
    spare_the_collector()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = await start_node(folder / "chain", "--faults", "--ws-port", "0")
        stack.push_async_callback(node.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        rpc = Rpc(node.port, session)
        stage = await _stage(stack, folder, rpc)
        payers = [await rpc.wallet(sol=100, micros=1_000_000_000) for _ in range(CALLS_AT_ONCE)]
        agents = [await stage.agent("1000") for _ in range(WALLETS)]
        recipients = [str(Keypair().pubkey()) for _ in range(RECIPIENTS)]
        # Their token accounts are there, as they are for the bare transfers.
        for recipient in recipients:
            await stage.rpc("bursar_faucet", recipient, 1)
        # One for all rounds: what a worker does once when it starts is not of the rate.
        settler = await stage.settler()
        all_bare, all_settled = [await payments_per_second(rpc, payers, PAYMENTS)], list[float]()
        for _ in range(rounds):
            all_settled.append(await _settled_per_second(stage, settler, agents, recipients))
            await stage.next_block()
            all_bare.append(await payments_per_second(rpc, payers, PAYMENTS))
        bare, settled = statistics.median(all_bare), statistics.median(all_settled)
        return [
            (f"localnet payments, {CALLS_AT_ONCE} in flight", bare, "/s"),
            ("settlements", settled, "/s"),
            ("settlements / localnet payments", settled / bare, "x"),
        ]


async def _stage(stack: AsyncExitStack, folder: Path, rpc: Rpc) -> Stage:
    """A durable database and the service; no worker yet."""
    data_dir = folder / "data"
    postgres = await stack.enter_async_context(running_postgres(data_dir, max_connections=60))
    await migrate(postgres.dsn)
    config = load_config(
        {},
        data_dir=data_dir,
        port=0,
        localnet_port=rpc.port,
        rate_limits="off",
        log_level="error",
    )
    config = replace(config, database_url=postgres.dsn)
    db = await Database.open(postgres.dsn, 8, 10)
    stack.push_async_callback(db.close)
    api = await Api.start(config, SystemClock())
    stack.push_async_callback(api.stop)
    service = Service(f"http://127.0.0.1:{api.port}", config, db)
    return await stack.enter_async_context(staged(config, service, rpc))


async def _settled_per_second(
    stage: Stage, settler: Settler, agents: Sequence[dict[str, Any]], recipients: Sequence[str]
) -> float:
    """From the first signature to the last commit, with all payments waiting at the start."""
    turns = asyncio.Semaphore(_ASK_AT_ONCE)

    async def ask(number: int) -> None:
        body = {
            "agentId": agents[number % WALLETS]["id"],
            "amount": "0.000001",
            "recipient": recipients[number % RECIPIENTS],
        }
        async with turns:
            _approved(await stage.client.post("/v1/spend/authorise", json=body))

    await asyncio.gather(*(ask(number) for number in range(PAYMENTS)))
    begin = time.perf_counter()
    duties = Duties(stage.db, SystemClock())
    work = asyncio.gather(*(duties.keep(duty) for duty in settling(settler)))
    await until(lambda: _all_settled(stage), seconds=600)
    took = time.perf_counter() - begin
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work
    return PAYMENTS / took


def _approved(answer: httpx.Response) -> None:
    data: Any = answer.json()["data"]
    if data["status"] != "approved":
        raise AssertionError(answer.text)


async def _all_settled(stage: Stage) -> bool:
    async with stage.db.connection() as tx:
        # By an index: without one each look would read the spends of all rounds before.
        return await tx.fetchval(
            "SELECT NOT EXISTS (SELECT FROM payment WHERE state IN ('waiting', 'live'))"
        )


def main() -> None:
    # The event loop that the service runs on.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(rows())
    for name, value, unit in found:
        print(f"{name:<50} {value:>10.2f} {unit}")


if __name__ == "__main__":
    main()
