"""Receivers of one account do not delay the deliveries of another."""

import asyncio
from pathlib import Path

from bursar.api.webhooks import MOST_WEBHOOKS
from bursar.config import Config
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.service.postgres import EmbeddedPostgres
from bursar.webhook.deliver import MOST_AT_ONCE, PER_WEBHOOK
from tests.processes import until
from tests.support import new_account
from tests.webhooks.conftest import own_hooks, running_worker

SETTINGS = {
    "webhooks_retry_seconds": (1, 1),
    # Longer than the test waits: what hangs stays under way.
    "webhooks_timeout_seconds": 60,
    "drain_seconds": 0,
    "live_network": None,
}


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
        async with hooks.service.db.transaction() as tx:
            realm_id = await tx.fetchval(
                "SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id WHERE a.name = $1",
                account,
            )
            now = await tx.fetchval("SELECT moment()")
            events = 2 * MOST_AT_ONCE // MOST_WEBHOOKS
            await emit(
                tx,
                [
                    NewEvent(realm_id, EventType.AGENT_PAUSED, None, b"{}", now)
                    for _ in range(events)
                ],
            )
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
