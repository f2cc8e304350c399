"""Which of a seller's offers is taken, with all that has to be known of the chain and of us."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from solders.pubkey import Pubkey

from bursar.chain import store as chain_store
from bursar.chain.message import SYSTEM, token_account
from bursar.chain.port import Account, Blockhash, Chain
from bursar.chain.store import Pinned
from bursar.config import Mode
from bursar.db import Tx
from bursar.errors import unavailable
from bursar.hostnames import is_address
from bursar.purchase import mpp, x402
from bursar.purchase.offer import Offer, Terms, Unusable, cheapest, unusable
from bursar.purchase.payee import Binding
from bursar.purchase.seller import SellerAnswer

_SYSTEM: Final = str(SYSTEM)
# Reasons that are named where nothing could be taken.
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Ground:
    """What the chain says while a purchase is decided and signed. `accounts` are those of the
    payees and of their tokens."""

    network: Pinned
    blockhash: Blockhash
    accounts: Mapping[str, Account | None]

    def covers(self, offers: Sequence[Offer]) -> bool:
        """Whether it was asked for all of their payees."""
        return {offer.pay_to for offer in offers} <= self.accounts.keys()

    def is_wallet(self, address: str) -> bool:
        """Absent or owned by the System program; nothing else is ever paid."""
        account = self.accounts.get(address)
        return account is None or (account.owner == _SYSTEM and not account.executable)

    def has_account(self, address: str) -> bool:
        account = self.accounts.get(token_account(address, self.network.mint))
        return (
            account is not None
            and account.token is not None
            and account.token.mint == self.network.mint
        )


@dataclass(frozen=True, slots=True)
class Offers:
    """The usable ones of a 402, and why the others are not."""

    usable: Sequence[Offer]
    reasons: Sequence[str]

    @property
    def fee_payers(self) -> list[str]:
        return sorted({offer.fee_payer for offer in self.usable if offer.fee_payer is not None})

    def but_ours(self, ours: Collection[str]) -> "Offers":
        """Without those whose fee a key of Bursar would pay."""
        refused = [offer for offer in self.usable if offer.fee_payer in ours]
        return Offers(
            [offer for offer in self.usable if offer.fee_payer not in ours],
            [*self.reasons, *(f"{offer.protocol} {Unusable.FEE_PAYER}" for offer in refused)],
        )

    @property
    def problem(self) -> str:
        named = ", ".join(dict.fromkeys(self.reasons[:_MOST_NAMED]))
        if not named:
            return "The seller answered 402 and offered no way to pay that Bursar knows."
        return f"The seller offers nothing that Bursar can pay here: {named}."


async def pinned_network(tx: Tx, mode: Mode) -> Pinned:
    """Raises ApiError (503) before the worker has reached the network for the first time."""
    network = await chain_store.pinned(tx, mode)
    if network is None:
        raise unavailable(f"The {mode} network has not been reached yet. Try again.")
    return network


def read_offers(
    network: Pinned, answer: SellerAnswer, now: datetime, *, sends_authorization: bool
) -> Offers:
    """What a 402 offers, by both protocols. Whether the key that pays the fee is one of ours is not
    known yet: see `but_ours`."""
    by_header = x402.read_required(answer.headers, answer.body)
    by_challenge = mpp.read_challenges(answer.headers)
    offers = [*by_header.offers, *by_challenge.offers]
    reasons = [str(reason) for reason in (*by_header.unread, *by_challenge.unread)]
    payers = {offer.fee_payer for offer in offers if offer.fee_payer is not None}
    terms = Terms(
        mode=network.mode,
        mint=network.mint,
        now=now,
        # Token accounts, of ours as of anybody, are off the curve: no key of theirs can sign.
        ours={payer for payer in payers if _is_off_curve(payer)},
        sends_authorization=sends_authorization,
    )
    usable: list[Offer] = []
    for offer in offers:
        reason = unusable(offer, terms)
        if reason is None:
            usable.append(offer)
        else:
            reasons.append(f"{offer.protocol} {reason}")
    return Offers(usable, reasons)


async def read_ground(chain: Chain, network: Pinned, payees: Collection[str]) -> Ground:
    """Raises ChainOutOfReach."""
    addresses = sorted({*payees, *(token_account(payee, network.mint) for payee in payees)})
    # A seller that offers nothing usable names nobody.
    seen = await chain.look(addresses or [network.mint])
    return Ground(network, seen.blockhash, seen.accounts)


class Choice(NamedTuple):
    """The offer that is taken, and whether its payee has an account to be paid at."""

    offer: Offer
    has_account: bool


def choose(offers: Sequence[Offer], ground: Ground, binding: Binding) -> Choice | None:
    """Of those whose payee fits the cheapest; where none does, the cheapest: its refusal says why.
    None where no payee is a wallet, however the seller is bound."""
    payable = [offer for offer in offers if ground.is_wallet(offer.pay_to)]
    fitting = [
        offer
        for offer in payable
        if binding.fault(offer.pay_to) is None and ground.has_account(offer.pay_to)
    ]
    offer = cheapest(fitting or payable)
    return None if offer is None else Choice(offer, ground.has_account(offer.pay_to))


def same_terms(
    offers: Sequence[Offer], ground: Ground, amount_micros: int, pay_to: str
) -> Offer | None:
    """The offer whose price and payee are those that were approved."""
    return next(
        (
            offer
            for offer in offers
            if (offer.amount_micros, offer.pay_to) == (amount_micros, pay_to)
            and ground.is_wallet(pay_to)
            and ground.has_account(pay_to)
        ),
        None,
    )


def _is_off_curve(address: str) -> bool:
    return is_address(address) and not Pubkey.from_string(address).is_on_curve()
