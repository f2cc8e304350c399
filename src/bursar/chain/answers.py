"""Parses the answers of nodes. Anything that is not as the protocol says raises `Unreadable`: a
missing error field that is read as "no error" would settle a payment that never happened.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from solders.pubkey import Pubkey
from solders.token import ID as TOKEN

from bursar.chain.message import MEMO
from bursar.chain.port import (
    Account,
    Blockhash,
    Height,
    Landed,
    Mention,
    Movement,
    Status,
    TokenHolding,
)
from bursar.chain.refusal import error_text
from bursar_localnet import base58

TOKEN_PROGRAM: Final = str(TOKEN)
_TOKEN_2022: Final = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"  # noqa: S105  an address
_MEMO_PROGRAMS: Final = (
    "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo",
    str(MEMO),
    "Memo4c2pN8afCj432Lb7RMVKi9PbQnnW7ewFFaV3oAH",
)
# Slots, heights and fees are stored as signed 64-bit numbers, which no chain comes near. Token
# amounts are unsigned, and another token may really have that many.
_MOST: Final = 2**63 - 1
_MOST_TOKENS: Final = 2**64 - 1
# The end of the year 9999.
_LAST_TIME: Final = 253_402_300_799
_MINT_BYTES: Final = 82
_TOKEN_ACCOUNT_BYTES: Final = 165
# A Token-2022 account with extensions has a byte for its kind right after a plain account's data.
_KIND_ACCOUNT: Final = 2
# The part of an account that is ever read, so that a program's megabytes are not sent.
ACCOUNT_SLICE: Final = {"offset": 0, "length": _TOKEN_ACCOUNT_BYTES + 1}
_LEVELS: Final = ("processed", "confirmed", "finalized")
# Base 58 takes quadratic time; a transaction has 1,232 bytes.
_MOST_BASE58: Final = 2_000
_AMOUNT: Final = re.compile(r"[0-9]{1,20}")
_MEMO: Final = re.compile(rb"\[(\d{1,5})\] ")


class Unreadable(Exception):
    """The answer is not as the protocol says. The message names the problem and never quotes the
    answer."""


def read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unreadable("not a string")
    return value


def read_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Unreadable("not a list")
    return cast("list[Any]", value)


def read_natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise Unreadable("not a natural number")
    return value


def read_address(value: Any) -> str:
    try:
        return str(Pubkey.from_string(read_text(value)))
    except ValueError:
        raise Unreadable("not an address") from None


def read_hash(value: Any) -> str:
    """32 bytes, like an address. (`Hash.from_string` raises an error that is not a ValueError.)"""
    return read_address(value)


def field(value: Any, name: str) -> Any:
    """A field that must be there; it may be null."""
    if not isinstance(value, dict) or name not in value:
        raise Unreadable(f"{name} is missing")
    return cast("dict[str, Any]", value)[name]


def optional(value: Any, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def read_context(result: Any) -> tuple[int, Any]:
    """(slot, value) of an answer that has a context."""
    return read_natural(field(field(result, "context"), "slot")), field(result, "value")


def read_yes_or_no(result: Any) -> bool:
    _, value = read_context(result)
    if type(value) is not bool:
        raise Unreadable("neither yes nor no")
    return value


def read_blockhash(result: Any) -> Blockhash:
    slot, value = read_context(result)
    return Blockhash(
        read_hash(field(value, "blockhash")),
        read_natural(field(value, "lastValidBlockHeight")),
        slot,
    )


def read_height(result: Any) -> Height:
    height = Height(
        read_natural(field(result, "absoluteSlot")), read_natural(field(result, "blockHeight"))
    )
    if height.height > height.slot:
        raise Unreadable("more blocks than slots")
    return height


def read_statuses(result: Any, signatures: Sequence[str]) -> tuple[int, dict[str, Status | None]]:
    slot, value = read_context(result)
    statuses = read_list(value)
    if len(statuses) != len(signatures):
        raise Unreadable("not one status for each signature")
    return slot, {
        signature: None if status is None else _status(status)
        for signature, status in zip(signatures, statuses, strict=True)
    }


def _status(value: Any) -> Status:
    error = _error(value)
    outcome = optional(value, "status")
    if outcome is not None and (optional(outcome, "Err") is None) != (error is None):
        raise Unreadable("a status that contradicts itself")
    level = field(value, "confirmationStatus")
    if level not in _LEVELS:
        raise Unreadable("an unknown level of confirmation")
    return Status(read_natural(field(value, "slot")), level == "finalized", error)


def read_mentions(result: Any) -> list[Mention]:
    return [
        Mention(
            signature=read_text(field(item, "signature")),
            slot=read_natural(field(item, "slot")),
            block_time=_block_time(item),
            error=_error(item),
            memos=split_memos(optional(item, "memo")),
        )
        for item in read_list(result)
    ]


def split_memos(value: Any) -> tuple[str, ...]:
    """Nodes join memos as `[5] first; [6] second`. The length in bytes before each keeps one memo
    from posing as two."""
    if value is None:
        return ()
    rest, memos = read_text(value).encode(), list[str]()
    while rest:
        match = _MEMO.match(rest)
        if match is None:
            # A part without a length is not in that format; the rest is taken as one memo.
            return (*memos, rest.decode(errors="replace"))
        end = match.end() + int(match[1])
        memos.append(rest[match.end() : end].decode(errors="replace"))
        rest = rest[end:].removeprefix(b"; ")
    return tuple(memos)


def read_transaction(result: Any, signature: str) -> Landed:
    meta, transaction = field(result, "meta"), field(result, "transaction")
    message = field(transaction, "message")
    signatures = _signatures(transaction, message)
    if signatures[:1] != (signature,):
        raise Unreadable("a different transaction")
    addresses = [read_address(key) for key in read_list(field(message, "accountKeys"))]
    loaded = optional(meta, "loadedAddresses")
    if loaded is not None:
        for part in ("writable", "readonly"):
            addresses += [read_address(key) for key in read_list(field(loaded, part))]
    return Landed(
        signature=signature,
        signatures=signatures,
        slot=read_natural(field(result, "slot")),
        block_time=_block_time(result),
        fee_lamports=read_natural(field(meta, "fee")),
        fee_payer=_at(addresses, 0),
        rent_lamports=_rent(meta),
        error=_error(meta),
        memos=tuple(_memos(message, meta, addresses)),
        movements=tuple(_movements(meta, addresses)),
    )


def _signatures(transaction: Any, message: Any) -> tuple[str, ...]:
    """All of them: without one of ours, a payment that was made would count as never made."""
    signatures = tuple(read_text(item) for item in read_list(field(transaction, "signatures")))
    needed = optional(optional(message, "header"), "numRequiredSignatures")
    if needed is not None and needed != len(signatures):
        raise Unreadable("not all of its signatures")
    return signatures


def _rent(meta: Any) -> int:
    before, after = (read_list(field(meta, name))[:1] for name in ("preBalances", "postBalances"))
    if not before or not after:
        raise Unreadable("the balance of the fee payer is missing")
    paid = read_natural(before[0]) - read_natural(after[0])
    return max(paid - read_natural(field(meta, "fee")), 0)


def _memos(message: Any, meta: Any, addresses: list[str]) -> Iterable[str]:
    instructions = list(read_list(field(message, "instructions")))
    for inner in read_list(optional(meta, "innerInstructions") or []):
        instructions += read_list(field(inner, "instructions"))
    for instruction in instructions:
        program = _at(addresses, read_natural(field(instruction, "programIdIndex")))
        # A memo longer than any transaction was written by a program, so it is not ours. It is
        # skipped, so that a stranger cannot make the whole transaction unreadable.
        if program in _MEMO_PROGRAMS and len(read_text(field(instruction, "data"))) <= _MOST_BASE58:
            yield _base58(field(instruction, "data")).decode(errors="replace")


def _movements(meta: Any, addresses: list[str]) -> Iterable[Movement]:
    """An account opened by the transaction has no balance before it, a closed one none after it."""
    before = _token_balances(field(meta, "preTokenBalances"), addresses)
    after = _token_balances(field(meta, "postTokenBalances"), addresses)
    for account in sorted({*before, *after}):
        owner, mint, _ = after.get(account) or before[account]
        delta = after.get(account, ("", "", 0))[2] - before.get(account, ("", "", 0))[2]
        if delta != 0:
            yield Movement(account, owner, mint, delta)


def _token_balances(value: Any, addresses: list[str]) -> dict[str, tuple[str, str, int]]:
    balances: dict[str, tuple[str, str, int]] = {}
    for item in read_list(value):
        account = _at(addresses, read_natural(field(item, "accountIndex")))
        if account in balances:
            raise Unreadable("two balances of one account")
        amount = read_text(field(field(item, "uiTokenAmount"), "amount"))
        if not (_AMOUNT.fullmatch(amount) and int(amount) <= _MOST_TOKENS):
            raise Unreadable("not a token amount")
        owner, mint = read_address(field(item, "owner")), read_address(field(item, "mint"))
        balances[account] = owner, mint, int(amount)
    return balances


def read_accounts(result: Any, count: int, from_slot: int = 0) -> tuple[int, list[Account | None]]:
    slot, value = read_context(result)
    if slot < from_slot:
        raise Unreadable("a state older than the slot asked for")
    accounts = read_list(value)
    if len(accounts) != count:
        raise Unreadable("not one entry for each account")
    return slot, [None if account is None else _account(account) for account in accounts]


def _account(value: Any) -> Account:
    owner, data = read_address(field(value, "owner")), _data(value)
    executable = field(value, "executable")
    if not isinstance(executable, bool):
        raise Unreadable("executable is not true or false")
    return Account(
        owner=owner,
        lamports=read_natural(field(value, "lamports")),
        executable=executable,
        token=_holding(data) if owner in (TOKEN_PROGRAM, _TOKEN_2022) else None,
    )


def _holding(data: bytes) -> TokenHolding | None:
    plain = len(data) == _TOKEN_ACCOUNT_BYTES
    extended = len(data) > _TOKEN_ACCOUNT_BYTES and data[_TOKEN_ACCOUNT_BYTES] == _KIND_ACCOUNT
    if not (plain or extended) or data[108] not in (1, 2):
        return None
    return TokenHolding(
        mint=str(Pubkey(data[0:32])),
        amount_micros=int.from_bytes(data[64:72], "little"),
    )


def read_decimals(result: Any) -> int | None:
    """The decimals of a mint of the Token program; None for anything else, and for a Token-2022
    mint, which may charge fees on transfers."""
    _, value = read_context(result)
    if value is None or field(value, "owner") != TOKEN_PROGRAM:
        return None
    data = _data(value)
    return data[44] if len(data) == _MINT_BYTES and data[45] == 1 else None


def read_fees(result: Any) -> list[int]:
    return [read_natural(field(item, "prioritizationFee")) for item in read_list(result)]


def _error(value: Any) -> str | None:
    err = field(value, "err")
    if err is None:
        return None
    if not isinstance(err, str | dict):
        raise Unreadable("err is not an error")
    return error_text(err)


def _block_time(value: Any) -> int | None:
    return read_time(optional(value, "blockTime"))


def read_time(moment: Any) -> int | None:
    if moment is None:
        return None
    if read_natural(moment) > _LAST_TIME:
        raise Unreadable("not the time of a block")
    return moment


def _data(value: Any) -> bytes:
    match field(value, "data"):
        case [str(text), "base64"]:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:  # of what is no ASCII at all it is no binascii.Error
                raise Unreadable("not base 64") from None
        case _:
            raise Unreadable("not the data of an account")


def _base58(value: Any) -> bytes:
    text = read_text(value)
    if len(text) > _MOST_BASE58:
        raise Unreadable("base 58 that is longer than any transaction")
    try:
        return base58.decode(text)
    except ValueError:
        raise Unreadable("not base 58") from None


def _at(addresses: list[str], index: int) -> str:
    if index >= len(addresses):
        raise Unreadable("an account that the transaction does not name")
    return addresses[index]
