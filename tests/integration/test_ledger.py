"""The ledger: what it refuses, what `bursar audit` finds, and a seal that misses nothing."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.chain.port import Paid
from bursar.clock import SystemClock
from bursar.config import Config
from bursar.db import Database, Tx
from bursar.errors import InvariantBroken
from bursar.ids import new_id
from bursar.ledger import audit as auditing
from bursar.ledger import seal
from bursar.ledger.audit import SEALS, Finding, audit
from bursar.ledger.book import save
from bursar.ledger.lock import lock_agents
from bursar.ledger.model import LockedWallet
from bursar.ledger.question import Question
from bursar.ledger.seal import seal_journal
from bursar.migrations.migrate import migrate
from bursar.policy.engine import RejectCode
from bursar.service.api import Api
from bursar.service.postgres import ROLE, EmbeddedPostgres
from bursar.spend import totals
from bursar.spend.close import reject_spends
from bursar.withdrawal.withdraw import settle_withdrawals
from tests.processes import bursar, until
from tests.support import ON_CURVE, Service, new_account, new_agent, spend

# The moves themselves -----------------------------------------------------------------------------

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["deposit", "reserve", "post", "void"]),
        st.integers(min_value=-3, max_value=60),
        st.integers(min_value=0, max_value=5),
    ),
    max_size=60,
)


def wallet() -> LockedWallet:
    return LockedWallet(
        agent_id="ag_1",
        realm_id=1,
        address="address",
        mint="mint",
        status="provisioned",
        credits_posted=0,
        debits_posted=0,
        debits_pending=0,
        transfers=0,
        is_low=True,
        last_funded_at=None,
        now=datetime(2026, 11, 15, tzinfo=UTC),
    )


@given(MOVES)
def test_moves_keep_the_books(moves: list[tuple[str, int, int]]):
    """Goal: whatever is asked of a wallet, it either does and stays right, or refuses and stays
    as it was; a plain sum of what it did gives its counters again."""
    subject = wallet()
    sums = {"deposit": 0, "reserve": 0, "post": 0, "void": 0}
    for kind, amount, payment in moves:
        held = sums["reserve"] - sums["post"] - sums["void"]
        free = sums["deposit"] - sums["post"] - held
        limit = {"deposit": amount, "reserve": free, "post": held, "void": held}[kind]
        before = replace(subject, moves=list(subject.moves))
        try:
            getattr(subject, kind)(f"txn_{payment}", amount)
        except InvariantBroken:
            assert amount <= 0 or amount > limit
            # A request that broke an invariant is undone as a whole; the wallet goes with it.
            subject = before
            continue
        assert 0 < amount <= limit
        sums[kind] += amount
        done = subject.moves[-1]
        assert (done.kind, done.amount_micros, done.number) == (kind, amount, len(subject.moves))
        assert done.credits_posted_after == subject.credits_posted == sums["deposit"]
        assert done.debits_posted_after == subject.debits_posted == sums["post"]
        held = sums["reserve"] - sums["post"] - sums["void"]
        assert done.debits_pending_after == subject.debits_pending == held
        assert subject.available_micros == subject.balance_micros - held >= 0
        assert (subject.status == "funded") == (subject.balance_micros > 0)


# A database with something of everything ----------------------------------------------------------


@dataclass(frozen=True)
class Books:
    """A scratch database, what happened in it, and the superuser who can tamper with it."""

    dsn: str
    admin_dsn: str
    db: Database
    config: Config
    agent: str
    other: str
    approved: str
    pending: str
    released: str
    refused: str
    # An agent below two budgets, with a limit of one recipient.
    metered: str
    top: str
    low: str
    limit: str
    counted: str
    denied: str
    exceeding: str

    async def tamper(self, statement: str) -> None:
        """As somebody would who owns the machine: without any trigger."""
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            await connection.execute("SET session_replication_role = replica")
            await connection.execute(statement.format(**vars(self)))
        finally:
            await connection.close()

    async def findings(self) -> dict[str, Finding]:
        """What is wrong, by question."""
        return {f.question: f for f in await audit(self.db, lambda _: None) if not f.clean}


async def create_database(postgres: EmbeddedPostgres, name: str, template: str) -> None:
    connection = await asyncpg.connect(postgres.admin_dsn)
    try:
        await connection.execute(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template}")
    finally:
        await connection.close()


async def drop_database(postgres: EmbeddedPostgres, name: str) -> None:
    connection = await asyncpg.connect(postgres.admin_dsn)
    try:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@asynccontextmanager
async def serving(dsn: str, config: Config) -> AsyncGenerator[Service]:
    config = replace(config, database_url=dsn, rate_limits=False)
    db = await Database.open(dsn, 10, 10)
    api = await Api.start(config, SystemClock())
    try:
        yield Service(f"http://127.0.0.1:{api.port}", config, db)
    finally:
        await api.stop()
        await db.close()


@pytest.fixture(scope="module")
async def template(postgres: EmbeddedPostgres, config: Config) -> AsyncGenerator[dict[str, Any]]:
    """Spends of every kind on two agents, half of them under a seal, half under a second."""
    await create_database(postgres, "ledger", "template0")
    dsn = postgres.dsn_for("ledger")
    await migrate(dsn)
    made: dict[str, Any] = {}
    async with serving(dsn, config) as service, await service.admin() as client:
        for name in ("other", "agent"):
            agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
            made[name] = agent["id"]
            await service.fund(agent["id"], "50")
            once = {"Idempotency-Key": "once"}
            made["approved"] = (await spend(client, agent["id"], "1.5", headers=once))["id"]
            made["pending"] = (await spend(client, agent["id"], "6"))["id"]
            denied = (await spend(client, agent["id"], "7"))["id"]
            await client.post(f"/v1/transactions/{denied}/deny")
            made["refused"] = (await spend(client, agent["id"], "1000"))["id"]
            made["released"] = (await spend(client, agent["id"], "2"))["id"]
            # Some of the totals are folded, and some are not.
            assert await totals.fold(service.db) > 0
            await release(service.db, agent["id"], made["released"])
            path, body = f"/v1/wallets/{agent['id']}/withdraw", {"destination": ON_CURVE}
            out = await client.post(
                path, json=body | {"amount": "1"}, headers={"Idempotency-Key": agent["id"]}
            )
            await pay(service.db, agent["id"], out.json()["data"]["id"])
            await sealed(service.db)
        made |= await metered(service, client)
        await sealed(service.db)
    yield made
    await drop_database(postgres, "ledger")


async def metered(service: Service, client: httpx.AsyncClient) -> dict[str, str]:
    """Spends that limits and budgets count, refuse and get back."""
    made: dict[str, str] = {}
    for name, limits in (("top", [{"window": "month", "amount": "9.00"}]), ("low", [])):
        body = {"name": name, "limits": limits, "parentId": made.get("top")}
        made[name] = (await client.post("/v1/budgets", json=body)).json()["data"]["id"]
    limits = [{"window": "day", "count": 3, "recipient": "*.example.com"}]
    policy = {"approvalThreshold": "5.00", "limits": limits}
    agent = await new_agent(client, policy=policy, budgetId=made["low"])
    made |= {"metered": agent["id"], "limit": agent["policy"]["limits"][0]["id"]}
    await service.fund(agent["id"], "50")
    made["counted"] = (await spend(client, agent["id"], "1"))["id"]
    made["denied"] = (await spend(client, agent["id"], "6"))["id"]
    made["exceeding"] = (await spend(client, agent["id"], "4"))["id"]
    await client.post(f"/v1/transactions/{made['denied']}/deny")
    await spend(client, agent["id"], "2")
    return made


async def release(db: Database, agent_id: str, spend_id: str) -> None:
    async def work(tx: Tx) -> None:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
        locked = await lock_agents(tx, [agent_id], [realm_id])
        await tx.execute("UPDATE payment SET state = 'failed' WHERE id = $1", spend_id)
        await reject_spends(
            tx,
            locked[agent_id].wallet,
            [spend_id],
            expected="approved",
            code=RejectCode.SETTLEMENT_FAILED,
            decided_by=None,
            reason=None,
        )

    await db.transact(work)


async def pay(db: Database, agent_id: str, withdrawal_id: str) -> None:
    """Settles it with the second attempt, without a chain."""

    async def work(tx: Tx) -> None:
        await tx.execute(
            "UPDATE payment SET state = 'settled', attempts = 2 WHERE id = $1", withdrawal_id
        )
        await tx.execute(
            "INSERT INTO submission (payment_id, attempt, mode, state, raw, signature, blockhash,"
            " last_valid_height, signed_slot, next_check_at, outcome)"
            " SELECT $1::text, attempt, 'test', state, 'raw', $1::text || '/' || attempt, 'hash',"
            " 1, 1, moment(), outcome"
            " FROM (VALUES (1, 'dead', 'expired'), (2, 'settled', 'finalized'))"
            " AS a (attempt, state, outcome)",
            withdrawal_id,
        )
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
        locked = (await lock_agents(tx, [agent_id], [realm_id]))[agent_id]
        wallets = {agent_id: locked.wallet}
        paid = Paid(withdrawal_id, f"{withdrawal_id}/2", block_time=1, fee_lamports=5_000)
        await settle_withdrawals(tx, wallets, [paid])
        await save(tx, [locked.wallet])

    await db.transact(work)


async def sealed(db: Database) -> None:
    """Everything is under a seal. Transactions of others on the same server may take a moment."""

    async def all_of_it() -> bool:
        await seal_journal(db)
        async with db.connection() as tx:
            covered = await tx.fetchval("SELECT coalesce(sum(transfer_count), 0) FROM seal")
            return covered == await tx.fetchval("SELECT count(*) FROM transfer")

    await until(all_of_it, seconds=20)


@pytest.fixture
async def books(
    postgres: EmbeddedPostgres, config: Config, template: dict[str, Any]
) -> AsyncGenerator[Books]:
    await create_database(postgres, "ledger_copy", "ledger")
    dsn = postgres.dsn_for("ledger_copy")
    db = await Database.open(dsn, 5, 10)
    yield Books(
        dsn=dsn,
        admin_dsn=postgres.dsn_for("ledger_copy", "postgres"),
        db=db,
        config=replace(config, database_url=dsn),
        **template,
    )
    await db.close()
    await drop_database(postgres, "ledger_copy")


# Append-only --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["transfer", "seal", "policy", "audit_log"])
@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {}"])
async def test_the_journal_only_grows(books: Books, table: str, statement: str):
    """Goal: the database itself refuses, whoever asks; even its superuser."""
    column = {"transfer": "kind", "seal": "hash", "policy": "frozen", "audit_log": "actor"}[table]
    for dsn in (books.dsn, books.admin_dsn):
        connection = await asyncpg.connect(dsn)
        try:
            with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
                await connection.execute(
                    statement.format(table, column, column)
                    + (" CASCADE" if statement.startswith("TRUNCATE") else "")
                )
        finally:
            await connection.close()
    assert await books.findings() == {}


# Tampering ----------------------------------------------------------------------------------------

WALLETS = "every wallet is the sum of its transfers"
FOLLOWS = "every transfer follows from the one before it"
SPENDS = "every spend holds, has paid or has released exactly its amount"
RESERVES = "every reserve belongs to a payment"
USAGE = "every window's use is the sum of its spends, and the day's is within its cap"
JUDGED = "every spend was judged on what its wallet had then"
METERS = "every meter counts the spends that are its own, in each window that is open"
COUNTED = "every spend was judged on what its meters had counted then"
LIMITS = "every spend kept to the limits and budgets that it was decided under"
WAITING = "every wallet knows how many of its spends wait for a person"
PAYMENTS = "every payment is where its spend or withdrawal is"
ON_ITS_WAY = "every spend and withdrawal to be paid is on its way"
TOTALS = "the running totals are the counts of the spends"
SUMS = "the totals by day and by recipient are the sums of the running totals"
DEPOSITS = "every deposit in the journal came from the chain, and the reverse"
ATTEMPTS = "every settled payment was made by exactly one attempt"
DECISIONS = "every decision about a wallet is there once"
LOW = "every wallet knows whether it is low"
ACCOUNTS = "every account of the ledger is what its wallet says"
POLICY = "every spend kept to the policy that it was decided under"
EVENTS = "every outcome has its event (of the newest 100,000 spends and withdrawals)"
ANSWERS = "every kept answer stands for something that was done once (of the newest 100,000)"

TAMPERING = [
    # What was done, which questions find it, and whom one of them names.
    ("UPDATE wallet SET debits_pending = debits_pending - 1 WHERE agent_id = '{agent}'",
     {WALLETS, ACCOUNTS}, "agent"),
    ("UPDATE wallet SET credits_posted = credits_posted + 1000000 WHERE agent_id = '{agent}'",
     {WALLETS, ACCOUNTS}, "agent"),
    ("UPDATE wallet SET transfers = transfers + 1 WHERE agent_id = '{agent}'",
     {WALLETS}, "agent"),
    ("UPDATE wallet SET decisions = decisions + 1 WHERE agent_id = '{agent}'",
     {DECISIONS}, "agent"),
    ("UPDATE wallet SET forgotten = forgotten + 1 WHERE agent_id = '{agent}'",
     {DECISIONS, TOTALS}, "agent"),
    # A refusal of today is not forgotten, whatever the wallet says of it.
    (("DELETE FROM spend WHERE id = '{refused}';"
     " UPDATE wallet SET forgotten = forgotten + 1 WHERE agent_id = '{agent}'"), {TOTALS}, "agent"),
    # Nor is what was approved, however long ago.
    (("DELETE FROM spend WHERE id = '{pending}'; UPDATE horizon SET refusals = 'infinity';"
     " UPDATE wallet SET forgotten = forgotten + 1 WHERE agent_id = '{agent}'"),
     {TOTALS, RESERVES, USAGE, WAITING}, "agent"),
    ("UPDATE wallet SET is_low = NOT is_low WHERE agent_id = '{agent}'", {LOW}, "agent"),
    ("UPDATE spend SET amount_micros = amount_micros - 1 WHERE id = '{approved}'",
     {SPENDS, USAGE, PAYMENTS}, "approved"),
    ("UPDATE spend SET amount_micros = amount_micros + 1 WHERE id = '{released}'",
     {SPENDS, EVENTS, PAYMENTS}, "released"),
    (("UPDATE spend SET status = 'rejected', reject_code = 'approval_denied'"
     " WHERE id = '{pending}'"), {SPENDS, USAGE, TOTALS, EVENTS, WAITING}, "pending"),
    (("UPDATE spend SET status = 'approved', verdict = 'approved', reject_code = NULL"
     " WHERE id = '{refused}'"), {SPENDS, USAGE, TOTALS, ON_ITS_WAY, JUDGED}, "refused"),
    ("UPDATE spend SET used[2] = used[2] + 1 WHERE id = '{refused}'", {JUDGED}, "refused"),
    ("UPDATE spend SET used[6] = used[6] + 1 WHERE id = '{approved}'", {JUDGED}, "approved"),
    (("UPDATE spend SET status = 'settled', signature = 's', settled_at = moment()"
     " WHERE id = '{approved}'"), {SPENDS, TOTALS, ATTEMPTS, EVENTS, PAYMENTS}, "approved"),
    ("UPDATE spend SET agent_id = '{other}', idempotency_key = 'moved' WHERE id = '{approved}'",
     {JUDGED, SPENDS, USAGE, TOTALS, DECISIONS, PAYMENTS}, "approved"),
    ("UPDATE spend SET recipient = 'thief.example.com' WHERE id = '{approved}'",
     {TOTALS}, "agent"),
    ("UPDATE spend SET created_at = created_at - interval '1 day' WHERE id = '{approved}'",
     {USAGE, TOTALS}, "agent"),
    ("UPDATE spend SET decision_number = 77 WHERE id = '{refused}'", {DECISIONS}, "agent"),
    ("DELETE FROM spend WHERE id = '{refused}'", {TOTALS, DECISIONS}, "agent"),
    ("DELETE FROM spend WHERE id = '{approved}'",
     {RESERVES, USAGE, TOTALS, DECISIONS, PAYMENTS}, "approved"),
    ("UPDATE spend SET network_lamports = 1 WHERE id = '{refused}'", {USAGE}, "agent"),
    ("UPDATE transfer SET amount_micros = 1 WHERE subject_id = '{approved}'",
     {FOLLOWS, WALLETS, ACCOUNTS, SPENDS, SEALS}, "approved"),
    (("UPDATE transfer SET credits_posted_after = credits_posted_after + 1"
     " WHERE subject_id = '{approved}'"), {FOLLOWS, JUDGED, SEALS}, "agent"),
    ("UPDATE transfer SET subject_id = 'txn_nobody' WHERE subject_id = '{approved}'",
     {JUDGED, SPENDS, RESERVES, SEALS}, "approved"),
    (("UPDATE transfer SET created_at = created_at - interval '1 millisecond'"
     " WHERE subject_id = '{approved}'"), {SEALS}, None),
    ("UPDATE transfer SET xact = '1' WHERE subject_id = '{approved}'", {SEALS}, None),
    ("DELETE FROM transfer WHERE agent_id = '{agent}' AND number = 1",
     {JUDGED, FOLLOWS, WALLETS, ACCOUNTS, DEPOSITS, SEALS}, "agent"),
    ("DELETE FROM transfer WHERE agent_id = '{agent}' AND number = 3",
     {JUDGED, FOLLOWS, WALLETS, ACCOUNTS, SPENDS, SEALS}, "agent"),
    ("DELETE FROM transfer WHERE subject_id = '{released}' AND kind = 'void'",
     {FOLLOWS, WALLETS, ACCOUNTS, SPENDS, SEALS}, "released"),
    *((f"UPDATE wallet SET {window}_micros = {window}_micros - 1 WHERE agent_id = '{{agent}}'",
       {USAGE}, "agent") for window in ("hour", "day", "week", "month", "life")),
    *((f"UPDATE wallet SET {window}_count = {window}_count - 1 WHERE agent_id = '{{agent}}'",
       {USAGE}, "agent") for window in ("hour", "day", "week", "month", "life")),
    ("UPDATE wallet SET day_lamports = 0 WHERE agent_id = '{agent}'", {USAGE}, "agent"),
    ("UPDATE wallet SET pending_count = pending_count + 1 WHERE agent_id = '{agent}'",
     {WAITING}, "agent"),
    # A window that was closed too early, and one that nothing was spent in.
    (("INSERT INTO usage SELECT agent_id, 'day', date_trunc('day', windows_at, 'UTC'), day_micros,"
     " day_count, day_lamports FROM wallet WHERE agent_id = '{agent}'; UPDATE wallet"
     " SET windows_at = windows_at + interval '1 day', day_micros = 0, day_count = 0,"
     " day_lamports = 0 WHERE agent_id = '{agent}'"), {USAGE}, "agent"),
    ("INSERT INTO usage VALUES ('{agent}', 'hour', '2026-01-01', 1, 1)", {USAGE}, "agent"),
    *((f"UPDATE meter SET {window}_{what} = {window}_{what} + 1 WHERE id = '{{{meter}}}'",
       {METERS}, meter) for window in ("hour", "day", "week", "month", "life")
      for what, meter in (("micros", "top"), ("count", "limit"))),
    ("UPDATE meter SET decisions = decisions - 1 WHERE id = '{low}'", {METERS, COUNTED}, "low"),
    ("DELETE FROM meter WHERE id = '{limit}'", {METERS}, "limit"),
    # A window that should have been closed.
    ("UPDATE meter SET windows_at = windows_at + interval '32 days' WHERE id = '{top}'",
     {METERS}, "top"),
    ("UPDATE budget SET parent_id = NULL WHERE id = '{low}'", {METERS}, "top"),
    ("UPDATE spend SET budget_id = NULL WHERE id = '{counted}'", {METERS, COUNTED}, "counted"),
    ("UPDATE spend SET budget_id = '{top}' WHERE id = '{exceeding}'", {METERS}, "exceeding"),
    # The first number of the wallet, of the limit, and of the lower budget; then the lifetime's.
    *((f"UPDATE spend SET used[{place}] = used[{place}] + 9 WHERE id = '{{exceeding}}'",
       {COUNTED}, "exceeding") for place in (7, 18, 29, 27, 28, 38, 39, 49, 50)),
    # The month of the upper budget.
    ("UPDATE spend SET used[47] = 0 WHERE id = '{exceeding}'", {LIMITS}, "exceeding"),
    ("UPDATE spend SET used[47] = 8000001 WHERE id = '{counted}'", {LIMITS}, "counted"),
    ("UPDATE spend SET used[22] = 3 WHERE id = '{denied}'", {LIMITS}, "denied"),
    ("UPDATE spend SET used = used[:6] WHERE id = '{counted}'", {COUNTED, LIMITS}, "counted"),
    ("DELETE FROM payment WHERE id = '{approved}'", {ON_ITS_WAY}, "approved"),
    ("UPDATE payment SET destination = 'thief' WHERE id = '{approved}'", {PAYMENTS}, "approved"),
    ("DELETE FROM total_delta WHERE agent_id = '{agent}'", {TOTALS}, "agent"),
    ("INSERT INTO total_delta SELECT * FROM total_delta WHERE agent_id = '{agent}'",
     {TOTALS}, "agent"),
    ("UPDATE spend_total SET spend_count = spend_count - 1 WHERE agent_id = '{agent}'",
     {TOTALS, SUMS}, "agent"),
    ("UPDATE spend_total SET rejected_count = rejected_count + 1 WHERE agent_id = ''",
     {TOTALS, SUMS}, None),
    ("DELETE FROM spend_total WHERE agent_id = '{agent}'", {TOTALS, SUMS}, "agent"),
    (("INSERT INTO spend_total SELECT realm_id, agent_id, day, 'new.example.com', 1, 0, 0"
     " FROM spend_total WHERE agent_id = '{agent}' LIMIT 1"), {TOTALS, SUMS}, "agent"),
    ("UPDATE day_total SET spend_count = spend_count - 1 WHERE agent_id = '{agent}'",
     {SUMS}, "agent"),
    ("DELETE FROM day_total WHERE agent_id = ''", {SUMS}, None),
    (("INSERT INTO recipient_total SELECT realm_id, agent_id, 'new.example.com', 1"
     " FROM day_total WHERE agent_id = '{agent}'"), {SUMS}, "agent"),
    # A view that shows a release as if it had left.
    (("CREATE OR REPLACE VIEW ledger_entry AS SELECT agent_id, number, subject_id, kind,"
     " created_at, account, debit_micros, credit_micros FROM (SELECT t.*, side.* FROM transfer t"
     " CROSS JOIN LATERAL (VALUES (CASE kind WHEN 'deposit' THEN 'outside' WHEN 'reserve'"
     " THEN 'wallet:' || agent_id ELSE 'reserved:' || agent_id END, amount_micros, 0::bigint),"
     " (CASE kind WHEN 'deposit' THEN 'wallet:' || agent_id WHEN 'reserve'"
     " THEN 'reserved:' || agent_id ELSE 'outside' END, 0::bigint, amount_micros))"
     " AS side (account, debit_micros, credit_micros)) AS entry"), {ACCOUNTS}, "agent"),
    # Caps, lowered for the version that the spends were decided under.
    ("UPDATE policy SET cap_micros_daily = 7500000 - 10000 WHERE agent_id = '{agent}'",
     {POLICY}, "pending"),
    ("UPDATE policy SET cap_micros_per_transaction = 5990000 WHERE agent_id = '{agent}'",
     {POLICY}, "pending"),
    ("UPDATE policy SET frozen = true WHERE agent_id = '{agent}'", {POLICY}, "approved"),
    ("UPDATE spend SET policy_version = 7 WHERE id = '{approved}'", {POLICY}, "approved"),
    ("DELETE FROM event WHERE data LIKE '%{released}%'", {EVENTS}, "released"),
    (("UPDATE event SET data = replace(data, '\"2.000000\"', '\"2.000001\"')"
     " WHERE data LIKE '%{released}%'"), {EVENTS}, "released"),
    (("INSERT INTO event SELECT id || 'x', realm_id, type, agent_id, data, created_at"
     " FROM event WHERE type = 'transaction.rejected' AND data LIKE '%{released}%'"),
     {EVENTS}, "released"),
    ("UPDATE withdrawal SET signature = 'another' WHERE agent_id = '{agent}'",
     {EVENTS, ATTEMPTS}, None),
    ("UPDATE idempotency SET realm_id = realm_id + 1 WHERE key = '{agent}'", {ANSWERS}, None),
    (("INSERT INTO idempotency SELECT realm_id, route, 'twice', fingerprint, status, body,"
     " created_at FROM idempotency WHERE key = '{agent}'"), {ANSWERS}, "agent"),
    (("UPDATE idempotency SET body = convert_to(replace(convert_from(body, 'UTF8'), 'wdr_0',"
     " 'wdr_z'), 'UTF8') WHERE key = '{agent}'"), {ANSWERS}, None),
    ("UPDATE seal SET hash = sha256('x'::bytea) WHERE number = 1", {SEALS}, None),
    ("UPDATE seal SET transfer_count = transfer_count + 1 WHERE number = 2", {SEALS}, None),
    ("DELETE FROM seal WHERE number = 1", {SEALS}, None),
    # The seal alone stands against whoever makes everything else agree.
    (("INSERT INTO transfer SELECT agent_id, number + 1, 'deposit', 'dep_forged', 1000000,"
     " credits_posted_after + 1000000, debits_posted_after, debits_pending_after, created_at,"
     " xact FROM transfer WHERE agent_id = '{agent}' ORDER BY number DESC LIMIT 1;"
     " INSERT INTO deposit SELECT 'dep_forged', realm_id, agent_id, 1000000, token_account, NULL,"
     " 'forged', NULL, 'credited', moment(), moment() FROM deposit WHERE agent_id = '{agent}';"
     " UPDATE wallet SET credits_posted = credits_posted + 1000000, transfers = transfers + 1"
     " WHERE agent_id = '{agent}'"), {SEALS}, None),
    (("UPDATE transfer SET amount_micros = amount_micros + 1000000 WHERE agent_id = '{agent}'"
     " AND number = 1; UPDATE transfer SET credits_posted_after = credits_posted_after + 1000000"
     " WHERE agent_id = '{agent}'; UPDATE wallet SET credits_posted = credits_posted + 1000000"
     " WHERE agent_id = '{agent}'; UPDATE deposit SET amount_micros = amount_micros + 1000000"
     " WHERE agent_id = '{agent}'"), {JUDGED, SEALS}, None),
]  # fmt: skip


async def test_untouched_books_are_clean(books: Books):
    """Goal: the tampering below is what is found, nothing else."""
    findings = await audit(books.db, lambda _: None)
    assert all(finding.clean for finding in findings)
    # Purchases have their own tampering, where they are made on a chain.
    asked = [finding for finding in findings if "purchase" not in finding.question]
    assert all(finding.checked > 0 for finding in asked), "a question was asked of nothing"


@pytest.mark.parametrize(("statement", "questions", "named"), TAMPERING)
async def test_tampering_is_found(
    books: Books, statement: str, questions: set[str], named: str | None
):
    """Goal: each kind has its own finding, which names what differs."""
    await books.tamper(statement)
    found = await books.findings()
    assert set(found) == questions
    lines = [line for finding in found.values() for line in finding.differences]
    assert all(finding.difference_count == len(finding.differences) for finding in found.values())
    if named is not None:
        assert any(getattr(books, named) in line for line in lines), lines


async def test_the_command_names_the_difference_and_fails(books: Books):
    """Goal: exit code 0 or 1, for people and for programs, and a bound on the words."""
    dsn = {"database_url": books.dsn, "data_dir": str(books.config.data_dir)}
    clean = await bursar("audit", "--no-chain", **dsn)
    assert clean.code == 0, clean.err
    assert clean.out.count("ok ") == len(auditing.QUESTIONS) + 1
    assert "WRONG" not in clean.out
    await books.tamper("UPDATE wallet SET day_micros = day_micros - 1")
    await books.tamper(
        "INSERT INTO spend_total SELECT 1, 'ag_' || n, '2026-11-15', 'x', 1, 0, 0"
        " FROM generate_series(1, 100) n"
    )
    wrong = await bursar("audit", "--no-chain", **dsn)
    assert wrong.code == 1
    assert f"WRONG {USAGE} (3 differences in 3)" in wrong.out
    assert f"{books.agent} in the day of " in wrong.out
    assert "and 80 more" in wrong.out
    as_json = await bursar("audit", "--no-chain", "--json", **dsn)
    assert as_json.code == 1
    told = {row["question"]: row for row in json.loads(as_json.out)}
    assert told[WALLETS] == {
        "question": WALLETS,
        "checked": 3,
        "differences": 0,
        "named": [],
        "problem": None,
    }
    assert (told[USAGE]["differences"], len(told[USAGE]["named"])) == (3, 3)
    assert (told[TOTALS]["differences"], len(told[TOTALS]["named"])) == (100, 20)


async def test_an_audit_may_take_its_time(books: Books, monkeypatch: pytest.MonkeyPatch):
    """Goal: the service's patience with its statements is not the audit's."""
    slow = Question("a long look", "SELECT 1 FROM pg_sleep(1.5)", "SELECT '' LIMIT 0")
    monkeypatch.setattr(auditing, "QUESTIONS", (slow,))
    db = await Database.open(books.dsn, 1, 1)
    try:
        assert all(finding.clean for finding in await audit(db, lambda _: None))
    finally:
        await db.close()


# The seal -----------------------------------------------------------------------------------------


async def write_transfers(tx: Tx | asyncpg.Connection, agent_id: str, count: int) -> None:
    """Deposits of one micro-unit, and the wallet that follows from them."""
    await tx.execute(
        "WITH w AS (UPDATE wallet SET credits_posted = credits_posted + $2,"
        " transfers = transfers + $2 WHERE agent_id = $1 RETURNING *)"
        " , d AS (INSERT INTO deposit (id, realm_id, agent_id, amount_micros, token_account,"
        " signature, status, created_at, credited_at) SELECT $3 || n, realm_id, agent_id, 1,"
        " address, $3 || n, 'credited', moment(), moment() FROM w, generate_series(1, $2::int) n)"
        " INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros,"
        " credits_posted_after, debits_posted_after, debits_pending_after, created_at)"
        " SELECT agent_id, transfers - $2 + n, 'deposit', $3 || n, 1, credits_posted - $2 + n,"
        " debits_posted, debits_pending, moment() FROM w, generate_series(1, $2::int) AS n",
        agent_id,
        count,
        new_id("dep"),
    )


async def links(db: Database) -> list[tuple[int, int]]:
    """(first transaction not covered, transfers) of each link."""
    async with db.connection() as tx:
        rows = await tx.fetch(
            "SELECT xact_below::text::bigint AS below, transfer_count FROM seal ORDER BY number"
        )
    return [(row["below"], row["transfer_count"]) for row in rows]


async def assert_covered_once(books: Books) -> None:
    await sealed(books.db)
    async with books.db.connection() as tx:
        start = 0
        for below, count in await links(books.db):
            assert count == await tx.fetchval(
                "SELECT count(*) FROM transfer WHERE xact >= $1::text::xid8"
                " AND xact < $2::text::xid8",
                str(start),
                str(below),
            )
            start = below
    assert await books.findings() == {}


async def test_a_late_commit_is_sealed_later(books: Books):
    """Goal: a transaction that wrote before a seal and commits after it is not missed, although
    transactions that began later are sealed, or would have been."""
    late = await asyncpg.connect(books.dsn)
    before = len(await links(books.db))
    try:
        open_ = late.transaction()
        await open_.start()
        await write_transfers(late, books.agent, 3)
        for _ in range(3):
            async with books.db.transaction() as tx:
                await write_transfers(tx, books.other, 2)
            await seal_journal(books.db)
        # Nothing past the open one may be sealed: its number would lie in what is covered.
        assert len(await links(books.db)) == before
        await open_.commit()
    finally:
        await late.close()
    await assert_covered_once(books)
    assert sum(count for _, count in (await links(books.db))[before:]) == 9


async def test_a_transaction_that_is_undone_leaves_no_hole(books: Books):
    late = await asyncpg.connect(books.dsn)
    try:
        open_ = late.transaction()
        await open_.start()
        await write_transfers(late, books.agent, 3)
        async with books.db.transaction() as tx:
            await write_transfers(tx, books.other, 2)
        await open_.rollback()
    finally:
        await late.close()
    await assert_covered_once(books)


@pytest.mark.parametrize(
    "sizes",
    [[5], [6], [5, 5], [4, 1], [4, 2], [1] * 11, [3, 3, 3], [12, 1, 12], [5, 6, 5]],
    ids=str,
)
async def test_links_are_cut_between_transactions(
    books: Books, sizes: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Goal: a link holds at most its bound, unless a single transaction wrote more, and never half
    a transaction."""
    monkeypatch.setattr(seal, "MAX_TRANSFERS", 5)
    before = len(await links(books.db))
    for size in sizes:
        async with books.db.transaction() as tx:
            await write_transfers(tx, books.agent, size)
    await assert_covered_once(books)
    counts = [count for _, count in (await links(books.db))[before:]]
    assert sum(counts) == sum(sizes)
    assert all(count <= 5 or count in sizes for count in counts)
    assert len(counts) <= len(sizes)


async def test_sealers_take_turns(books: Books, monkeypatch: pytest.MonkeyPatch):
    """Goal: several at once, while the journal grows, make one chain."""
    monkeypatch.setattr(seal, "MAX_TRANSFERS", 7)
    writing = True

    async def write(agent_id: str) -> None:
        for size in (1, 2, 9, 3) * 5:
            async with books.db.transaction() as tx:
                await write_transfers(tx, agent_id, size)

    async def seal_on() -> None:
        while writing:
            await seal_journal(books.db)

    sealers = [asyncio.create_task(seal_on()) for _ in range(3)]
    await asyncio.gather(write(books.agent), write(books.other))
    writing = False
    await asyncio.gather(*sealers)
    await assert_covered_once(books)


# Beside a live service ----------------------------------------------------------------------------


async def test_an_audit_of_a_live_service_finds_nothing(books: Books):
    """Goal: one snapshot: spends, denials, deposits and seals that commit meanwhile are either
    wholly in it or not at all."""
    audits = spends = 0
    running = True
    async with serving(books.dsn, books.config) as service:
        key = await service.key(account=new_account())
        async with service.client(key) as client:
            agents = [
                await new_agent(client, policy={"approvalThreshold": "0.50"}) for _ in range(3)
            ]
            for agent in agents:
                await service.fund(agent["id"], "90")

            async def load(number: int) -> None:
                nonlocal spends
                agent_id = agents[number % 3]["id"]
                while running:
                    made = await spend(client, agent_id, f"0.{number + 45}")
                    spends += 1
                    if made["status"] == "pending":
                        verb = "deny" if number % 2 else "approve"
                        await client.post(f"/v1/transactions/{made['id']}/{verb}")
                    if number == 0:
                        await service.fund(agent_id, "0.000001")
                        await seal_journal(service.db)

            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(load(number))
                try:
                    while audits < 8 or spends < 100:
                        assert await books.findings() == {}
                        audits += 1
                finally:
                    running = False
    assert await books.findings() == {}
