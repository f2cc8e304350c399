"""What an error of a node or of a transaction means for a payment."""

from typing import Any, Final, cast

import msgspec

from bursar.chain.port import RefusalKind, Refused, SendResult, Sent, Unknown

_PREFLIGHT: Final = -32002
# Codes for: signature verification failed, parameters invalid, signature length wrong.
_BUGS: Final = (-32003, -32602, -32013)
# Codes for: too many requests, unhealthy, behind the slot asked for, block or slot not available,
# no such method.
_BUSY: Final = (429, -32005, -32016, -32004, -32014, -32601)

_FEE_PAYER_ERRORS: Final = ("AccountNotFound", "InsufficientFundsForFee", "InvalidAccountForFee")
_BUG_ERRORS: Final = ("SanitizeFailure", "SignatureFailure", "AccountLoadedTwice")
_MOST_REASON: Final = 200
_MOST_ERROR: Final = 1_000

# Where `message.py` puts its instructions.
_LAST_COMPUTE_BUDGET: Final = 1
_CREATE_TOKEN_ACCOUNT: Final = 2
_TRANSFER: Final = 3
# The System program's error code when the payer has too little SOL for the rent.
_TOO_FEW_LAMPORTS: Final = 1


def of_answer(code: int, message: str, data: Any) -> SendResult:
    """What a JSON-RPC error from `sendTransaction` means."""
    if code == _PREFLIGHT:
        err: Any = cast("dict[str, Any]", data).get("err") if isinstance(data, dict) else None
        if err == "AlreadyProcessed":
            return Sent()
        if err is None:
            return Unknown(f"preflight failure without a reason: {message[:_MOST_REASON]}")
        return Refused(kind_of(err), error_text(err))
    if code in _BUGS:
        return Refused(RefusalKind.BUG, f"{code} {message[:_MOST_REASON]}")
    if code in _BUSY:
        return Refused(RefusalKind.BUSY, f"{code} {message[:_MOST_REASON]}")
    return Unknown(f"{code} {message[:_MOST_REASON]}")


def kind_of(err: Any) -> RefusalKind:
    """What a transaction's error means, given as nodes write it in JSON. An error that is not known
    to be the payment's own fault counts as temporary."""
    match err:
        case "BlockhashNotFound":
            return RefusalKind.BLOCKHASH
        case str() if err in _FEE_PAYER_ERRORS:
            return RefusalKind.FEE_PAYER
        case str() if err in _BUG_ERRORS:
            return RefusalKind.BUG
        case {"InsufficientFundsForRent": {"account_index": 0}}:
            return RefusalKind.FEE_PAYER
        case {"InstructionError": [int(index), _]} if index <= _LAST_COMPUTE_BUDGET:
            return RefusalKind.BUG
        case {"InstructionError": [int(index), {"Custom": int(code)}]} if (
            index == _CREATE_TOKEN_ACCOUNT and code == _TOO_FEW_LAMPORTS
        ):
            return RefusalKind.FEE_PAYER
        case {"InstructionError": [int(index), "InvalidAccountData"]} if index == _TRANSFER:
            # The payee closed its token account meanwhile: the next attempt checks it again.
            return RefusalKind.BUSY
        case {"InstructionError": [int(), _]} | {"InsufficientFundsForRent": _}:
            return RefusalKind.PAYMENT
        case _:
            return RefusalKind.BUSY


def kind_of_text(error: str) -> RefusalKind:
    """The same for the text that `Status.error` and `Landed.error` hold."""
    try:
        return kind_of(msgspec.json.decode(error))
    except ValueError:
        return RefusalKind.BUSY


def error_text(err: Any) -> str:
    """An error as one line of JSON, cut to a length that no real error has: a node may send
    anything."""
    return msgspec.json.encode(err).decode()[:_MOST_ERROR]
