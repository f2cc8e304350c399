"""A spend that comes alone is written by statements of its own: with the same guard as in a batch,
and the same rows."""

from collections.abc import AsyncGenerator
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from bursar.migrations.migrate import migrate
from tests.migration.conftest import NewDatabase

AGENT: Final = "ag_00000000000000000000000001"
# A wallet with 40 to spend, of which 10 are left of the day's cap; and in the middle of all it has.
SETTING: Final = f"""
INSERT INTO account (id, name) VALUES ('acc_1', 'one');
INSERT INTO realm (id, account_id, mode, rules) OVERRIDING SYSTEM VALUE
  VALUES (1001, 'acc_1', 'test', 7);
BEGIN;
INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)
  VALUES ('{AGENT}', 1001, 'a', 'pol_1', moment(), moment());
INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, payees, frozen,
                    changed_by, changed_at)
  VALUES ('{AGENT}', 1, 10000, '{{}}', '{{}}', 'pinned', false, 'key_1', moment());
COMMIT;
INSERT INTO wallet (agent_id, realm_id, address, mint, is_low, status, last_funded_at,
                    credits_posted, debits_posted, debits_pending, transfers, decisions, rules,
                    pending_count, windows_at, day_micros, day_count, day_cap_micros, day_lamports,
                    day_cap_lamports)
  VALUES ('{AGENT}', 1001, 'address-1', 'mint', false, 'funded', moment(), 100, 30, 30, 7, 9, 3,
          2, moment(), 90, 1, 100, 40, 400);
INSERT INTO webhook (id, realm_id, url, events, created_at)
  SELECT 'whk_' || n, 1001, 'https://example.com/', events, moment()
    FROM (VALUES (1, ARRAY['*']), (2, ARRAY['transaction.approved', 'wallet.funded']),
                 (3, ARRAY['transaction.settled'])) AS w (n, events);
INSERT INTO webhook (id, realm_id, url, events, status, created_at)
  VALUES ('whk_4', 1001, 'https://example.com/', '{{*}}', 'disabled', moment());
"""

# What the decision was made on; the bounds are just what the wallet has.
WALLET: Final[dict[str, Any]] = {
    "agent_id": AGENT,
    "realm_id": 1001,
    "rules": 3,
    "realm_rules": 7,
    "decisions": 1,
    "moves": 1,
    "micros": 10,
    "lamports": 5,
    "pendings": 0,
    "cap_micros": 100,
    "cap_lamports": 400,
    "spent_least": 90,
    "spent_most": 90,
    "available_least": 40,
    "available_most": 40,
    "lamports_least": 40,
    "lamports_most": 40,
    "pending_least": 2,
    "pending_most": 2,
    "bounds": None,
    "budget_id": None,
}
SPEND: Final[dict[str, Any]] = {
    "id": "txn_000000000000000000000alone",
    "agent_id": AGENT,
    "amount": 10,
    "recipient": "api.example.com",
    "pay_to": "payee",
    "verdict": "approved",
    "reject_code": None,
    "memo": None,
    "metadata": "{}",
    "policy_version": 4,
    "terms": "[1]",
    "network": "localnet",
    "created_by": "key_1",
    "cost": 5,
    "decisions_before": 0,
    "moves_before": 0,
    "micros_before": 0,
    "lamports_before": 0,
    "pendings_before": 0,
    "key": None,
    "fingerprint": None,
}
REFUSED: Final = {
    "wallet": {"moves": 0, "micros": 0, "lamports": 0, "cap_micros": 1, "cap_lamports": 1},
    "spend": {"verdict": "rejected", "reject_code": "policy_frozen", "pay_to": None},
}
WRITTEN: Final[dict[str, dict[str, Any]]] = {
    "approved": {},
    "waits for a person": {"wallet": {"pendings": 1}, "spend": {"verdict": "pending"}},
    "refused": REFUSED,
    "with all that a request may have": {
        "wallet": {"budget_id": "bud_1"},
        "spend": {
            "memo": 'with "quotes", commas\\ and (brackets)',
            "metadata": '{"order":"1"}',
            "key": "once",
            "fingerprint": "ab" * 32,
        },
    },
    "of a purchase": {"purchase": "pur_1"},
    "below a lower cap, which is remembered": {
        "wallet": {"cap_micros": 101, "cap_lamports": 399, "spent_least": 0, "spent_most": 95}
    },
}
MISSED: Final[dict[str, dict[str, Any]]] = {
    "other rules": {"wallet": {"rules": 2}},
    "other rules of the account": {"wallet": {"realm_rules": 6}},
    "another realm": {"wallet": {"realm_id": 1}},
    "another agent": {"wallet": {"agent_id": "ag_none"}, "agent_ids": ["ag_none"]},
    "an hour ago": {"hour": -1},
    "in an hour": {"hour": 1},
    "another life of the server": {"life": "another"},
    "more was spent": {"wallet": {"spent_most": 89}},
    "less was spent": {"wallet": {"spent_least": 91}},
    "less is left": {"wallet": {"available_least": 41}},
    "more is left": {"wallet": {"available_most": 39}},
    "more for the network": {"wallet": {"lamports_most": 39}},
    "less for the network": {"wallet": {"lamports_least": 41}},
    "more wait": {"wallet": {"pending_most": 1}},
    "fewer wait": {"wallet": {"pending_least": 3}},
}
BROKEN: Final[dict[str, dict[str, Any]]] = {
    "cap_not_passed": {"wallet": {"micros": 11}, "spend": {"amount": 11}},
    "network_cap_not_passed": {"wallet": {"lamports": 361}},
    "no_overdraft": {"wallet": {"micros": 41, "cap_micros": 500}, "spend": {"amount": 41}},
    "amount_micros_check": {
        "wallet": {"micros": 0, "pendings": 1},
        "spend": {"verdict": "pending", "amount": 0},
    },
    "live_spend_has_a_payee": {
        "wallet": {"pendings": 1},
        "spend": {"verdict": "pending", "pay_to": None},
    },
    "key_has_a_fingerprint": {"spend": {"key": "once"}},
}

# All that either may write; moments as what they are to each other. When a delivery is due is
# rounded to the millisecond.
ROWS: Final = """
SELECT jsonb_build_object(
  'spend', (SELECT to_jsonb(s) - 'created_at' - 'updated_at' - 'expires_at'
                   || jsonb_build_object('lives', s.expires_at - s.created_at,
                                         'is_new', s.updated_at = s.created_at,
                                         'at', s.created_at = w.windows_at)
              FROM spend s, wallet w),
  'wallet', (SELECT to_jsonb(w) - 'windows_at' FROM wallet w),
  'transfers', (SELECT jsonb_agg(to_jsonb(t) - 'created_at'
                                 || jsonb_build_object('at', t.created_at = w.windows_at))
                  FROM transfer t, wallet w),
  'payments', (SELECT jsonb_agg(to_jsonb(p) - 'created_at' - 'leased_until'
                                || jsonb_build_object('at', p.created_at = w.windows_at,
                                                      'due', p.leased_until <= clock_timestamp()))
                 FROM payment p, wallet w),
  'totals', (SELECT jsonb_agg(to_jsonb(d)) FROM total_delta d),
  'deliveries', (SELECT jsonb_agg(to_jsonb(d) - 'created_at' - 'next_attempt_at'
                                  || jsonb_build_object('at', d.created_at = w.windows_at,
                                                        'due', d.next_attempt_at
                                                               <= moment() + interval '1 ms')
                                  ORDER BY d.webhook_id)
                   FROM delivery d, wallet w))::text
"""


@pytest.fixture(scope="module")
async def setting(new_database: NewDatabase) -> AsyncGenerator[asyncpg.Connection]:
    dsn = await new_database()
    await migrate(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(SETTING)
        yield connection
    finally:
        await connection.close()


async def written(connection: asyncpg.Connection, function: str, case: dict[str, Any]) -> Any:
    """What a function returns and what is there after it, in a transaction that is undone."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        # As if it had been decided now, so that no hour ends in between.
        await connection.execute("UPDATE wallet SET windows_at = greatest(windows_at, moment())")
        returned = await connection.fetch(
            f"""
            SELECT w.at, (to_jsonb(w) - 'at')::text
              FROM {function}(
                     coalesce($1, server_life()), NULL, 3600, $2,
                     ARRAY[jsonb_populate_record(NULL::touched_wallet, $3::jsonb
                             || jsonb_build_object('hour',
                                  date_trunc('hour', moment()) + $4 * interval '1 hour'))],
                     ARRAY[jsonb_populate_record(NULL::decided_spend, $5::jsonb)], $6, NULL, NULL)
                   AS w
            """,
            case.get("life"),
            case.get("agent_ids", [AGENT]),
            msgspec.json.encode(WALLET | case.get("wallet", {})).decode(),
            case.get("hour", 0),
            msgspec.json.encode(SPEND | case.get("spend", {})).decode(),
            case.get("purchase"),
        )
        at = await connection.fetchval("SELECT windows_at FROM wallet")
        assert [row[0] for row in returned] in ([], [at])
        return [row[1] for row in returned], await connection.fetchval(ROWS)
    finally:
        await transaction.rollback()


@pytest.mark.parametrize("name", WRITTEN)
async def test_it_is_written_as_in_a_batch(setting: asyncpg.Connection, name: str):
    """Goal: the same answer, and the same rows in every table."""
    alone = await written(setting, "write_spends", WRITTEN[name])
    in_a_batch = await written(setting, "write_batch", WRITTEN[name])
    assert without_transaction(alone) == without_transaction(in_a_batch)
    returned, rows = alone
    assert len(returned) == 1
    assert msgspec.json.decode(rows)["spend"]["id"] == SPEND["id"], "the test sees the rows"


@pytest.mark.parametrize("name", MISSED)
async def test_its_guard_is_that_of_a_batch(setting: asyncpg.Connection, name: str):
    """Goal: whatever a decision rested on and is no more, nothing is written on it."""
    for function in ("write_spends", "write_batch"):
        returned, rows = await written(setting, function, MISSED[name])
        assert returned == []
        found = msgspec.json.decode(rows)
        assert [found[table] for table in found if table != "wallet"] == [None] * 5
        assert found["wallet"]["decisions"] == 9


@pytest.mark.parametrize("name", BROKEN)
async def test_the_constraints_stand_behind_it(setting: asyncpg.Connection, name: str):
    """Goal: where code and guard are both wrong, the commit fails, whichever way it takes."""
    for function in ("write_spends", "write_batch"):
        with pytest.raises(asyncpg.CheckViolationError) as refused:
            await written(setting, function, BROKEN[name])
        assert (refused.value.constraint_name or "").endswith(name)


def without_transaction(found: tuple[list[str], str]) -> Any:
    returned, rows = found
    tables = msgspec.json.decode(rows)
    for transfer in tables["transfers"] or []:
        del transfer["xact"]
    return [msgspec.json.decode(row) for row in returned], tables
