"""What the schema refuses, whatever the code does: each row breaks one rule of money or state."""

import re
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from bursar.migrations.migrate import migrate
from tests.migration.conftest import NewDatabase

AGENT, OTHER = "ag_00000000000000000000000001", "ag_00000000000000000000000002"
ROWS = f"""
INSERT INTO account (id, name) VALUES ('acc_1', 'one'), ('acc_2', 'two');
INSERT INTO realm (id, account_id, mode) OVERRIDING SYSTEM VALUE
  VALUES (1001, 'acc_1', 'test'), (1002, 'acc_2', 'test');
INSERT INTO meter (id, realm_id, decisions, rules, windows_at)
  VALUES ('bud_1', 1001, 4, 3, moment()), ('bud_2', 1001, 4, 3, moment()),
         ('lim_1', 1001, 4, 3, moment());
INSERT INTO budget (id, realm_id, name, parent_id, level, limits, created_by, created_at,
                    updated_at)
  VALUES ('bud_1', 1001, 'one', NULL, 1, '[]', 'key_1', moment(), moment()),
         ('bud_2', 1001, 'two', 'bud_1', 2, '[]', 'key_1', moment(), moment());
INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)
  VALUES ('{AGENT}', 1001, 'a', 'pol_1', moment(), moment()),
         ('{OTHER}', 1002, 'b', 'pol_2', moment(), moment());
INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, payees, frozen,
                    changed_by, changed_at)
  VALUES ('{AGENT}', 1, 10000, '{{}}', '{{}}', 'pinned', false, 'key_1', moment()),
         ('{OTHER}', 1, 10000, '{{}}', '{{}}', 'pinned', false, 'key_1', moment());
INSERT INTO wallet (agent_id, realm_id, address, mint, is_low, status, last_funded_at,
                    credits_posted, debits_posted, debits_pending, transfers, decisions, rules,
                    windows_at, day_micros, day_count, day_cap_micros, day_lamports,
                    day_cap_lamports)
  VALUES ('{AGENT}', 1001, 'address-1', 'mint', false, 'funded', moment(), 100, 20, 30, 7, 4, 3,
          moment(), 10, 1, 100, 40, 400);
INSERT INTO api_key (id, realm_id, scope, name, hash)
  VALUES ('key_1', 1001, 'admin', 'k', sha256('1'::bytea));
INSERT INTO api_key (id, realm_id, scope, name, hash, revoked_at)
  VALUES ('key_2', 1001, 'admin', 'k', sha256('2'::bytea), moment());
INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to, status, reject_code,
                   policy_version, verdict, terms, used, network, created_by, created_at,
                   expires_at, signature, settled_at, updated_at, decision_number,
                   idempotency_key, fingerprint)
  SELECT 'txn_' || s.status, 1001, '{AGENT}', 10, 'api.example.com', 'payee', s.status,
         s.reject_code, 1, CASE s.status WHEN 'settled' THEN 'approved' ELSE s.status END, '[]',
         '{{0,100,0,0,0,0}}', 'localnet', 'key_1', moment(), moment(), s.signature,
         CASE WHEN s.status = 'settled' THEN moment() END, moment(), s.number,
         'once-' || s.status, sha256('asked'::bytea)
    FROM (VALUES ('pending', NULL, NULL, 1), ('approved', NULL, NULL, 2),
                 ('settled', NULL, 'sig-1', 3), ('rejected', 'policy_frozen', NULL, 4))
      AS s (status, reject_code, signature, number);
INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros, credits_posted_after,
                      debits_posted_after, debits_pending_after, created_at)
  VALUES ('{AGENT}', 1, 'deposit', 'dep_1', 100, 100, 0, 0, moment()),
         ('{AGENT}', 2, 'reserve', 'txn_1', 20, 100, 0, 20, moment()),
         ('{AGENT}', 3, 'post', 'txn_1', 20, 100, 20, 0, moment());
INSERT INTO withdrawal (id, realm_id, agent_id, amount_micros, destination, status, failure_code,
                        network, created_by, created_at, signature, settled_at)
  VALUES ('wdr_pending', 1001, '{AGENT}', 5, 'payee', 'pending', NULL, 'localnet', 'key_1',
          moment(), NULL, NULL),
         ('wdr_settled', 1001, '{AGENT}', 5, 'payee', 'settled', NULL, 'localnet', 'key_1',
          moment(), 'sig-2', moment()),
         ('wdr_failed', 1001, '{AGENT}', 5, 'payee', 'failed', 'destination_invalid', 'localnet',
          'key_1', moment(), NULL, NULL);
INSERT INTO deposit (id, realm_id, agent_id, amount_micros, token_account, signature, status,
                     created_at, credited_at)
  VALUES ('dep_1', 1001, '{AGENT}', 100, 'account-1', 'in-1', 'credited', moment(), moment()),
         ('dep_2', 1001, '{AGENT}', 100, 'account-1', 'in-2', 'pending', moment(), NULL);
INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, state, attempts,
                     leased_until, created_at)
  SELECT 'txn_' || state, 'test', 1001, '{AGENT}', 5, 'payee', state, 1, moment(), moment()
    FROM unnest(ARRAY['waiting', 'live', 'settled', 'failed']) AS s (state);
INSERT INTO submission (payment_id, attempt, mode, state, raw, signature, blockhash,
                        last_valid_height, signed_slot, next_check_at, outcome)
  SELECT 'txn_' || p, 1, 'test', s, 'raw', 'sent-' || p, 'hash', 1, 1, moment(), o
    FROM (VALUES ('waiting', 'dead', 'expired'), ('live', 'live', NULL),
                 ('settled', 'settled', 'finalized')) AS x (p, s, o);
INSERT INTO usage VALUES ('{AGENT}', 'day', '2026-11-15', 10, 1, 40);
INSERT INTO recipient
VALUES (1001, 'api.example.com', '{"1" * 32}', 'key_1', moment(), 'key_1', moment());
INSERT INTO seal (number, xact_below, transfer_count, hash) VALUES (1, '1', 1, sha256('x'::bytea));
INSERT INTO audit_log (line_id, realm_id, actor, request_id, action, subject)
  VALUES ('log_1', 1001, 'key_1', 'req_1', 'agent.created', '{AGENT}');
INSERT INTO pin (realm_id, origin, address, created_by, created_at, updated_at)
  VALUES (1001, 'https://api.example.com:443', '{"1" * 32}', 'key_1', moment(), moment());
INSERT INTO purchase (id, realm_id, agent_id, mode, url, method, host, origin, brought, digest,
                      created_by, created_at, updated_at, status, reject_code, failure_code,
                      protocol, amount_micros, pay_to, spend_id, raw, signature, fee_payer,
                      blockhash, last_valid_height, signed_slot, signed_at, next_check_at)
  SELECT 'pur_' || s.name, 1001, '{AGENT}', 'test', 'https://api.example.com/', 'GET',
         'api.example.com', 'https://api.example.com:443', false, sha256('asked'::bytea), 'key_1',
         moment(), moment(), s.status, s.reject_code, s.failure_code,
         CASE WHEN s.priced THEN 'x402' END, CASE WHEN s.priced THEN 10 END,
         CASE WHEN s.priced THEN 'payee' END, CASE WHEN s.priced THEN 'txn_of_' || s.name END,
         CASE WHEN s.signed THEN 'raw'::bytea END, CASE WHEN s.signed THEN 'sig-' || s.name END,
         CASE WHEN s.signed THEN 'sponsor' END, CASE WHEN s.signed THEN 'hash' END,
         CASE WHEN s.signed THEN 1 END, CASE WHEN s.signed THEN 1 END,
         CASE WHEN s.signed THEN moment() END,
         CASE WHEN s.status = 'presented' THEN moment() END
    FROM (VALUES ('asking', 'open', NULL, NULL, false, false),
                 ('open', 'open', NULL, NULL, true, false),
                 ('free', 'free', NULL, NULL, false, false),
                 ('failed', 'failed', NULL, 'interrupted', true, false),
                 ('rejected', 'rejected', 'policy_frozen', NULL, false, false),
                 ('pending', 'pending', NULL, NULL, true, false),
                 ('presented', 'presented', NULL, NULL, true, true),
                 ('paid', 'paid', NULL, NULL, true, true),
                 ('unpaid', 'unpaid', NULL, NULL, true, true))
      AS s (name, status, reject_code, failure_code, priced, signed);
INSERT INTO master_key (version) VALUES (1);
INSERT INTO purchase_secret (owner, purchase_id, kind, agent_id, master_version, sealed, bytes,
                             expires_at)
  VALUES ('pur_paid header', 'pur_paid', 'header', '{AGENT}', 1, 'sealed', 6, moment());
INSERT INTO outflows_known (agent_id, mode) VALUES ('{AGENT}', 'test');
"""


@pytest.fixture(scope="module")
async def rows(new_database: NewDatabase) -> AsyncGenerator[asyncpg.Connection]:
    """A connection inside a transaction that holds one good row of everything."""
    dsn = await new_database()
    await migrate(dsn)
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(ROWS)
        # Deferred constraints speak at once from here on.
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        yield connection
    finally:
        await transaction.rollback()
        await connection.close()


def _transfer(**changes: object) -> str:
    values = {
        "agent_id": f"'{AGENT}'",
        "number": 4,
        "kind": "'deposit'",
        "subject_id": "'dep_2'",
        "amount_micros": 5,
        "credits_posted_after": 105,
        "debits_posted_after": 20,
        "debits_pending_after": 0,
        "created_at": "moment()",
    } | changes
    return _insert("transfer", values)


def _policy(**changes: object) -> str:
    values = {
        "agent_id": f"'{AGENT}'",
        "version": 2,
        "cap_micros_daily": 10000,
        "allowlist": "'{}'",
        "blocklist": "'{}'",
        "payees": "'pinned'",
        "frozen": "false",
        "changed_by": "'key_1'",
        "changed_at": "moment()",
    } | changes
    return _insert("policy", values)


def _budget(**changes: object) -> str:
    values = {
        "id": "'lim_1'",
        "realm_id": 1001,
        "name": "'b'",
        "level": 1,
        "limits": "'[]'",
        "created_by": "'key_1'",
        "created_at": "moment()",
        "updated_at": "moment()",
    } | changes
    return _insert("budget", values)


def _insert(table: str, values: dict[str, object]) -> str:
    names, items = ", ".join(values), ", ".join(str(value) for value in values.values())
    return f"INSERT INTO {table} ({names}) VALUES ({items})"


def _set(table: str, changes: str, where: str = "true") -> str:
    return f"UPDATE {table} SET {changes} WHERE {where}"


def _spend(changes: str, status: str = "approved") -> str:
    return _set("spend", changes, f"id = 'txn_{status}'")


def _new_spend(**changes: object) -> str:
    values = {
        "id": "'txn_new'",
        "realm_id": 1001,
        "agent_id": f"'{AGENT}'",
        "amount_micros": 10,
        "recipient": "'api.example.com'",
        "pay_to": "'payee'",
        "status": "'approved'",
        "verdict": "'approved'",
        "policy_version": 1,
        "terms": "'[]'",
        "used": "'{}'",
        "network": "'localnet'",
        "created_by": "'key_1'",
        "created_at": "moment()",
        "updated_at": "moment()",
        "decision_number": 5,
    } | changes
    return _insert("spend", values)


def _refused_long_ago(
    status: str = "rejected", verdict: str = "rejected", created_at: str = "2025-01-01 23:59:59.999"
) -> str:
    code = "'x'" if status == "rejected" else "NULL"
    return _new_spend(
        status=f"'{status}'",
        verdict=f"'{verdict}'",
        reject_code=code,
        created_at=f"'{created_at}Z'",
    )


RISEN = "UPDATE horizon SET refusals = '2025-01-02'"
FORGOTTEN = "DELETE FROM spend WHERE id = 'txn_new'"
STOPPED = "stopped_at = moment(), stopped_by = 'key_1', stop_reason = 'a look'"


def _withdrawal(changes: str, status: str = "pending") -> str:
    return _set("withdrawal", changes, f"id = 'wdr_{status}'")


def _payment(changes: str, state: str = "waiting") -> str:
    return _set("payment", changes, f"id = 'txn_{state}'")


def _submission(changes: str, payment: str = "live") -> str:
    return _set("submission", changes, f"payment_id = 'txn_{payment}'")


def _purchase(changes: str, name: str = "open") -> str:
    return _set("purchase", changes, f"id = 'pur_{name}'")


def _new_purchase(**changes: object) -> str:
    values = {
        "id": "'pur_new'",
        "realm_id": 1001,
        "agent_id": f"'{AGENT}'",
        "mode": "'test'",
        "url": "'https://api.example.com/'",
        "method": "'GET'",
        "host": "'api.example.com'",
        "origin": "'https://api.example.com:443'",
        "brought": "false",
        "digest": "sha256('asked'::bytea)",
        "created_by": "'key_1'",
        "created_at": "moment()",
        "updated_at": "moment()",
        "status": "'open'",
    } | changes
    return _insert("purchase", values)


def _changes(values: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


SIGNED = {
    "raw": "'raw'",
    "signature": "'sig-new'",
    "fee_payer": "'sponsor'",
    "blockhash": "'hash'",
    "last_valid_height": "1",
    "signed_slot": "1",
    "signed_at": "moment()",
}
PRESENTED = {"status": "'presented'", "next_check_at": "moment()", **SIGNED}
PRICED = {
    "protocol": "'x402'",
    "amount_micros": "10",
    "pay_to": "'payee'",
    "spend_id": "'txn_new'",
}
KEYED = {"idempotency_key": "'once'", "fingerprint": "sha256('x'::bytea)"}

WINDOWS = ("hour", "day", "week", "month", "life")
APPEND_ONLY = ("audit_log", "policy", "transfer", "seal")
A_COLUMN = {"audit_log": "actor", "policy": "version", "transfer": "number", "seal": "number"}

# A statement, and the constraint or trigger that refuses it.
REFUSED: list[tuple[str, str]] = [
    # Wallets
    (_set("wallet", "debits_pending = 81"), "no_overdraft"),
    (_set("wallet", "debits_posted = 71"), "no_overdraft"),
    (_set("wallet", "debits_pending = -1"), "micros_check"),
    (_set("wallet", "debits_posted = -1"), "micros_check"),
    (_set("wallet", "credits_posted = credits_posted - 1"), "wallet_totals_only_rise"),
    (_set("wallet", "debits_posted = debits_posted - 1"), "wallet_totals_only_rise"),
    (_set("wallet", "transfers = 6"), "wallet_decisions_only_rise"),
    (_set("wallet", "rules = rules - 1"), "wallet_totals_only_rise"),
    (_set("wallet", "windows_at = windows_at - interval '1 ms'"), "wallet_decisions_only_rise"),
    (_set("wallet", "day_micros = 101"), "cap_not_passed"),
    (_set("wallet", "day_cap_micros = 9"), "cap_not_passed"),
    (_set("wallet", "day_lamports = 401"), "network_cap_not_passed"),
    (_set("wallet", "day_cap_lamports = 39"), "network_cap_not_passed"),
    *((_set("wallet", f"{window}_micros = -1"), "micros_check") for window in WINDOWS),
    *((_set("wallet", f"{window}_count = -1"), "counted_check") for window in WINDOWS),
    (_set("wallet", "day_lamports = -1"), "counted_check"),
    (_set("wallet", "pending_count = -1"), "counted_check"),
    (_set("wallet", "debits_posted = 100, debits_pending = 0"), "status_follows_balance"),
    (_set("wallet", "status = 'depleted'"), "status_follows_balance"),
    (_set("wallet", "status = 'provisioned', last_funded_at = NULL"), "status_follows_balance"),
    (_set("wallet", "last_funded_at = NULL"), "funded_has_a_date"),
    (
        _set("wallet", "status = 'rich', debits_posted = 100, debits_pending = 0"),
        "wallet_status_check",
    ),
    (_set("wallet", "realm_id = 1002"), "wallet_agent_id_realm_id_fkey"),
    ("DELETE FROM wallet", "append-only"),
    ("TRUNCATE wallet", "append-only"),
    # Spends: every state with what it needs, and no other move
    (_spend("status = 'rejected'"), "rejected_has_a_code"),
    (_spend("reject_code = 'policy_frozen'"), "rejected_has_a_code"),
    (_spend("reject_code = NULL", "rejected"), "rejected_has_a_code"),
    (_spend("status = 'settled'"), "settled_is_on_chain"),
    (_spend("status = 'settled', signature = 'sig-2'"), "settled_is_on_chain"),
    (_spend("status = 'settled', settled_at = moment()"), "settled_is_on_chain"),
    (_spend("signature = 'sig-2'"), "settled_is_on_chain"),
    (_spend("settled_at = moment()"), "settled_is_on_chain"),
    (_spend("block_time = 1"), "settled_is_on_chain"),
    (_spend("signature = NULL", "settled"), "settled_is_on_chain"),
    (_spend("settled_at = NULL", "settled"), "settled_is_on_chain"),
    (
        _spend("status = 'settled', signature = 'sig-1', settled_at = moment()"),
        "spend_signature",
    ),
    (_spend("expires_at = NULL", "pending"), "pending_expires"),
    (_spend("decided_by = 'key_1'"), "decided_by_someone"),
    (_spend("decided_at = moment()"), "decided_by_someone"),
    (_spend("decision_reason = 'because'"), "decided_by_someone"),
    (_spend("status = 'paid'"), "spend_moves"),
    (_spend("status = 'pending'"), "spend_moves"),
    (
        _spend("status = 'settled', signature = 's', settled_at = moment()", "pending"),
        "spend_moves",
    ),
    (_spend("status = 'approved', signature = NULL, settled_at = NULL", "settled"), "spend_moves"),
    (
        _spend(
            "status = 'rejected', reject_code = 'x', signature = NULL, settled_at = NULL", "settled"
        ),
        "spend_moves",
    ),
    (_spend("status = 'approved', reject_code = NULL", "rejected"), "spend_moves"),
    (_spend("status = 'pending', reject_code = NULL", "rejected"), "spend_moves"),
    (_spend("amount_micros = 11"), "spend_terms_are_fixed"),
    (_spend("recipient = 'other.example.com'"), "spend_terms_are_fixed"),
    (_spend("pay_to = 'someone else'"), "spend_terms_are_fixed"),
    (_spend("created_at = created_at - interval '1 day'"), "spend_terms_are_fixed"),
    (_spend(f"agent_id = '{OTHER}', realm_id = 1002"), "spend_terms_are_fixed"),
    (_spend("verdict = 'pending'"), "spend_terms_are_fixed"),
    (_spend("terms = '[1]'"), "spend_terms_are_fixed"),
    (_spend("used = '{1}'"), "spend_terms_are_fixed"),
    (_spend("idempotency_key = 'another'"), "spend_terms_are_fixed"),
    (_spend("idempotency_key = NULL"), "spend_terms_are_fixed"),
    (_spend("fingerprint = sha256('other'::bytea)"), "spend_terms_are_fixed"),
    (_spend("fingerprint = NULL"), "spend_terms_are_fixed"),
    (_spend("memo = repeat('x', 201)"), "spend_memo_check"),
    (
        _new_spend(idempotency_key="'once-approved'", fingerprint="sha256('x'::bytea)"),
        "spend_key",
    ),
    (_new_spend(idempotency_key="'once-more'"), "key_has_a_fingerprint"),
    (_new_spend(fingerprint="sha256('x'::bytea)"), "key_has_a_fingerprint"),
    (_new_spend(verdict="'perhaps'"), "verdict_comes_first"),
    (_new_spend(verdict="'rejected'"), "verdict_comes_first"),
    (_new_spend(amount_micros=0), "spend_amount_micros_check"),
    (_new_spend(pay_to="NULL"), "live_spend_has_a_payee"),
    (_spend("fee_lamports = -1"), "spend_costs_are_costs"),
    (_spend("rent_lamports = -1"), "spend_costs_are_costs"),
    (_spend("decision_number = 0"), "spend_decision_number_check"),
    ("DELETE FROM spend", "append-only"),
    ("DELETE FROM spend WHERE verdict = 'rejected'", "append-only"),
    *(
        (f"{_refused_long_ago(status, verdict)}; {RISEN}; {FORGOTTEN}", "append-only")
        for status, verdict in (("approved", "approved"), ("rejected", "approved"))
    ),
    (
        f"{_refused_long_ago(created_at='2025-01-02')}; {RISEN}; {FORGOTTEN}",
        "append-only",
    ),
    (_set("horizon", "refusals = (moment() AT TIME ZONE 'UTC')::date - 89"), "horizon_only_rises"),
    (
        "UPDATE horizon SET refusals = '2026-01-02'; UPDATE horizon SET refusals = '2026-01-01'",
        "horizon_only_rises",
    ),
    ("INSERT INTO horizon (refusals) VALUES ('2026-01-01')", "horizon_pkey"),
    ("INSERT INTO horizon VALUES (false, '2026-01-01')", "horizon_one_check"),
    ("DELETE FROM horizon", "append-only"),
    ("TRUNCATE horizon", "append-only"),
    ("TRUNCATE spend", "append-only"),
    # The ledger
    (_transfer(amount_micros=0), "transfer_amount_micros_check"),
    (_transfer(amount_micros=-1), "micros_check"),
    (_transfer(credits_posted_after=19), "no_overdraft_after"),
    (_transfer(debits_pending_after=86), "no_overdraft_after"),
    (_transfer(debits_posted_after=-1), "micros_check"),
    (_transfer(kind="'gift'"), "transfer_kind_check"),
    (_transfer(number=0), "transfer_number_check"),
    (_transfer(number=1), "transfer_pkey"),
    (_transfer(subject_id="'dep_1'"), "transfer_deposits_once"),
    # A spend is reserved once: its own row is made in that commit.
    (_new_spend(id="'txn_approved'"), "spend_pkey"),
    (_transfer(kind="'post'", subject_id="'txn_1'"), "transfer_closes_once"),
    (_transfer(kind="'void'", subject_id="'txn_1'"), "transfer_closes_once"),
    # What the day and the totals hold
    (_set("usage", "micros = -1"), "micros_check"),
    (_set("usage", "spends = -1"), "usage_spends_check"),
    (_set("usage", "lamports = -1"), "usage_lamports_check"),
    (f"INSERT INTO usage VALUES ('{AGENT}', 'day', '2026-11-15', 0, 0)", "usage_pkey"),
    (_set("wallet", "decisions = -1"), "counted_check"),
    (_set("wallet", "decisions = decisions - 1"), "wallet_decisions_only_rise"),
    (_set("wallet", "windows_at = NULL"), "wallet_decisions_only_rise"),
    (_set("wallet", "forgotten = -1"), "counted_check"),
    (_set("wallet", "forgotten = 2; UPDATE wallet SET forgotten = 1"), "wallet_totals_only_rise"),
    (_set("realm", "rules = rules - 1"), "realm_rules_only_rise"),
    (_set("usage", "window_kind = 'year'"), "usage_window_kind_check"),
    (
        "INSERT INTO spend_total VALUES (1001, '', '2026-11-15', 'a.example', 1, 1, -5)",
        "micros_check",
    ),
    (
        "INSERT INTO day_total VALUES (1001, '', '2026-11-15', 1, -1, 0)",
        "day_total_rejected_count_check",
    ),
    (
        "INSERT INTO recipient_total VALUES (1001, '', 'a.example', 0)",
        "recipient_total_settled_micros_check",
    ),
    # Policies
    (_policy(cap_micros_daily=-10000), "micros_check"),
    (_policy(cap_micros_daily=10001), "policy_cap_micros_daily_check"),
    (_policy(cap_micros_per_transaction=1), "policy_cap_micros_per_transaction_check"),
    (_policy(approval_threshold_micros=1), "policy_approval_threshold_micros_check"),
    (_policy(version=0), "policy_version_check"),
    (_policy(version=1), "policy_pkey"),
    (
        _policy(allowlist="array_fill('a.example'::text, ARRAY[1001])"),
        "policy_allowlist_check",
    ),
    # Meters and budgets
    *((_set("meter", f"{window}_micros = -1"), "micros_check") for window in WINDOWS),
    *((_set("meter", f"{window}_count = -1"), "counted_check") for window in WINDOWS),
    (_set("meter", "decisions = decisions - 1"), "meter_only_rises"),
    (_set("meter", "rules = rules - 1"), "meter_only_rises"),
    (_set("meter", "windows_at = windows_at - interval '1 ms'"), "meter_only_rises"),
    (_set("meter", "windows_at = NULL"), "meter_only_rises"),
    ("DELETE FROM meter WHERE id = 'lim_1'", "append-only"),
    ("TRUNCATE meter CASCADE", "append-only"),
    (_budget(id="'bud_9'"), "budget_id_fkey"),
    (_budget(parent_id="'bud_9'"), "budget_parent_id_fkey"),
    (_budget(realm_id=1002, parent_id="'bud_1'"), "budget_parent_id_realm_id_fkey"),
    (_budget(level=5), "budget_level_check"),
    (_budget(level=0), "budget_level_check"),
    (_budget(name="''"), "budget_name_check"),
    (_set("budget", "parent_id = NULL", "id = 'bud_2'"), "budget_stays_in_place"),
    (_set("budget", "parent_id = 'bud_2'", "id = 'bud_1'"), "budget_stays_in_place"),
    (_set("budget", "level = 3", "id = 'bud_2'"), "budget_stays_in_place"),
    (_set("budget", "realm_id = 1002", "id = 'bud_2'"), "budget_stays_in_place"),
    ("DELETE FROM budget WHERE id = 'bud_1'", "budget_parent_id_fkey"),
    (
        _set("agent", "budget_id = 'bud_2'", f"id = '{OTHER}'"),
        "agent_budget_id_realm_id_fkey",
    ),
    (_spend("budget_id = 'bud_1'"), "spend_terms_are_fixed"),
    # Agents
    (_set("agent", "policy_version = 2"), "agent_id_policy_version_fkey"),
    (_set("agent", "status = 'terminated'"), "terminated_has_a_date"),
    (_set("agent", "terminated_at = moment()"), "terminated_has_a_date"),
    (_set("agent", "status = 'asleep'"), "agent_status_check"),
    (_set("agent", "name = ''"), "agent_name_check"),
    (_set("agent", "metadata = '[]'"), "agent_metadata_check"),
    (f"DELETE FROM agent WHERE id = '{OTHER}'", "policy_agent_id_fkey"),
    ("TRUNCATE agent CASCADE", "append-only"),
    (
        f"INSERT INTO agent_label VALUES ('{AGENT}', 1002, 'team', sha256('x'::bytea), moment())",
        "agent_label_agent_id_realm_id_fkey",
    ),
    # Keys
    (_set("api_key", "scope = 'agent'"), "agent_scope_has_an_agent"),
    (_set("api_key", f"agent_id = '{AGENT}'"), "agent_scope_has_an_agent"),
    (
        _set("api_key", f"scope = 'agent', agent_id = '{OTHER}'", "id = 'key_1'"),
        "api_key_agent_id_realm_id_fkey",
    ),
    (_set("api_key", "revoked_at = NULL", "id = 'key_2'"), "api_key_is_revoked_for_good"),
    (_set("api_key", "hash = 'short'"), "sha256_check"),
    (_set("api_key", "scope = 'owner'"), "api_key_scope_check"),
    (
        "INSERT INTO api_key SELECT 'key_3', 1001, 'admin', NULL, 'k', sha256('1'::bytea)",
        "api_key_hash_key",
    ),
    # Accounts and networks
    ("INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'prod')", "mode_check"),
    ("INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test')", "realm_account_id_mode_key"),
    ("INSERT INTO account (id, name) VALUES ('acc_3', 'one')", "account_name_key"),
    (
        "INSERT INTO network VALUES ('test', 'g', 'm', 6), ('live', 'g', 'm', 6)",
        "network_genesis_hash_key",
    ),
    (
        "INSERT INTO network VALUES ('test', 'g', 'm', 9)",
        "network_decimals_check",
    ),
    # Withdrawals: as spends
    (_withdrawal("status = 'settled'"), "settled_withdrawal_is_on_chain"),
    (_withdrawal("status = 'settled', signature = 's'"), "settled_withdrawal_is_on_chain"),
    (_withdrawal("signature = 's'"), "settled_withdrawal_is_on_chain"),
    (
        _withdrawal("status = 'settled', signature = 'sig-2', settled_at = moment()"),
        "withdrawal_signature",
    ),
    (_withdrawal("status = 'failed'"), "failed_has_a_code"),
    (_withdrawal("failure_code = 'settlement_failed'"), "failed_has_a_code"),
    (_withdrawal("status = 'lost'"), "withdrawal_status_check"),
    (_withdrawal("amount_micros = 6"), "withdrawal_moves"),
    (_withdrawal("destination = 'me'"), "withdrawal_moves"),
    (_withdrawal("memo = 'x'", "settled"), "withdrawal_moves"),
    (_withdrawal("status = 'pending', failure_code = NULL", "failed"), "withdrawal_moves"),
    ("DELETE FROM withdrawal", "append-only"),
    ("TRUNCATE withdrawal", "append-only"),
    # Deposits: once each
    (_set("deposit", "status = 'credited'", "id = 'dep_2'"), "credited_has_a_date"),
    (_set("deposit", "amount_micros = 1", "id = 'dep_1'"), "deposit_is_credited_once"),
    (_set("deposit", "signature = 'in-3'", "id = 'dep_2'"), "deposit_is_credited_once"),
    (
        (
            "INSERT INTO deposit SELECT 'dep_3', realm_id, agent_id, 1, token_account, NULL,"
            " signature, NULL, 'pending', moment(), NULL FROM deposit WHERE id = 'dep_1'"
        ),
        "deposit_signature_token_account_key",
    ),
    ("DELETE FROM deposit", "append-only"),
    ("TRUNCATE deposit", "append-only"),
    # Payments and their attempts
    (_payment("amount_micros = 6"), "payment_moves"),
    (_payment("destination = 'me'"), "payment_moves"),
    (_payment("state = 'live'", "settled"), "payment_moves"),
    (_payment("state = 'waiting'", "failed"), "payment_moves"),
    (_payment("state = 'lost'"), "payment_state_check"),
    (_payment("attempts = -1"), "payment_counts_up"),
    (_payment("cost_lamports = -1"), "payment_counts_up"),
    (_payment("called_off_by = 'key_1', attempts = 1"), "called_off_is_not_signed"),
    (_payment("called_off_by = 'key_1', state = 'live'"), "called_off_is_not_signed"),
    (_set("realm", "stopped_at = moment()"), "stop_is_whole"),
    (_set("realm", "stopped_by = 'key_1'"), "stop_is_whole"),
    (_set("realm", "stop_holds_unsigned = true"), "stop_is_whole"),
    (_set("realm", STOPPED.replace("a look", "")), "realm_stop_reason_check"),
    ("DELETE FROM payment", "append-only"),
    ("TRUNCATE payment CASCADE", "append-only"),
    (_submission("state = 'dead'"), "ended_has_an_outcome"),
    (_submission("outcome = 'expired'"), "ended_has_an_outcome"),
    (_submission("raw = 'other'"), "submission_is_final"),
    (_submission("signature = 'other'"), "submission_is_final"),
    (_submission("state = 'live', outcome = NULL", "waiting"), "submission_is_final"),
    (
        (
            "INSERT INTO submission (payment_id, attempt, mode, state, raw, signature, blockhash,"
            " last_valid_height, signed_slot, next_check_at) SELECT payment_id, 2, mode, state,"
            " raw, 'sent-2', blockhash, 1, 1, moment() FROM submission WHERE state = 'live'"
        ),
        "submission_one_alive",
    ),
    ("DELETE FROM submission", "append-only"),
    ("TRUNCATE submission", "append-only"),
    # Purchases: every state with what it needs, no other move, and one signature
    (_new_purchase(**PRICED | {"status": "'bought'"}), "purchase_status_check"),
    (_new_purchase(status="'rejected'"), "rejected_purchase_has_a_code"),
    (_new_purchase(reject_code="'policy_frozen'"), "rejected_purchase_has_a_code"),
    (_new_purchase(status="'failed'"), "failed_purchase_has_a_code"),
    (_new_purchase(failure_code="'interrupted'"), "failed_purchase_has_a_code"),
    (_new_purchase(amount_micros=10), "priced_purchase_has_a_spend"),
    (_new_purchase(protocol="'x402'"), "priced_purchase_has_a_spend"),
    (_new_purchase(spend_id="'txn_new'"), "priced_purchase_has_a_spend"),
    (_new_purchase(status="'pending'"), "priced_purchase_has_a_spend"),
    (_new_purchase(**PRICED | {"amount_micros": "0"}), "purchase_amount_micros_check"),
    (_new_purchase(amount_micros=-1), "micros_check"),
    (_new_purchase(max_micros=-1), "micros_check"),
    (_new_purchase(**PRICED | {"protocol": "'cash'"}), "purchase_protocol_check"),
    (_new_purchase(mode="'prod'"), "mode_check"),
    (_new_purchase(url="repeat('x', 2049)"), "purchase_url_check"),
    (_new_purchase(memo="repeat('x', 201)"), "purchase_memo_check"),
    (_new_purchase(problem="repeat('x', 1001)"), "purchase_problem_check"),
    (_new_purchase(claimed="repeat('x', 89)"), "purchase_claimed_check"),
    (_new_purchase(digest="'short'"), "sha256_check"),
    (_new_purchase(idempotency_key="'once'"), "purchase_key_has_a_fingerprint"),
    (_new_purchase(fingerprint="sha256('x'::bytea)"), "purchase_key_has_a_fingerprint"),
    (_new_purchase(**KEYED | {"fingerprint": "'short'"}), "purchase_key_has_a_fingerprint"),
    (_new_purchase(**KEYED | {"idempotency_key": "''"}), "purchase_key_has_a_fingerprint"),
    (_new_purchase(**KEYED) + "; " + _new_purchase(id="'pur_2'", **KEYED), "purchase_key"),
    (_new_purchase(realm_id=1002), "purchase_agent_id_realm_id_fkey"),
    (_new_purchase(**PRICED | {"spend_id": "'txn_of_open'"}), "purchase_spend_id_key"),
    (_new_purchase(next_check_at="moment()"), "only_presented_is_looked_for"),
    (_purchase(_changes(PRESENTED | {"next_check_at": "NULL"})), "only_presented_is_looked_for"),
    (_purchase("next_check_at = NULL", "presented"), "only_presented_is_looked_for"),
    (_purchase("next_check_at = moment()", "paid"), "only_presented_is_looked_for"),
    (_purchase(_changes(SIGNED)), "signed_once"),
    (_purchase("status = 'presented', next_check_at = moment()"), "signed_once"),
    *((_purchase(_changes(PRESENTED | {missing: "NULL"})), "signed_once") for missing in SIGNED),
    (
        _purchase(_changes(PRESENTED | {"signature": "'sig-presented'"}), "pending"),
        "purchase_signature_key",
    ),
    (_purchase(_changes(PRESENTED), "asking"), "priced_purchase_has_a_spend"),
    *(
        (
            _purchase("status = 'open', reject_code = NULL, failure_code = NULL", ended),
            "purchase_moves",
        )
        for ended in ("free", "failed", "rejected", "pending")
    ),
    (_purchase("status = 'free'", "pending"), "purchase_moves"),
    (_purchase(_changes(PRESENTED | {"failure_code": "NULL"}), "failed"), "purchase_moves"),
    (_purchase("status = 'pending', next_check_at = NULL", "presented"), "purchase_moves"),
    (
        _purchase("status = 'failed', failure_code = 'x', next_check_at = NULL", "presented"),
        "purchase_moves",
    ),
    (_purchase("status = 'unpaid'", "paid"), "purchase_moves"),
    (_purchase("status = 'paid'", "unpaid"), "purchase_moves"),
    (_purchase("status = 'presented', next_check_at = moment()", "paid"), "purchase_moves"),
    *(
        (_purchase(change, "presented"), "purchase_is_signed_once")
        for change in (
            *("signature = 'other'", "raw = 'other'", "fee_payer = 'other'"),
            "last_valid_height = 2",
        )
    ),
    *(
        (_purchase(change, "pending"), "purchase_is_signed_once")
        for change in (
            *("amount_micros = 11", "pay_to = 'someone else'", "pay_to = NULL"),
            *("spend_id = 'txn_other'", "url = 'https://other.example/'", "host = 'other.example'"),
            "spend_id = NULL, amount_micros = NULL, protocol = NULL",
        )
    ),
    (_purchase(f"agent_id = '{OTHER}', realm_id = 1002"), "purchase_is_signed_once"),
    (
        _purchase(_changes(PRICED | {"spend_id": "'txn_waiting'"}), "asking")
        + "; "
        + _purchase(_changes(PRESENTED), "asking"),
        "settlement pays txn_waiting",
    ),
    ("DELETE FROM purchase WHERE status = 'free'", "append-only"),
    ("TRUNCATE purchase CASCADE", "append-only"),
    # Pins, secrets, and what is known of outflows
    (_set("pin", "offered = repeat('2', 32)"), "offer_has_a_date"),
    (_set("pin", "offered_at = moment()"), "offer_has_a_date"),
    (_set("pin", "offered = 'short', offered_at = moment()"), "pin_offered_check"),
    (_set("pin", "address = 'short'"), "pin_address_check"),
    (_set("pin", "origin = 'short'"), "pin_origin_check"),
    ("INSERT INTO pin SELECT * FROM pin", "pin_pkey"),
    (_set("purchase_secret", "kind = 'diary'"), "purchase_secret_kind_check"),
    (_set("purchase_secret", "bytes = 0"), "purchase_secret_bytes_check"),
    (_set("purchase_secret", "purchase_id = 'pur_none'"), "purchase_secret_purchase_id_fkey"),
    (_set("purchase_secret", "master_version = 2"), "purchase_secret_master_version_fkey"),
    (
        (
            "INSERT INTO purchase_secret SELECT 'another', purchase_id, kind, agent_id,"
            " master_version, sealed, bytes, created_at, expires_at FROM purchase_secret"
        ),
        "purchase_secret_purchase_id_kind_key",
    ),
    (_set("outflows_known", "mode = 'prod'"), "mode_check"),
    (_set("outflows_known", "problem = repeat('x', 301)"), "outflows_known_problem_check"),
    (_set("outflows_known", "agent_id = 'ag_none'"), "outflows_known_agent_id_fkey"),
    # A stop says who and why, and payments that it called off are not signed
    (_set("realm", "stopped_at = moment()"), "stop_is_whole"),
    (_set("realm", "stopped_at = moment(), stopped_by = 'key_1'"), "stop_is_whole"),
    (_set("realm", "stop_holds_unsigned = true"), "stop_is_whole"),
    (
        _set("realm", "stopped_at = moment(), stopped_by = 'key_1', stop_reason = ''"),
        "realm_stop_reason_check",
    ),
    (_payment("called_off_by = 'key_1'"), "called_off_is_not_signed"),
    (_payment("called_off_by = 'key_1', attempts = 0", "live"), "called_off_is_not_signed"),
    (
        _payment("called_off_by = 'key_1', attempts = 0")
        + "; "
        + _payment("called_off_by = NULL, attempts = 0"),
        "payment_moves",
    ),
    (_spend("purchase_id = 'pur_new'"), "spend_terms_are_fixed"),
    # Nothing is ever written over
    *(
        (statement, "append-only")
        for table in APPEND_ONLY
        for statement in (
            _set(table, f"{A_COLUMN[table]} = {A_COLUMN[table]}"),
            _set(table, f"{A_COLUMN[table]} = {A_COLUMN[table]}", "false"),
            f"DELETE FROM {table}",
            # CASCADE: without it a foreign key refuses some of them first.
            f"TRUNCATE {table} CASCADE",
        )
    ),
]

# The moves that exist, so that the table above is not refused for some other reason.
ACCEPTED: list[str] = [
    _set("wallet", "debits_pending = 80"),
    _set("wallet", "debits_posted = 100, debits_pending = 0, status = 'depleted'"),
    _set("wallet", "credits_posted = 200, transfers = 8, last_funded_at = moment()"),
    _set("wallet", "day_micros = 100, day_lamports = 400"),
    _set("wallet", "rules = rules + 1, windows_at = windows_at + interval '1 ms'"),
    _spend("status = 'approved', decided_by = 'key_1', decided_at = moment()", "pending"),
    _spend("status = 'rejected', reject_code = 'approval_expired'", "pending"),
    _spend("status = 'settled', signature = 's', settled_at = moment(), block_time = 1"),
    _spend("status = 'rejected', reject_code = 'settlement_failed'"),
    _spend("fee_lamports = 5000", "settled"),
    f"{_refused_long_ago()}; {RISEN}; {FORGOTTEN}",
    _new_spend(),
    _new_spend(idempotency_key="'once-more'", fingerprint="sha256('x'::bytea)"),
    _transfer(),
    _transfer(kind="'reserve'", subject_id="'txn_2'", debits_pending_after=5),
    _policy(),
    _policy(cap_micros_per_transaction=0, approval_threshold_micros=20000),
    _set("agent", "status = 'terminated', terminated_at = moment()"),
    _set("agent", "status = 'paused'"),
    _set("api_key", "revoked_at = moment()", "id = 'key_1'"),
    _set("api_key", "last_used_at = moment()"),
    _set("usage", "micros = 0"),
    _withdrawal("status = 'settled', signature = 's', settled_at = moment(), block_time = 1"),
    _withdrawal("status = 'failed', failure_code = 'settlement_failed'"),
    _set("deposit", "status = 'credited', credited_at = moment(), sender = 'x'", "id = 'dep_2'"),
    _set("realm", f"{STOPPED}, stop_holds_unsigned = true"),
    _payment("state = 'live', attempts = 2"),
    _payment("state = 'waiting'", "live"),
    _payment("state = 'settled'", "live"),
    _submission("state = 'dead', outcome = 'expired'"),
    _submission("state = 'settled', outcome = 'finalized', fee_lamports = 5000"),
    _new_purchase(),
    _new_purchase(**KEYED),
    _purchase("status = 'free'", "asking"),
    _purchase("status = 'rejected', reject_code = 'max_amount_exceeded'", "asking"),
    _purchase(_changes(PRICED | {"status": "'pending'"}), "asking"),
    _purchase(_changes(PRESENTED)),
    _purchase(_changes(PRESENTED), "pending"),
    _purchase("status = 'failed', failure_code = 'interrupted'"),
    _purchase("status = 'failed', failure_code = 'terms_changed'", "pending"),
    _purchase("status = 'rejected', reject_code = 'approval_denied'", "pending"),
    _purchase("status = 'paid', next_check_at = NULL", "presented"),
    _purchase("status = 'unpaid', next_check_at = NULL", "presented"),
    _purchase("claimed = 'sig', checks = 3", "presented"),
    _set("pin", "offered = repeat('2', 32), offered_at = moment()"),
    "DELETE FROM pin",
    "DELETE FROM purchase_secret",
    _set("outflows_known", "timeline = '1', problem = 'busy'"),
    _set("realm", "stopped_at = moment(), stopped_by = 'key_1', stop_reason = 'why'"),
    _payment("called_off_by = 'key_1', attempts = 0"),
]


@pytest.mark.parametrize(("statement", "by"), REFUSED, ids=[s[:90] for s, _ in REFUSED])
async def test_the_schema_refuses(rows: asyncpg.Connection, statement: str, by: str):
    """Goal: what must never be cannot be written, whatever the code above does."""
    savepoint = rows.transaction()
    await savepoint.start()
    try:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError) as refused:
            await rows.execute(statement)
    finally:
        await savepoint.rollback()
    said = f"{refused.value.constraint_name or ''} {refused.value}"
    assert re.search(rf"\b{re.escape(by)}\b", said), said


@pytest.mark.parametrize("statement", ACCEPTED, ids=[s[:90] for s in ACCEPTED])
async def test_the_schema_accepts(rows: asyncpg.Connection, statement: str):
    """Goal: the moves that exist pass the same constraints."""
    savepoint = rows.transaction()
    await savepoint.start()
    try:
        status = await rows.execute(statement)
        assert status.split()[-1] != "0", "the statement met no row"
    finally:
        await savepoint.rollback()


async def test_a_terminated_agent_stays_so(rows: asyncpg.Connection):
    """Goal: termination is permanent in the database too."""
    savepoint = rows.transaction()
    await savepoint.start()
    try:
        where = f"id = '{AGENT}'"
        await rows.execute(_set("agent", "status = 'terminated', terminated_at = moment()", where))
        with pytest.raises(asyncpg.RestrictViolationError, match="agent_ends_for_good"):
            await rows.execute(_set("agent", "status = 'active', terminated_at = NULL", where))
    finally:
        await savepoint.rollback()


@pytest.mark.parametrize(
    ("change", "table", "raised"),
    [
        (_set("agent", "status = 'paused'", f"id = '{AGENT}'"), "wallet", 1),
        (_policy() + ";" + _set("agent", "policy_version = 2", f"id = '{AGENT}'"), "wallet", 1),
        (_set("agent", "name = 'other'", f"id = '{AGENT}'"), "wallet", 0),
        (_set("recipient", "address = repeat('2', 32)"), "realm", 1),
        ("DELETE FROM recipient", "realm", 1),
        (_set("realm", STOPPED, "id = 1001"), "realm", 1),
        (
            (
                "INSERT INTO recipient SELECT realm_id, 'b.example', address, created_by, moment(),"
                " updated_by, moment() FROM recipient"
            ),
            "realm",
            1,
        ),
    ],
    ids=["status", "policy", "name", "moved", "deleted", "stopped", "added"],
)
async def test_what_changes_the_rules_raises_their_number(
    rows: asyncpg.Connection, change: str, table: str, raised: int
):
    """Goal: no process goes on deciding by what it remembers, whoever wrote the change."""
    where = {"wallet": f"agent_id = '{AGENT}'", "realm": "id = 1001"}[table]
    savepoint = rows.transaction()
    await savepoint.start()
    try:
        before = await rows.fetchval(f"SELECT rules FROM {table} WHERE {where}")
        await rows.execute(change)
        after = await rows.fetchval(f"SELECT rules FROM {table} WHERE {where}")
    finally:
        await savepoint.rollback()
    assert after - before == raised
