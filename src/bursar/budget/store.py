"""Queries on budgets and on meters. Who changes a budget locks its meter first: what a decision
rests on does not change while the decision holds the meter."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from bursar.budget.model import BudgetRow, Chain, MeterRow
from bursar.db import Row, Tx
from bursar.policy.limits import BudgetTerms
from bursar.policy.store import decode_limits, encode_limits
from bursar.sql import Listing, Query, columns, made

# What decisions rest on ---------------------------------------------------------------------------

_CHAINS = Query("""
    WITH RECURSIVE above AS (
      SELECT b.id AS lowest, b.id, b.parent_id, b.frozen, b.limits, 1 AS place
        FROM budget b
       WHERE b.id = ANY(:budget_ids)
      UNION ALL
      SELECT a.lowest, p.id, p.parent_id, p.frozen, p.limits, a.place + 1
        FROM above a
        JOIN budget p ON p.id = a.parent_id)
    SELECT a.lowest, a.id, a.frozen, a.limits, m.rules
      FROM above a
      JOIN meter m ON m.id = a.id
     ORDER BY a.lowest, a.place
""")
_METERS = Query("""
    SELECT id, rules, windows_at, created_at,
           ARRAY[decisions, hour_micros, hour_count, day_micros, day_count, week_micros, week_count,
                 month_micros, month_count, life_micros, life_count]::bigint[] AS numbers
      FROM meter
     WHERE id = ANY(:meter_ids)
""")
_RELEASE = Query("SELECT release_meters(:meter_ids, :moments, :micros, :spend_ids)")


async def chains(tx: Tx, budget_ids: Sequence[str]) -> dict[str, Chain]:
    """The budgets above each of these, itself first."""
    found: defaultdict[str, Chain] = defaultdict(Chain)
    for row in await _CHAINS.rows(tx, budget_ids=budget_ids):
        budget = BudgetTerms(row["id"], row["frozen"], decode_limits(row["limits"]))
        below = found[row["lowest"]]
        found[row["lowest"]] = Chain((*below.budgets, budget), (*below.rules, row["rules"]))
    return found


async def meters(tx: Tx, meter_ids: Sequence[str]) -> dict[str, MeterRow]:
    rows = await _METERS.rows(tx, meter_ids=meter_ids)
    return {row["id"]: made(MeterRow, row, numbers=tuple(row["numbers"])) for row in rows}


async def release(tx: Tx, released: Sequence[tuple[str, datetime, int, str]]) -> None:
    """Gives (meter, moment, micros, spend) back to windows that are still open; of each spend all
    meters in the order of its terms. The caller holds the wallets' locks."""
    if released:
        meter_ids, moments, micros, spend_ids = zip(*released, strict=True)
        await _RELEASE.run(
            tx, meter_ids=meter_ids, moments=moments, micros=micros, spend_ids=spend_ids
        )


# Budgets themselves -------------------------------------------------------------------------------

_INSERT_METER = Query("""
    INSERT INTO meter (id, realm_id, created_at)
    VALUES (:budget_id, :realm_id, :at)
""")
_INSERT = Query("""
    INSERT INTO budget (id, realm_id, name, parent_id, level, limits, created_by, created_at,
                        updated_at)
    VALUES (:budget_id, :realm_id, :name, :parent_id, :level, :limits, :created_by, :at, :at)
""")
_LOCK = Query("""
    SELECT FROM meter
     WHERE id = :budget_id
       FOR NO KEY UPDATE
""")
_UPDATE = Query(f"""
    UPDATE budget
       SET name = :name, limits = :limits, frozen = :frozen, updated_at = moment()
     WHERE id = :budget_id
    RETURNING {columns(BudgetRow)}
""")
_GET = Query(f"""
    SELECT {columns(BudgetRow)}
      FROM budget
     WHERE id = :budget_id AND realm_id = :realm_id
""")
# Until the commit it is not deleted, though it may change.
_HOLD = Query(f"""
    SELECT {columns(BudgetRow)}
      FROM budget
     WHERE id = :budget_id AND realm_id = :realm_id
       FOR KEY SHARE
""")
_LOCK_TO_DELETE = Query("SELECT FROM budget WHERE id = :budget_id FOR UPDATE")
_LIST = Listing(f"""
    SELECT {columns(BudgetRow)}
      FROM budget
     WHERE realm_id = :realm_id
       AND parent_id = :parent_id
""")
_USED = Query("""
    SELECT EXISTS (SELECT FROM agent WHERE budget_id = :budget_id)
        OR EXISTS (SELECT FROM budget WHERE parent_id = :budget_id)
        OR EXISTS (SELECT FROM spend WHERE budget_id = :budget_id)
""")
_DELETE = Query("DELETE FROM budget WHERE id = :budget_id")
_COUNT = Query("SELECT count(*) FROM budget WHERE realm_id = :realm_id")
_AGENTS = Query("""
    SELECT budget_id, count(*) AS agents
      FROM agent
     WHERE budget_id = ANY(:budget_ids) AND status <> 'terminated'
     GROUP BY budget_id
""")


async def insert_budget(
    tx: Tx,
    budget_id: str,
    realm_id: int,
    name: str,
    parent: BudgetRow | None,
    limits: str,
    created_by: str,
    at: datetime,
) -> None:
    await _INSERT_METER.run(tx, budget_id=budget_id, realm_id=realm_id, at=at)
    await _INSERT.run(
        tx,
        budget_id=budget_id,
        realm_id=realm_id,
        name=name,
        parent_id=None if parent is None else parent.id,
        level=1 if parent is None else parent.level + 1,
        limits=limits,
        created_by=created_by,
        at=at,
    )


async def lock_budget(tx: Tx, budget_id: str) -> None:
    """No decision under it, and no other change of it, until the commit."""
    await _LOCK.run(tx, budget_id=budget_id)


async def update_budget(tx: Tx, changed: BudgetRow) -> BudgetRow:
    row = await _UPDATE.one(
        tx,
        budget_id=changed.id,
        name=changed.name,
        limits=encode_limits(changed.limits),
        frozen=changed.frozen,
    )
    return budget_of(row)


async def get_budget(tx: Tx, realm_id: int, budget_id: str) -> BudgetRow | None:
    row = await _GET.row(tx, realm_id=realm_id, budget_id=budget_id)
    return None if row is None else budget_of(row)


async def hold_budget(tx: Tx, realm_id: int, budget_id: str) -> BudgetRow | None:
    """To put an agent or a budget under it: it stays until the commit."""
    row = await _HOLD.row(tx, realm_id=realm_id, budget_id=budget_id)
    return None if row is None else budget_of(row)


async def lock_to_delete(tx: Tx, budget_id: str) -> None:
    """No decision under it, and nothing is put under it, until the commit."""
    await lock_budget(tx, budget_id)
    await _LOCK_TO_DELETE.run(tx, budget_id=budget_id)


async def list_budgets(
    tx: Tx, realm_id: int, parent_id: str | None, before: tuple[datetime, str] | None, limit: int
) -> list[BudgetRow]:
    """Newest first."""
    rows = await _LIST.rows(tx, before, limit, realm_id=realm_id, parent_id=parent_id)
    return [budget_of(row) for row in rows]


async def is_used(tx: Tx, budget_id: str) -> bool:
    """Whether an agent, a budget or a spend is under it."""
    return await _USED.value(tx, budget_id=budget_id)


async def delete_budget(tx: Tx, budget_id: str) -> None:
    """Its meter stays: releases of what it once counted go there."""
    await _DELETE.run(tx, budget_id=budget_id)


async def count_budgets(tx: Tx, realm_id: int) -> int:
    return await _COUNT.value(tx, realm_id=realm_id)


async def agents_of(tx: Tx, budget_ids: Sequence[str]) -> dict[str, int]:
    """How many agents are directly under each."""
    rows = await _AGENTS.rows(tx, budget_ids=budget_ids)
    return {row["budget_id"]: row["agents"] for row in rows}


def budget_of(row: Row) -> BudgetRow:
    return made(BudgetRow, row, limits=decode_limits(row["limits"]))
