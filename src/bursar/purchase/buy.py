"""Buying: one purchase, one signature, at most one payment.

    stored          before the seller is asked
    asked           what the policy refuses is not visited
    decided         its spend, price and payee are one commit, under the wallet's lock
    signed          and committed, before it leaves
    presented       to the same URL; from then on the worker follows it on the chain

Whatever ends in between is found by the worker: what was not signed is given back, what was signed
counts as spent until it is proven dead. Nothing here is ever signed twice.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec

from bursar.access import idempotency
from bursar.access.idempotency import StoredAnswer
from bursar.access.model import IdempotencyKey
from bursar.chain.networks import network_name
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.clock import Clock
from bursar.config import Config, Mode
from bursar.custody.vault import KeyUnusable, Vault
from bursar.db import Database, Tx
from bursar.errors import ApiError, ErrorCode, present, unavailable
from bursar.ids import new_id
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import RejectCode
from bursar.purchase import end, mpp, outflow_store, secret_store, store, x402
from bursar.purchase.choose import (
    same_terms,
)
from bursar.purchase.decide import Judge, Read, Refusal
from bursar.purchase.look import Early, Lookout
from bursar.purchase.model import FailureCode, PurchaseRow, PurchaseStatus
from bursar.purchase.order import Order
from bursar.purchase.secret_store import Kept, Quota, Secrets, Sent
from bursar.purchase.seller import Seller, SellerAnswer, SellerUnreachable, Visit
from bursar.purchase.sign import MayNotSign, OutflowsUnknown, PayeeChanged, Signer
from bursar.purchase.store import Room
from bursar.purchase.view import PaymentHeader, SellerResponse
from bursar.recipient.resolve import Directory
from bursar.spend import store as spend_store
from bursar.spend.model import SpendRow, bounds_of

T = TypeVar("T")

PAYMENT_REQUIRED: Final = 402
# Purchases being made or waiting for their turn at the seller, which has a few at a time
# (`seller.py`): each holds its request in memory.
MOST: Final = Room(of_account=400, of_agent=100, of_host=100)
# Headers by which a seller tells its customers apart.
_CREDENTIALS: Final = frozenset(("authorization", "cookie", "proxy-authorization"))
# What may be presented again.
_PRESENTED: Final[tuple[PurchaseStatus, ...]] = ("presented", "paid")
# What a purchase takes of its own time, beside its turn and its first request to the seller. Once
# it is signed nobody has to wait for it: the worker follows it.
_OWN_SECONDS: Final = 30


class PurchaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request to buy. `brought` is the 402 that the caller got itself;
    `same_within`: of how many seconds a purchase of the same is this one."""

    realm_id: int
    mode: Mode
    agent_id: str
    order: Order
    brought: SellerAnswer | None
    max_micros: int | None
    memo: str | None
    metadata: dict[str, str]
    created_by: str
    key: IdempotencyKey | None
    same_within: int


@dataclass(frozen=True, slots=True)
class Bought:
    """A purchase as it stands, and what of it the process has at hand: nothing that was stored has
    to be read again to show it."""

    purchase: PurchaseRow
    spend: SpendRow | None = None
    header: PaymentHeader | None = field(default=None, repr=False)
    response: SellerResponse | None = field(default=None, repr=False)


class Buyer:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        db: Database,
        vault: Vault,
        policies: PolicyCache,
        directory: Directory,
        chains: Mapping[Mode, Solana],
        seller: Seller,
    ) -> None:
        self._config = config
        self._db = db
        self._vault = vault
        self._seller = seller
        self._lookout = Lookout(clock, db, chains)
        self._quota = Quota(db)
        self._signer = Signer(db, vault, self._quota)
        self._judge = Judge(
            policies, directory, bounds_of(config), approval_seconds=config.approval_seconds
        )
        self._busy_seconds = 3.0 * config.purchases_timeout_seconds + _OWN_SECONDS
        self._running: set[asyncio.Task[Any]] = set()

    # The three ways in --------------------------------------------------------------------------

    async def buy(self, request: PurchaseRequest) -> tuple[Bought, bool]:
        """(the purchase as it stands now, whether it was there before)."""
        read = await self._read(request.mode, request.realm_id, request.agent_id, request.order)
        is_brought = request.brought is not None
        refusal = self._judge.refusal(request.mode, read, request.order, brought=is_brought)
        with ExitStack() as stack:
            early = None
            if refusal is None:
                early = stack.enter_context(self._lookout.early(request.mode, read.bound))
            purchase, found = await self._begin(request, read, refusal)
            if found or purchase.status != "open":
                return Bought(purchase), found
            work = self._buy(purchase, read, early, stack.pop_all(), request.order, request.brought)
        return await self._to_the_end(work), False

    async def retry(self, purchase: PurchaseRow) -> PurchaseRow:
        """Presents the same bytes again, for goods whose answer was lost. Raises ApiError (409)."""
        _check_presented(purchase)
        if purchase.brought:
            raise _invalid("The agent itself presents this payment: send its `header` again.")
        kept = await self._secrets(purchase)
        if kept.sent is None or kept.header is None:
            raise _invalid("What was sent is kept for a day, and it is gone by now.")
        order, header = kept.sent.order, kept.header
        taken = await self._take(purchase, _PRESENTED)
        _check_presented(taken)
        return await self._to_the_end(self._present_again(taken, order, header))

    async def resume(self, purchase: PurchaseRow, brought: SellerAnswer | None) -> PurchaseRow:
        """Goes on with a purchase that a person has approved. `brought` is a newer 402 of one whose
        402 was brought in the first place. Raises ApiError (409)."""
        if purchase.status != "pending":
            raise _invalid(f"Only a pending purchase is continued; this one is {purchase.status}.")
        async with self._db.connection() as tx:
            spend = await spend_store.get_spend(
                tx, purchase.realm_id, present(purchase.spend_id, "a pending purchase has a price")
            )
        if spend is None or spend.status != "approved":
            raise _invalid("Nobody has approved this purchase yet.")
        if purchase.called_off_by is not None:
            raise _invalid("It was cancelled after a stop of the account: buy again.")
        if brought is not None and not purchase.brought:
            raise _invalid(
                "The service itself asked this seller, and asks it again: continue without"
                " `paymentRequired`."
            )
        kept = await self._secrets(purchase)
        if kept.sent is None:
            raise _invalid("What was asked for is kept for three days, and it is gone by now.")
        sent = kept.sent
        taken = await self._take(purchase, ("pending",))
        if taken.status != "pending":
            return taken  # another request has continued it, or it has ended
        return await self._to_the_end(self._continue(taken, sent.order, brought or sent.brought))

    async def close(self) -> None:
        """Lets what was signed reach its seller."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._config.drain_seconds)
        await self._seller.close()

    # The steps ----------------------------------------------------------------------------------

    async def _begin(
        self, request: PurchaseRequest, read: Read, refusal: Refusal | None
    ) -> tuple[PurchaseRow, bool]:
        """Stores the purchase, or finds the one that the request made before. Raises ApiError (422
        where its key was used for something else, 409 where the same costs more than this caller
        would pay, 503)."""
        order, key = request.order, request.key
        is_brought = request.brought is not None
        new = store.NewPurchase(
            id=new_id("pur"),
            realm_id=request.realm_id,
            agent_id=request.agent_id,
            mode=request.mode,
            url=order.url,
            method=order.method,
            host=order.host,
            origin=order.origin,
            max_micros=request.max_micros,
            memo=request.memo,
            metadata=request.metadata,
            brought=is_brought,
            digest=_digest(order, brought=is_brought),
            idempotency_key=None if key is None else key.key,
            fingerprint=None if key is None else key.fingerprint,
            created_by=request.created_by,
            created_at=read.at,
            reject_code=None if refusal is None else refusal.code,
            refusal=None if refusal is None else refusal.decision,
        )
        kept = None
        if refusal is None:
            sent = Sent(order=order, brought=request.brought)
            kept = secret_store.seal_order(self._vault, new.id, sent)
        begun = await self._db.alone(
            lambda tx: store.begin(
                tx,
                new,
                MOST,
                busy_seconds=self._busy_seconds,
                same_within=request.same_within,
                order=kept,
            )
        )
        if begun is None:
            async with self._db.connection() as tx:
                others = await store.under_way(tx, new.realm_id, new.agent_id, new.host)
            raise _no_room(others)
        purchase = begun.purchase
        if purchase.id == new.id:
            if kept is not None:
                await self._kept(purchase, kept)
            return purchase, False
        if key is not None:
            known = present(begun.fingerprint, "what is found by its key has a fingerprint")
            idempotency.matching(StoredAnswer(known, 201, b""), key)
        else:
            _check_bound(purchase, request.max_micros)
        async with self._db.transaction() as tx:
            await idempotency.wait_for_standbys(tx)
        return purchase, True

    async def _buy(
        self,
        purchase: PurchaseRow,
        read: Read,
        early: Early | None,
        looking: AbstractContextManager[Any],
        order: Order,
        brought: SellerAnswer | None,
    ) -> Bought:
        """`looking` ends what was begun early."""
        try:
            with looking:
                async with self._turn(purchase, order) as visit:
                    return await self._buy_in_turn(purchase, visit, read, early, order, brought)
        except SellerUnreachable as problem:
            return Bought(await self._fail(purchase, "seller_unreachable", str(problem)))

    async def _buy_in_turn(
        self,
        purchase: PurchaseRow,
        visit: Visit | None,
        read: Read,
        early: Early | None,
        order: Order,
        brought: SellerAnswer | None,
    ) -> Bought:
        answer = brought
        if answer is None:
            answer = await _visiting(visit).ask(order)
            if answer.status != PAYMENT_REQUIRED:
                return Bought(await self._free(purchase, answer))
        try:
            seen = await self._lookout.look(purchase.mode, order, answer, early)
        except ChainOutOfReach:
            problem = "The chain is out of reach."
            return Bought(await self._fail(purchase, "interrupted", problem))
        if seen.choose(self._judge.binding(purchase, read.agent, read.bound)) is None:
            problem = seen.offers.problem
            return Bought(await self._fail(purchase, "unsupported_payment", problem, answer))
        beforehand = self._signer.beforehand(purchase, answer.order, seen.ground, read.wallet_key)
        priced = await self._judge.price(
            self._db,
            purchase,
            read,
            seen.choose,
            network_name(self._config, purchase.mode),
            beforehand,
        )
        if priced is None:
            return Bought(await self._now(purchase))
        if priced.purchase.status not in ("open", "presented"):
            return Bought(priced.purchase, priced.spend)
        if beforehand is not None and priced.purchase.status == "presented":
            signed = priced.purchase, beforehand.committed()
        else:
            try:
                signed = await self._signer.sign(
                    priced.purchase, priced.offer, answer.order, seen.ground, read.wallet_key
                )
            except (MayNotSign, KeyUnusable) as problem:
                return Bought(await self._interrupt(priced.purchase, problem))
        if signed is None:
            return Bought(await self._now(purchase))
        bought = await self._presented(visit, answer.order, *signed)
        # Its spend changes with it.
        is_as_before = bought.purchase.status == "presented"
        return replace(bought, spend=priced.spend if is_as_before else None)

    async def _continue(
        self, purchase: PurchaseRow, order: Order, brought: SellerAnswer | None
    ) -> PurchaseRow:
        """What goes wrong before the seller has spoken leaves it as it is, to be tried again."""
        try:
            async with self._turn(purchase, order) as visit:
                return await self._continue_in_turn(purchase, visit, order, brought)
        except SellerUnreachable as problem:
            return await self._give_back(purchase, str(problem))

    async def _continue_in_turn(
        self,
        purchase: PurchaseRow,
        visit: Visit | None,
        order: Order,
        brought: SellerAnswer | None,
    ) -> PurchaseRow:
        answer = brought or await _visiting(visit).ask(order)
        try:
            read = await self._read(purchase.mode, purchase.realm_id, purchase.agent_id, order)
            seen = await self._lookout.look(purchase.mode, order, answer)
        except ChainOutOfReach:
            return await self._give_back(purchase, "The chain is out of reach.")
        amount = present(purchase.amount_micros, "a pending purchase has a price")
        pay_to = present(purchase.pay_to, "a pending purchase has a payee")
        offer = same_terms(seen.offers.usable, seen.ground, amount, pay_to)
        if answer.status != PAYMENT_REQUIRED or offer is None:
            problem = "The seller no longer asks for what was approved."
            return await self._change_of_terms(purchase, problem, answer)
        binding = self._judge.binding(purchase, read.agent, read.bound)
        if (fault := binding.fault(pay_to)) is not None:
            problem = f"{fault}: the approved payee is not where this seller is paid now."
            return await self._change_of_terms(purchase, problem, answer)
        try:
            signed = await self._signer.sign(
                purchase, offer, answer.order, seen.ground, read.wallet_key, pins=binding.pins
            )
        except PayeeChanged as problem:
            return await self._change_of_terms(purchase, str(problem), answer)
        except (MayNotSign, KeyUnusable) as problem:
            await self._ask_for_outflows(purchase, problem)
            return await self._give_back(purchase, str(problem))
        if signed is None:
            return await self._now(purchase)
        return (await self._presented(visit, answer.order, *signed)).purchase

    async def _presented(
        self, visit: Visit | None, order: Order, purchase: PurchaseRow, header: PaymentHeader
    ) -> Bought:
        """What is committed leaves; one whose 402 was brought, by the hands of its agent."""
        if purchase.brought:
            return Bought(purchase, header=header)
        return await self._present(_visiting(visit), purchase, order, header)

    async def _present_again(
        self, purchase: PurchaseRow, order: Order, header: PaymentHeader
    ) -> PurchaseRow:
        try:
            async with self._turn(purchase, order) as visit:
                return (await self._present(_visiting(visit), purchase, order, header)).purchase
        except SellerUnreachable as problem:
            return await self._give_back(purchase, str(problem))

    async def _present(
        self, visit: Visit, purchase: PurchaseRow, order: Order, header: PaymentHeader
    ) -> Bought:
        """Whatever the seller answers, or does not, decides nothing: the worker asks the chain."""
        try:
            answer = await visit.ask(order, (header.name, header.value))
        except SellerUnreachable as problem:
            given_back = await self._give_back(
                purchase, f"The payment was presented, and no answer came: {problem}"
            )
            return Bought(given_back, header=header)
        read = x402.read_response if purchase.protocol == "x402" else mpp.read_receipt
        claim = read(answer.headers)
        response = secret_store.as_response(answer)
        kept = secret_store.seal_response(self._vault, purchase.id, response)
        claimed = None if claim is None else claim.signature
        answered = await self._db.alone(lambda tx: store.answered(tx, purchase.id, kept, claimed))
        await self._kept(purchase, kept)
        return Bought(answered, header=header, response=response)

    # The ends -----------------------------------------------------------------------------------

    async def _free(self, purchase: PurchaseRow, answer: SellerAnswer) -> PurchaseRow:
        kept = self._sealed(purchase, answer)

        async def work(tx: Tx) -> PurchaseRow:
            moved = await store.move_purchase(tx, purchase.id, expected="open", status="free")
            if moved is None:
                return await _read(tx, purchase)
            await secret_store.keep(tx, moved, kept)
            return moved

        ended = await self._db.transact(work)
        await self._kept(purchase, kept)
        return ended

    async def _fail(
        self,
        purchase: PurchaseRow,
        code: FailureCode,
        problem: str,
        answer: SellerAnswer | None = None,
        spend_code: RejectCode = RejectCode.CANCELLED,
    ) -> PurchaseRow:
        """Nothing was signed: what was reserved is given back."""
        kept = None if answer is None else self._sealed(purchase, answer)

        async def work(tx: Tx) -> PurchaseRow:
            ended = await end.give_up(tx, purchase, code, spend_code, problem)
            if ended is None:
                return await _read(tx, purchase)
            if kept is not None:
                await secret_store.keep(tx, ended, kept)
            return ended

        ended = await self._db.transact(work)
        if kept is not None:
            await self._kept(purchase, kept)
        return ended

    async def _interrupt(self, purchase: PurchaseRow, problem: Exception) -> PurchaseRow:
        await self._ask_for_outflows(purchase, problem)
        return await self._fail(purchase, "interrupted", str(problem))

    async def _change_of_terms(
        self, purchase: PurchaseRow, problem: str, answer: SellerAnswer
    ) -> PurchaseRow:
        return await self._fail(
            purchase, "terms_changed", problem, answer, RejectCode.TERMS_CHANGED
        )

    async def _give_back(self, purchase: PurchaseRow, problem: str) -> PurchaseRow:
        return await self._db.alone(lambda tx: store.give_back(tx, purchase.id, problem))

    async def _ask_for_outflows(self, purchase: PurchaseRow, problem: Exception) -> None:
        if isinstance(problem, OutflowsUnknown):
            await outflow_store.ask(self._db, purchase.mode, purchase.agent_id)

    # Around them --------------------------------------------------------------------------------

    def _turn(
        self, purchase: PurchaseRow, order: Order
    ) -> AbstractAsyncContextManager[Visit | None]:
        if purchase.brought:  # nobody is asked
            return nullcontext()
        return self._seller.turn(purchase.mode, purchase.realm_id, order)

    async def _take(self, purchase: PurchaseRow, expected: Sequence[PurchaseStatus]) -> PurchaseRow:
        """Nobody else asks the seller for it meanwhile. One that is no longer in an expected state
        is left alone, and returned as it now is. Raises ApiError (409)."""
        taken = await self._db.alone(
            lambda tx: store.take(tx, purchase.id, self._busy_seconds, expected)
        )
        now = taken or await self._now(purchase)
        if taken is None and now.status in expected:
            raise _invalid("Another request is at work on this purchase. Try again in a while.")
        return now

    def _sealed(self, purchase: PurchaseRow, answer: SellerAnswer) -> Kept:
        response = secret_store.as_response(answer)
        return secret_store.seal_response(self._vault, purchase.id, response)

    async def _kept(self, purchase: PurchaseRow, kept: Kept) -> None:
        self._quota.add(purchase.agent_id, kept)
        await self._quota.hold(purchase)

    async def _read(self, mode: Mode, realm_id: int, agent_id: str, order: Order) -> Read:
        """Raises ApiError (404)."""
        async with self._db.connection() as tx:
            return await self._judge.read(tx, mode, realm_id, agent_id, order)

    async def _secrets(self, purchase: PurchaseRow) -> Secrets:
        async with self._db.connection() as tx:
            return await secret_store.open_secrets(tx, self._vault, purchase.id)

    async def _now(self, purchase: PurchaseRow) -> PurchaseRow:
        async with self._db.connection() as tx:
            return await _read(tx, purchase)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller that hangs up does not stop a purchase half-way."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)


async def _read(tx: Tx, purchase: PurchaseRow) -> PurchaseRow:
    found = await store.get_purchase(tx, purchase.realm_id, purchase.id)
    return present(found, "purchases stay")


def _digest(order: Order, *, brought: bool) -> bytes:
    """Of what makes two orders the same. What was answered to one person's credentials is not for
    another's, as with any shared cache (RFC 9111, 3.5). And who asked the seller itself got a
    header to send, which is no answer to who wants the goods."""
    whose = sorted(f"{n.lower()}: {v}" for n, v in order.headers if n.lower() in _CREDENTIALS)
    how = f"{order.method} brought" if brought else order.method
    parts = (how.encode(), order.url.encode(), *map(str.encode, whose), order.body)
    return hashlib.sha256(b"\n".join(parts)).digest()


def _check_bound(found: PurchaseRow, max_micros: int | None) -> None:
    """Of the same, bought before: it is no answer to who would not have paid as much. Nor is it
    bought once more, which would pay for it twice. Raises ApiError (409)."""
    # Without a price it may become as dear as its own caller allowed.
    costs = found.max_micros if found.amount_micros is None else found.amount_micros
    if max_micros is None or found.status == "free" or (costs is not None and costs <= max_micros):
        return
    raise _invalid(
        f"The same is bought already, as {found.id}, and costs or may cost more than maxAmount."
        " Nothing was done. Read that purchase, or give an idempotency key to buy it once more."
    )


def _no_room(others: Room) -> ApiError:
    """Names the bound that was reached, unless there is room again by now."""
    whose = "There were as many"
    if others.of_agent >= MOST.of_agent:
        whose = f"This agent has {others.of_agent}"
    elif others.of_host >= MOST.of_host:
        whose = f"This account, from this host, has {others.of_host}"
    elif others.of_account >= MOST.of_account:
        whose = f"This account has {others.of_account}"
    return unavailable(
        f"{whose} purchases under way, the most there may be. Nothing was asked for; try again when"
        " some have ended."
    )


def _visiting(visit: Visit | None) -> Visit:
    return present(visit, "where no 402 was brought, the seller is visited")


def _check_presented(purchase: PurchaseRow) -> None:
    if purchase.status not in _PRESENTED:
        raise _invalid(
            f"Only a purchase that was presented is retried; this one is {purchase.status}."
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_STATE, message)
