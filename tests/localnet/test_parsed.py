"""Goal: `jsonParsed` puts instructions into the words that nodes use, and never guesses."""

from typing import Any

import pytest
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import (
    AllocateParams,
    AssignParams,
    CreateAccountParams,
    allocate,
    assign,
    create_account,
)
from spl.token import instructions as spl
from spl.token import models

from bursar_localnet import base58
from bursar_localnet.parsed import parse_instruction
from bursar_localnet.programs import SYSTEM, TOKEN

A, B, C, D = (Pubkey(bytes([n]) * 32) for n in (1, 2, 3, 4))
AMOUNT = {"amount": "1500000", "decimals": 6, "uiAmountString": "1.5"}


def plain(value: Any) -> Any:
    """Without `uiAmount`, which is written raw."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key != "uiAmount"}
    return value


@pytest.mark.parametrize(
    ("instruction", "kind", "info"),
    [
        (
            create_account(
                CreateAccountParams(from_pubkey=A, to_pubkey=B, lamports=5, space=165, owner=TOKEN)
            ),
            "createAccount",
            {
                "source": str(A),
                "newAccount": str(B),
                "lamports": 5,
                "space": 165,
                "owner": str(TOKEN),
            },
        ),
        (
            assign(AssignParams(pubkey=A, owner=TOKEN)),
            "assign",
            {"account": str(A), "owner": str(TOKEN)},
        ),
        (
            allocate(AllocateParams(pubkey=A, space=9)),
            "allocate",
            {"account": str(A), "space": 9},
        ),
        (
            spl.transfer(
                models.TransferParams(program_id=TOKEN, source=A, dest=B, owner=C, amount=7)
            ),
            "transfer",
            {"source": str(A), "destination": str(B), "amount": "7", "authority": str(C)},
        ),
        (
            spl.transfer(
                models.TransferParams(
                    program_id=TOKEN, source=A, dest=B, owner=C, amount=7, signers=[D]
                )
            ),
            "transfer",
            {
                "source": str(A),
                "destination": str(B),
                "amount": "7",
                "multisigAuthority": str(C),
                "signers": [str(D)],
            },
        ),
        (
            spl.transfer_checked(
                models.TransferCheckedParams(
                    program_id=TOKEN,
                    source=A,
                    mint=B,
                    dest=C,
                    owner=D,
                    amount=1_500_000,
                    decimals=6,
                )
            ),
            "transferChecked",
            {
                "source": str(A),
                "mint": str(B),
                "destination": str(C),
                "tokenAmount": AMOUNT,
                "authority": str(D),
            },
        ),
        (
            spl.mint_to(
                models.MintToParams(program_id=TOKEN, mint=A, dest=B, mint_authority=C, amount=7)
            ),
            "mintTo",
            {"mint": str(A), "account": str(B), "amount": "7", "mintAuthority": str(C)},
        ),
        (
            spl.burn(models.BurnParams(program_id=TOKEN, account=A, mint=B, owner=C, amount=7)),
            "burn",
            {"account": str(A), "mint": str(B), "amount": "7", "authority": str(C)},
        ),
        (
            spl.burn_checked(
                models.BurnCheckedParams(
                    program_id=TOKEN, account=A, mint=B, owner=C, amount=1_500_000, decimals=6
                )
            ),
            "burnChecked",
            {
                "account": str(A),
                "mint": str(B),
                "tokenAmount": AMOUNT,
                "authority": str(C),
            },
        ),
        (
            spl.close_account(
                models.CloseAccountParams(program_id=TOKEN, account=A, dest=B, owner=C)
            ),
            "closeAccount",
            {"account": str(A), "destination": str(B), "owner": str(C)},
        ),
        (
            spl.sync_native(models.SyncNativeParams(program_id=TOKEN, account=A)),
            "syncNative",
            {"account": str(A)},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_known_instructions(instruction: Instruction, kind: str, info: dict[str, Any]) -> None:
    accounts = [meta.pubkey for meta in instruction.accounts]
    shown = parse_instruction(instruction.program_id, accounts, instruction.data, 1)
    assert plain(shown["parsed"]) == {"info": info, "type": kind}


@pytest.mark.parametrize(
    ("program", "data"),
    [
        (SYSTEM, b""),
        (SYSTEM, b"\2\0\0\0\1"),
        (SYSTEM, b"\xff\0\0\0"),
        (TOKEN, b""),
        (TOKEN, b"\x0c\1"),
        (TOKEN, b"\xfe"),
        (Keypair().pubkey(), b"anything"),
    ],
)
def test_what_is_not_understood_is_shown_as_it_is(program: Pubkey, data: bytes) -> None:
    assert parse_instruction(program, [A, B], data, 2) == {
        "accounts": [str(A), str(B)],
        "data": base58.encode(data),
        "programId": str(program),
        "stackHeight": 2,
    }


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\1", b"\xff" * 40, bytes(range(64))])
def test_base58_comes_back(data: bytes) -> None:
    assert base58.decode(base58.encode(data)) == data


@pytest.mark.parametrize("data", [bytes(32), bytes(range(32)), b"\xff" * 32])
def test_base58_is_the_one_solana_uses(data: bytes) -> None:
    assert base58.encode(data) == str(Pubkey(data))
