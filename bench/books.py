"""Books of any size, loaded by SQL in closed form: every agent makes the same spends in rounds, so
each counter is known beforehand."""

from dataclasses import dataclass, replace
from typing import Final

import asyncpg
import msgspec

from bench.service import (
    ACCOUNT,
    DEPOSITS_AS_FROM_THE_CHAIN,
    PLENTY_LAMPORTS,
    admin_key,
    agent_key,
    know_payees,
)
from bursar.config import Config
from bursar.db import Database, Tx
from bursar.migrations.migrate import migrate
from bursar.policy.engine import Terms
from bursar.service.postgres import ADMIN_ROLE, EmbeddedPostgres

FEW: Final = 10_000
MANY: Final = 1_000_000
# Who asks and spends; books may have more agents than these.
SPENDERS: Final = 1_000
# At 600 requests a minute for each test key.
_ADMINS: Final = 4
_DAYS: Final = 30
_MICROS: Final = 10_000
_CAP_MICROS: Final = 10**13
_FUNDS_MICROS: Final = 10**14
# What each payment cost, or has reserved.
_FEE_LAMPORTS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Books:
    """A database of its own on the server, with keys to use it."""

    name: str
    dsn: str
    size: int
    agents: int
    admins: list[str]
    # Each with its agent.
    spenders: list[tuple[str, str]]


def agent_id(number: int) -> str:
    return f"ag_{number:026d}"


def transaction_id(number: int) -> str:
    return f"txn_{number:026d}"


def terms(*, single_cap: int | None = None, threshold: int | None = None) -> str:
    """What the rules said of a spend, as it is kept."""
    said = Terms(
        agent_status="active",
        frozen=False,
        lists="ppp",
        host_refused=False,
        cap_micros_per_transaction=single_cap,
        cap_micros_daily=_CAP_MICROS,
        approval_threshold_micros=threshold,
        network_budget_lamports=PLENTY_LAMPORTS,
        payment_lamports=_FEE_LAMPORTS,
        pending_max=1_000,
    )
    return msgspec.json.encode(said).decode()


async def make_books(server: EmbeddedPostgres, config: Config, size: int, agents: int) -> Books:
    name = f"books_of_{size}"
    admin = await asyncpg.connect(server.admin_dsn)
    await admin.execute(f"CREATE DATABASE {name} OWNER bursar")
    await admin.close()
    dsn = server.dsn_for(name)
    await migrate(dsn)
    db = await Database.open(dsn, 2, 600)
    config = replace(config, database_url=dsn)
    try:
        keys = [await db.transact(lambda tx: admin_key(tx, config)) for _ in range(_ADMINS)]
        await _load(server.dsn_for(name, ADMIN_ROLE), size, agents)
        spenders = [agent_id(number) for number in range(SPENDERS)]

        async def agent_keys(tx: Tx) -> list[tuple[str, str]]:
            realm_id = await tx.fetchval("SELECT realm_id FROM agent LIMIT 1")
            await know_payees(tx, realm_id)
            return [((await agent_key(tx, realm_id, a)).secret, a) for a in spenders]

        return Books(
            name, dsn, size, agents, [key.secret for key in keys], await db.transact(agent_keys)
        )
    finally:
        await db.close()


async def _load(dsn: str, size: int, agents: int) -> None:
    """`size` spends of so many agents over _DAYS days: of ten, one is refused, two are approved
    and seven are settled."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            for statement in _LOAD:
                await connection.execute(
                    statement.format(
                        size=size,
                        agents=agents,
                        days=_DAYS,
                        micros=_MICROS,
                        cap=_CAP_MICROS,
                        funds=_FUNDS_MICROS,
                        fee=_FEE_LAMPORTS,
                        lamports=PLENTY_LAMPORTS,
                        terms=terms(),
                        refusing_terms=terms(single_cap=0),
                        account=ACCOUNT,
                        rounds=size // agents,
                    )
                )
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


_LOAD: Final = (
    # References and what triggers refuse were looked up when the rows were thought out; CHECKs and
    # unique indexes hold as ever.
    "SET LOCAL session_replication_role = replica",
    "SET LOCAL maintenance_work_mem = '256MB'",
    """CREATE TEMPORARY TABLE realm_of_bench ON COMMIT DROP AS
       SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id
        WHERE a.name = '{account}' AND r.mode = 'test'""",
    # Round r is the spend number r + 1 of every agent.
    """CREATE TEMPORARY TABLE round ON COMMIT DROP AS
       SELECT r, status,
              count(*) FILTER (WHERE status <> 'rejected') OVER w AS reserves,
              count(*) FILTER (WHERE status = 'settled') OVER w AS posts
         FROM (SELECT r, CASE WHEN r % 10 = 3 THEN 'rejected' WHEN r % 10 IN (0, 5) THEN 'approved'
                              ELSE 'settled' END AS status
                 FROM generate_series(0, {rounds} - 1) AS r) AS s
       WINDOW w AS (ORDER BY r)""",
    """CREATE TEMPORARY TABLE made ON COMMIT DROP AS
       SELECT n, n % {agents} AS agent, n / {agents} AS r,
              'txn_' || lpad(n::text, 26, '0') AS id,
              'ag_' || lpad((n % {agents})::text, 26, '0') AS agent_id,
              'api' || n % 20 || '.example.com' AS recipient,
              date_trunc('day', clock_timestamp(), 'UTC') - make_interval(days => {days})
                + date_trunc('milliseconds', n * (make_interval(days => {days}) / {size})) AS at
         FROM generate_series(0, {size} - 1) AS n""",
    """INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)
       SELECT 'ag_' || lpad(n::text, 26, '0'), (SELECT id FROM realm_of_bench), 'agent ' || n,
              'pol_' || lpad(n::text, 26, '0'), moment(), moment()
         FROM generate_series(0, {agents} - 1) AS n""",
    """INSERT INTO policy (agent_id, version, cap_micros_daily, network_lamports_daily, allowlist,
                           blocklist, payees, frozen, changed_by, changed_at)
       SELECT id, 1, {cap}, {lamports}, '{{*.example.com}}', '{{}}', 'pinned', false,
              'bench', created_at
         FROM agent""",
    # Of what it used, all that is in a window or the wallet counts what came before.
    """INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to, status,
                          reject_code, verdict, terms, used, policy_version, network, created_by,
                          created_at, signature, block_time, network_lamports, fee_lamports,
                          rent_lamports, settled_at, updated_at, decision_number)
       SELECT id, (SELECT id FROM realm_of_bench), agent_id, {micros}, recipient,
              'So11111111111111111111111111111111111111112', status,
              CASE status WHEN 'rejected' THEN 'per_transaction_cap_exceeded' END,
              CASE status WHEN 'rejected' THEN 'rejected' ELSE 'approved' END,
              CASE status WHEN 'rejected' THEN '{refusing_terms}' ELSE '{terms}' END,
              ARRAY[{micros} * today, {funds} - {micros} * (reserves - (status <> 'rejected')::int),
                    {fee} * today, {fee}, 0, 1 + reserves - (status <> 'rejected')::int
                                             + posts - (status = 'settled')::int],
              1, 'localnet', 'bench', at,
              CASE status WHEN 'settled' THEN 'signature of ' || id END,
              CASE status WHEN 'settled' THEN extract(epoch FROM at)::bigint END,
              CASE status WHEN 'rejected' THEN 0 ELSE {fee} END,
              CASE status WHEN 'settled' THEN {fee} END, CASE status WHEN 'settled' THEN 0 END,
              CASE status WHEN 'settled' THEN at + interval '1 second' END,
              CASE status WHEN 'settled' THEN at + interval '1 second' ELSE at END, r + 1
         FROM (SELECT *, count(*) FILTER (WHERE status <> 'rejected') OVER (
                        PARTITION BY agent_id, date_trunc('day', at, 'UTC') ORDER BY r
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS today
                 FROM made JOIN round USING (r)) AS m
        ORDER BY n""",
    # By window; `runs`: it contains the newest decision.
    """CREATE TEMPORARY TABLE used ON COMMIT DROP AS
       SELECT agent_id, kind, start, micros, spends, lamports, newest_at,
              start = date_trunc(kind, newest_at, 'UTC') AS runs
         FROM (SELECT agent_id, kind, date_trunc(kind, created_at, 'UTC') AS start,
                      sum(amount_micros) FILTER (WHERE status <> 'rejected') AS micros,
                      count(*) FILTER (WHERE status <> 'rejected') AS spends,
                      CASE kind WHEN 'day' THEN sum(network_lamports) ELSE 0 END AS lamports
                 FROM spend, unnest(ARRAY['hour', 'day', 'week', 'month']) AS kind
                GROUP BY 1, 2, 3) AS w
         JOIN (SELECT agent_id, max(created_at) AS newest_at FROM spend GROUP BY 1) AS n
        USING (agent_id)""",
    """INSERT INTO usage (agent_id, window_kind, window_start, micros, spends, lamports)
       SELECT agent_id, kind, start, micros, spends, lamports
         FROM used WHERE NOT runs AND spends > 0""",
    """INSERT INTO wallet (agent_id, realm_id, address, mint, status, credits_posted, debits_posted,
                           debits_pending, transfers, decisions, is_low, last_funded_at,
                           windows_at, active_on, hour_micros, hour_count, day_micros, day_count,
                           week_micros, week_count, month_micros, month_count, life_micros,
                           life_count, day_cap_micros, day_lamports, day_cap_lamports)
       SELECT id, realm_id, 'address of ' || id, 'mint', 'funded', {funds},
              {micros} * posts, {micros} * (reserves - posts), 1 + reserves + posts, {rounds},
              false, created_at, newest_at, (newest_at AT TIME ZONE 'UTC')::date,
              hour_micros, hour_count, day_micros, day_count, week_micros, week_count,
              month_micros, month_count, {micros} * reserves, reserves, {cap}, lamports, {lamports}
         FROM (SELECT * FROM round ORDER BY r DESC LIMIT 1) AS last, agent
         JOIN (SELECT agent_id AS id, max(newest_at) AS newest_at,
                      coalesce(sum(micros) FILTER (WHERE kind = 'hour'), 0) AS hour_micros,
                      coalesce(sum(spends) FILTER (WHERE kind = 'hour'), 0) AS hour_count,
                      coalesce(sum(micros) FILTER (WHERE kind = 'day'), 0) AS day_micros,
                      coalesce(sum(spends) FILTER (WHERE kind = 'day'), 0) AS day_count,
                      coalesce(sum(micros) FILTER (WHERE kind = 'week'), 0) AS week_micros,
                      coalesce(sum(spends) FILTER (WHERE kind = 'week'), 0) AS week_count,
                      coalesce(sum(micros) FILTER (WHERE kind = 'month'), 0) AS month_micros,
                      coalesce(sum(spends) FILTER (WHERE kind = 'month'), 0) AS month_count,
                      sum(lamports) AS lamports
                 FROM used WHERE runs GROUP BY 1) AS windows USING (id)""",
    """INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros,
                             credits_posted_after, debits_posted_after, debits_pending_after,
                             created_at)
       SELECT id, 1, 'deposit', 'dep_' || substr(id, 4), {funds}, {funds}, 0, 0, created_at
         FROM agent""",
    """INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros,
                             credits_posted_after, debits_posted_after, debits_pending_after,
                             created_at)
       SELECT agent_id, 1 + reserves + posts - (status = 'settled')::int, 'reserve', id, {micros},
              {funds}, {micros} * (posts - (status = 'settled')::int),
              {micros} * (reserves - posts + (status = 'settled')::int), at
         FROM made JOIN round USING (r) WHERE status <> 'rejected' ORDER BY n""",
    """INSERT INTO transfer (agent_id, number, kind, subject_id, amount_micros,
                             credits_posted_after, debits_posted_after, debits_pending_after,
                             created_at)
       SELECT agent_id, 1 + reserves + posts, 'post', id, {micros}, {funds}, {micros} * posts,
              {micros} * (reserves - posts), at + interval '1 second'
         FROM made JOIN round USING (r) WHERE status = 'settled' ORDER BY n""",
    DEPOSITS_AS_FROM_THE_CHAIN,
    # As much of each end's event as the audit compares.
    """INSERT INTO event (id, realm_id, type, agent_id, data, created_at)
       SELECT 'evt_settled_' || substr(id, 13), realm_id, 'transaction.settled', agent_id,
              format('{{"id":"%s","agentId":"%s","amount":"0.010000","signature":"%s"}}', id,
                     agent_id, signature), settled_at
         FROM spend WHERE status = 'settled'""",
    """INSERT INTO payment (id, mode, realm_id, agent_id, amount_micros, destination, state,
                            leased_until, problem, created_at)
       SELECT id, 'test', realm_id, agent_id, amount_micros, pay_to,
              CASE status WHEN 'settled' THEN 'settled' ELSE 'waiting' END, created_at,
              CASE status WHEN 'settled' THEN 'found on the chain' END, created_at
         FROM spend WHERE status <> 'rejected' ORDER BY id""",
    """INSERT INTO spend_total (realm_id, agent_id, day, recipient, spend_count, rejected_count,
                                settled_micros)
       SELECT realm_id, whose.agent_id, (created_at AT TIME ZONE 'UTC')::date,
              CASE WHEN verdict = 'rejected' THEN '' ELSE recipient END,
              count(*), count(*) FILTER (WHERE status = 'rejected'),
              coalesce(sum(amount_micros) FILTER (WHERE status = 'settled'), 0)
         FROM spend
        CROSS JOIN LATERAL (VALUES (spend.agent_id), ('')) AS whose (agent_id)
        GROUP BY 1, 2, 3, 4""",
    """INSERT INTO day_total (realm_id, agent_id, day, spend_count, rejected_count, settled_micros)
       SELECT realm_id, agent_id, day, sum(spend_count), sum(rejected_count), sum(settled_micros)
         FROM spend_total GROUP BY 1, 2, 3""",
    """INSERT INTO recipient_total (realm_id, agent_id, recipient, settled_micros)
       SELECT realm_id, agent_id, recipient, sum(settled_micros)
         FROM spend_total GROUP BY 1, 2, 3 HAVING sum(settled_micros) > 0""",
)
