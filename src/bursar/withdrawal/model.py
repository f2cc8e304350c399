"""A withdrawal: money on its way out of a wallet to an address of the operator's choice."""

from datetime import datetime
from typing import Literal

import msgspec

FailureCode = Literal["destination_invalid", "network_cost_exceeded", "settlement_failed"]


class WithdrawalRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    realm_id: int
    agent_id: str
    amount_micros: int
    destination: str
    status: Literal["pending", "settled", "failed"]
    failure_code: FailureCode | None
    memo: str | None
    metadata: dict[str, str]
    network: str
    created_by: str
    created_at: datetime
    signature: str | None
    block_time: int | None
    fee_lamports: int | None
    rent_lamports: int | None
    settled_at: datetime | None
