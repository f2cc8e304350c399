"""How accounts and transactions look in answers, in each encoding that nodes offer."""

import base64
from typing import Any, Final

from solders.account import Account
from solders.message import MessageV0
from solders.pubkey import Pubkey

from bursar_localnet import base58
from bursar_localnet.chain import Chain, keys_of
from bursar_localnet.params import INVALID_REQUEST, UNSUPPORTED_VERSION, Config, RpcError
from bursar_localnet.parsed import parse_account, parse_instruction, token_amount
from bursar_localnet.record import InnerCall, Landed, Record, TokenBalance
from bursar_localnet.slots import Commitment
from bursar_localnet.tokens import read_mint, read_token_account
from bursar_localnet.wire import Wire, parse_transaction

ACCOUNT_ENCODINGS: Final = (
    "binary",
    "base58",
    "base64",
    "base64+zstd",
    "jsonParsed",
)
TRANSACTION_ENCODINGS: Final = ("json", "jsonParsed", "base64", "base58", "binary")
# Base 58 takes quadratic time; nodes refuse larger accounts in it too.
_BASE58_MAX_BYTES: Final = 128


def encode_account(
    chain: Chain, account: Account, commitment: Commitment, config: Config
) -> dict[str, Any]:
    encoding = config.choice("encoding", ACCOUNT_ENCODINGS, "binary")
    return {
        "data": _account_data(chain, account, commitment, encoding, config.nested("dataSlice")),
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": str(account.owner),
        "rentEpoch": account.rent_epoch,
        "space": len(account.data),
    }


def mint_decimals(chain: Chain, mint: bytes, commitment: Commitment) -> int | None:
    account = chain.account(Pubkey(mint), commitment)
    known = read_mint(account) if account else None
    return known.decimals if known else None


def encode_transaction(landed: Landed, config: Config, block_time: int) -> dict[str, Any]:
    """Raises -32015 when the client did not say that it understands this version."""
    return {
        "blockTime": block_time,
        **encode_transaction_with_meta(landed, config),
        "slot": landed.slot,
    }


def encode_transaction_with_meta(landed: Landed, config: Config) -> dict[str, Any]:
    encoding = config.choice("encoding", TRANSACTION_ENCODINGS, "json")
    wire = parse_transaction(landed.raw)
    newest = config.integer("maxSupportedTransactionVersion")
    if newest is None and wire.version != "legacy":
        raise RpcError(
            UNSUPPORTED_VERSION,
            f"Transaction version ({wire.version}) is not supported by the requesting client. "
            "Please try the request again with the following configuration parameter: "
            f'"maxSupportedTransactionVersion": {wire.version}',
        )
    keys = keys_of(landed.record, wire)
    answer = {
        "meta": _meta(landed.record, keys, parsed=encoding == "jsonParsed"),
        "transaction": _transaction(wire, landed, keys, encoding),
    }
    return answer if newest is None else {**answer, "version": wire.version}


def encode_inner(
    calls: list[InnerCall], keys: list[Pubkey], *, parsed: bool
) -> list[dict[str, Any]]:
    if parsed:
        return [
            parse_instruction(
                keys[call.program_index],
                [keys[index] for index in call.accounts],
                call.data,
                call.stack_height,
            )
            for call in calls
        ]
    return [
        {
            "accounts": list(call.accounts),
            "data": base58.encode(call.data),
            "programIdIndex": call.program_index,
            "stackHeight": call.stack_height,
        }
        for call in calls
    ]


def encode_return_data(record: Record) -> dict[str, Any] | None:
    if record.return_data is None:
        return None
    program, data = record.return_data
    return {
        "data": [base64.b64encode(data).decode(), "base64"],
        "programId": base58.encode(program),
    }


def _account_data(
    chain: Chain,
    account: Account,
    commitment: Commitment,
    encoding: str,
    data_slice: Config | None,
) -> Any:
    if encoding == "jsonParsed":
        token = read_token_account(account)
        decimals = mint_decimals(chain, token.mint, commitment) if token else None
        parsed = parse_account(account, decimals)
        if parsed is not None:
            return parsed
    data = account.data
    if data_slice is not None:
        offset = data_slice.integer("offset") or 0
        data = data[offset : offset + (data_slice.integer("length") or 0)]
    if encoding in ("binary", "base58"):
        if len(data) > _BASE58_MAX_BYTES:
            raise RpcError(
                INVALID_REQUEST,
                "Encoded binary (base 58) data should be less than 128 bytes, "
                "please use Base64 encoding.",
            )
        text = base58.encode(data)
        return text if encoding == "binary" else [text, "base58"]
    # Clients read the encoding from the answer, so a request for zstd is served plain.
    return [base64.b64encode(data).decode(), "base64"]


def _transaction(wire: Wire, landed: Landed, keys: list[Pubkey], encoding: str) -> Any:
    match encoding:
        case "base64":
            return [base64.b64encode(landed.raw).decode(), "base64"]
        case "base58":
            return [base58.encode(landed.raw), "base58"]
        case "binary":
            return base58.encode(landed.raw)
        case _:
            message = (
                _parsed_message(wire, landed.record, keys)
                if encoding == "jsonParsed"
                else _raw_message(wire)
            )
            signatures = [str(signature) for signature in wire.transaction.signatures]
            return {"message": message, "signatures": signatures}


def _raw_message(wire: Wire) -> dict[str, Any]:
    header = wire.message.header
    message = {
        "accountKeys": [str(key) for key in wire.keys],
        "header": {
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
            "numRequiredSignatures": header.num_required_signatures,
        },
        "instructions": [
            {
                "accounts": list(call.accounts),
                "data": base58.encode(call.data),
                "programIdIndex": call.program_id_index,
                "stackHeight": 1,
            }
            for call in wire.message.instructions
        ],
        "recentBlockhash": str(wire.blockhash),
    }
    return message | _lookups(wire)


def _parsed_message(wire: Wire, record: Record, keys: list[Pubkey]) -> dict[str, Any]:
    first_readonly = len(wire.keys) + len(record.loaded_writable)
    message = {
        "accountKeys": [
            {
                "pubkey": str(key),
                "signer": wire.is_signer(index),
                "source": "transaction" if index < len(wire.keys) else "lookupTable",
                "writable": (
                    wire.is_writable(index) if index < len(wire.keys) else index < first_readonly
                ),
            }
            for index, key in enumerate(keys)
        ],
        "instructions": [
            parse_instruction(
                keys[call.program_id_index],
                [keys[index] for index in call.accounts],
                call.data,
                1,
            )
            for call in wire.message.instructions
        ],
        "recentBlockhash": str(wire.blockhash),
    }
    return message | _lookups(wire)


def _lookups(wire: Wire) -> dict[str, Any]:
    if not isinstance(wire.message, MessageV0):
        return {}
    lookups = [
        {
            "accountKey": str(lookup.account_key),
            "readonlyIndexes": list(lookup.readonly_indexes),
            "writableIndexes": list(lookup.writable_indexes),
        }
        for lookup in wire.message.address_table_lookups
    ]
    return {"addressTableLookups": lookups}


def _meta(record: Record, keys: list[Pubkey], *, parsed: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "computeUnitsConsumed": record.units,
        "err": record.err,
        "fee": record.fee,
        "innerInstructions": [
            {"index": index, "instructions": encode_inner(calls, keys, parsed=parsed)}
            for index, calls in record.inner
        ],
        "logMessages": record.logs,
        "postBalances": record.post_balances,
        "postTokenBalances": [_token_balance(balance) for balance in record.post_tokens],
        "preBalances": record.pre_balances,
        "preTokenBalances": [_token_balance(balance) for balance in record.pre_tokens],
        "rewards": [],
        "status": {"Ok": None} if record.err is None else {"Err": record.err},
    }
    if not parsed:
        meta["loadedAddresses"] = {
            "readonly": [base58.encode(key) for key in record.loaded_readonly],
            "writable": [base58.encode(key) for key in record.loaded_writable],
        }
    returned = encode_return_data(record)
    return meta if returned is None else {**meta, "returnData": returned}


def _token_balance(balance: TokenBalance) -> dict[str, Any]:
    return {
        "accountIndex": balance.index,
        "mint": base58.encode(balance.mint),
        "owner": base58.encode(balance.holder),
        "programId": base58.encode(balance.program),
        "uiTokenAmount": token_amount(balance.amount, balance.decimals),
    }
