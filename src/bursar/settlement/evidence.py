"""What the chain says of a payment. Asks nodes only: nothing here reads or writes the books."""

from collections.abc import Sequence
from typing import Final

from bursar.chain.message import token_account
from bursar.chain.port import Chain, ChainOutOfReach, Height, Landed, View
from bursar.settlement.model import SAFETY_BLOCKS, PaymentRow, SubmissionRow, Watch

# Pages of 1,000 transactions of the source account that are searched for a memo: half a million,
# because after a restore the search goes back to before the payment was made.
_MOST_PAGES: Final = 500
# No clock is so wrong that a payment lands this long before it was made.
_CLOCKS_DIFFER_SECONDS: Final = 3_600


# By payment: the transaction that made it, or why that cannot be said now. Those that are missing
# were not made.
Found = dict[str, Landed | ChainOutOfReach]


async def made_before(chain: Chain, payments: Sequence[PaymentRow], watch: Watch) -> Found:
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
            found |= await find_by_memo(witness, open_ones, 0, final.slot)
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
    statuses = await witness.statuses([submission.signature])
    if statuses.found[submission.signature] is not None:
        return None
    return None if statuses.context_slot < final.slot else final


async def find_by_memo(
    view: View, payments: Sequence[PaymentRow], since_slot: int, from_slot: int
) -> Found:
    """The transactions that made these payments of one wallet, whoever signed them and whenever
    they were sent."""
    account = token_account(payments[0].source, payments[0].mint)
    since_time = min(p.created_at for p in payments).timestamp() - _CLOCKS_DIFFER_SECONDS
    wanted = {payment.id: payment for payment in payments}
    found: Found = {}
    before: str | None = None
    for _ in range(_MOST_PAGES):
        mentions = await view.signatures_of(account, before=before, from_slot=from_slot)
        for mention in mentions:
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
        if not mentions or not wanted:
            return found
        oldest = mentions[-1]
        if oldest.slot < since_slot or (
            oldest.block_time is not None and oldest.block_time < since_time
        ):
            return found
        before = oldest.signature
    raise ChainOutOfReach(f"the history of {account} is longer than is searched")


def pays(landed: Landed, payment: PaymentRow) -> bool:
    """Whether the transaction is this payment: its memo, from this wallet, exactly this amount."""
    return (
        landed.error is None
        and payment.id in landed.memos
        and landed.moved(token_account(payment.source, payment.mint), payment.mint)
        == -payment.amount_micros
        and landed.moved(token_account(payment.destination, payment.mint), payment.mint)
        == payment.amount_micros
    )
