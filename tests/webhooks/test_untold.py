"""A delivery whose event is gone: sent again just before the event's time was over."""

from bursar.service.postgres import EmbeddedPostgres
from bursar.webhook import store
from tests.databases import own_database

_TWO_DELIVERIES = """
    INSERT INTO account (id, name) VALUES ('acc_1', 'one');
    INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test');
    INSERT INTO webhook (id, realm_id, url, events, created_at, failing_since)
    VALUES ('wh_1', 1, 'https://a.example/', '{*}', moment(), moment());
    INSERT INTO event (id, realm_id, type, data, created_at)
    VALUES ('evt_2', 1, 'agent.paused', '{}', moment());
    INSERT INTO delivery (id, webhook_id, event_id, next_attempt_at, created_at)
    VALUES ('dlv_1', 'wh_1', 'evt_gone', moment() - interval '1 minute', moment()),
           ('dlv_2', 'wh_1', 'evt_2', moment() - interval '1 second', moment());
"""


async def test_it_keeps_no_other_waiting(postgres: EmbeddedPostgres):
    """Goal: a webhook that fails has room for one, which what cannot be told must not take."""
    async with own_database(postgres) as (_, db), db.connection() as tx:
        await tx.execute(_TWO_DELIVERIES)
        claimed: list[str] = []
        for _ in range(2):
            claims = await store.exchange(
                tx, [], most=600, most_failing=200, per_webhook=4, lease_seconds=30
            )
            claimed += [claim.id for claim in claims]
        assert claimed == ["dlv_2"]
        assert await tx.fetchval("SELECT status FROM delivery WHERE id = 'dlv_1'") == "failed"
