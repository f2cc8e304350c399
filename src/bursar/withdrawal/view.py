"""How a withdrawal shows itself."""

from typing import Literal

import msgspec

from bursar.chain.networks import CURRENCY
from bursar.clock import iso, iso_or_none
from bursar.money import format_micros
from bursar.withdrawal.model import FailureCode, WithdrawalRow


class Withdrawal(msgspec.Struct, rename="camel", kw_only=True):
    """Money on its way out of a wallet, or gone, or failed and available again."""

    id: str
    agent_id: str
    amount: str
    currency: str
    destination: str
    status: Literal["pending", "settled", "failed"]
    signature: str | None
    block_time: int | None
    failure_code: FailureCode | None
    memo: str | None
    metadata: dict[str, str]
    network: str
    created_by: str
    created_at: str
    settled_at: str | None
    fee_lamports: int | None
    rent_lamports: int | None


def show_withdrawal(row: WithdrawalRow) -> Withdrawal:
    return Withdrawal(
        id=row.id,
        agent_id=row.agent_id,
        amount=format_micros(row.amount_micros),
        currency=CURRENCY,
        destination=row.destination,
        status=row.status,
        signature=row.signature,
        block_time=row.block_time,
        failure_code=row.failure_code,
        memo=row.memo,
        metadata=row.metadata,
        network=row.network,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        settled_at=iso_or_none(row.settled_at),
        fee_lamports=row.fee_lamports,
        rent_lamports=row.rent_lamports,
    )
