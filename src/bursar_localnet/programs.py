"""Addresses of the programs this node knows by name, and the few instructions it sends itself."""

from typing import Final

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address

SYSTEM: Final = Pubkey.default()
TOKEN: Final = TOKEN_PROGRAM
TOKEN_2022: Final = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
LOOKUP_TABLE: Final = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")
MEMO_V1: Final = Pubkey.from_string("Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo")
MEMO_V2: Final = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
MEMO_V4: Final = Pubkey.from_string("Memo4c2pN8afCj432Lb7RMVKi9PbQnnW7ewFFaV3oAH")

TOKEN_PROGRAMS: Final = frozenset({TOKEN, TOKEN_2022})
MEMO_PROGRAMS: Final = frozenset({MEMO_V1, MEMO_V2, MEMO_V4})

_CREATE_IDEMPOTENT: Final = b"\x01"
_MINT_TO_CHECKED: Final = b"\x0e"
_FREEZE: Final = b"\x0a"
_THAW: Final = b"\x0b"


def create_token_account(payer: Pubkey, owner: Pubkey, mint: Pubkey) -> Instruction:
    """Opens the owner's associated token account; does nothing if it exists."""
    return Instruction(
        ASSOCIATED_TOKEN,
        _CREATE_IDEMPOTENT,
        [
            AccountMeta(payer, is_signer=True, is_writable=True),
            AccountMeta(get_associated_token_address(owner, mint), False, True),
            AccountMeta(owner, is_signer=False, is_writable=False),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(SYSTEM, is_signer=False, is_writable=False),
            AccountMeta(TOKEN, is_signer=False, is_writable=False),
        ],
    )


def mint_to(
    mint: Pubkey,
    account: Pubkey,
    authority: Pubkey,
    amount: int,
    decimals: int,
    *references: Pubkey,
) -> Instruction:
    """`references` are addresses that the transaction only mentions, so that it can be found by
    them."""
    return Instruction(
        TOKEN,
        _MINT_TO_CHECKED + amount.to_bytes(8, "little") + bytes([decimals]),
        [
            AccountMeta(mint, is_signer=False, is_writable=True),
            AccountMeta(account, is_signer=False, is_writable=True),
            AccountMeta(authority, is_signer=True, is_writable=False),
            *(AccountMeta(one, is_signer=False, is_writable=False) for one in references),
        ],
    )


def freeze(mint: Pubkey, account: Pubkey, authority: Pubkey, *, frozen: bool) -> Instruction:
    return Instruction(
        TOKEN,
        _FREEZE if frozen else _THAW,
        [
            AccountMeta(account, is_signer=False, is_writable=True),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(authority, is_signer=True, is_writable=False),
        ],
    )


def memo(text: str) -> Instruction:
    return Instruction(MEMO_V2, text.encode(), [])
