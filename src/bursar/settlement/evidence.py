"""What the chain says of a payment. Asks nodes only: nothing here reads or writes the books."""

from typing import Final

from bursar.chain.message import token_account
from bursar.chain.port import Chain, ChainOutOfReach, Height, Landed, View
from bursar.settlement.model import SAFETY_BLOCKS, PaymentRow, SubmissionRow, Watch

# Pages of 1,000 transactions of the source account that are searched for a memo: half a million,
# because after a restore the search goes back to before the payment was made.
_MOST_PAGES: Final = 500
# No clock is so wrong that a payment lands this long before it was made.
_CLOCKS_DIFFER_SECONDS: Final = 3_600


async def made_before(chain: Chain, payment: PaymentRow, watch: Watch) -> Landed | None:
    """Every node is asked, past the point where what was forgotten could land."""
    for witness in chain.witnesses():
        final = await witness.finalized()
        if final.height <= watch.quiet_until_height:
            raise ChainOutOfReach(f"{witness.name} is behind")
        landed = await find_by_memo(witness, payment, 0, final.slot)
        if landed is not None:
            return landed
    return None


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
    view: View, payment: PaymentRow, since_slot: int, from_slot: int
) -> Landed | None:
    """A transaction that made this payment, whoever signed it and whenever it was sent."""
    account = token_account(payment.source, payment.mint)
    since_time = payment.created_at.timestamp() - _CLOCKS_DIFFER_SECONDS
    before: str | None = None
    for _ in range(_MOST_PAGES):
        mentions = await view.signatures_of(account, before=before, from_slot=from_slot)
        for mention in mentions:
            if mention.error is None and payment.id in mention.memos:
                landed = await view.transaction(mention.signature)
                if landed is None:
                    raise ChainOutOfReach(f"{mention.signature} is mentioned but not shown")
                # A memo alone proves nothing: anybody can write one.
                if pays(landed, payment):
                    return landed
        if not mentions:
            return None
        oldest = mentions[-1]
        if oldest.slot < since_slot or (
            oldest.block_time is not None and oldest.block_time < since_time
        ):
            return None
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
