"""How fast webhooks are delivered, and what one receiver that hangs does to the others.

    python -m bench.webhooks

Deliveries are compared with a bare aiohttp client that posts the same bodies to the same receiver
process, as many at once; both come out of one run on one machine.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import aiohttp
import msgspec
import uvloop
from tests.processes import until
from tests.webhooks.conftest import Receiver, running_receiver

from bench.rows import Row, at_least, below, table
from bursar.api.event_examples import example
from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.custody.setup import open_vault
from bursar.custody.vault import Vault
from bursar.db import Database, Tx
from bursar.event.catalog import EventType
from bursar.event.model import EventRow
from bursar.event.outbox import NewEvent, emit
from bursar.event.view import envelope
from bursar.ids import new_id
from bursar.migrations.migrate import migrate
from bursar.outbound.target import Allowed
from bursar.service.collector import spare_the_collector
from bursar.service.duty import Duties, Duty
from bursar.service.postgres import running_postgres
from bursar.signature import new_secret
from bursar.webhook import store
from bursar.webhook.deliver import Deliverer
from bursar.webhook.send import Sender

WEBHOOKS = 32
AT_ONCE = 4 * WEBHOOKS
DELIVERIES = 9_600
ROUNDS = 3
# For the hanging receiver: pairs of runs, events a second, and how long each run takes.
PAIRS = 4
PACE = 40
SECONDS = 2


@dataclass
class Bench:
    db: Database
    vault: Vault
    receiver: Receiver
    realm_id: int = 0

    async def webhook(self, path: str, type_: EventType) -> None:
        async def work(tx: Tx) -> None:
            row = await store.insert_webhook(
                tx, new_id("wh"), self.realm_id, self.receiver.url(path), [type_.value]
            )
            sealed = self.vault.seal_secret(f"{row.id}:1", new_secret().encode())
            await store.insert_secret(tx, row.id, 1, sealed)

        await self.db.transact(work)

    async def emit(self, type_: EventType, count: int) -> None:
        data = _data(type_)

        async def work(tx: Tx) -> None:
            now: datetime = await tx.fetchval("SELECT moment()")
            await emit(tx, [NewEvent(self.realm_id, type_, None, data, now) for _ in range(count)])

        await self.db.transact(work)

    @asynccontextmanager
    async def delivering(self) -> AsyncGenerator[None]:
        sender = Sender(Allowed("BURSAR_WEBHOOKS_ALLOW", ["127.0.0.0/8"]), 15)
        deliverer = Deliverer(
            self.db,
            self.vault,
            sender,
            SystemClock(),
            retry_seconds=(3600,),
            timeout_seconds=15,
            drain_seconds=0,
        )
        duties = Duties(self.db, SystemClock())
        task = asyncio.create_task(duties.keep(Duty("deliver", deliverer.work, 0)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await deliverer.drain()
            await sender.close()

    async def done(self) -> bool:
        async with self.db.connection() as tx:
            return not await tx.fetchval(
                "SELECT EXISTS (SELECT FROM delivery WHERE status = 'pending')"
            )


async def rows() -> list[Row]:
    # As a worker does. The bare client, which shares this process, gains by it too.
    spare_the_collector()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running_postgres(Path(folder), durable=True, max_connections=20) as postgres,
            running_receiver() as receiver,
        ):
            await migrate(postgres.dsn)
            config = replace(load_config({}, data_dir=folder), database_url=postgres.dsn)
            db = await Database.open(postgres.dsn, 8, 30)
            bench = Bench(db, await open_vault(db, config), receiver)
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO account (id, name) VALUES ('acc_1', 'bench')")
                bench.realm_id = await tx.fetchval(
                    "INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test') RETURNING id"
                )
            try:
                return [*await _rates(bench), *await _hanging(bench)]
            finally:
                await db.close()


async def _rates(bench: Bench) -> list[Row]:
    for number in range(WEBHOOKS):
        await bench.webhook(f"ok/{number}", EventType.AGENT_PAUSED)
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(ROUNDS):
        await bench.receiver.forget()
        await bench.emit(EventType.AGENT_PAUSED, DELIVERIES // WEBHOOKS)
        async with bench.delivering():
            # As for the bare client: what it takes to set one up is not counted.
            begin = time.perf_counter()
            # Seldom: to ask costs the database that is measured.
            await until(bench.done, seconds=120, every=0.1)
            ours.append(DELIVERIES / (time.perf_counter() - begin))
        await bench.receiver.forget()
        bare.append(await _bare(bench.receiver))
    return [
        at_least(
            "webhooks delivered (reference: a bare aiohttp client, same bodies)",
            statistics.median(ours),
            "/s",
            statistics.median(bare),
            0.5,
        )
    ]


async def _bare(receiver: Receiver) -> float:
    bodies = [_body() for _ in range(DELIVERIES // WEBHOOKS)]
    work = iter([(f"ok/{n}", body) for body in bodies for n in range(WEBHOOKS)])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post() -> None:
            for path, body in work:
                async with session.post(receiver.url(path), data=body) as answer:
                    await answer.read()

        begin = time.perf_counter()
        await asyncio.gather(*(post() for _ in range(AT_ONCE)))
        return DELIVERIES / (time.perf_counter() - begin)


async def _hanging(bench: Bench) -> list[Row]:
    """Alternating runs at a steady pace, without and with a webhook whose receiver hangs."""
    for number in range(4):
        await bench.webhook(f"ok/paced{number}", EventType.WALLET_FUNDED)
    await bench.webhook("hang/x", EventType.WALLET_DEPLETED)
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(PAIRS):
        alone.append(await _p99(bench, hanging=False))
        beside.append(await _p99(bench, hanging=True))
    row = below(
        "webhooks, p99 beside a receiver that hangs (reference: without it)",
        statistics.median(beside),
        "ms",
        statistics.median(alone),
        1.1,
    )
    # Of the pairs, because a machine is not equally busy all the time.
    ratio = statistics.median(b / a for a, b in zip(alone, beside, strict=True))
    return [replace(row, ratio=ratio, holds=ratio < 1.1)]


async def _p99(bench: Bench, *, hanging: bool) -> float:
    await bench.receiver.forget()
    sent = 0
    async with bench.delivering():
        if hanging:
            await bench.emit(EventType.WALLET_DEPLETED, 100)
        begin = time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            await bench.emit(EventType.WALLET_FUNDED, 1)
            sent += 4
            await asyncio.sleep(max(0.0, begin + sent / 4 / PACE - time.perf_counter()))
        await asyncio.sleep(0.5)
    delays = [
        arrived.at * 1000 - _born(arrived.headers["webhook-id"])
        for arrived in await bench.receiver.received()
        if arrived.path.startswith("/ok/paced")
    ]
    assert len(delays) == sent, f"{len(delays)} of {sent} arrived"
    async with bench.db.transaction() as tx:
        # The next run starts with an empty queue and a webhook in good standing.
        await tx.execute("DELETE FROM delivery WHERE status = 'pending'")
        await tx.execute("UPDATE webhook SET failing_since = NULL")
    return statistics.quantiles(delays, n=100)[98]


def _born(event_id: str) -> int:
    """The milliseconds in an id: when the event was made."""
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    value = 0
    for character in event_id.partition("_")[2]:
        value = value * 32 + digits.index(character)
    return value >> 80


def _data(type_: EventType) -> bytes:
    return msgspec.json.encode(example(type_).data)


def _body() -> bytes:
    data = _data(EventType.AGENT_PAUSED).decode()
    now = SystemClock().now()
    return envelope(EventRow(new_id("evt"), "agent.paused", None, data, now, "test"))


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(table(runner.run(rows())))


if __name__ == "__main__":
    main()
