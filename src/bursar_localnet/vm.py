"""Wraps LiteSVM: runs a transaction, reports what it changed, and can undo it.

`chain` refuses old blockhashes and repeated signatures and verifies signatures
(`Wire.signatures_hold`). LiteSVM's own checks, which forget everything at a restart, are off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from solders.account import Account
from solders.clock import Clock as ClockSysvar
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction_metadata import (
    FailedTransactionMetadata,
    SimulatedTransactionInfo,
    TransactionMetadata,
)

from bursar_localnet.errors import LocalnetFailed
from bursar_localnet.programs import LOOKUP_TABLE, MEMO_V2, MEMO_V4
from bursar_localnet.record import InnerCall, Record, TokenBalance
from bursar_localnet.slots import SLOTS_PER_EPOCH
from bursar_localnet.tokens import read_mint, read_token_account
from bursar_localnet.wire import Wire

_TABLE_HEADER_BYTES: Final = 56


@dataclass(frozen=True, slots=True)
class Keys:
    """Every account that a transaction names, in the order of its indexes."""

    all: list[Pubkey]
    writable: list[Pubkey]
    loaded_writable: list[Pubkey]
    loaded_readonly: list[Pubkey]


@dataclass(frozen=True, slots=True)
class Run:
    """`included`: a block would contain it, so its fee is charged even if it failed."""

    record: Record
    keys: Keys
    included: bool
    before: Mapping[Pubkey, Account | None]
    after: Mapping[Pubkey, Account | None]


class Vm:
    def __init__(self) -> None:
        self._svm = (
            LiteSVM().with_blockhash_check(False).with_transaction_history(0).with_sigverify(False)
        )
        memo_program = self._svm.get_account(MEMO_V2)
        if memo_program is None:
            raise LocalnetFailed("LiteSVM comes with the memo program")
        self._svm.add_program(MEMO_V4, memo_program.data)
        self._slot = -1
        # Copying a program's megabyte out of the VM at every mention would cost more than running
        # it, so an account known to be executable is not read again.
        self._executables: set[Pubkey] = set()
        self._decimals: dict[bytes, int] = {}

    def run(self, wire: Wire) -> Run:
        """Changes memory only: the caller commits the result to disk, or calls `put_back`."""
        keys = self.resolve_keys(wire)
        pre_balances = self._balances(keys)
        before = {key: self.account(key) for key in keys.writable}
        pre_tokens = self._token_balances(keys, before)
        result = self._svm.send_transaction(wire.transaction)
        after = {key: self.account(key) for key in keys.writable}
        meta, err = _outcome(result)
        fee = meta.fee()
        payer_before, payer_after = before[wire.payer], after[wire.payer]
        included = err is None or (
            fee > 0
            and payer_before is not None
            and payer_before.lamports - fee == (payer_after.lamports if payer_after else 0)
        )
        record = msgspec.structs.replace(
            _record(meta, err, keys),
            pre_balances=pre_balances,
            post_balances=self._balances(keys),
            pre_tokens=pre_tokens,
            post_tokens=self._token_balances(keys, after),
        )
        return Run(record, keys, included, before, after)

    def simulate(self, wire: Wire) -> tuple[Record, dict[Pubkey, Account]]:
        """Changes nothing. The accounts are those that would be written, as they would be
        afterwards."""
        result = self._svm.simulate_transaction(wire.transaction)
        if isinstance(result, SimulatedTransactionInfo):
            meta, err = result.meta(), None
            accounts = dict(result.post_accounts())
        else:
            meta, err = _outcome(result)
            accounts = {}
        return _record(meta, err, self.resolve_keys(wire)), accounts

    def account(self, address: Pubkey) -> Account | None:
        return self._svm.get_account(address)

    def put_back(self, accounts: Mapping[Pubkey, Account | None]) -> None:
        for address, account in accounts.items():
            # An account without lamports does not exist.
            self._svm.set_account(address, account or Account(0, b"", Pubkey.default()))

    def set_time(self, slot: int, unix_time: int) -> None:
        if slot != self._slot:
            epoch = slot // SLOTS_PER_EPOCH
            self._svm.set_clock(ClockSysvar(slot, 0, epoch, epoch + 1, unix_time))
            self._slot = slot

    def set_slot_hashes(self, hashes: Sequence[tuple[int, Hash]]) -> None:
        """Newest first. Only lookup tables need them, so they are set only then."""
        self._svm.set_slot_hashes(hashes)

    def minimum_balance(self, data_bytes: int) -> int:
        return self._svm.minimum_balance_for_rent_exemption(data_bytes)

    def resolve_keys(self, wire: Wire) -> Keys:
        message, named = wire.message, wire.keys
        loaded_writable: list[Pubkey] = []
        loaded_readonly: list[Pubkey] = []
        if isinstance(message, MessageV0):
            for lookup in message.address_table_lookups:
                table = self.account(lookup.account_key)
                loaded_writable += _table_entries(table, lookup.writable_indexes)
                loaded_readonly += _table_entries(table, lookup.readonly_indexes)
        writable = [key for index, key in enumerate(named) if wire.is_writable(index)]
        return Keys(
            all=named + loaded_writable + loaded_readonly,
            writable=writable + loaded_writable,
            loaded_writable=loaded_writable,
            loaded_readonly=loaded_readonly,
        )

    def _balances(self, keys: Keys) -> list[int]:
        return [self._svm.get_balance(key) or 0 for key in keys.all]

    def _token_balances(
        self, keys: Keys, written: Mapping[Pubkey, Account | None]
    ) -> list[TokenBalance]:
        balances: list[TokenBalance] = []
        for index, key in enumerate(keys.all):
            if key in self._executables:
                continue
            account = written[key] if key in written else self.account(key)
            if account is None:
                continue
            if account.executable:
                self._executables.add(key)
                continue
            token = read_token_account(account)
            if token is not None:
                decimals = self._decimals_of(token.mint)
                balances.append(
                    TokenBalance(
                        index,
                        token.mint,
                        token.holder,
                        bytes(account.owner),
                        token.amount,
                        decimals,
                    )
                )
        return balances

    def _decimals_of(self, mint_address: bytes) -> int:
        """Cached, because a mint's decimals never change. The mint of native SOL does not exist
        here; it has nine."""
        known = self._decimals.get(mint_address)
        if known is None:
            account = self.account(Pubkey(mint_address))
            mint = read_mint(account) if account else None
            if mint is None:
                return 9
            known = self._decimals[mint_address] = mint.decimals
        return known


def touches_lookup_tables(wire: Wire) -> bool:
    return LOOKUP_TABLE in wire.keys or (
        isinstance(wire.message, MessageV0) and bool(wire.message.address_table_lookups)
    )


def _outcome(
    result: TransactionMetadata | FailedTransactionMetadata,
) -> tuple[TransactionMetadata, Any]:
    if isinstance(result, TransactionMetadata):
        return result, None
    # Only the JSON form spells errors the way nodes do, e.g. {"InstructionError":[0,...]}.
    return result.meta(), msgspec.json.decode(result.to_json())["err"]


def _record(meta: TransactionMetadata, err: Any, keys: Keys) -> Record:
    return Record(
        err=err,
        fee=meta.fee(),
        units=meta.compute_units_consumed(),
        logs=meta.logs(),
        inner=_inner_calls(meta),
        loaded_writable=[bytes(key) for key in keys.loaded_writable],
        loaded_readonly=[bytes(key) for key in keys.loaded_readonly],
        return_data=_return_data(meta),
    )


def _inner_calls(meta: TransactionMetadata) -> list[tuple[int, list[InnerCall]]]:
    return [
        (
            index,
            [
                InnerCall(
                    call.instruction().program_id_index,
                    bytes(call.instruction().accounts),
                    call.instruction().data,
                    call.stack_height(),
                )
                for call in calls
            ],
        )
        for index, calls in enumerate(meta.inner_instructions())
        if calls
    ]


def _return_data(meta: TransactionMetadata) -> tuple[bytes, bytes] | None:
    returned = meta.return_data()
    return (bytes(returned.program_id), bytes(returned.data)) if returned.data else None


def _table_entries(table: Account | None, indexes: bytes) -> list[Pubkey]:
    data = table.data if table is not None else b""
    starts = [_TABLE_HEADER_BYTES + 32 * index for index in indexes]
    return [Pubkey(data[start : start + 32]) for start in starts if start + 32 <= len(data)]
