"""Judging a purchase: its host before anything is sent there, its price and payee once the seller
has named them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import asyncpg
import msgspec

from bursar.config import Mode
from bursar.custody.model import SealedKey
from bursar.db import NOT_ALONE, Database, Tx
from bursar.errors import not_found, present
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import RejectCode, Rule, Terms, Used, decide, purchase_terms, terms_of
from bursar.policy.limits import METER
from bursar.policy.model import Bounds
from bursar.purchase import pin_store, store
from bursar.purchase.choose import Choice
from bursar.purchase.model import PurchaseRow
from bursar.purchase.offer import Offer
from bursar.purchase.order import Order
from bursar.purchase.payee import Binding
from bursar.purchase.pin_store import Bound
from bursar.recipient.resolve import Directory
from bursar.spend.authorise import AuthorisedPurchase, authorise_purchase
from bursar.spend.deciding import SpendRequest
from bursar.spend.memory import Memory, Remembered, known_by, lock_to_decide
from bursar.spend.model import SpendRow
from bursar.spend.store import OfPurchase, Presenting
from bursar.spend.view import show_decision

# What a host is judged by before it has named a price.
_OF_HOSTS: Final = frozenset(
    {
        Rule.ACCOUNT_STOPPED,
        Rule.AGENT_STATUS,
        Rule.POLICY_FROZEN,
        Rule.BUDGET_FROZEN,
        Rule.BLOCKLIST,
        Rule.ALLOWLIST,
    }
)
# How long after it was not there migration 0007 is not looked for: it is for after a deploy.
_UNKNOWN_SECONDS: Final = 60.0
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal before there was a price, and its decision as the API shows it."""

    code: RejectCode
    decision: str


@dataclass(frozen=True, slots=True)
class Read:
    """What the books say before a seller is asked: of the agent, at that moment; of where the
    seller is paid; and the key that would sign. What of it can change is looked at again under the
    wallet's lock."""

    agent: Remembered
    at: datetime
    bound: Bound
    # Whether the directory gives the seller's address to a host that the policy blocks, too.
    pays_blocked_host: bool
    wallet_key: SealedKey


# Which offer is taken, where the seller is bound so.
Choose = Callable[[Binding], Choice | None]
# What pays by this offer, signed; None where it cannot be signed now.
Sign = Callable[[Offer], Awaitable[Presenting | None]]


class Priced(NamedTuple):
    """A purchase that has its price, by this offer, and the spend that was decided: open, or
    presented where it was signed with its price."""

    purchase: PurchaseRow
    spend: SpendRow
    offer: Offer


class _TurnNeeded(Exception):
    """A payee is new to its origin by now, so it has to be pinned."""


class Judge:
    def __init__(
        self,
        policies: PolicyCache,
        directory: Directory,
        bounds: Bounds,
        *,
        approval_seconds: int,
    ) -> None:
        self._directory = directory
        # The seller's facilitator pays what a purchase costs on the chain.
        self._bounds = msgspec.structs.replace(bounds, payment_lamports=0)
        self._memory = Memory(policies, directory, self._bounds)
        self._approval_seconds = approval_seconds
        # By the event loop's clock: until then the database does not know how, most likely.
        self._presents_at_once_from = 0.0

    async def read(self, tx: Tx, mode: Mode, realm_id: int, agent_id: str, order: Order) -> Read:
        """Locks nothing; raises ApiError (404)."""
        books = await pin_store.books(tx, realm_id, agent_id, order.host, order.origin)
        if books is None:
            raise not_found("agent")
        agent = (await self._memory.seen(tx, {agent_id: books.agent}))[agent_id]
        listed = books.bound.listed
        blocked = listed is not None and await self._pays_blocked_host(
            tx, mode, realm_id, agent, listed
        )
        return Read(agent, books.agent.wallet.now, books.bound, blocked, books.wallet_key)

    def refusal(self, mode: Mode, read: Read, order: Order, *, brought: bool) -> Refusal | None:
        """Why this host is not even visited, if so: it cannot come to a payment."""
        agent, host = read.agent, order.host
        listed, pays_blocked_host = read.bound.listed, read.pays_blocked_host
        terms = self._terms(agent, host, listed, pays_blocked_host=pays_blocked_host)
        # That the directory names no address says nothing yet where the seller may name one. What a
        # brought 402 asks for is known without a visit, and refused with its price.
        binding = _bound(mode, agent, order.origin, read.bound, brought=brought)
        unresolved = binding.pays_nobody and not brought
        terms = msgspec.structs.replace(terms, lists=terms.lists[:2] + "pf"[unresolved])
        code = terms.standing
        if code is None:
            return None
        used = Used(
            agent.spent_micros,
            agent.available_micros,
            agent.network_lamports,
            0,
            agent.pending_count,
            0,
            # What its limits have counted is not looked at.
            (0,) * (METER * (1 + len(terms.meter_ids))),
        )
        decision = decide(terms, used, 0, host, None, read.at)
        judged = _OF_HOSTS | {Rule.RECIPIENT_RESOLVED} if unresolved else _OF_HOSTS
        checks = [
            check
            if check.rule in judged
            else msgspec.structs.replace(check, outcome="not_evaluated", observed=None)
            for check in decision.checks
        ]
        shown = show_decision(msgspec.structs.replace(decision, checks=checks))
        return Refusal(code, _encode(shown).decode())

    def binding(self, purchase: PurchaseRow, agent: Remembered, bound: Bound) -> Binding:
        return _bound(purchase.mode, agent, purchase.origin, bound, brought=purchase.brought)

    async def price(
        self,
        db: Database,
        purchase: PurchaseRow,
        read: Read,
        choose: Choose,
        network: str,
        sign: Sign | None = None,
    ) -> Priced | None:
        """Decides the purchase and writes its spend, price and state; None when it ended meanwhile.
        On what was read before, in one statement; under the locks where that did not stand, or
        cannot. `choose` has something to choose from. What `sign` returns is presented in the same
        statement; where it is not there yet (migration 0007), or that fails, by its caller."""
        loop = asyncio.get_running_loop()
        at_once = sign is not None and loop.time() >= self._presents_at_once_from
        for signing in (sign, None) if at_once else (None,):
            try:
                priced = await self.price_at_once(db, purchase, read, choose, network, signing)
            except asyncpg.UndefinedFunctionError:
                self._presents_at_once_from = loop.time() + _UNKNOWN_SECONDS
            except asyncpg.UniqueViolationError as problem:
                if signing is None or problem.constraint_name != store.SIGNATURE_CONSTRAINT:
                    raise
            except NOT_ALONE:
                continue
            else:
                if priced is not None:
                    return priced
                break
        binding = self.binding(purchase, read.agent, read.bound)
        for takes_turn in (binding.pins, True):
            with suppress(_TurnNeeded):
                work = partial(
                    self.price_under_locks,
                    purchase=purchase,
                    choose=choose,
                    network=network,
                    takes_turn=takes_turn,
                )
                return await db.transact(work)
        raise AssertionError("unreachable")

    async def price_at_once(
        self,
        db: Database,
        purchase: PurchaseRow,
        read: Read,
        choose: Choose,
        network: str,
        sign: Sign | None = None,
    ) -> Priced | None:
        """By a statement that is a transaction by itself. None, and nothing written, where the
        decision does not stand on what it finds, or cannot be made by it: where windows that are
        over have to be closed first, where limits and budgets count with others, and where it has
        to be noted what the origin is paid at. Raises SerializationError where the purchase has
        ended, its seller is paid elsewhere by now, or what was signed may not be presented."""
        agent = read.agent
        binding = self.binding(purchase, agent, read.bound)
        choice = _chosen(choose, binding)
        is_changed = binding.fault(choice.offer.pay_to) is RejectCode.PAYEE_CHANGED
        if not agent.hour_runs or agent.is_metered or binding.pins or is_changed:
            return None
        async with db.connection() as tx:
            return await self._decide(tx, purchase, agent, binding, choice, network, None, sign)

    async def price_under_locks(
        self, tx: Tx, purchase: PurchaseRow, choose: Choose, network: str, *, takes_turn: bool
    ) -> Priced | None:
        """In the commit that approves a first payee it is pinned; who expects that takes turns, so
        that the second to name one sees the first."""
        if takes_turn:
            await store.take_turns(tx, purchase.realm_id)
        locked_at, locked = await lock_to_decide(
            tx, self._memory, [purchase.agent_id], [purchase.realm_id]
        )
        bound, is_open = await pin_store.bound(tx, purchase)
        if not is_open:
            return None
        agent = (await self._memory.seen(tx, locked, windows_are_new=True))[purchase.agent_id]
        binding = self.binding(purchase, agent, bound)
        if binding.pins and not takes_turn:
            raise _TurnNeeded
        choice = _chosen(choose, binding)
        priced = await self._decide(tx, purchase, agent, binding, choice, network, locked_at)
        pay_to = choice.offer.pay_to
        if binding.fault(pay_to) is RejectCode.PAYEE_CHANGED:
            await pin_store.note_offer(tx, purchase.realm_id, purchase.origin, pay_to)
        elif priced is not None and priced.spend.verdict == "approved" and binding.pins:
            await pin_store.pin(tx, purchase.realm_id, purchase.origin, pay_to, purchase.created_by)
        return priced

    async def _decide(
        self,
        tx: Tx,
        purchase: PurchaseRow,
        agent: Remembered,
        binding: Binding,
        choice: Choice,
        network: str,
        locked_at: datetime | None,
        sign: Sign | None = None,
    ) -> Priced | None:
        offer = choice.offer
        fault = binding.fault(offer.pay_to)
        faults = {fault} if fault is not None else set[RejectCode]()
        if not choice.has_account:
            faults.add(RejectCode.PAYEE_ACCOUNT_MISSING)
        terms = purchase_terms(
            await self._terms_of_payee(tx, purchase, agent, offer.pay_to),
            faults,
            purchase.max_micros,
        )
        written = await authorise_purchase(
            tx,
            SpendRequest(
                realm_id=purchase.realm_id,
                mode=purchase.mode,
                agent_id=purchase.agent_id,
                amount_micros=offer.amount_micros,
                recipient=purchase.host,
                memo=purchase.memo,
                metadata=purchase.metadata,
                created_by=purchase.created_by,
                network=network,
                key=None,
            ),
            OfPurchase(purchase.id, offer.protocol, binding.listed, binding.pinned),
            agent,
            known_by(terms, offer.pay_to),
            self._bounds,
            self._memory,
            locked_at,
            self._approval_seconds,
            None if sign is None else partial(sign, offer),
        )
        if written is None:
            return None
        return Priced(_priced(purchase, offer, written), written.spend, offer)

    async def _terms_of_payee(
        self, tx: Tx, purchase: PurchaseRow, agent: Remembered, pay_to: str
    ) -> Terms:
        blocked = await self._pays_blocked_host(tx, purchase.mode, purchase.realm_id, agent, pay_to)
        return self._terms(agent, purchase.host, pay_to, pays_blocked_host=blocked)

    async def _pays_blocked_host(
        self, tx: Tx, mode: Mode, realm_id: int, agent: Remembered, pay_to: str
    ) -> bool:
        policy = agent.policy_key, agent.policy.blocks
        epoch = agent.directory_epoch
        return bool(
            await self._directory.paid_to_blocked(tx, mode, realm_id, epoch, policy, [pay_to])
        )

    def _terms(
        self, agent: Remembered, host: str, pay_to: str | None, *, pays_blocked_host: bool
    ) -> Terms:
        return terms_of(
            agent.policy,
            self._bounds,
            stopped=agent.stopped,
            agent_status=agent.agent_status,
            wallet_address=agent.wallet_address,
            recipient=host,
            pay_to=pay_to,
            pays_blocked_host=pays_blocked_host,
            budgets=agent.budgets,
        )


def _bound(mode: Mode, agent: Remembered, origin: str, bound: Bound, *, brought: bool) -> Binding:
    return Binding(
        mode=mode,
        payees=agent.policy.payees,
        is_https=origin.startswith("https:"),
        brought=brought,
        listed=bound.listed,
        pinned=bound.pinned,
    )


def _chosen(choose: Choose, binding: Binding) -> Choice:
    return present(choose(binding), "what can be paid does not depend on whom the seller names")


def _priced(purchase: PurchaseRow, offer: Offer, written: AuthorisedPurchase) -> PurchaseRow:
    """As `price_purchase` or `present_purchase` has written it."""
    spend, at, presented = written.spend, written.priced_at, written.presented
    is_open = spend.verdict == "approved" and presented is None
    priced = msgspec.structs.replace(
        purchase,
        protocol=offer.protocol,
        amount_micros=spend.amount_micros,
        pay_to=spend.pay_to,
        spend_id=spend.id,
        status="open" if spend.verdict == "approved" else spend.verdict,
        reject_code=spend.reject_code,
        updated_at=at,
        busy_until=purchase.busy_until if is_open else None,
    )
    if presented is None:
        return priced
    return msgspec.structs.replace(
        priced,
        status="presented",
        signature=presented.signature,
        fee_payer=presented.fee_payer,
        last_valid_height=presented.last_valid_height,
        signed_slot=presented.signed_slot,
        signed_at=at,
    )
