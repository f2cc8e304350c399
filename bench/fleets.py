"""Spends of a thousand agents under one budget, and under six limits each, beside the same load
without."""

import statistics
from typing import Final

from bench.authorise import AGENTS, CONNECTIONS
from bench.load import Wrk
from bench.rows import Row, at_least
from bench.service import PLENTY_MICROS, Tenants, make_tenants
from bursar.budget.store import insert_budget
from bursar.config import Config
from bursar.db import Database, Tx, moment
from bursar.ids import new_id
from bursar.policy.limits import WINDOWS, Limit, named_limits
from bursar.policy.store import encode_limits

# Until every agent has spent: its first spend in an hour is decided under locks.
_WARM_UP_SECONDS: Final = 5
_PLENTY: Final = 10**9
_EVERY_WINDOW: Final = tuple(Limit("", window, PLENTY_MICROS, _PLENTY) for window in WINDOWS)
# One recipient of twenty counts for the sixth.
_SIX: Final = (*_EVERY_WINDOW, Limit("", "day", PLENTY_MICROS, _PLENTY, "api7.example.com"))


async def make_fleets(db: Database, config: Config, realm_id: int) -> tuple[Tenants, Tenants]:
    """Agents under one budget, and agents with six limits each."""
    budget_id = new_id("bud")

    async def budget(tx: Tx) -> None:
        limits = encode_limits(named_limits(_EVERY_WINDOW, ()))
        at = await moment(tx)
        await insert_budget(tx, budget_id, realm_id, "all", None, limits, "bench", at)

    await db.transact(budget)
    return (
        await make_tenants(db, config, AGENTS, 0, budget_id=budget_id),
        await make_tenants(db, config, AGENTS, 0, limits=_SIX),
    )


def rows(
    wrk: Wrk, plain: Tenants, fleets: tuple[Tenants, Tenants], seconds: int, rounds: int
) -> list[Row]:
    """Medians of rounds in which every load takes its turn."""
    loads = (plain, *fleets)
    # The other load has run before.
    for load in fleets:
        wrk.spend(load.spread, CONNECTIONS, _WARM_UP_SECONDS)
    found = [
        [wrk.spend(load.spread, CONNECTIONS, seconds).rate for load in loads] for _ in range(rounds)
    ]
    without, budget, six = map(statistics.median, zip(*found, strict=True))
    return [
        at_least(
            f"authorise, one hot budget over {AGENTS:,} agents (reference: no budget)",
            budget,
            "/s",
            without,
            0.7,
        ),
        at_least("authorise, six limits on each agent (reference: none)", six, "/s", without, 0.8),
    ]
