"""Reading token accounts and mints out of account bytes; Token and Token-2022 share the layout."""

from dataclasses import dataclass
from typing import Final

from solders.account import Account

from bursar_localnet.programs import TOKEN_PROGRAMS

_ACCOUNT_BYTES: Final = 165
_MINT_BYTES: Final = 82
# A Token-2022 account with extensions has a byte for its kind right after a plain account's data.
_KIND_MINT: Final = 1
_KIND_ACCOUNT: Final = 2
STATES: Final = ("uninitialized", "initialized", "frozen")


@dataclass(frozen=True, slots=True)
class TokenAccount:
    mint: bytes
    holder: bytes
    amount: int
    delegate: bytes | None
    state: str
    native_reserve: int | None
    delegated_amount: int
    close_authority: bytes | None


@dataclass(frozen=True, slots=True)
class Mint:
    authority: bytes | None
    supply: int
    decimals: int
    initialized: bool
    freeze_authority: bytes | None


def read_token_account(account: Account) -> TokenAccount | None:
    """None when it is not a token account, or not initialized yet."""
    if account.owner not in TOKEN_PROGRAMS:
        return None
    data = account.data
    if not _is_kind(data, _ACCOUNT_BYTES, _KIND_ACCOUNT) or data[108] not in (1, 2):
        return None
    return TokenAccount(
        mint=data[0:32],
        holder=data[32:64],
        amount=_u64(data, 64),
        delegate=_optional_key(data, 72),
        state=STATES[data[108]],
        native_reserve=_u64(data, 113) if data[109] else None,
        delegated_amount=_u64(data, 121),
        close_authority=_optional_key(data, 129),
    )


def read_mint(account: Account) -> Mint | None:
    if account.owner not in TOKEN_PROGRAMS:
        return None
    data = account.data
    if not _is_kind(data, _MINT_BYTES, _KIND_MINT) or not data[45]:
        return None
    return Mint(
        authority=_optional_key(data, 0),
        supply=_u64(data, 36),
        decimals=data[44],
        initialized=True,
        freeze_authority=_optional_key(data, 46),
    )


def _is_kind(data: bytes, plain_bytes: int, kind: int) -> bool:
    return len(data) == plain_bytes or (len(data) > _ACCOUNT_BYTES and data[_ACCOUNT_BYTES] == kind)


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def _optional_key(data: bytes, offset: int) -> bytes | None:
    return data[offset + 4 : offset + 36] if data[offset] else None
