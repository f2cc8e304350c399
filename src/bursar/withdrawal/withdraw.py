"""Withdrawals: out of a wallet to an address of the operator's choice, outside every cap."""

from collections.abc import Mapping, Sequence
from typing import Any

from bursar.chain.port import Paid
from bursar.db import Tx
from bursar.errors import ApiError, ErrorCode, Fault, ValidationFailed, not_found
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.ids import new_id
from bursar.ledger import book, lock
from bursar.ledger.model import LockedWallet
from bursar.money import format_micros
from bursar.trail.trail import leave_trail
from bursar.withdrawal import store
from bursar.withdrawal.model import FailureCode, WithdrawalRow
from bursar.withdrawal.view import show_withdrawal


async def withdraw(
    tx: Tx,
    *,
    realm_id: int,
    agent_id: str,
    amount_micros: int,
    destination: str,
    memo: str | None,
    metadata: dict[str, str],
    network: str,
    created_by: str,
    request_id: str,
) -> WithdrawalRow:
    """Reserves the amount; a worker pays it later. A terminated agent's wallet can pay too."""
    locked = (await lock.lock_agents(tx, [agent_id], [realm_id])).get(agent_id)
    if locked is None:
        raise not_found("agent")
    wallet = locked.wallet
    if destination == wallet.address:
        raise ValidationFailed([Fault("destination", "destination is this wallet itself.")])
    if amount_micros > wallet.available_micros:
        raise ApiError(
            ErrorCode.INSUFFICIENT_FUNDS,
            f"The wallet has {format_micros(wallet.available_micros)} USDC available.",
            param="amount",
        )
    row = WithdrawalRow(
        id=new_id("wdr"),
        realm_id=realm_id,
        agent_id=agent_id,
        amount_micros=amount_micros,
        destination=destination,
        status="pending",
        failure_code=None,
        memo=memo,
        metadata=metadata,
        network=network,
        created_by=created_by,
        created_at=wallet.now,
        signature=None,
        block_time=None,
        fee_lamports=None,
        rent_lamports=None,
        settled_at=None,
    )
    wallet.reserve(row.id, amount_micros)
    await store.insert_withdrawal(tx, row)
    await book.save(tx, [wallet])
    await leave_trail(
        tx,
        realm_id=realm_id,
        actor=created_by,
        request_id=request_id,
        action="withdrawal.created",
        subject=row.id,
        after=show_withdrawal(row),
    )
    return row


async def settle_withdrawals(
    tx: Tx, wallets: Mapping[str, LockedWallet], paid: Sequence[Paid]
) -> None:
    """As `settle_spends`: posts; the caller saves the wallets."""
    now = max(wallet.now for wallet in wallets.values())
    for each in paid:
        row = await store.settle_withdrawal(tx, each, now)
        if row is not None:
            wallets[row.agent_id].post(row.id, row.amount_micros)
            await _announce(tx, EventType.WITHDRAWAL_SETTLED, row, wallets[row.agent_id])


async def fail_withdrawal(
    tx: Tx, wallet: LockedWallet, withdrawal_id: str, failure_code: FailureCode
) -> None:
    """pending -> failed; what was reserved is available again."""
    row = await store.fail_withdrawal(tx, withdrawal_id, failure_code)
    if row is None:
        return
    wallet.void(row.id, row.amount_micros)
    await book.save(tx, [wallet])
    await _announce(tx, EventType.WITHDRAWAL_FAILED, row, wallet)


async def _announce(tx: Tx, type_: EventType, row: WithdrawalRow, wallet: LockedWallet) -> None:
    data: Any = show_withdrawal(row)
    await emit(tx, [NewEvent(row.realm_id, type_, row.agent_id, data, wallet.now)])
