"""What the chain says of a payment. Asks nodes only: nothing here reads or writes the books."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bursar.chain.message import token_account
from bursar.chain.port import (
    SAFETY_BLOCKS,
    Chain,
    ChainOutOfReach,
    Height,
    Landed,
    Mention,
    View,
)
from bursar.settlement.model import PaymentRow, SettledRow, SubmissionRow, Watch

# Pages of 1,000 transactions of the source account that are searched for a memo: half a million,
# because after a restore the search goes back to before the payment was made.
_MOST_PAGES: Final = 500
# No clock is so wrong that a payment lands this long before it was made.
_CLOCKS_DIFFER_SECONDS: Final = 3_600
# How long a history that was read is only read on.
_READ_ANEW_SECONDS: Final = 20.0
# A node may list a transaction a little later than newer ones: so many slots, about a minute.
_INDEX_SLOTS: Final = 150


# By payment: the transaction that made it, or why that cannot be said now. Those that are missing
# were not made.
Found = dict[str, Landed | ChainOutOfReach]


async def made_before(
    histories: "Histories", chain: Chain, payments: Sequence[PaymentRow], watch: Watch
) -> Found:
    """Every node is asked, past the point where what was forgotten could land. The payments are of
    one wallet, whose history each node is asked for once. Never raises."""
    found: Found = {}
    for witness in chain.witnesses():
        open_ones = [p for p in payments if not isinstance(found.get(p.id), Landed)]
        if not open_ones:
            break
        try:
            final = await witness.finalized()
            if final.height <= watch.quiet_until_height:
                raise ChainOutOfReach(f"{witness.name} is behind")
            found |= await find_by_memo(histories, witness, open_ones, 0, final.slot)
        except ChainOutOfReach as problem:
            found |= {payment.id: problem for payment in open_ones}
    return found


async def never_saw(witness: View, submission: SubmissionRow) -> Height | None:
    """How far this node is, if that is past where it could land and it has no such signature.

    The height is read before the status: what lands between the two is then seen.
    """
    final = await witness.finalized()
    if final.height <= submission.last_valid_height + SAFETY_BLOCKS:
        return None
    # Should the height be wrong that was noted when it was signed.
    if await witness.is_valid(submission.blockhash):
        return None
    statuses = await witness.statuses([submission.signature])
    if statuses.found[submission.signature] is not None:
        return None
    return None if statuses.context_slot < final.slot else final


async def find_by_memo(
    histories: "Histories",
    view: View,
    payments: Sequence[PaymentRow],
    since_slot: int,
    from_slot: int,
) -> Found:
    """The transactions that made these payments of one wallet, whoever signed them and whenever
    they were sent."""
    since_time = min(p.asked_at for p in payments).timestamp() - _CLOCKS_DIFFER_SECONDS

    def is_older(mention: Mention) -> bool:
        return mention.slot < since_slot or (
            mention.block_time is not None and mention.block_time < since_time
        )

    wanted = {payment.id: payment for payment in payments}
    found: Found = {}
    account = token_account(payments[0].source, payments[0].mint)
    for mention in await histories.read(view, account, from_slot, is_older):
        if mention.error is None:
            for payment_id in wanted.keys() & set(mention.memos):
                landed = await view.transaction(mention.signature)
                if landed is None:
                    problem = f"{mention.signature} is mentioned but not shown"
                    found[payment_id] = ChainOutOfReach(problem)
                # A memo alone proves nothing: anybody can write one.
                elif pays(landed, wanted[payment_id]):
                    found[payment_id] = landed
                    del wanted[payment_id]
        if not wanted:
            break
    return found


@dataclass(slots=True)
class _History:
    """What a node told of an account: newest first, without a hole; `whole` to its beginning."""

    read_at: float
    # What is newer is read again the next time.
    sure_slot: int = 0
    mentions: list[Mention] = field(default_factory=list[Mention])
    whole: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Histories:
    """Finalized histories of accounts, each read on from where the last look at it ended: what is
    final does not change, and while a wallet pays, it is looked at again and again. All of it is
    read anew after a while, so that a node's bad moment is not believed for long."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _History] = {}

    async def read(
        self, view: View, account: str, from_slot: int, is_older: Callable[[Mention], bool]
    ) -> Sequence[Mention]:
        """Newest first, from `from_slot` or later back to what is older, or to the beginning."""
        history = self._history(view.name, account)
        async with history.lock:
            sure = [m for m in history.mentions if m.slot <= history.sure_slot]
            if sure:
                newer = await _newer(view, account, from_slot, sure[0].signature)
                history.mentions = newer + sure
            else:
                history.mentions, history.whole = [], False
            history.sure_slot = from_slot - _INDEX_SLOTS
            for _ in range(_MOST_PAGES):
                oldest = history.mentions[-1] if history.mentions else None
                if history.whole or (oldest is not None and is_older(oldest)):
                    return list(history.mentions)
                before = None if oldest is None else oldest.signature
                page = await view.signatures_of(account, before=before, from_slot=from_slot)
                history.mentions += page
                history.whole = not page
        raise _too_long(account)

    def _history(self, node: str, account: str) -> _History:
        now = asyncio.get_running_loop().time()
        history = self._known.get((node, account))
        if history is None or now - history.read_at > _READ_ANEW_SECONDS:
            # With them go those that nobody asks for any more.
            self._known = {
                key: known
                for key, known in self._known.items()
                if now - known.read_at <= _READ_ANEW_SECONDS
            }
            history = self._known[node, account] = _History(now)
        return history


async def _newer(view: View, account: str, from_slot: int, newest: str) -> list[Mention]:
    found: list[Mention] = []
    before: str | None = None
    for _ in range(_MOST_PAGES):
        page = await view.signatures_of(account, until=newest, before=before, from_slot=from_slot)
        if not page:
            return found
        found += page
        before = page[-1].signature
    raise _too_long(account)


def _too_long(account: str) -> ChainOutOfReach:
    return ChainOutOfReach(f"the history of {account} is longer than is searched")


def pays(landed: Landed, payment: PaymentRow | SettledRow) -> bool:
    """Whether the transaction is this payment: its memo, paid for by us, from this wallet, exactly
    this amount. Where others pay the fee it is a purchase, and they may choose the memo."""
    return (
        payment.id in landed.memos
        and landed.fee_payer == payment.fee_payer
        and went(landed, payment.source, payment.destination, payment.mint, payment.amount_micros)
    )


def went(landed: Landed, source: str, destination: str, mint: str, amount_micros: int) -> bool:
    """Whether exactly this amount went from the one owner to the other."""
    return (
        landed.error is None
        and landed.moved(token_account(source, mint), mint) == -amount_micros
        and landed.moved(token_account(destination, mint), mint) == amount_micros
    )


def took(landed: Landed, payment: PaymentRow | SettledRow) -> bool:
    """Whether exactly its amount left its wallet, wherever it went."""
    moved = landed.moved(token_account(payment.source, payment.mint), payment.mint)
    return landed.error is None and moved == -payment.amount_micros
