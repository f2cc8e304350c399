"""What is forgotten, when, and what never is."""

import json
from datetime import timedelta
from typing import Any

import pytest

from bursar.access import store as access_store
from bursar.config import Config
from bursar.db import Database, Tx
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ids import Prefix, new_id, past_ids_end
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.retention import EVENT_DAYS, FORGETTING, IDEMPOTENCY_DAYS, forget
from bursar.sql import Query
from bursar.webhook import store as webhook_store
from tests.databases import own_database

AT_ONCE = 5_000


async def _realm(db: Database) -> int:
    async with db.transaction() as tx:
        await tx.execute("INSERT INTO account (id, name) VALUES ('acc_1', 'one')")
        return await tx.fetchval(
            "INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test') RETURNING id"
        )


async def _answers(tx: Tx, realm_id: int, age: timedelta, count: int) -> None:
    await tx.execute(
        "INSERT INTO idempotency (realm_id, route, key, fingerprint, status, body, created_at)"
        " SELECT $1, 'POST /v1/agents', $2 || n, pg_catalog.sha256('x'), 201, 'x',"
        " clock_timestamp() - $3::interval"
        " FROM generate_series(1, $4::integer) n",
        realm_id,
        f"{age} ",
        age,
        count,
    )


async def _event(tx: Tx, realm_id: int, age: timedelta) -> str:
    """With its deliveries, all as they were made then."""
    at = await tx.fetchval("SELECT moment() - $1::interval", age)
    event = NewEvent(realm_id, EventType.AGENT_PAUSED, None, b"{}", at, made("evt", age))
    await emit(tx, [event])
    await tx.execute("UPDATE delivery SET id = $1 WHERE event_id = $2", made("dlv", age), event.id)
    return event.id


def made(prefix: Prefix, age: timedelta) -> str:
    """An id that was made so many days ago."""
    return past_ids_end(prefix, age.days) + new_id(prefix)[-16:]


async def forget_old(config: Config, db: Database) -> int:
    """All that a worker forgets in one go."""
    return sum([await forget(config, db, what) for what in FORGETTING])


async def _count(db: Database, table: str) -> int:
    async with db.connection() as tx:
        return await tx.fetchval(f"SELECT count(*) FROM {table}")


async def test_only_what_is_past_its_time_is_forgotten(postgres: EmbeddedPostgres, config: Config):
    """Goal: a day before its time everything is there, a day after it is gone, deliveries too."""
    day = timedelta(days=1)
    async with own_database(postgres) as (_, db):
        realm_id = await _realm(db)
        async with db.transaction() as tx:
            webhook = await webhook_store.insert_webhook(
                tx, new_id("wh"), realm_id, "https://example.com/", ["*"]
            )
            old = await _event(tx, realm_id, EVENT_DAYS * day + day)
            young = await _event(tx, realm_id, EVENT_DAYS * day - day)
            await _answers(tx, realm_id, IDEMPOTENCY_DAYS * day + day, 3)
            await _answers(tx, realm_id, IDEMPOTENCY_DAYS * day - day, 2)
        assert await _count(db, "delivery") == 2
        assert await forget_old(config, db) == 3 + 2
        assert await forget_old(config, db) == 0, "nothing more is past its time"
        async with db.connection() as tx:
            assert await tx.fetchval("SELECT array_agg(id) FROM event") == [young]
            assert await tx.fetchval("SELECT array_agg(event_id) FROM delivery") == [young]
            kept = await access_store.get_answers(
                tx,
                [
                    (realm_id, "POST /v1/agents", f"{(IDEMPOTENCY_DAYS + n) * day} 1")
                    for n in (-1, 1)
                ],
            )
        assert len(kept) == 1
        assert old != young
        assert webhook.status == "enabled"


async def test_deliveries_to_a_deleted_webhook_are_dropped(
    postgres: EmbeddedPostgres, config: Config
):
    """Goal: what waits for a webhook that is gone does not wait for ever; its event stays."""
    async with own_database(postgres) as (_, db):
        realm_id = await _realm(db)
        async with db.transaction() as tx:
            row = await webhook_store.insert_webhook(
                tx, new_id("wh"), realm_id, "https://example.com/", ["*"]
            )
            await _event(tx, realm_id, timedelta(0))
            await tx.execute("DELETE FROM webhook WHERE id = $1", row.id)
        assert await _count(db, "delivery") == 1
        assert await forget_old(config, db) == 1
        assert (await _count(db, "delivery"), await _count(db, "event")) == (0, 1)


async def test_one_round_is_bounded(postgres: EmbeddedPostgres, config: Config):
    """Goal: however much has gathered, no statement runs long; the next rounds do the rest."""
    async with own_database(postgres) as (_, db):
        realm_id = await _realm(db)
        async with db.transaction() as tx:
            await _answers(tx, realm_id, timedelta(days=30), AT_ONCE + 1)
        assert [await forget_old(config, db) for _ in range(3)] == [AT_ONCE, 1, 0]


async def test_the_trail_is_never_forgotten(postgres: EmbeddedPostgres, config: Config):
    """Goal: who did what stays, however long ago it was."""
    async with own_database(postgres) as (_, db):
        realm_id = await _realm(db)
        async with db.transaction() as tx:
            await tx.execute(
                "INSERT INTO audit_log (line_id, at, realm_id, actor, request_id, action, subject)"
                " VALUES ('log_1', clock_timestamp() - interval '10 years', $1, 'key_1', 'req_1',"
                " 'x', 'ag_1')",
                realm_id,
            )
        assert await forget_old(config, db) == 0
        assert await _count(db, "audit_log") == 1


LARGE = """
INSERT INTO account (id, name) VALUES ('acc_1', 'one');
INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test');
INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)
  SELECT 'ag_' || n, 1, 'x', 'pol_' || n, moment(), moment() FROM generate_series(1, 3000) n;
INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, payees, frozen,
                    changed_by, changed_at)
  SELECT id, 1, 0, '{}', '{}', 'pinned', false, 'key_1', moment() FROM agent;
INSERT INTO wallet (agent_id, realm_id, address, mint, is_low)
  SELECT id, 1, id, 'mint', false FROM agent;
INSERT INTO idempotency (realm_id, route, key, fingerprint, status, body, created_at)
  SELECT 1, 'r', n::text, pg_catalog.sha256('x'), 201, 'x',
         moment() - (30000 - n) * interval '30 seconds'
    FROM generate_series(1, 30000) n;
INSERT INTO event (id, realm_id, type, data, created_at)
  SELECT 'evt_' || n, 1, 'x', '{}', moment() - (30000 - n) * interval '4 minutes'
    FROM generate_series(1, 30000) n;
INSERT INTO delivery (id, webhook_id, event_id, status, next_attempt_at, created_at)
  SELECT 'dlv_' || n, 'wh_1', 'evt_' || n,
         CASE WHEN n > 29000 THEN 'pending' ELSE 'delivered' END,
         CASE WHEN n > 29000 THEN moment() END, moment() - (30000 - n) * interval '4 minutes'
    FROM generate_series(1, 30000) n;
INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, network, created_by,
                   created_at, status, verdict, reject_code, updated_at, terms, used,
                   policy_version, decision_number, pay_to)
  SELECT 'txn_' || n, 1, 'ag_1', 1, 'a.example', 'localnet', 'key_1',
         moment() - (30000 - n) * interval '20 minutes', v, v,
         CASE v WHEN 'rejected' THEN 'x' END, moment(), '[]', '{}', 1, n, 'payee'
    FROM generate_series(1, 30000) n,
         LATERAL (SELECT CASE WHEN n % 2 = 0 THEN 'rejected' ELSE 'approved' END) AS s (v);
"""


PLANS = pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
Asked = list[tuple[str, list[Any]]]


async def _asked_in_a_round(config: Config, db: Database, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Every statement of a round, with its values."""
    asked: Asked = []

    def noting(method: str) -> None:
        plain = getattr(Query, method)

        async def note(self: Query, tx: Tx, /, **values: Any) -> Any:
            asked.append((self.text, self.in_order(values)))
            return await plain(self, tx, **values)

        monkeypatch.setattr(Query, method, note)

    for method in ("run", "value"):
        noting(method)
    await forget_old(config, db)
    monkeypatch.undo()
    return asked


@PLANS
async def test_nothing_reads_a_whole_table_to_find_what_is_old(
    postgres: EmbeddedPostgres, config: Config, monkeypatch: pytest.MonkeyPatch, plan: str
):
    """Goal: a round costs what it deletes, not what is there; whichever plan PostgreSQL makes."""
    async with own_database(postgres) as (_, db):
        async with db.connection() as tx:
            await tx.execute(LARGE)
            await tx.execute("ANALYZE")
        asked = await _asked_in_a_round(config, db, monkeypatch)
        async with db.connection() as tx:
            await tx.execute(f"SET plan_cache_mode = {plan}")
            for text, values in asked:
                lines = await tx.fetch(f"EXPLAIN {text}", *values)
                told = "\n".join(line[0] for line in lines)
                for table in ("idempotency", "event", "delivery", "spend", "wallet"):
                    assert f"Seq Scan on {table}" not in told, told
    tables = {"idempotency", "event", "delivery", "console_session", "spend"}
    assert all(any(f"DELETE FROM {table}" in text for text, _ in asked) for table in tables)


async def _fill(db: Database, age: timedelta) -> None:
    """So many rows of this age in each table that grows with the traffic."""
    ids = [(made("evt", age), made("dlv", age)) for _ in range(AT_ONCE)]
    async with db.transaction() as tx:
        at = await tx.fetchval("SELECT moment() - $1::interval", age)
        await tx.copy_records_to_table(
            "event",
            columns=("id", "realm_id", "type", "data", "created_at"),
            records=[(event_id, 1, "x", "x" * 300, at) for event_id, _ in ids],
        )
        await tx.copy_records_to_table(
            "delivery",
            columns=("id", "webhook_id", "event_id", "status", "attempts", "created_at"),
            records=[(id_, "wh_1", of, "delivered", f'["{"x" * 300}"]', at) for of, id_ in ids],
        )
        await tx.copy_records_to_table(
            "idempotency",
            columns=("realm_id", "route", "key", "fingerprint", "status", "body", "created_at"),
            records=[(1, "r", id_, bytes(32), 201, b"x" * 300, at) for _, id_ in ids],
        )


@PLANS
async def test_a_round_that_finds_nothing_reads_next_to_nothing(
    postgres: EmbeddedPostgres, config: Config, monkeypatch: pytest.MonkeyPatch, plan: str
):
    """Goal: also when what was forgotten has made room for younger rows, and nothing lies in the
    order of its age any more."""
    async with own_database(postgres) as (_, db):
        for days in (EVENT_DAYS + 1, EVENT_DAYS + 1, 1, 1):
            await _fill(db, timedelta(days=days))
        while await forget_old(config, db):
            pass
        async with db.connection() as tx:
            await tx.execute("VACUUM ANALYZE")
            size = await tx.fetchval("SELECT pg_relation_size('event')")
        await _fill(db, timedelta(0))
        asked = await _asked_in_a_round(config, db, monkeypatch)
        async with db.connection() as tx:
            assert await tx.fetchval("SELECT pg_relation_size('event')") == size, "room was reused"
            await tx.execute(f"SET plan_cache_mode = {plan}")
            for text, values in asked:
                told = await tx.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", *values)
                (root,) = [part["Plan"] for part in json.loads(told)]
                assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 20, told
