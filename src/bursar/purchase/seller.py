"""Asks a seller over HTTP: once, only at a checked address, bounded in time and size.

A seller is a stranger that an agent chose. What it does may spoil its own answer and nothing else.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urljoin

import structlog

from bursar import __version__
from bursar.config import MODES, Config, Mode
from bursar.errors import BursarError, check
from bursar.outbound.ask import REPEATABLE, Asker, Bounds
from bursar.outbound.failure import NoAnswer
from bursar.outbound.gate import Gate, Lookup
from bursar.outbound.line import MOST_HEADER_BYTES, MOST_HEADERS, Answer
from bursar.outbound.target import Allowed, Target, TargetRefused
from bursar.purchase.order import Order, check_order_url, purchase_targets
from bursar.purchase.share import Shares

MOST_REDIRECTS: Final = 5
# An answer's headers, all together.
MOST_HEADERS_BYTES: Final = 128 * 1024
# What the answers that are being read may take in memory, in each mode: test mode must not delay
# live mode.
_MEMORY_BYTES: Final = 192 * 1024**2
_LEAST_AT_ONCE, _MOST_AT_ONCE = 4, 128
# A part of them for each host and port, so that a slow seller delays only its own buyers; one for
# each account, so that none takes all; and half as much for an account at a seller, so that none
# takes all of a seller either.
_SHARE_OF_ONE: Final = 4
_SHARE_OF_BOTH: Final = 8
# Unless the order says otherwise.
_OURS: Final = (
    ("User-Agent", f"Bursar/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
# What is about a body that a redirect does not take along.
_OF_A_BODY: Final = frozenset(
    ("content-encoding", "content-language", "content-location", "content-type")
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_VISIBLE: Final = re.compile(r"[!-~]+", re.ASCII)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SellerAnswer:
    """`order` is what was asked last: what a redirect of the same origin made of the order. A
    payment goes there."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)
    # Whether the body was cut: too long, too slow, or broken off.
    truncated: bool
    order: Order


class SellerUnreachable(BursarError):
    """There was no answer. The message is for the agent that asked: it names no address."""


@dataclass(frozen=True, slots=True)
class _Door:
    """The way out in one mode."""

    mode: Mode
    allowed: Allowed
    gate: Gate


@dataclass(frozen=True, slots=True)
class Visit:
    """Of a purchase that has its turn at its seller. What it asks goes over one connection, if the
    seller keeps it and a request that is lost with it may be repeated. That is its own: one that
    two buyers share could hand the one an answer that the other provoked, and with it another's
    payee."""

    _seller: "Seller"
    _door: _Door
    _asker: Asker

    async def ask(self, order: Order, payment: tuple[str, str] | None = None) -> SellerAnswer:
        """The seller's answer, whatever its status. `payment` is a header that is sent with it.

        Follows redirects within the origin while nothing is paid; others are answers. Raises
        SellerUnreachable when there is none, which does not mean that the seller got nothing.
        """
        seller, door = self._seller, self._door
        deadline = asyncio.get_running_loop().time() + seller.timeout_seconds
        for _ in range(MOST_REDIRECTS):
            answer = await seller.send(door, self._asker, order, payment, deadline)
            further = None if payment is not None else _redirected(answer, door.allowed)
            if further is None:
                return answer
            order = further
        return await seller.send(door, self._asker, order, payment, deadline)


class Seller:
    """One for a process, made while its event loop runs.

    Tests replace the system's resolver by `lookup`, to make names resolve to forbidden addresses.
    """

    def __init__(self, config: Config, lookup: Lookup | None = None) -> None:
        self._response_bytes = config.purchases_response_bytes
        self.timeout_seconds = config.purchases_timeout_seconds
        of_one = self._response_bytes + MOST_HEADERS * MOST_HEADER_BYTES
        self._at_once = min(max(_MEMORY_BYTES // of_one, _LEAST_AT_ONCE), _MOST_AT_ONCE)
        # Of a realm, which is an account in one mode; and of its orders to a host and port.
        self._of_account = Shares[int](self._at_once // _SHARE_OF_ONE)
        self._of_both = Shares[tuple[int, str, int]](max(1, self._at_once // _SHARE_OF_BOTH))
        # Of a seller's host and port, and of all, in each mode.
        self._of_seller = Shares[tuple[Mode, str, int]](self._at_once // _SHARE_OF_ONE)
        self._of_all = Shares[Mode](self._at_once)
        self._doors = {mode: _door(mode, purchase_targets(config, mode), lookup) for mode in MODES}

    async def close(self) -> None:
        for door in self._doors.values():
            door.gate.shut()

    @contextlib.asynccontextmanager
    async def turn(self, mode: Mode, realm_id: int, order: Order) -> AsyncGenerator[Visit]:
        """A purchase waits once, for all that it asks of its seller: what it has signed must not
        wait for others. Raises SellerUnreachable when its turn does not come."""
        door = self._doors[mode]
        target = _checked(order, door.allowed)
        # As long as the two requests of one that has its turn may take.
        deadline = asyncio.get_running_loop().time() + 2 * self.timeout_seconds
        async with contextlib.AsyncExitStack() as stack:
            try:
                # Who waits for a slow seller takes nothing from the account's other purchases.
                both = self._of_both.one_of((realm_id, target.host, target.port), deadline)
                await stack.enter_async_context(both)
                account = self._of_account.one_of(realm_id, deadline)
                await stack.enter_async_context(account)
            except TimeoutError:
                raise SellerUnreachable(
                    "The seller was not asked: others of this account are still being served."
                ) from None
            asker = Asker(door.gate, reuses=REPEATABLE)
            stack.callback(asker.close)
            yield Visit(self, door, asker)

    async def send(
        self,
        door: _Door,
        asker: Asker,
        order: Order,
        payment: tuple[str, str] | None,
        deadline: float,
    ) -> SellerAnswer:
        """For a visit."""
        headers = order.headers if payment is None else (*order.headers, payment)
        names = [name.lower() for name, _ in headers]
        check(len(names) == len(set(names)), "only the service sends what pays")
        ours = [(name, value) for name, value in _OURS if name.lower() not in names]
        target = _checked(order, door.allowed)
        place = target.host, target.port
        check(target.host == order.host, "the host that the policy judged is asked")
        bounds = Bounds(deadline, deadline, self._response_bytes)
        try:
            async with (
                self._of_seller.one_of((door.mode, *place), deadline),
                self._of_all.one_of(door.mode, deadline),
            ):
                answer = await asker.ask(
                    order.method, target, (*ours, *headers), order.body, bounds
                )
        except TargetRefused as problem:
            raise _refused(problem) from None
        except TimeoutError:
            raise _no_answer(f"nothing came within {self.timeout_seconds} s") from None
        except NoAnswer as problem:
            # The log is the operator's and may name the address.
            cause = problem.__cause__ or problem
            _log.info("seller_unreachable", host=order.host, problem=repr(cause))
            raise _no_answer(str(problem)) from None
        return SellerAnswer(
            answer.status, _shown_headers(answer), answer.body, answer.truncated, order
        )


def _door(mode: Mode, allowed: Allowed, lookup: Lookup | None) -> _Door:
    return _Door(mode, allowed, Gate(allowed, lookup))


def _checked(order: Order, allowed: Allowed) -> Target:
    try:
        return check_order_url(order.url, allowed)
    except TargetRefused as problem:
        raise _refused(problem) from None


def _refused(problem: TargetRefused) -> SellerUnreachable:
    return SellerUnreachable(f"The URL {problem}.")


def _no_answer(why: str) -> SellerUnreachable:
    return SellerUnreachable(f"The seller gave no answer: {why}.")


def _shown_headers(answer: Answer) -> tuple[tuple[str, str], ...]:
    if not 200 <= answer.status <= 599:
        raise _no_answer(f"{answer.status} is not the status of one")
    if sum(len(name) + len(value) for name, value in answer.headers) > MOST_HEADERS_BYTES:
        raise _no_answer("its headers are too long")
    return tuple(
        (name.decode("latin-1"), _CONTROL.sub(" ", value.decode("latin-1")))
        for name, value in answer.headers
    )


def _redirected(answer: SellerAnswer, allowed: Allowed) -> Order | None:
    """What a redirect makes of the order, if it stays within the origin."""
    places = [value for name, value in answer.headers if name.lower() == "location"]
    if answer.status not in _REDIRECTS or len(places) != 1 or not _VISIBLE.fullmatch(places[0]):
        return None
    order = answer.order
    try:
        url = urljoin(order.url, places[0]).partition("#")[0]
        check_order_url(url, allowed)
    except ValueError:
        return None
    further = replace(order, url=url)
    if further.origin != order.origin:
        return None
    # As browsers do it.
    if (answer.status == 303 and order.method not in ("GET", "HEAD")) or (
        answer.status in (301, 302) and order.method == "POST"
    ):
        kept = tuple(pair for pair in order.headers if pair[0].lower() not in _OF_A_BODY)
        further = replace(further, method="GET", headers=kept, body=b"")
    return further
