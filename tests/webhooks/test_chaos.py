"""Receivers that fail, hang, reset and redirect, workers that are killed: nothing is lost."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from bursar.config import Config
from bursar.db import Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.service.postgres import EmbeddedPostgres
from bursar.wallet.view import Wallet
from tests.processes import until
from tests.support import ADDRESS
from tests.webhooks.conftest import LONG, Hooks, own_hooks, start_worker

# A tenth of them are undone.
EVENTS = 22_500 if LONG else 600
KILLS = 60 if LONG else 4
WORKERS = 3
BATCH = 20
SETTINGS = {
    "webhooks_retry_seconds": (0, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8),
    "webhooks_timeout_seconds": 2,
    "drain_seconds": 1,
    # No settlement here.
    "live_network": None,
}
# Path of each webhook and the types it wants.
WANTS = {
    "ok/all": {"*"},
    "flaky/all": {"*"},
    "flaky/low": {"wallet.low_balance"},
    "ok/depleted": {"wallet.depleted", "agent.paused"},
    "hang/x": {"wallet.funded"},
    "fail/x": {"*"},
    "ok/none": {"transaction.settled"},
}
TYPES = (EventType.WALLET_LOW_BALANCE, EventType.WALLET_DEPLETED, EventType.WALLET_FUNDED)


@pytest.mark.timeout(3600 if LONG else 900)
async def test_nothing_is_lost(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
):
    """Goal: every event reaches every webhook that wants it, none reaches one that does not, and
    whatever comes twice came again because an attempt failed or a worker was killed."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    async with own_hooks(postgres, config, "chaos", tmp_path, **SETTINGS) as hooks:
        await _run(hooks, rng)


async def _run(hooks: Hooks, rng: random.Random) -> None:
    async with await hooks.service.admin() as client:
        for path, types in WANTS.items():
            await hooks.register(client, path, *types)
    async with hooks.service.db.connection() as tx:
        realm_id: int = await tx.fetchval("SELECT min(realm_id) FROM webhook")
        # What they are told of each other.
        await tx.execute("DELETE FROM delivery")
    workers = [await start_worker(hooks.config) for _ in range(WORKERS)]
    kills = set(rng.sample(range(0, EVENTS, BATCH), KILLS))
    events: dict[str, str] = {}
    try:
        for number in range(0, EVENTS, BATCH):
            events |= await _emit(hooks, realm_id, rng)
            if number in kills:
                await asyncio.sleep(rng.uniform(0, 1.5))
                victim = rng.randrange(WORKERS)
                workers[victim].kill()
                await workers[victim].wait()
                workers[victim] = await start_worker(hooks.config)
        good = [path for path in WANTS if path.startswith(("ok", "flaky"))]

        async def all_delivered() -> bool:
            async with hooks.service.db.connection() as tx:
                return not await tx.fetchval(
                    "SELECT EXISTS (SELECT FROM delivery d JOIN webhook w ON w.id = d.webhook_id"
                    " WHERE d.status <> 'delivered' AND (w.url LIKE '%/ok/%'"
                    " OR w.url LIKE '%/flaky/%'))"
                )

        await until(all_delivered, seconds=1800 if LONG else 90, every=0.25)
        await _check(hooks, events, good)
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()


async def _emit(hooks: Hooks, realm_id: int, rng: random.Random) -> dict[str, str]:
    """A few events in one transaction, as the service writes them; some are undone."""
    undone = rng.random() < 0.1
    made: list[NewEvent] = []

    async def work(tx: Tx) -> None:
        now = await tx.fetchval("SELECT moment()")
        made[:] = [
            NewEvent(realm_id, rng.choice(TYPES), "ag_0", _wallet(), now) for _ in range(BATCH)
        ]
        await emit(tx, made)
        if undone:
            raise ConnectionAbortedError

    if undone:
        with pytest.raises(ConnectionAbortedError):
            await hooks.service.db.transact(work)
        return {}
    await hooks.service.db.transact(work)
    return {event.id: event.type.value for event in made}


async def _check(hooks: Hooks, events: dict[str, str], good: list[str]) -> None:
    received = await hooks.receiver.received()
    arrived = {path: Counter[str]() for path in WANTS}
    for entry in received:
        arrived[entry.path[1:]][entry.headers["webhook-id"]] += 1
    for path, types in WANTS.items():
        wanted = {e for e, type_ in events.items() if "*" in types or type_ in types}
        assert set(arrived[path]) <= wanted, f"{path} got what it did not ask for"
        if path in good:
            assert set(arrived[path]) == wanted, f"{path} misses events"
    # A delivery has one attempt that went well, its last. So what comes more often than attempts
    # were recorded was under way in a worker when it was killed: at most four of a webhook.
    async with hooks.service.db.connection() as tx:
        recorded: int = await tx.fetchval(
            "SELECT sum(attempt_count) FROM delivery d JOIN webhook w ON w.id = d.webhook_id"
            " WHERE w.url LIKE '%/ok/%' OR w.url LIKE '%/flaky/%'"
        )
    requests = sum(arrived[path].total() for path in good)
    twice = requests - recorded
    print(f"{len(events)} events, {requests} requests, {KILLS} kills, {twice} not recorded")
    assert twice <= KILLS * 4 * len(good)
    assert await hooks.receiver.most_at_once("ok/all") <= 4


def _wallet() -> Wallet:
    return Wallet(
        agent_id="ag_0",
        address=ADDRESS,
        balance="1.000000",
        reserved="0.000000",
        available="1.000000",
        mint=ADDRESS,
        status="funded",
        last_funded_at=None,
    )
