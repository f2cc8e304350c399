"""`jsonParsed`: spells out instructions of the System, Token, Associated Token and Memo programs.

Instructions that are not known here are answered partially decoded, as nodes do for unknown
programs.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from solders.account import Account
from solders.pubkey import Pubkey

from bursar_localnet import base58, programs
from bursar_localnet.tokens import read_mint, read_token_account

_PROGRAM_NAMES: Final = {
    programs.SYSTEM: "system",
    programs.TOKEN: "spl-token",
    programs.TOKEN_2022: "spl-token-2022",
    programs.ASSOCIATED_TOKEN: "spl-associated-token-account",
    programs.MEMO_V1: "spl-memo",
    programs.MEMO_V2: "spl-memo",
    programs.MEMO_V4: "spl-memo",
}


def parse_instruction(
    program: Pubkey, accounts: Sequence[Pubkey], data: bytes, stack_height: int | None
) -> dict[str, Any]:
    names = [str(account) for account in accounts]
    parsed = _parse(program, names, data)
    if parsed is None:
        return {
            "accounts": names,
            "data": base58.encode(data),
            "programId": str(program),
            "stackHeight": stack_height,
        }
    return {
        "parsed": parsed,
        "program": _PROGRAM_NAMES[program],
        "programId": str(program),
        "stackHeight": stack_height,
    }


def parse_account(account: Account, decimals: int | None) -> dict[str, Any] | None:
    """`decimals` are those of the token account's mint. Returns None where the bytes are to be
    answered instead."""
    body = _token_account(account, decimals) or _mint(account)
    if body is None:
        return None
    return {
        "parsed": body,
        "program": _PROGRAM_NAMES[account.owner],
        "space": len(account.data),
    }


def token_amount(amount: int, decimals: int) -> dict[str, Any]:
    text = _decimal(amount, decimals)
    return {
        "amount": str(amount),
        "decimals": decimals,
        # A JSON number by the protocol, but written exactly and never as a float.
        "uiAmount": msgspec.Raw((text if "." in text else text + ".0").encode()),
        "uiAmountString": text,
    }


def _decimal(amount: int, decimals: int) -> str:
    if not decimals:
        return str(amount)
    whole, fraction = divmod(amount, 10**decimals)
    return f"{whole}.{fraction:0{decimals}d}".rstrip("0").rstrip(".")


def _token_account(account: Account, decimals: int | None) -> dict[str, Any] | None:
    token = read_token_account(account)
    if token is None or decimals is None:
        return None
    info: dict[str, Any] = {
        "isNative": token.native_reserve is not None,
        "mint": base58.encode(token.mint),
        "owner": base58.encode(token.holder),
        "state": token.state,
        "tokenAmount": token_amount(token.amount, decimals),
    }
    if token.delegate is not None:
        info["delegate"] = base58.encode(token.delegate)
        info["delegatedAmount"] = token_amount(token.delegated_amount, decimals)
    if token.native_reserve is not None:
        info["rentExemptReserve"] = token_amount(token.native_reserve, decimals)
    if token.close_authority is not None:
        info["closeAuthority"] = base58.encode(token.close_authority)
    return {"info": info, "type": "account"}


def _mint(account: Account) -> dict[str, Any] | None:
    mint = read_mint(account)
    if mint is None:
        return None
    info = {
        "decimals": mint.decimals,
        "freezeAuthority": _name(mint.freeze_authority),
        "isInitialized": mint.initialized,
        "mintAuthority": _name(mint.authority),
        "supply": str(mint.supply),
    }
    return {"info": info, "type": "mint"}


def _name(address: bytes | None) -> str | None:
    return None if address is None else base58.encode(address)


def _parse(program: Pubkey, accounts: list[str], data: bytes) -> Any:
    try:
        if program == programs.SYSTEM:
            return _system(accounts, data)
        if program in programs.TOKEN_PROGRAMS:
            return _token(accounts, data)
        if program == programs.ASSOCIATED_TOKEN:
            return _associated(accounts, data)
        if program in programs.MEMO_PROGRAMS:
            return data.decode()
    except (IndexError, ValueError):
        # Too few accounts or bytes for this instruction, so it is shown undecoded.
        return None
    return None


def _system(accounts: list[str], data: bytes) -> dict[str, Any] | None:
    match int.from_bytes(data[:4], "little"):
        case 0:
            kind = "createAccount"
            info = {
                "source": accounts[0],
                "newAccount": accounts[1],
                "lamports": _u64(data, 4),
                "space": _u64(data, 12),
                "owner": _key(data, 20),
            }
        case 1:
            kind = "assign"
            info = {"account": accounts[0], "owner": _key(data, 4)}
        case 2:
            kind = "transfer"
            info = {
                "source": accounts[0],
                "destination": accounts[1],
                "lamports": _u64(data, 4),
            }
        case 8:
            kind = "allocate"
            info = {"account": accounts[0], "space": _u64(data, 4)}
        case _:
            return None
    return {"info": info, "type": kind}


def _associated(accounts: list[str], data: bytes) -> dict[str, Any] | None:
    kinds = {b"": "create", b"\0": "create", b"\1": "createIdempotent"}
    if data not in kinds:
        return None
    info = {
        "source": accounts[0],
        "account": accounts[1],
        "wallet": accounts[2],
        "mint": accounts[3],
        "systemProgram": accounts[4],
        "tokenProgram": accounts[5],
    }
    return {"info": info, "type": kinds[data]}


def _token(accounts: list[str], data: bytes) -> dict[str, Any] | None:
    match data[0]:
        case 3:
            info = {"source": accounts[0], "destination": accounts[1], "amount": _amount(data)}
            return {"info": info | _signed("authority", accounts, 2), "type": "transfer"}
        case 7 | 8:
            kind, first, second = (
                ("mintTo", "mint", "account") if data[0] == 7 else ("burn", "account", "mint")
            )
            info = {first: accounts[0], second: accounts[1], "amount": _amount(data)}
            role = "mintAuthority" if data[0] == 7 else "authority"
            return {"info": info | _signed(role, accounts, 2), "type": kind}
        case 9:
            info = {"account": accounts[0], "destination": accounts[1]}
            return {"info": info | _signed("owner", accounts, 2), "type": "closeAccount"}
        case 12:
            info = {
                "source": accounts[0],
                "mint": accounts[1],
                "destination": accounts[2],
                "tokenAmount": _checked_amount(data),
            }
            return {"info": info | _signed("authority", accounts, 3), "type": "transferChecked"}
        case 14 | 15:
            kind, first, second = (
                ("mintToChecked", "mint", "account")
                if data[0] == 14
                else ("burnChecked", "account", "mint")
            )
            info = {
                first: accounts[0],
                second: accounts[1],
                "tokenAmount": _checked_amount(data),
            }
            role = "mintAuthority" if data[0] == 14 else "authority"
            return {"info": info | _signed(role, accounts, 2), "type": kind}
        case 17:
            return {"info": {"account": accounts[0]}, "type": "syncNative"}
        case 18:
            info = {"account": accounts[0], "mint": accounts[1], "owner": _key(data, 1)}
            return {"info": info, "type": "initializeAccount3"}
        case 20:
            info = {"mint": accounts[0], "decimals": data[1], "mintAuthority": _key(data, 2)}
            return {"info": info, "type": "initializeMint2"}
        case 21:
            return {
                "info": {"mint": accounts[0], "extensionTypes": ["immutableOwner"]},
                "type": "getAccountDataSize",
            }
        case 22:
            return {"info": {"account": accounts[0]}, "type": "initializeImmutableOwner"}
        case _:
            return None


def _signed(role: str, accounts: list[str], index: int) -> dict[str, Any]:
    """A single signer, or a multisignature account with its signers."""
    if len(accounts) == index + 1:
        return {role: accounts[index]}
    return {
        f"multisig{role[0].upper()}{role[1:]}": accounts[index],
        "signers": accounts[index + 1 :],
    }


def _amount(data: bytes) -> str:
    return str(_u64(data, 1))


def _checked_amount(data: bytes) -> dict[str, Any]:
    return token_amount(_u64(data, 1), data[9])


def _u64(data: bytes, offset: int) -> int:
    if len(data) < offset + 8:
        raise ValueError("too short")
    return int.from_bytes(data[offset : offset + 8], "little")


def _key(data: bytes, offset: int) -> str:
    if len(data) < offset + 32:
        raise ValueError("too short")
    return base58.encode(data[offset : offset + 32])
