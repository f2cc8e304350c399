"""Queries on what payments cost: agents' and accounts' budgets, and payees' token accounts.

Where one transaction locks several rows here, it takes payees before accounts, each in order, and
waits for nothing else afterwards: so none of them can wait for each other in a circle.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.config import Mode
from bursar.cost.model import MOST_OPENINGS, Attempt, Charge, Runway
from bursar.db import Tx

# Agents ------------------------------------------------------------------------------------------


async def network_used_on(tx: Tx, agent_id: str, day: date) -> int:
    used = await tx.fetchval(
        "SELECT network_lamports FROM usage"
        " WHERE agent_id = $1 AND window_kind = 'day' AND window_start = $2",
        agent_id,
        day,
    )
    return used or 0


async def held_by(tx: Tx, spend_id: str) -> int:
    return await tx.fetchval("SELECT network_lamports FROM spend WHERE id = $1", spend_id)


async def hold(
    tx: Tx, agent_id: str, day: date, spend_id: str, more_lamports: int, budget_lamports: int
) -> None:
    """More of the day's budget for an open spend. The caller holds the wallet's lock."""
    await tx.execute(
        "UPDATE usage SET network_lamports = network_lamports + $3, network_cap_lamports = $4"
        " WHERE agent_id = $1 AND window_kind = 'day' AND window_start = $2",
        agent_id,
        day,
        more_lamports,
        budget_lamports,
    )
    await tx.execute(
        "UPDATE spend SET network_lamports = network_lamports + $2 WHERE id = $1",
        spend_id,
        more_lamports,
    )


async def correct_usage(tx: Tx, deltas: Mapping[tuple[str, date], int]) -> None:
    """What spends cost in the end, instead of what they held. The chain has the last word: a cost
    that a restored database knew nothing of counts, even beyond the budget."""
    keys = sorted(key for key, lamports in deltas.items() if lamports)
    if keys:
        await tx.execute(
            "UPDATE usage u SET network_lamports = u.network_lamports + d.lamports,"
            " network_cap_lamports"
            " = greatest(u.network_cap_lamports, u.network_lamports + d.lamports)"
            " FROM unnest($1::text[], $2::date[], $3::bigint[]) AS d (agent_id, day, lamports)"
            " WHERE u.agent_id = d.agent_id AND u.window_kind = 'day' AND u.window_start = d.day",
            [agent_id for agent_id, _ in keys],
            [day for _, day in keys],
            [deltas[key] for key in keys],
        )


async def network_of_rejected(tx: Tx, spend_ids: Sequence[str], cost_lamports: int) -> None:
    """A spend that will not be paid holds nothing any more; what failed attempts cost stays."""
    await tx.execute(
        "UPDATE spend SET network_lamports = $2 WHERE id = ANY($1)", spend_ids, cost_lamports
    )


# Payees ------------------------------------------------------------------------------------------


async def without_rent(
    tx: Tx, wanted: Iterable[tuple[str, int, str]]
) -> dict[tuple[str, str], bool]:
    """Of (agent, realm, address): those whose payment needs no rent of its own, because the token
    account is known to be there (true) or an open spend of the agent holds the rent (false)."""
    agents, realms, addresses = zip(*wanted, strict=True)
    rows = await tx.fetch(
        "SELECT w.agent_id, w.address, p.address IS NOT NULL AS is_open"
        " FROM unnest($1::text[], $2::int[], $3::text[]) AS w (agent_id, realm_id, address)"
        " LEFT JOIN payee_account p ON p.realm_id = w.realm_id AND p.address = w.address"
        " AND p.is_open WHERE p.address IS NOT NULL OR EXISTS (SELECT FROM spend s"
        " WHERE s.agent_id = w.agent_id AND s.pay_to = w.address"
        " AND s.status IN ('pending', 'approved')"
        f" AND s.network_lamports >= {TOKEN_ACCOUNT_LAMPORTS})",
        agents,
        realms,
        addresses,
    )
    return {(row["agent_id"], row["address"]): row["is_open"] for row in rows}


class PayeeAccount(NamedTuple):
    """How often it was opened, and which payment is on its way to open it now."""

    opened: int
    opener: str | None


async def closed_payees(
    tx: Tx, payees: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], PayeeAccount]:
    """These payees have no token account: notes it, and says what is known of each."""
    if not payees:
        return {}
    realms, addresses = zip(*sorted(payees), strict=True)
    rows = await tx.fetch(
        "INSERT INTO payee_account AS p (realm_id, address, is_open)"
        " SELECT *, false FROM unnest($1::int[], $2::text[])"
        " ON CONFLICT (realm_id, address) DO UPDATE SET is_open = false"
        " RETURNING p.realm_id, p.address, p.opened, (SELECT s.payment_id FROM submission s"
        " WHERE s.payment_id = p.opener AND s.state = 'live') AS opener",
        realms,
        addresses,
    )
    return {
        (row["realm_id"], row["address"]): PayeeAccount(row["opened"], row["opener"])
        for row in rows
    }


async def admit(
    tx: Tx, attempts: Sequence[Attempt], account_lamports: int
) -> tuple[set[str], set[str]]:
    """The payments whose attempt may be stored, charged to their accounts; and those that are over
    the budget of theirs. The others have to wait until somebody else has opened their payee's
    token account."""
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
    more often than bounded. Locks first, looks then: what another transaction stored is seen."""
    if not openings:
        return set()
    ids, realms, addresses, *_ = zip(*openings, strict=True)
    await tx.execute(
        "SELECT FROM payee_account p JOIN unnest($1::int[], $2::text[]) AS o (realm_id, address)"
        " ON p.realm_id = o.realm_id AND p.address = o.address"
        " ORDER BY p.realm_id, p.address FOR UPDATE OF p",
        realms,
        addresses,
    )
    rows = await tx.fetch(
        "UPDATE payee_account p SET opener = o.payment_id"
        " FROM unnest($1::text[], $2::int[], $3::text[]) AS o (payment_id, realm_id, address)"
        f" WHERE p.realm_id = o.realm_id AND p.address = o.address AND p.opened < {MOST_OPENINGS}"
        " AND NOT EXISTS (SELECT FROM submission s WHERE s.payment_id = p.opener"
        " AND s.state = 'live') RETURNING p.opener",
        ids,
        realms,
        addresses,
    )
    return {row["opener"] for row in rows}


async def note_open(tx: Tx, payees: Mapping[tuple[int, str], int]) -> None:
    """Payees that were just paid, with how often their token account was opened for it. Whoever is
    known already is left alone: many payments at once go to the same few."""
    realms, addresses = zip(*sorted(payees), strict=True)
    await tx.execute(
        "INSERT INTO payee_account AS p (realm_id, address, is_open, opened)"
        " SELECT n.realm_id, n.address, true, n.opened"
        " FROM unnest($1::int[], $2::text[], $3::int[]) AS n (realm_id, address, opened)"
        " WHERE n.opened > 0 OR NOT EXISTS (SELECT FROM payee_account k"
        " WHERE k.realm_id = n.realm_id AND k.address = n.address AND k.is_open)"
        " ON CONFLICT (realm_id, address) DO UPDATE"
        " SET is_open = true, opened = p.opened + excluded.opened",
        realms,
        addresses,
        [payees[key] for key in sorted(payees)],
    )


# Accounts ----------------------------------------------------------------------------------------


async def _lock_account_costs(tx: Tx, realm_ids: Iterable[int]) -> tuple[date, dict[int, int]]:
    """Today, and what these accounts have been charged today; nobody charges them meanwhile."""
    day: date = await tx.fetchval("SELECT (moment() AT TIME ZONE 'UTC')::date")
    rows = await tx.fetch(
        "INSERT INTO network_cost AS c (realm_id, day, lamports)"
        " SELECT r.id, $2, 0 FROM unnest($1::int[]) AS r (id)"
        " ON CONFLICT (realm_id, day) DO UPDATE SET lamports = c.lamports"
        " RETURNING c.realm_id, c.lamports",
        sorted(set(realm_ids)),
        day,
    )
    return day, {row["realm_id"]: row["lamports"] for row in rows}


async def charge_accounts(tx: Tx, charges: Iterable[Charge]) -> None:
    """The last thing that its transaction does."""
    sums: defaultdict[tuple[int, date], int] = defaultdict(int)
    for charge in charges:
        sums[charge.realm_id, charge.day] += charge.lamports
    keys = sorted(key for key, lamports in sums.items() if lamports)
    if keys:
        await tx.execute(
            "INSERT INTO network_cost AS c (realm_id, day, lamports)"
            " SELECT d.realm_id, d.day, greatest(d.lamports, 0)"
            " FROM unnest($1::int[], $2::date[], $3::bigint[]) AS d (realm_id, day, lamports)"
            " ON CONFLICT (realm_id, day) DO UPDATE SET lamports = greatest(0,"
            " c.lamports + (SELECT d.lamports FROM unnest($1::int[], $2::date[], $3::bigint[])"
            " AS d (realm_id, day, lamports)"
            " WHERE d.realm_id = c.realm_id AND d.day = c.day))",
            [realm_id for realm_id, _ in keys],
            [day for _, day in keys],
            [sums[key] for key in keys],
        )


# The fee payer -----------------------------------------------------------------------------------


async def put_fee_payer(tx: Tx, mode: Mode, lamports: int) -> None:
    await tx.execute(
        "INSERT INTO fee_payer_balance (mode, lamports) VALUES ($1, $2)"
        " ON CONFLICT (mode) DO UPDATE SET lamports = excluded.lamports, seen_at = moment()",
        mode,
        lamports,
    )


async def runway(tx: Tx, mode: Mode) -> Runway | None:
    """None until the worker has looked for the first time. The average is of the days of the last
    week on which anything was paid."""
    row = await tx.fetchrow(
        "SELECT b.lamports, (SELECT coalesce(sum(c.lamports) / count(DISTINCT c.day), 0)"
        " FROM network_cost c JOIN realm r ON r.id = c.realm_id"
        " WHERE r.mode = b.mode AND c.lamports > 0"
        " AND c.day > (moment() AT TIME ZONE 'UTC')::date - 7)::bigint AS daily"
        " FROM fee_payer_balance b WHERE b.mode = $1",
        mode,
    )
    return None if row is None else Runway(row["lamports"], row["daily"])


async def costliest_today(tx: Tx, mode: Mode, limit: int) -> list[tuple[str, int]]:
    """(account, lamports) of those whose payments cost most today."""
    rows = await tx.fetch(
        "SELECT r.account_id, c.lamports FROM network_cost c JOIN realm r ON r.id = c.realm_id"
        " WHERE r.mode = $1 AND c.day = (moment() AT TIME ZONE 'UTC')::date"
        " ORDER BY c.lamports DESC, r.id LIMIT $2",
        mode,
        limit,
    )
    return [(row["account_id"], row["lamports"]) for row in rows]


async def cost_today(tx: Tx, realm_id: int) -> int:
    cost = await tx.fetchval(
        "SELECT lamports FROM network_cost"
        " WHERE realm_id = $1 AND day = (moment() AT TIME ZONE 'UTC')::date",
        realm_id,
    )
    return cost or 0
