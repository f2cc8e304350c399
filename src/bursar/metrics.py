"""Prometheus metrics. With PROMETHEUS_MULTIPROC_DIR set, one page shows all processes."""

import asyncio
import os
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any, Final, Literal

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
    start_http_server,
)

from bursar.errors import CommandFailed

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _Times(Histogram):
    """A histogram that takes many times in one go. One by one, each would write two values of the
    file that processes share."""

    # `Any`, because the library's own values have no types.
    def observe_all(self: Any, seconds: Sequence[float]) -> None:
        self._sum.inc(sum(seconds))
        for bucket, count in Tally(bisect_left(self._upper_bounds, s) for s in seconds).items():
            self._buckets[bucket].inc(count)


REQUESTS: Final = Counter("bursar_http_requests_total", "Requests answered.", ["route", "status"])
LATENCY: Final = _Times(
    "bursar_http_request_seconds", "Time to answer a request.", ["route"], buckets=_SECONDS
)
_BROKEN: Final = Counter(
    "bursar_http_answers_broken_total",
    "Answers that broke off after their status was sent, such as half an export.",
    ["route"],
)
UP: Final = Gauge(
    "bursar_process_up", "Processes running, by kind.", ["process"], multiprocess_mode="livesum"
)

FEE_PAYER_LAMPORTS: Final = Gauge(
    "bursar_fee_payer_lamports",
    "What the fee payer of a mode holds: an alert when it is below BURSAR_FEE_PAYER_LOW_LAMPORTS.",
    ["mode"],
    multiprocess_mode="mostrecent",
)


_FEE_PAYER_PAYMENTS: Final = Gauge(
    "bursar_fee_payer_payments_left",
    "Payments to known payees that the fee payer of a mode has SOL for.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_FEE_PAYER_DAYS: Final = Gauge(
    "bursar_fee_payer_days_left",
    "Days that the fee payer of a mode has SOL for, at the average of the last week.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_ACCOUNT_LAMPORTS: Final = Gauge(
    "bursar_account_network_lamports",
    "What the payments of an account cost today, by its id: the costliest of a mode.",
    ["mode", "account"],
    multiprocess_mode="mostrecent",
)


class NetworkCost:
    """What payments cost in SOL."""

    _shown: Final[dict[str, set[str]]] = {}

    @staticmethod
    def runway(mode: str, payments: int, days: float) -> None:
        _FEE_PAYER_PAYMENTS.labels(mode).set(payments)
        _FEE_PAYER_DAYS.labels(mode).set(days)

    @classmethod
    def accounts(cls, mode: str, costliest: dict[str, int]) -> None:
        """Whoever is no longer among them is shown with 0."""
        before = cls._shown.get(mode, set())
        for account in before | costliest.keys():
            _ACCOUNT_LAMPORTS.labels(mode, account).set(costliest.get(account, 0))
        cls._shown[mode] = set(costliest)


_PAYMENTS: Final = Gauge(
    "bursar_payments",
    "Payments on their way, by state: waiting, live, in_doubt.",
    ["mode", "state"],
    multiprocess_mode="mostrecent",
)
_OLDEST: Final = Gauge(
    "bursar_payment_oldest_seconds",
    "Age of the oldest payment on its way.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_DIFFERENCES: Final = Gauge(
    "bursar_wallets_differing",
    "Wallets that hold less (short) or more (over) on the chain than the ledger says.",
    ["mode", "kind"],
    multiprocess_mode="mostrecent",
)
_TOO_MANY_SHORT: Final = Gauge(
    "bursar_wallets_too_many_short",
    "1 while so many wallets are short at once that none is stopped: look at the nodes.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_UNREAD: Final = Gauge(
    "bursar_deposits_unread",
    "Transactions that mention a wallet and that nobody could read: perhaps deposits.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_ENDED: Final = Counter(
    "bursar_payments_ended_total", "Payments settled or failed.", ["mode", "end"]
)
_DEAD: Final = Counter("bursar_attempts_dead_total", "Attempts that provably never paid.", ["mode"])
_REFUSED: Final = Counter(
    "bursar_sends_refused_total", "Times a node would not take a transaction.", ["mode", "kind"]
)


_PURCHASES: Final = Gauge(
    "bursar_purchases_presented",
    "Purchases that were presented and of which the chain has not spoken.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_OLDEST_PURCHASE: Final = Gauge(
    "bursar_purchase_oldest_seconds",
    "How long ago the oldest of them was signed.",
    ["mode"],
    multiprocess_mode="mostrecent",
)
_PURCHASES_ENDED: Final = Counter(
    "bursar_purchases_ended_total",
    "Presented purchases that were paid, or unpaid.",
    ["mode", "end"],
)


class Purchases:
    """What becomes of purchases after they were presented."""

    @staticmethod
    def backlog(mode: str, presented: int, oldest_seconds: float) -> None:
        _PURCHASES.labels(mode).set(presented)
        _OLDEST_PURCHASE.labels(mode).set(oldest_seconds)

    @staticmethod
    def ended(mode: str, end: Literal["paid", "unpaid"]) -> None:
        _PURCHASES_ENDED.labels(mode, end).inc()


_SPENDS: Final = Counter(
    "bursar_spends_decided_total",
    "Spends that were decided: on what a process remembered of the agent, or under its lock.",
    ["way"],
)
_MISSES: Final = Counter(
    "bursar_spends_decided_again_total",
    "Spends whose facts had changed before they were written, so that they were decided again.",
)


class Spends:
    """How spends come to be decided. Counted when those that were answered just now have gone on:
    to count takes longer than to answer one."""

    @staticmethod
    def decided(way: Literal["remembered", "locked"], count: int) -> None:
        if count:
            asyncio.get_running_loop().call_soon(_count_decided, way, count)

    @staticmethod
    def again(count: int) -> None:
        if count:
            _MISSES.inc(count)


def _count_decided(way: str, count: int) -> None:
    _SPENDS.labels(way).inc(count)


class Settlement:
    """What the settlement counts."""

    @staticmethod
    def backlog(mode: str, waiting: int, live: int, in_doubt: int, oldest_seconds: float) -> None:
        for state, count in (("waiting", waiting), ("live", live), ("in_doubt", in_doubt)):
            _PAYMENTS.labels(mode, state).set(count)
        _OLDEST.labels(mode).set(oldest_seconds)

    @staticmethod
    def differences(mode: str, short: int, over: int) -> None:
        for kind, count in (("short", short), ("over", over)):
            _DIFFERENCES.labels(mode, kind).set(count)

    @staticmethod
    def too_many_short(mode: str, many: bool) -> None:
        _TOO_MANY_SHORT.labels(mode).set(many)

    @staticmethod
    def unread(mode: str, count: int) -> None:
        _UNREAD.labels(mode).set(count)

    @staticmethod
    def settled(mode: str, count: int) -> None:
        _ENDED.labels(mode, "settled").inc(count)

    @staticmethod
    def failed(mode: str) -> None:
        _ENDED.labels(mode, "failed").inc()

    @staticmethod
    def dead(mode: str) -> None:
        _DEAD.labels(mode).inc()

    @staticmethod
    def refused(mode: str, kind: str) -> None:
        _REFUSED.labels(mode, kind).inc()


_DUTY_MOVED: Final = Gauge(
    "bursar_duty_moved_timestamp_seconds",
    "When a duty of a worker last went well, in Unix time. Mode `all`: a duty of all modes.",
    ["mode", "duty"],
    multiprocess_mode="mostrecent",
)
_DUTY_FAILURES: Final = Counter(
    "bursar_duty_failures_total", "Rounds of a worker's duty that ended in a bug.", ["mode", "duty"]
)
_SET_ASIDE: Final = Gauge(
    "bursar_wallets_set_aside",
    "Wallets whose commits raise, tried alone and rarely so that they stop no other.",
    ["mode"],
    multiprocess_mode="mostrecent",
)


class Duties:
    """What the workers' duties count."""

    @staticmethod
    def moved(mode: str, duty: str) -> None:
        _DUTY_MOVED.labels(mode, duty).set_to_current_time()

    @staticmethod
    def failed(mode: str, duty: str) -> None:
        _DUTY_FAILURES.labels(mode, duty).inc()

    @staticmethod
    def set_aside(mode: str, wallets: int) -> None:
        _SET_ASIDE.labels(mode).set(wallets)


_DELIVERIES: Final = Gauge(
    "bursar_webhook_backlog",
    "Deliveries that wait or are under way.",
    multiprocess_mode="mostrecent",
)
_OLDEST_DELIVERY: Final = Gauge(
    "bursar_webhook_oldest_seconds",
    "Age of the oldest delivery that waits.",
    multiprocess_mode="mostrecent",
)
_ATTEMPTS: Final = Counter(
    "bursar_webhook_attempts_total", "Attempts to deliver, by outcome: delivered, failed.", ["end"]
)
_ATTEMPT_SECONDS: Final = Histogram(
    "bursar_webhook_attempt_seconds", "Time an attempt took.", ["end"], buckets=_SECONDS
)


_ATTEMPT_ENDS: Final = {
    delivered: (_ATTEMPTS.labels(end), _ATTEMPT_SECONDS.labels(end))
    for delivered, end in ((True, "delivered"), (False, "failed"))
}


class Webhooks:
    """What the delivery of webhooks counts."""

    @staticmethod
    def backlog(count: int, oldest_seconds: float) -> None:
        _DELIVERIES.set(count)
        _OLDEST_DELIVERY.set(oldest_seconds)

    @staticmethod
    def attempted(delivered: bool, elapsed_ns: int) -> None:
        count, seconds = _ATTEMPT_ENDS[delivered]
        count.inc()
        seconds.observe(elapsed_ns / 1e9)


class HttpMetrics:
    """What the answers to requests count."""

    @staticmethod
    def answered(route: str, status: int, seconds: Sequence[float]) -> None:
        """All of one route and status that were answered in a moment, by how long each took."""
        REQUESTS.labels(route, str(status)).inc(len(seconds))
        LATENCY.labels(route).observe_all(seconds)

    @staticmethod
    def broken(route: str) -> None:
        _BROKEN.labels(route).inc()


def exposition() -> bytes:
    """What a scrape gets: every process that shares the folder, or this one alone."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return generate_latest(registry)


def show_metrics(host: str, port: int) -> None:
    """For a process that has no HTTP server of its own. Raises CommandFailed when it cannot."""
    try:
        start_http_server(port, host)
    except OSError as problem:
        raise CommandFailed(
            f"Cannot show metrics on {host} port {port}: {problem.strerror}."
        ) from None
