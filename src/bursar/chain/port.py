"""What Bursar asks of a chain, in its own words. `solana.py` is the adapter.

Every call is bounded in time and answered from the network, so nothing here is trusted: an answer
that cannot be read raises `ChainOutOfReach`, which means "unknown" and never "failed". Only
`send` answers with a value even then, because what was sent may have arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import median_low
from typing import Final, NamedTuple, Protocol

from bursar.errors import BursarError

# A blockhash is valid for so many blocks; what was signed before can land no longer than that.
BLOCKHASH_BLOCKS: Final = 150
# Blocks beyond the last valid one before a transaction that nobody saw counts as dead.
SAFETY_BLOCKS: Final = 32
# About a day. Where nodes differ by more, one of them is no good, and nobody can say which.
MOST_APART_BLOCKS: Final = 216_000


class ChainOutOfReach(BursarError):
    """No node gave an answer that can be read. Nothing is known; ask again later."""


class Unclear(ChainOutOfReach):
    """A node answered, but its answer to this one question cannot be read. Other questions may
    still be answered, so this one should not hold them up."""


@dataclass(frozen=True, slots=True)
class Height:
    """How far a node has finalized. Slots count time and heights count blocks, because a skipped
    slot has no block. Blockhashes expire by height; answers state their age by slot."""

    slot: int
    height: int


@dataclass(frozen=True, slots=True)
class Blockhash:
    """What is signed with it can land until `last_valid_height`, and is found from `slot` on."""

    hash: str
    last_valid_height: int
    slot: int


def vouched(told: Blockhash, heights: Sequence[Height]) -> Blockhash:
    """A blockhash as a node told it, and what others say of how far the chain is, at `confirmed` as
    the blockhash: the highest of heights and the lowest of slots, because only too early an end
    could cost money. Raises ChainOutOfReach where they are so far apart that the end would not
    come."""
    highest = max(height.height for height in heights)
    last_valid_height = max(told.last_valid_height, highest + BLOCKHASH_BLOCKS)
    # Of three and more one that stands still holds up nobody.
    middle = median_low(height.height for height in heights)
    if last_valid_height - BLOCKHASH_BLOCKS - middle > MOST_APART_BLOCKS:
        raise ChainOutOfReach("nodes are more than a day apart in their heights: one is wrong")
    slot = min(told.slot, *(height.slot for height in heights))
    return Blockhash(told.hash, last_valid_height, slot)


# Sending -----------------------------------------------------------------------------------------


class RefusalKind(IntEnum):
    """Why a node did not take a transaction. If nodes refuse for different reasons, the one listed
    first here counts. No refusal proves that the transaction will not land: it may have been sent
    before."""

    BLOCKHASH = 1  # unknown or expired blockhash: this node may lag; wait for the expiry rule
    FEE_PAYER = 2  # the fee payer cannot pay: not the payment's fault, never fail it for this
    PAYMENT = 3  # the transaction would fail (funds, frozen account): final after the expiry rule
    BUG = 4  # we built something no node accepts: logged, sent again until it expires
    BUSY = 5  # rate limit, unhealthy, behind: says nothing about the transaction; try later


@dataclass(frozen=True, slots=True)
class Sent:
    """A node took it, or knows it already."""


@dataclass(frozen=True, slots=True)
class Refused:
    kind: RefusalKind
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No readable answer: the transaction must be treated as sent."""

    reason: str


SendResult = Sent | Refused | Unknown


# Looking up --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    slot: int
    finalized: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class Statuses:
    """Every signature asked for is a key; `context_slot` is the oldest slot that an answer came
    from."""

    context_slot: int
    found: Mapping[str, Status | None]


@dataclass(frozen=True, slots=True)
class Movement:
    """What a transaction changed in one token account; never zero."""

    token_account: str
    owner: str
    mint: str
    delta_micros: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A finalized transaction. `block_time` may come later; a failed one moved nothing."""

    signature: str
    # All of them: the first, which is the transaction's own, and those of whoever else signed it.
    signatures: tuple[str, ...]
    slot: int
    block_time: int | None
    fee_lamports: int
    fee_payer: str
    # What the fee payer paid beyond the fee: rent of the accounts that were opened.
    rent_lamports: int
    error: str | None
    memos: tuple[str, ...]
    movements: tuple[Movement, ...]

    def senders(self, mint: str) -> tuple[str, ...]:
        """Owners of the accounts that this token came from, the largest amount first; empty when it
        was minted."""
        gave = [m for m in self.movements if m.mint == mint and m.delta_micros < 0]
        return tuple(m.owner for m in sorted(gave, key=lambda m: m.delta_micros))

    def moved(self, token_account: str, mint: str) -> int:
        """Micro-units that the account gained; negative when it paid."""
        return sum(
            m.delta_micros
            for m in self.movements
            if m.token_account == token_account and m.mint == mint
        )


@dataclass(frozen=True, slots=True)
class Mention:
    """One line of an address's history. Anybody who sends to the address can write any memo, so a
    memo proves nothing until `transaction` shows that the address itself paid."""

    signature: str
    slot: int
    block_time: int | None
    error: str | None
    memos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenHolding:
    mint: str
    amount_micros: int


@dataclass(frozen=True, slots=True)
class Account:
    """`owner` is the program that owns it; `token` is set when it is a token account."""

    owner: str
    lamports: int
    executable: bool
    token: TokenHolding | None


@dataclass(frozen=True, slots=True)
class Look:
    """What a payment that others submit is decided and signed on. Every address asked for is a
    key."""

    blockhash: Blockhash
    accounts: Mapping[str, Account | None]


@dataclass(frozen=True, slots=True)
class Balances:
    """Every owner asked for is a key; one without a token account has 0. `slot` is the oldest slot
    that an answer came from."""

    slot: int
    micros: Mapping[str, int]


class View(Protocol):
    """The reading calls: of one node, or of whichever node answers."""

    @property
    def name(self) -> str:
        """The host, without path or access token; of two at one host their places as well, because
        what a node has said is remembered by its name."""
        ...

    async def finalized(self) -> Height: ...

    async def is_valid(self, blockhash: str) -> bool:
        """At `finalized`: whether what was signed with it could still be in the next block. One
        that the node has never seen is not."""
        ...

    async def statuses(self, signatures: Sequence[str]) -> Statuses:
        """Searches the whole history, not only recent slots."""
        ...

    async def signatures_of(
        self,
        address: str,
        *,
        until: str | None = None,
        before: str | None = None,
        limit: int = 1000,
        from_slot: int | None = None,
    ) -> list[Mention]:
        """Finalized transactions that mention the address, newest first: older than `before`,
        newer than `until`. A node that has not reached `from_slot` does not count as an answer."""
        ...

    async def transaction(self, signature: str) -> Landed | None:
        """None while it is not finalized on the node that answers."""
        ...

    async def accounts(self, addresses: Sequence[str]) -> dict[str, Account | None]:
        """At `confirmed`; every address is a key, None where nothing exists."""
        ...

    async def token_balances(
        self, owners: Sequence[str], mint: str, *, from_slot: int = 0
    ) -> Balances:
        """What the associated token accounts hold, at `finalized`. A node that has not reached
        `from_slot` does not count as an answer."""
        ...


class Chain(View, Protocol):
    async def transactions(self, signatures: Sequence[str]) -> Mapping[str, Landed | None]:
        """Many at once; every signature is a key. Also None where no readable answer came, so that
        one bad transaction does not hold up the others. Never raises."""
        ...

    async def genesis_hash(self) -> str: ...

    async def mint(self, address: str) -> int | None:
        """The decimals of a token; None when the address is no mint of the Token program."""
        ...

    async def heights(self) -> Sequence[Height]:
        """`finalized` of each node that answers soon, at least one."""
        ...

    async def latest_blockhash(self) -> Blockhash:
        """At `confirmed`, which is also the level that `send` is checked at. How long it is valid
        decides when something is dead, so that is not left to one node: see `vouched`."""
        ...

    async def look(self, addresses: Sequence[str]) -> Look:
        """`latest_blockhash` and `accounts` of at least one address, with one request to a node
        where it takes that."""
        ...

    async def send(self, raw: bytes, *, everywhere: bool = False) -> SendResult:
        """Never raises. May be repeated with the same bytes at will. `everywhere`: to every node,
        because one may take what it then does not pass on."""
        ...

    async def send_many(self, raws: Sequence[bytes]) -> Sequence[bytes]:
        """Sends to one node, many with one request; returns those that it did not say it took. What
        became of these only `send` tells: they may have arrived all the same. Never raises."""
        ...

    async def priority_fee(self, writable: Sequence[str]) -> int:
        """Micro-lamports per compute unit that recent transactions on these accounts paid, at most
        the configured maximum."""
        ...

    def witnesses(self) -> Sequence[View]:
        """One view for each configured node. To be sure that something never happened, every one of
        them has to say so."""
        ...


class Paid(NamedTuple):
    """A payment as the chain shows it: its transaction, when it landed, and what it cost."""

    payment_id: str
    signature: str
    block_time: int | None
    fee_lamports: int
    rent_lamports: int = 0
