"""How much a worker has in hand at once, and that receivers of one account do not delay the
deliveries of another."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from bursar.api.webhooks import MOST_WEBHOOKS
from bursar.clock import SystemClock
from bursar.config import Config
from bursar.custody.setup import open_vault
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.service.postgres import EmbeddedPostgres
from bursar.webhook.deliver import MOST_AT_ONCE, PER_WEBHOOK, Deliverer
from bursar.webhook.send import Sender, webhook_targets
from tests.processes import until
from tests.support import new_account
from tests.webhooks.conftest import Hooks, own_hooks, running_worker

SETTINGS = {
    "webhooks_retry_seconds": (1, 1),
    # Longer than the test waits: what hangs stays under way.
    "webhooks_timeout_seconds": 60,
    "drain_seconds": 0,
    "live_network": None,
}


async def _pauses(hooks: Hooks, account: str, events: int) -> int:
    """So many events for each webhook of the account; returns its realm."""
    async with hooks.service.db.transaction() as tx:
        realm_id = await tx.fetchval(
            "SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id WHERE a.name = $1",
            account,
        )
        now = await tx.fetchval("SELECT moment()")
        await emit(
            tx,
            [NewEvent(realm_id, EventType.AGENT_PAUSED, None, b"{}", now) for _ in range(events)],
        )
    return realm_id


async def test_slow_receivers_of_one_account_delay_no_other(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
):
    """Goal: with every receiver that an account may have hanging, and far more waiting for them
    than a worker sends at once, another account's event arrives at once."""
    account = new_account()
    async with (
        own_hooks(postgres, config, "fairness", tmp_path, **SETTINGS) as hooks,
        await hooks.service.admin(account=account) as slow,
        await hooks.service.admin() as other,
    ):
        await asyncio.gather(
            *(
                hooks.register(slow, f"hang/{number}", "agent.paused")
                for number in range(MOST_WEBHOOKS)
            )
        )
        mine = await hooks.register(other, "ok/other")
        realm_id = await _pauses(hooks, account, 2 * MOST_AT_ONCE // MOST_WEBHOOKS)
        async with running_worker(hooks.config):

            async def under_way() -> int:
                async with hooks.service.db.connection() as tx:
                    return await tx.fetchval(
                        "SELECT count(*) FROM delivery d JOIN webhook w ON w.id = d.webhook_id"
                        " WHERE w.realm_id = $1 AND d.leased_until > clock_timestamp()",
                        realm_id,
                    )

            # As many as the account gets: half of the room, or all that its receivers may have.
            full = min(MOST_AT_ONCE // 2, MOST_WEBHOOKS * PER_WEBHOOK)

            async def is_full() -> bool:
                return await under_way() >= full

            await until(is_full, seconds=60, every=0.1)
            await other.post(f"/v1/webhooks/{mine['id']}/test")
            await hooks.receiver.wait_for("ok/other", seconds=15)
            assert await under_way() == full


async def test_what_is_not_recorded_yet_takes_room(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
):
    """Goal: receivers that answer faster than the database records make a worker claim no more than
    it may have in hand: a claim that waits too long would end, and be delivered again."""
    accounts = [new_account() for _ in range(3)]
    webhooks = 60
    async with AsyncExitStack() as stack:
        hooks = await stack.enter_async_context(
            own_hooks(postgres, config, "room", tmp_path, **SETTINGS)
        )
        for account in accounts:
            client = await stack.enter_async_context(await hooks.service.admin(account=account))
            await asyncio.gather(
                *(
                    hooks.register(client, f"ok/{account}/{number}", "agent.paused")
                    for number in range(webhooks)
                )
            )
            await _pauses(hooks, account, PER_WEBHOOK)
        sender = Sender(webhook_targets(hooks.config), 60)
        stack.push_async_callback(sender.close)
        db = hooks.service.db
        deliverer = Deliverer(
            db, await open_vault(db, hooks.config), sender, SystemClock(),
            retry_seconds=(1, 1), timeout_seconds=60, drain_seconds=0,
        )  # fmt: skip

        async def counted(which: str) -> int:
            async with db.connection() as tx:
                return await tx.fetchval(f"SELECT count(*) FROM delivery WHERE {which}")

        async def nothing_under_way() -> bool:
            return not deliverer._under_way

        await deliverer.work()
        at_first = await counted("leased_until > clock_timestamp()")
        assert MOST_AT_ONCE // 2 < at_first < MOST_AT_ONCE
        await until(nothing_under_way, seconds=60)
        assert len(deliverer._results) == at_first
        most = at_first
        while await counted("status = 'pending'"):
            await deliverer.work()
            most = max(most, await counted("leased_until > clock_timestamp()"))
        assert most <= MOST_AT_ONCE
        await deliverer.drain()
        told = [one.headers["webhook-id"] + one.path for one in await hooks.receiver.received()]
        assert len(told) == len(set(told)) == len(accounts) * webhooks * PER_WEBHOOK
