"""Delivers events: claims what is due, sends it, records the result. Any number may run.

Each round is one short transaction that records the results since the last round and claims as much
as there is room for; the network is used outside of it. A claim is a lease longer than any attempt:
when a worker dies, its leases end and other workers deliver. So every event arrives at least once,
and twice only if a worker died or could not record.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Final

import structlog

from bursar.clock import Clock, iso
from bursar.custody.model import SealedSecret
from bursar.custody.vault import KeyUnusable, Vault
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database, Tx
from bursar.event.view import envelope
from bursar.metrics import Webhooks as Metrics
from bursar.signature import signed_headers
from bursar.webhook import store
from bursar.webhook.model import Attempt
from bursar.webhook.send import Outcome, Sender
from bursar.webhook.store import Claim, Result

PER_WEBHOOK: Final = 4
# Attempts that one worker has under way. A single account gets at most half of them, so that others
# find room however many of its receivers hang. Attempts to webhooks that failed last are bounded
# further. Each attempt is an open file, of which a process may often have only 1,024.
MOST_AT_ONCE: Final = 600
MOST_FAILING_AT_ONCE: Final = 200
DISABLE_SECONDS: Final = 5 * 24 * 3600
# The longest wait that a receiver can ask for with Retry-After.
MOST_RETRY_AFTER: Final = 24 * 3600
# Each wait is up to this fraction longer than scheduled, so that deliveries that failed together
# are not retried together.
_JITTER: Final = 0.2
# How often to look for work when there is none, and how long finished attempts are collected, so
# that one round records several.
_IDLE_SECONDS: Final = 0.2
_GATHER_SECONDS: Final = 0.002
# Under load: how many are enough to begin a round at once, and how many it records at most. The
# others wait for the next, so that one part is under way while the other is recorded.
_ENOUGH: Final = 32
_MOST_RECORDED: Final = 64
_GONE: Final = 410

_log = structlog.get_logger()
_random = secrets.SystemRandom()


class Deliverer:
    def __init__(
        self,
        db: Database,
        vault: Vault,
        sender: Sender,
        clock: Clock,
        *,
        retry_seconds: Sequence[int],
        timeout_seconds: int,
        drain_seconds: int,
    ) -> None:
        self._db = db
        self._vault = vault
        self._sender = sender
        self._clock = clock
        self._retry_seconds = retry_seconds
        # Twice as long as an attempt may take, which leaves time to record it.
        self._lease_seconds = 2.0 * timeout_seconds
        self._drain_seconds = drain_seconds
        # What the last round claimed, with the secrets that sign it, until it is sent.
        self._claimed: list[tuple[Claim, list[str]]] = []
        self._under_way: dict[asyncio.Task[None], Claim] = {}
        self._results: list[Result] = []
        self._finished = asyncio.Event()
        self._under_exchange: asyncio.Task[None] | None = None

    async def work(self) -> int:
        """One round, then a rest unless there is something to record. The owner calls `drain` at
        the end."""
        # A round that is cut would lose the results that it has in hand, and leave what it claimed
        # to the end of its lease: whoever is cancelled leaves it to `drain`.
        self._under_exchange = asyncio.create_task(self._round())
        await asyncio.shield(self._under_exchange)
        await self._rest()
        return 1

    async def report(self) -> int:
        """Sets the metrics: how many deliveries wait, and the age of the oldest."""
        async with self._db.connection() as tx:
            Metrics.backlog(*await store.backlog(tx))
        return 0

    async def _round(self) -> None:
        results, self._results = self._results[:_MOST_RECORDED], self._results[_MOST_RECORDED:]
        self._finished.clear()
        try:
            await self._note_failures(results)
            claims = await self._exchange(results)
        except (*OUT_OF_REACH, *ROLLED_BACK) as problem:
            _log.warning("deliveries_put_off", problem=repr(problem))
            self._send()
            self._results = results + self._results
            await asyncio.sleep(_IDLE_SECONDS)
            return
        except Exception:
            self._send()
            await self._record_each(results)
            raise
        signing: dict[str, list[str]] = {}
        for claim in claims:
            if claim.webhook_id not in signing:
                signing[claim.webhook_id] = self._open_secrets(claim.webhook_id, claim.secrets)
        self._claimed += [(claim, signing[claim.webhook_id]) for claim in claims]

    def _send(self) -> None:
        """Begins the attempts of what was claimed."""
        claimed, self._claimed = self._claimed, []
        for claim, signing in claimed:
            task = asyncio.create_task(self._attempt(claim, signing))
            self._under_way[task] = claim
            task.add_done_callback(self._under_way.pop)

    async def _exchange(self, results: Sequence[Result]) -> list[Claim]:
        failing = sum(claim.failing for claim in self._under_way.values())
        failing += sum(claim.failing for claim, _ in self._claimed)
        # What waits to be recorded takes room: its lease must not end before.
        taken = len(self._under_way) + len(self._claimed) + len(self._results)
        async with self._db.connection() as tx:
            # Its turn comes when the statement is on its way: what the last round claimed is sent
            # while the database is at work.
            asyncio.get_running_loop().call_soon(self._send)
            return await store.exchange(
                tx,
                results,
                most=max(0, MOST_AT_ONCE - taken),
                most_failing=max(0, MOST_FAILING_AT_ONCE - failing),
                per_webhook=PER_WEBHOOK,
                lease_seconds=self._lease_seconds,
            )

    async def _record_each(self, results: Sequence[Result]) -> None:
        """Records results one by one after recording them together failed, so that one bad result
        does not lose the others. That one's lease runs out, and it is delivered again."""
        for result in results:
            try:
                await self._note_failures([result])
                await self._record([result])
            except (*OUT_OF_REACH, *ROLLED_BACK):
                self._results.append(result)
            except Exception:  # noqa: BLE001 - the others are recorded
                _log.exception("delivery_not_recorded", delivery=result.claim.id)

    async def _note_failures(self, results: Sequence[Result]) -> None:
        """Marks the webhooks of failed attempts. Where another attempt of the same round succeeded,
        recording that one removes the mark."""
        failed = {(r.claim.webhook_id, r.claim.url) for r in results if r.status != "delivered"}
        gone = {(r.claim.webhook_id, r.claim.url) for r in results if r.gone}
        if not failed:
            return

        async def work(tx: Tx) -> dict[str, list[str]]:
            return {
                "failing": await store.note_failures(tx, failed - gone, DISABLE_SECONDS),
                "gone": await store.disable_gone(tx, gone),
            }

        for reason, webhook_ids in (await self._db.transact(work)).items():
            for webhook_id in webhook_ids:
                _log.warning("webhook_disabled", webhook=webhook_id, reason=reason)

    async def _rest(self) -> None:
        """Waits until an attempt has finished, because then there is a result to record and room
        for another; at most for a moment."""
        # Under load what was claimed is sent by the next round, while the database is at work.
        if len(self._results) < _ENOUGH <= len(self._results) + len(self._under_way):
            await asyncio.sleep(_GATHER_SECONDS)
        if len(self._results) >= _ENOUGH:
            return
        self._send()
        with contextlib.suppress(TimeoutError):
            if not self._results:
                # Not `wait_for`, which in Python 3.11 may not hear that it is cancelled.
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._finished.wait()
            await asyncio.sleep(_GATHER_SECONDS)

    def _open_secrets(self, webhook_id: str, sealed: Sequence[SealedSecret]) -> list[str]:
        try:
            return [self._vault.open_secret(secret).decode() for secret in sealed]
        except KeyUnusable:
            _log.error("webhook_secret_unusable", webhook=webhook_id)
            return []

    async def _attempt(self, claim: Claim, signing: Sequence[str]) -> None:
        began, started = self._clock.now(), self._clock.monotonic_ns()
        body = envelope(claim.event)
        try:
            if signing:
                timestamp = int(began.timestamp())
                headers = signed_headers(signing, claim.event.id, timestamp, body)
                outcome = await self._sender.send(claim.url, headers, body)
            else:
                outcome = Outcome(None, "there is no usable secret to sign with; rotate it")
        except Exception:  # noqa: BLE001 - one broken delivery must not end the others
            _log.exception("delivery_broken", delivery=claim.id)
            outcome = Outcome(None, "internal error")
        elapsed_ns = self._clock.monotonic_ns() - started
        Metrics.attempted(outcome.delivered, elapsed_ns)
        attempt = Attempt(
            at=iso(began),
            status=outcome.status,
            latency_ms=elapsed_ns // 1_000_000,
            error=outcome.error,
            response=outcome.response,
        )
        self._results.append(self._judge(claim, outcome, attempt))
        self._finished.set()

    def _judge(self, claim: Claim, outcome: Outcome, attempt: Attempt) -> Result:
        gone = outcome.status == _GONE
        if outcome.delivered:
            return Result(claim, "delivered", 0, attempt, gone)
        if claim.attempt_count >= len(self._retry_seconds):
            return Result(claim, "failed", 0, attempt, gone)
        wait = self._retry_seconds[claim.attempt_count] * (1 + _random.uniform(0, _JITTER))
        return Result(claim, "pending", max(wait, self._retry_after(outcome)), attempt, gone)

    def _retry_after(self, outcome: Outcome) -> float:
        """Retry-After in seconds, from a number or a date; 0 when there is none."""
        text = (outcome.retry_after or "").strip()
        if text.isascii() and text.isdigit():
            return min(int(text[:9]), MOST_RETRY_AFTER)
        try:
            until = parsedate_to_datetime(text) - self._clock.now()
        except (TypeError, ValueError):  # TypeError: a date without a zone
            return 0
        return min(max(0.0, until.total_seconds()), MOST_RETRY_AFTER)

    async def drain(self) -> None:
        """Gives running attempts some seconds to end, then cancels them, records the results and
        gives back what was cancelled or not begun."""
        if self._under_exchange is not None:
            await asyncio.wait({self._under_exchange}, timeout=max(1, self._drain_seconds))
            self._under_exchange.cancel()
            await asyncio.gather(self._under_exchange, return_exceptions=True)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._drain_seconds)
        cut = dict(self._under_way)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        # A result that cannot be recorded now is lost; its delivery is sent again when the lease
        # ends.
        with contextlib.suppress(*OUT_OF_REACH, *ROLLED_BACK):
            await self._note_failures(self._results)
            await self._record(self._results)
            async with self._db.connection() as tx:
                await store.release(tx, [*cut.values(), *(claim for claim, _ in self._claimed)])

    async def _record(self, results: Sequence[Result]) -> None:
        async with self._db.connection() as tx:
            await store.exchange(
                tx,
                results,
                most=0,
                most_failing=0,
                per_webhook=PER_WEBHOOK,
                lease_seconds=self._lease_seconds,
            )
