"""The rounds of a worker with much to do: what they read, and what a stop in one of them leaves."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bursar.clock import SystemClock
from bursar.config import Config
from bursar.custody.setup import open_vault
from bursar.db import Tx
from bursar.outbound.target import Allowed
from bursar.service.postgres import EmbeddedPostgres
from bursar.webhook import store
from bursar.webhook.deliver import Deliverer
from bursar.webhook.model import Attempt
from bursar.webhook.send import Sender
from bursar.webhook.store import Claim, Result
from tests.databases import own_database
from tests.processes import until
from tests.webhooks.conftest import ALLOW, Hooks, own_hooks

WEBHOOKS = 12
STOPS, EVENTS = 15, 30
# The advisory lock of claims.
_CLAIMING = 17485
_ACCOUNT = """
    INSERT INTO account (id, name) VALUES ('acc_1', 'one');
    INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test');
"""
_WEBHOOKS = """
    INSERT INTO webhook (id, realm_id, url, events, created_at)
    SELECT 'wh_' || n, 1, 'https://a.example/', '{*}', moment() FROM generate_series(1, 12) n;
"""
_SECRETS = """
    INSERT INTO master_key (version) VALUES (1);
    INSERT INTO webhook_secret (owner, webhook_id, number, master_version, sealed)
    SELECT w.id || ':1', w.id, 1, 1, 'sealed' FROM webhook w;
"""
_DELIVERIES = """
    WITH made AS (
      INSERT INTO event (id, realm_id, type, data, created_at)
      SELECT 'evt_' || gen_random_uuid(), $2, 'agent.paused', '{}', moment()
        FROM generate_series(1, $1) n
      RETURNING id)
    INSERT INTO delivery (id, webhook_id, event_id, next_attempt_at, created_at)
    SELECT 'dlv_' || gen_random_uuid(), w.id, made.id, moment(), moment() FROM made, webhook w
"""
_ROUND = "SELECT * FROM exchange_deliveries('{}', '{}', '{}', '{}', '{}', 600, 200, 4, 30)"


async def _exchange(tx: Tx, claims: list[Claim]) -> list[Claim]:
    attempt = Attempt(
        at="2026-01-01T00:00:00.000Z", status=200, latency_ms=1, error=None, response=None
    )
    results = [Result(claim, "delivered", 0, attempt, False) for claim in claims]
    return await store.exchange(
        tx, results, most=600, most_failing=200, per_webhook=4, lease_seconds=30
    )


async def test_a_round_does_not_read_the_rounds_before_it(postgres: EmbeddedPostgres):
    """Goal: what was delivered since the last vacuum costs a later round little, also where the
    planner knows nothing of the table yet."""
    async with own_database(postgres) as (_, db), db.connection() as tx:
        await tx.execute(_ACCOUNT + _WEBHOOKS)
        await tx.execute("ALTER TABLE delivery SET (autovacuum_enabled = off)")
        await tx.execute(_DELIVERIES, 500, 1)
        claims, rounds = await _exchange(tx, []), 0
        while claims:
            claims, rounds = await _exchange(tx, claims), rounds + 1
        assert rounds == 125
        await tx.execute(_DELIVERIES, 1, 1)
        told = await tx.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {_ROUND}")
        (plan,) = json.loads(told)
        assert plan["Plan"]["Actual Rows"] == WEBHOOKS
        # It takes some 800. By a bitmap it would be 2,600, and more with each delivery.
        assert plan["Plan"]["Shared Hit Blocks"] < 1_500


async def test_a_webhook_that_was_just_made_is_signed_for(postgres: EmbeddedPostgres):
    """Goal: what is claimed comes with its secret, also where both were written while the claim
    waited for another worker's."""
    async with own_database(postgres) as (_, db), db.connection() as tx:
        await tx.execute(_ACCOUNT)
        async with db.transaction() as other:
            await other.execute(f"SELECT pg_advisory_xact_lock({_CLAIMING})")
            claiming = asyncio.create_task(_exchange(tx, []))

            async def waits() -> bool:
                return await other.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_locks WHERE objid = $1 AND NOT granted)",
                    _CLAIMING,
                )

            await until(waits, seconds=30)
            async with db.transaction() as making:
                await making.execute(_WEBHOOKS)
                await making.execute(_SECRETS)
                await making.execute(_DELIVERIES, 1, 1)
        claims = await claiming
        assert [len(claim.secrets) for claim in claims] == [1] * WEBHOOKS


@asynccontextmanager
async def _delivering(hooks: Hooks) -> AsyncGenerator[tuple[Deliverer, asyncio.Task[None]]]:
    db = hooks.service.db
    sender = Sender(Allowed("BURSAR_WEBHOOKS_ALLOW", ALLOW), 30)
    deliverer = Deliverer(
        db,
        await open_vault(db, hooks.config),
        sender,
        SystemClock(),
        retry_seconds=(3600,),
        timeout_seconds=30,
        drain_seconds=10,
    )

    async def work() -> None:
        while True:
            await deliverer.work()

    task = asyncio.create_task(work())
    try:
        yield deliverer, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await deliverer.drain()
        await sender.close()


async def _count(hooks: Hooks, which: str) -> int:
    async with hooks.service.db.connection() as tx:
        return await tx.fetchval(f"SELECT count(*) FROM delivery WHERE {which}")


async def test_a_stop_in_the_moment_an_attempt_ends_is_heard(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
):
    """Goal: of a wait that is cancelled and over at once, the first counts."""
    async with (
        own_hooks(postgres, config, "rounds", tmp_path, live_network=None) as hooks,
        _delivering(hooks) as (deliverer, task),
    ):
        finished = deliverer._finished

        async def rests() -> bool:
            return "waiters:1" in repr(finished)

        await until(rests, seconds=30, every=0.001)
        finished.set()
        task.cancel()
        ended, _ = await asyncio.wait({task}, timeout=10)
        assert ended


async def test_a_stop_at_any_moment_leaves_nothing_behind(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
):
    """Goal: a worker that is stopped under load keeps no lease and loses no result, so that the
    next one finds all that is left at once, and nothing arrives twice."""
    async with (
        own_hooks(postgres, config, "rounds", tmp_path, live_network=None) as hooks,
        await hooks.service.admin() as client,
    ):
        for number in range(WEBHOOKS):
            await hooks.register(client, f"ok/{number}", "agent.paused")
        async with hooks.service.db.connection() as tx:
            realm_id: int = await tx.fetchval("SELECT min(realm_id) FROM webhook")
        for number in range(1, STOPS + 1):
            async with hooks.service.db.connection() as tx:
                # More than the fastest machine delivers until the next stop.
                await tx.execute(_DELIVERIES, EVENTS, realm_id)
            async with _delivering(hooks):
                await asyncio.sleep(number / 200)  # a stop at another moment each time
            assert await _count(hooks, "leased_until IS NOT NULL") == 0
            assert await _count(hooks, "status = 'pending'") > 0, "it was under load"
        async with _delivering(hooks):

            async def all_are_there() -> bool:
                return await _count(hooks, "status = 'pending'") == 0

            await until(all_are_there, seconds=60)
        arrived = [r.headers["webhook-id"] + r.path for r in await hooks.receiver.received()]
        assert len(arrived) == len(set(arrived)) == STOPS * EVENTS * WEBHOOKS
