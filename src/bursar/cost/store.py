"""Queries on what payments cost: agents' and accounts' budgets, and payees' token accounts.

A transaction that locks several rows here takes payees before accounts, each in order, and waits
for nothing else afterwards: so no two of them can wait for each other in a circle.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.config import Mode
from bursar.cost.model import MOST_OPENINGS, Attempt, Charge, Runway
from bursar.db import Tx
from bursar.sql import Query

# Agents ------------------------------------------------------------------------------------------

_RESERVED = Query("""
    SELECT s.network_lamports, u.lamports AS used_lamports
      FROM spend s
     CROSS JOIN used_in_day(s.agent_id, s.created_at) AS u
     WHERE s.id = :spend_id
""")
_RESERVE_MORE = Query("""
    WITH reserved AS (
      UPDATE spend
         SET network_lamports = network_lamports + :more_lamports
       WHERE id = :spend_id
      RETURNING agent_id, created_at
    )
    SELECT add_to_windows(ARRAY[agent_id::text], ARRAY[created_at::timestamptz], ARRAY[0::bigint],
                          ARRAY[0::bigint], ARRAY[:more_lamports::bigint])
      FROM reserved
""")
_COST_OF_REJECTED = Query("""
    UPDATE spend
       SET network_lamports = :cost_lamports
     WHERE id = ANY(:spend_ids)
""")


async def reserved_by(tx: Tx, spend_id: str) -> tuple[int, int]:
    """(lamports that the spend has reserved, lamports that its day has used). The caller holds the
    wallet's lock."""
    row = await _RESERVED.one(tx, spend_id=spend_id)
    return row["network_lamports"], row["used_lamports"]


async def reserve_more(tx: Tx, spend_id: str, more_lamports: int) -> None:
    """More of its day's budget for an open spend. The caller holds the wallet's lock."""
    await _RESERVE_MORE.run(tx, spend_id=spend_id, more_lamports=more_lamports)


async def network_of_rejected(tx: Tx, spend_ids: Sequence[str], cost_lamports: int) -> None:
    """For a spend that will not be paid nothing is reserved; what failed attempts cost stays."""
    await _COST_OF_REJECTED.run(tx, spend_ids=spend_ids, cost_lamports=cost_lamports)


# Payees ------------------------------------------------------------------------------------------

_WITHOUT_RENT = Query(f"""
    SELECT w.agent_id, w.address, p.address IS NOT NULL AS is_open
      FROM unnest(:agent_ids::text[], :realm_ids::int[], :addresses::text[])
           AS w (agent_id, realm_id, address)
      LEFT JOIN payee_account p
        ON p.realm_id = w.realm_id AND p.address = w.address AND p.is_open
     WHERE p.address IS NOT NULL
        OR EXISTS (SELECT FROM spend s
                    WHERE s.agent_id = w.agent_id AND s.pay_to = w.address
                      AND s.status IN ('pending', 'approved')
                      AND s.network_lamports >= {TOKEN_ACCOUNT_LAMPORTS})
""")
_NOTE_CLOSED = Query("""
    INSERT INTO payee_account AS p (realm_id, address, is_open)
    SELECT realm_id, address, false
      FROM unnest(:realm_ids::int[], :addresses::text[]) AS c (realm_id, address)
        ON CONFLICT (realm_id, address) DO UPDATE
       SET is_open = false
    RETURNING p.realm_id, p.address, p.opened,
              (SELECT s.payment_id
                 FROM submission s
                WHERE s.payment_id = p.opener AND s.state = 'live') AS opener
""")
_LOCK_PAYEES = Query("""
    SELECT FROM payee_account p
      JOIN unnest(:realm_ids::int[], :addresses::text[]) AS o (realm_id, address)
        ON p.realm_id = o.realm_id AND p.address = o.address
     ORDER BY p.realm_id, p.address
       FOR UPDATE OF p
""")
_CLAIM_OPENINGS = Query(f"""
    UPDATE payee_account p
       SET opener = o.payment_id
      FROM unnest(:payment_ids::text[], :realm_ids::int[], :addresses::text[])
           AS o (payment_id, realm_id, address)
     WHERE p.realm_id = o.realm_id AND p.address = o.address
       AND p.opened < {MOST_OPENINGS}
       AND NOT EXISTS (SELECT FROM submission s
                        WHERE s.payment_id = p.opener AND s.state = 'live')
    RETURNING p.opener
""")
_NOTE_OPEN = Query("""
    INSERT INTO payee_account AS p (realm_id, address, is_open, opened)
    SELECT n.realm_id, n.address, true, n.opened
      FROM unnest(:realm_ids::int[], :addresses::text[], :opened::int[])
           AS n (realm_id, address, opened)
     WHERE n.opened > 0
        OR NOT EXISTS (SELECT FROM payee_account k
                        WHERE k.realm_id = n.realm_id AND k.address = n.address AND k.is_open)
        ON CONFLICT (realm_id, address) DO UPDATE
       SET is_open = true, opened = p.opened + excluded.opened
""")


async def without_rent(
    tx: Tx, wanted: Iterable[tuple[str, int, str]]
) -> dict[tuple[str, str], bool]:
    """Of (agent, realm, address): those (agent, address) whose payment needs no rent of its own,
    because the token account is known to be there (true), or because an open spend of the agent
    has the rent reserved (false)."""
    agent_ids, realm_ids, addresses = zip(*wanted, strict=True)
    rows = await _WITHOUT_RENT.rows(
        tx, agent_ids=agent_ids, realm_ids=realm_ids, addresses=addresses
    )
    return {(row["agent_id"], row["address"]): row["is_open"] for row in rows}


class PayeeAccount(NamedTuple):
    """How often it was opened, and which payment is on its way to open it now."""

    opened: int
    opener: str | None


async def closed_payees(
    tx: Tx, payees: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], PayeeAccount]:
    """Notes that these payees have no token account, and returns what is known of each."""
    if not payees:
        return {}
    realm_ids, addresses = zip(*sorted(payees), strict=True)
    rows = await _NOTE_CLOSED.rows(tx, realm_ids=realm_ids, addresses=addresses)
    return {
        (row["realm_id"], row["address"]): PayeeAccount(row["opened"], row["opener"])
        for row in rows
    }


async def admit(
    tx: Tx, attempts: Sequence[Attempt], account_lamports: int
) -> tuple[set[str], set[str]]:
    """The payments whose attempt may be stored, charged to their accounts; and those beyond the
    budget of their account. The rest have to wait until another payment has opened the token
    account of their payee."""
    may_open = await _claim_openings(tx, [each for each in attempts if each.opens_account])
    ready = [each for each in attempts if not each.opens_account or each.payment_id in may_open]
    day, charged = await _lock_account_costs(tx, {each.realm_id for each in ready})
    admitted: list[Attempt] = []
    for each in ready:
        if charged[each.realm_id] + each.lamports <= account_lamports:
            charged[each.realm_id] += each.lamports
            admitted.append(each)
    await charge_accounts(tx, [Charge(each.realm_id, day, each.lamports) for each in admitted])
    ids = {each.payment_id for each in admitted}
    return ids, {each.payment_id for each in ready} - ids


async def _claim_openings(tx: Tx, openings: Sequence[Attempt]) -> set[str]:
    """The payments that may open their payee's token account: of each payee one at a time, and not
    more often than bounded. The rows are locked first and read in a second statement, which so
    sees what other transactions stored."""
    if not openings:
        return set()
    payment_ids, realm_ids, addresses, *_ = zip(*openings, strict=True)
    await _LOCK_PAYEES.run(tx, realm_ids=realm_ids, addresses=addresses)
    rows = await _CLAIM_OPENINGS.rows(
        tx, payment_ids=payment_ids, realm_ids=realm_ids, addresses=addresses
    )
    return {row["opener"] for row in rows}


async def note_open(tx: Tx, payees: Mapping[tuple[int, str], int]) -> None:
    """Payees that were just paid, with how often their token account was opened for it. A payee
    that is known already is left alone: many payments at once go to the same few."""
    keys = sorted(payees)
    await _NOTE_OPEN.run(
        tx,
        realm_ids=[realm_id for realm_id, _ in keys],
        addresses=[address for _, address in keys],
        opened=[payees[key] for key in keys],
    )


# Accounts ----------------------------------------------------------------------------------------

_TODAY = Query("SELECT (moment() AT TIME ZONE 'UTC')::date")
_LOCK_ACCOUNT_COSTS = Query("""
    INSERT INTO network_cost AS c (realm_id, day, lamports)
    SELECT r.id, :day, 0
      FROM unnest(:realm_ids::int[]) AS r (id)
        ON CONFLICT (realm_id, day) DO UPDATE
       SET lamports = c.lamports
    RETURNING c.realm_id, c.lamports
""")
# A charge may be negative; what an account was charged never is.
_CHARGE = Query("""
    INSERT INTO network_cost AS c (realm_id, day, lamports)
    SELECT d.realm_id, d.day, greatest(d.lamports, 0)
      FROM unnest(:realm_ids::int[], :days::date[], :lamports::bigint[])
           AS d (realm_id, day, lamports)
        ON CONFLICT (realm_id, day) DO UPDATE
       SET lamports = greatest(0, c.lamports + (
             SELECT d.lamports
               FROM unnest(:realm_ids::int[], :days::date[], :lamports::bigint[])
                    AS d (realm_id, day, lamports)
              WHERE d.realm_id = c.realm_id AND d.day = c.day))
""")
_COSTLIEST = Query("""
    SELECT r.account_id, c.lamports
      FROM network_cost c
      JOIN realm r ON r.id = c.realm_id
     WHERE r.mode = :mode AND c.day = (moment() AT TIME ZONE 'UTC')::date
     ORDER BY c.lamports DESC, r.id
     LIMIT :limit
""")
_COST_TODAY = Query("""
    SELECT lamports
      FROM network_cost
     WHERE realm_id = :realm_id AND day = (moment() AT TIME ZONE 'UTC')::date
""")


async def _lock_account_costs(tx: Tx, realm_ids: Iterable[int]) -> tuple[date, dict[int, int]]:
    """Today, and what these accounts have been charged today; until the commit no other
    transaction charges them."""
    day: date = await _TODAY.value(tx)
    rows = await _LOCK_ACCOUNT_COSTS.rows(tx, realm_ids=sorted(set(realm_ids)), day=day)
    return day, {row["realm_id"]: row["lamports"] for row in rows}


async def charge_accounts(tx: Tx, charges: Iterable[Charge]) -> None:
    """The last thing that its transaction does."""
    sums: defaultdict[tuple[int, date], int] = defaultdict(int)
    for charge in charges:
        sums[charge.realm_id, charge.day] += charge.lamports
    keys = sorted(key for key, lamports in sums.items() if lamports)
    if keys:
        await _CHARGE.run(
            tx,
            realm_ids=[realm_id for realm_id, _ in keys],
            days=[day for _, day in keys],
            lamports=[sums[key] for key in keys],
        )


async def costliest_today(tx: Tx, mode: Mode, limit: int) -> list[tuple[str, int]]:
    """(account, lamports) of the accounts whose payments cost most today."""
    rows = await _COSTLIEST.rows(tx, mode=mode, limit=limit)
    return [(row["account_id"], row["lamports"]) for row in rows]


async def cost_today(tx: Tx, realm_id: int) -> int:
    return await _COST_TODAY.value(tx, realm_id=realm_id) or 0


# The fee payer -----------------------------------------------------------------------------------

_PUT_FEE_PAYER = Query("""
    INSERT INTO fee_payer_balance (mode, lamports)
    VALUES (:mode, :lamports)
        ON CONFLICT (mode) DO UPDATE
       SET lamports = excluded.lamports, seen_at = moment()
""")
# The average is of those days of the last week on which anything was paid.
_RUNWAY = Query("""
    SELECT b.lamports,
           (SELECT coalesce(sum(c.lamports) / count(DISTINCT c.day), 0)
              FROM network_cost c
              JOIN realm r ON r.id = c.realm_id
             WHERE r.mode = b.mode AND c.lamports > 0
               AND c.day > (moment() AT TIME ZONE 'UTC')::date - 7)::bigint AS daily_lamports
      FROM fee_payer_balance b
     WHERE b.mode = :mode
""")


async def put_fee_payer(tx: Tx, mode: Mode, lamports: int) -> None:
    await _PUT_FEE_PAYER.run(tx, mode=mode, lamports=lamports)


async def runway(tx: Tx, mode: Mode) -> Runway | None:
    """None until the worker has looked for the first time."""
    row = await _RUNWAY.row(tx, mode=mode)
    return None if row is None else Runway(row["lamports"], row["daily_lamports"])
