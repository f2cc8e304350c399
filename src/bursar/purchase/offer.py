"""What a seller offers to be paid, which of it Bursar can pay, and which of that it takes."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, get_args

from solders.token import ID as TOKEN

from bursar.chain.message import token_account
from bursar.chain.sponsored import MOST_MEMO_BYTES, PROGRAMS
from bursar.config import Mode
from bursar.hostnames import is_address
from bursar.ids import Prefix
from bursar.money import MOST_MICROS

Protocol = Literal["x402", "mpp"]

USDC_DECIMALS: Final = 6
USDC_PROGRAM: Final = str(TOKEN)
_SYMBOL: Final = "USDC"
# How each protocol names the network of a mode. A localnet goes by the name of devnet: the packages
# that sellers use know the public networks only.
_NETWORKS: Final[dict[tuple[Protocol, Mode], frozenset[str]]] = {
    ("x402", "test"): frozenset({"solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"}),
    ("x402", "live"): frozenset({"solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"}),
    ("mpp", "test"): frozenset({"devnet", "localnet"}),
    ("mpp", "live"): frozenset({"mainnet", "mainnet-beta"}),
}
_AMOUNT: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_OUR_IDS: Final = re.compile(rf"(?:{'|'.join(get_args(Prefix))})_[0-9a-z]{{26}}", re.ASCII)


class Unusable(StrEnum):
    """Why an offer cannot be taken, in the order in which it is found out."""

    MALFORMED = "malformed"
    VERSION = "version"
    SCHEME = "scheme"
    NETWORK = "network"
    ASSET = "asset"
    AMOUNT = "amount"
    PAYEE = "payee"
    FEES_NOT_SPONSORED = "fees_not_sponsored"
    SPLIT = "split"
    MEMO = "memo"
    FEE_PAYER = "fee_payer"
    EXPIRED = "expired"
    AUTHORIZATION_TAKEN = "authorization_taken"


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to pay, as the seller wrote it: nothing in it is trusted before `unusable` was asked.

    `echo` is what the answer has to repeat. Where `memo` is None, a transaction for x402 may have a
    memo of ours, one for MPP none at all.
    """

    protocol: Protocol
    scheme: str
    network: str
    asset: str
    amount: str
    pay_to: str
    fee_payer: str | None
    memo: str | None
    echo: Mapping[str, Any]
    decimals: int = USDC_DECIMALS
    token_program: str = USDC_PROGRAM
    splits: bool = False
    expires: datetime | None = None

    @property
    def amount_micros(self) -> int:
        """Of an offer that is usable."""
        return int(self.amount)


@dataclass(frozen=True, slots=True)
class Offered:
    """All that a seller's answer offered; `unread` says what of it could not be read, and why."""

    offers: Sequence[Offer] = ()
    unread: Sequence[Unusable] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """What an offer has to be, to be paid here and now.

    `ours` are addresses that belong to this service: whose fee payer is one of them would have us
    sign, or find, what is not a purchase. `sends_authorization`: the caller's own `Authorization`
    header leaves no room for MPP's.
    """

    mode: Mode
    mint: str
    now: datetime
    ours: Container[str]
    sends_authorization: bool = False


def unusable(offer: Offer, terms: Terms) -> Unusable | None:
    """Why this offer cannot be taken; None if it can."""
    for reason, holds in _reasons(offer, terms):
        if holds:
            return reason
    return None


def cheapest(offers: Iterable[Offer]) -> Offer | None:
    """Of usable ones; of equal ones the first, as the seller prefers it."""
    return min(offers, key=lambda offer: offer.amount_micros, default=None)


def _reasons(offer: Offer, terms: Terms) -> Iterable[tuple[Unusable, bool]]:
    """Lazily: what comes later may rest on what was found out before."""
    is_mpp = offer.protocol == "mpp"
    yield Unusable.SCHEME, offer.scheme != ("charge" if is_mpp else "exact")
    yield Unusable.NETWORK, offer.network not in _NETWORKS[offer.protocol, terms.mode]
    yield (
        Unusable.ASSET,
        offer.asset not in ((terms.mint, _SYMBOL) if is_mpp else (terms.mint,))
        or offer.decimals != USDC_DECIMALS
        or offer.token_program != USDC_PROGRAM,
    )
    yield (
        Unusable.AMOUNT,
        _AMOUNT.fullmatch(offer.amount) is None or int(offer.amount) > MOST_MICROS,
    )
    yield Unusable.PAYEE, not is_address(offer.pay_to) or offer.pay_to in (terms.mint, *PROGRAMS)
    yield Unusable.FEES_NOT_SPONSORED, offer.fee_payer is None
    yield Unusable.SPLIT, offer.splits
    yield Unusable.MEMO, offer.memo is not None and not _may_be_memo(offer.memo)
    yield Unusable.FEE_PAYER, not _may_pay_fee(offer, terms)
    yield Unusable.EXPIRED, offer.expires is not None and offer.expires <= terms.now
    yield Unusable.AUTHORIZATION_TAKEN, is_mpp and terms.sends_authorization


def _may_be_memo(memo: str) -> bool:
    """By an id in a memo, payments are found on the chain: no seller may write one of ours."""
    return len(memo.encode()) <= MOST_MEMO_BYTES and _OUR_IDS.search(memo) is None


def _may_pay_fee(offer: Offer, terms: Terms) -> bool:
    """The fee payer signs the whole transaction, so it may be nothing that the transfer names."""
    payer = offer.fee_payer
    return (
        payer is not None
        and is_address(payer)
        and payer not in (terms.mint, offer.pay_to, token_account(offer.pay_to, terms.mint))
        and payer not in PROGRAMS
        and payer not in terms.ours
    )
