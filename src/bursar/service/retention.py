"""Deletes what need not be kept. Rows about money stay for ever; all others have a retention
time, a spend that was refused at once too."""

from collections.abc import Awaitable, Callable
from typing import Final

from bursar.access import store as access_store
from bursar.backtest import store as backtest_store
from bursar.backtest.model import KEPT_DAYS
from bursar.config import Config
from bursar.db import Database, Tx
from bursar.event import store as event_store
from bursar.purchase import secret_store
from bursar.spend import refusal_store
from bursar.spend.feed import EVENT_DAYS
from bursar.webhook import store as webhook_store

IDEMPOTENCY_DAYS: Final = 7
# Rows that one statement deletes, so that none of them runs for long.
_AT_ONCE: Final = 5_000
# Fewer of those whose wallets wait meanwhile.
_REFUSALS_AT_ONCE: Final = 500
# Each takes its changes along, up to 100,000 of them.
_BACKTESTS_AT_ONCE: Final = 1


# Each is a duty of its own, so that one that fails does not stop the others.
FORGETTING: Final[dict[str, Callable[[Tx, Config], Awaitable[int]]]] = {
    "answers": lambda tx, _: access_store.delete_answers(tx, IDEMPOTENCY_DAYS, _AT_ONCE),
    "deliveries": lambda tx, _: webhook_store.sweep_deliveries(tx, EVENT_DAYS, _AT_ONCE),
    "sessions": lambda tx, _: access_store.delete_ended_sessions(tx, _AT_ONCE),
    "purchase secrets": lambda tx, _: secret_store.forget_secrets(tx, _AT_ONCE),
    "events": lambda tx, _: event_store.delete_events(tx, EVENT_DAYS, _AT_ONCE),
    "backtests": lambda tx, _: backtest_store.forget_backtests(tx, KEPT_DAYS, _BACKTESTS_AT_ONCE),
    "refusals": lambda tx, config: refusal_store.forget_refusals(
        tx, config.refusals_days, _REFUSALS_AT_ONCE
    ),
}


async def forget(config: Config, db: Database, what: str) -> int:
    """Deletes a bounded number of rows past their time; returns how many."""
    async with db.connection() as tx:
        return await FORGETTING[what](tx, config)
