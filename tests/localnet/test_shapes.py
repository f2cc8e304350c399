"""Goal: answers have the fields, types and errors of a real node's, method by method.

The shapes are written from Solana's RPC reference and from answers of Agave nodes. A shape is a
type, an exact value, `Maybe(shape)`, a one-element list (all items look like it) or a dict whose
keys must match exactly.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.token.associated import get_associated_token_address

from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import MINT, Rpc, RpcFailed, encode, payment, sol_transfer


@dataclass(frozen=True)
class Maybe:
    shape: Any


class Number:
    """An integer or a decimal."""


CONTEXT = {"apiVersion": str, "slot": int}
AMOUNT = {"amount": str, "decimals": int, "uiAmount": Number, "uiAmountString": str}
ACCOUNT = {
    "data": [str],
    "executable": bool,
    "lamports": int,
    "owner": str,
    "rentEpoch": int,
    "space": int,
}
PARSED_TOKEN_ACCOUNT = ACCOUNT | {
    "data": {
        "parsed": {
            "info": {
                "isNative": False,
                "mint": TEST_MINT,
                "owner": str,
                "state": "initialized",
                "tokenAmount": AMOUNT,
            },
            "type": "account",
        },
        "program": "spl-token",
        "space": 165,
    }
}
TOKEN_BALANCE = {
    "accountIndex": int,
    "mint": str,
    "owner": str,
    "programId": str,
    "uiTokenAmount": AMOUNT,
}
META = {
    "computeUnitsConsumed": int,
    "err": None,
    "fee": int,
    "innerInstructions": [{"index": int, "instructions": list}],
    "loadedAddresses": {"readonly": list, "writable": list},
    "logMessages": [str],
    "postBalances": [int],
    "postTokenBalances": [TOKEN_BALANCE],
    "preBalances": [int],
    "preTokenBalances": [TOKEN_BALANCE],
    "rewards": [],
    "status": {"Ok": None},
}
HEADER = {
    "numReadonlySignedAccounts": int,
    "numReadonlyUnsignedAccounts": int,
    "numRequiredSignatures": int,
}
CALL = {"accounts": [int], "data": str, "programIdIndex": int, "stackHeight": int}
MESSAGE = {
    "accountKeys": [str],
    "addressTableLookups": list,
    "header": HEADER,
    "instructions": [CALL],
    "recentBlockhash": str,
}
TRANSACTION = {
    "blockTime": int,
    "meta": META,
    "slot": int,
    "transaction": {"message": MESSAGE, "signatures": [str]},
    "version": 0,
}
PARSED_META = {key: shape for key, shape in META.items() if key != "loadedAddresses"}
PARSED_KEY = {"pubkey": str, "signer": bool, "source": "transaction", "writable": bool}
STATUS = {
    "confirmationStatus": "finalized",
    "confirmations": None,
    "err": None,
    "slot": int,
    "status": {"Ok": None},
}
SIMULATION = {
    "accounts": None,
    "err": None,
    "fee": Maybe(int),
    "innerInstructions": None,
    "loadedAccountsDataSize": int,
    "logs": [str],
    "replacementBlockhash": None,
    "returnData": None,
    "unitsConsumed": int,
}


@dataclass(frozen=True)
class Scene:
    """One payment that has landed, and the names around it."""

    wallet: str
    token_account: str
    signature: str
    blockhash: str
    slot: int
    unsent: str
    message: str


@pytest.fixture
async def scene(rpc: Rpc) -> Scene:
    payer = await rpc.wallet(micros=5_000_000)
    blockhash = await rpc.blockhash()
    signature = await rpc.send(payment(payer, Keypair().pubkey(), 1_000_000, blockhash, "scene"))
    unsent = sol_transfer(payer, Keypair().pubkey(), 1_000_000, blockhash)
    return Scene(
        wallet=str(payer.pubkey()),
        token_account=str(get_associated_token_address(payer.pubkey(), MINT)),
        signature=signature,
        blockhash=str(blockhash),
        slot=await rpc("getSlot"),
        unsent=encode(unsent),
        message=b64encode(b"\x80" + bytes(unsent.message)).decode(),
    )


def value(shape: Any) -> dict[str, Any]:
    return {"context": CONTEXT, "value": shape}


V0 = {"maxSupportedTransactionVersion": 0}
SHAPES: list[tuple[str, Callable[[Scene], list[Any]], Any]] = [
    ("getHealth", lambda _: [], "ok"),
    ("getVersion", lambda _: [], {"feature-set": int, "solana-core": str, "bursar-localnet": str}),
    ("getGenesisHash", lambda _: [], str),
    ("getIdentity", lambda _: [], {"identity": str}),
    ("getSlot", lambda _: [], int),
    ("getSlot", lambda _: [{"commitment": "processed"}], int),
    ("getBlockHeight", lambda _: [], int),
    ("getBlockTime", lambda s: [s.slot], int),
    (
        "getEpochInfo",
        lambda _: [],
        {
            "absoluteSlot": int,
            "blockHeight": int,
            "epoch": int,
            "slotIndex": int,
            "slotsInEpoch": 432_000,
            "transactionCount": int,
        },
    ),
    (
        "getEpochSchedule",
        lambda _: [],
        {
            "firstNormalEpoch": int,
            "firstNormalSlot": int,
            "leaderScheduleSlotOffset": int,
            "slotsPerEpoch": int,
            "warmup": bool,
        },
    ),
    ("getFirstAvailableBlock", lambda _: [], int),
    ("getSlotLeader", lambda _: [], str),
    ("getTransactionCount", lambda _: [], int),
    (
        "getLatestBlockhash",
        lambda _: [],
        value({"blockhash": str, "lastValidBlockHeight": int}),
    ),
    ("isBlockhashValid", lambda s: [s.blockhash], value(True)),
    ("getFeeForMessage", lambda s: [s.message], value(5_000)),
    (
        "getRecentPrioritizationFees",
        lambda s: [[s.wallet]],
        [{"prioritizationFee": 0, "slot": int}],
    ),
    ("getMinimumBalanceForRentExemption", lambda _: [0], 890_880),
    ("getMinimumBalanceForRentExemption", lambda _: [165], 2_039_280),
    ("getBalance", lambda s: [s.wallet], value(int)),
    ("getAccountInfo", lambda s: [s.wallet], value(ACCOUNT | {"data": ""})),
    ("getAccountInfo", lambda s: [s.wallet, {"encoding": "base58"}], value(ACCOUNT)),
    ("getAccountInfo", lambda s: [s.token_account, {"encoding": "base64"}], value(ACCOUNT)),
    ("getAccountInfo", lambda s: [s.token_account, {"encoding": "base64+zstd"}], value(ACCOUNT)),
    (
        "getAccountInfo",
        lambda s: [s.token_account, {"encoding": "jsonParsed", "commitment": None}],
        value(PARSED_TOKEN_ACCOUNT),
    ),
    (
        "getAccountInfo",
        lambda _: [TEST_MINT, {"encoding": "jsonParsed"}],
        value(
            ACCOUNT
            | {
                "data": {
                    "parsed": {
                        "info": {
                            "decimals": 6,
                            "freezeAuthority": str,
                            "isInitialized": True,
                            "mintAuthority": str,
                            "supply": "5000000",
                        },
                        "type": "mint",
                    },
                    "program": "spl-token",
                    "space": 82,
                }
            }
        ),
    ),
    ("getAccountInfo", lambda _: [str(Keypair().pubkey())], value(None)),
    (
        "getMultipleAccounts",
        lambda s: [[s.wallet, s.token_account], {"encoding": "base64"}],
        value([ACCOUNT]),
    ),
    (
        "getProgramAccounts",
        lambda s: [
            "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
            {
                "encoding": "base64",
                "filters": [
                    {"dataSize": 165},
                    {"memcmp": {"offset": 32, "bytes": s.wallet}},
                ],
                "dataSlice": {"offset": 64, "length": 8},
            },
        ],
        [
            {
                "account": ACCOUNT
                | {"data": [b64encode((4_000_000).to_bytes(8, "little")).decode(), "base64"]},
                "pubkey": str,
            }
        ],
    ),
    (
        "getProgramAccounts",
        lambda _: [
            "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
            {"encoding": "jsonParsed", "withContext": True, "filters": [{"dataSize": 165}]},
        ],
        value([{"account": PARSED_TOKEN_ACCOUNT, "pubkey": str}]),
    ),
    (
        "getTokenAccountBalance",
        lambda s: [s.token_account],
        value({"amount": "4000000", "decimals": 6, "uiAmount": 4.0, "uiAmountString": "4"}),
    ),
    (
        "getTokenAccountsByOwner",
        lambda s: [s.wallet, {"mint": TEST_MINT}, {"encoding": "jsonParsed"}],
        value([{"account": PARSED_TOKEN_ACCOUNT, "pubkey": str}]),
    ),
    (
        "getTokenAccountsByOwner",
        lambda s: [
            s.wallet,
            {"programId": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"},
            {"encoding": "base64"},
        ],
        value([{"account": ACCOUNT, "pubkey": str}]),
    ),
    (
        "getTokenSupply",
        lambda _: [TEST_MINT],
        value({"amount": "5000000", "decimals": 6, "uiAmount": 5.0, "uiAmountString": "5"}),
    ),
    ("getSignatureStatuses", lambda s: [[s.signature]], value([STATUS])),
    (
        "getSignaturesForAddress",
        lambda s: [s.token_account, {"limit": 1}],
        [
            {
                "blockTime": int,
                "confirmationStatus": "finalized",
                "err": None,
                "memo": "[5] scene",
                "signature": str,
                "slot": int,
            }
        ],
    ),
    ("getTransaction", lambda s: [s.signature, V0], TRANSACTION),
    (
        "getTransaction",
        lambda s: [s.signature, {"encoding": "base64"} | V0],
        TRANSACTION | {"transaction": [str]},
    ),
    (
        "getTransaction",
        lambda s: [s.signature, {"encoding": "base58"} | V0],
        TRANSACTION | {"transaction": [str]},
    ),
    (
        "getTransaction",
        lambda s: [s.signature, {"encoding": "jsonParsed"} | V0],
        TRANSACTION
        | {
            "meta": PARSED_META,
            "transaction": {
                "message": {
                    "accountKeys": [PARSED_KEY],
                    "addressTableLookups": list,
                    "instructions": list,
                    "recentBlockhash": str,
                },
                "signatures": [str],
            },
        },
    ),
    ("getTransaction", lambda _: [str(Keypair().sign_message(b"none"))], None),
    (
        "getBlock",
        lambda s: [s.slot, {"transactionDetails": "signatures"}],
        {
            "blockHeight": int,
            "blockTime": int,
            "blockhash": str,
            "parentSlot": int,
            "previousBlockhash": str,
            "signatures": list,
        },
    ),
    ("getBlocks", lambda s: [s.slot - 5, s.slot], [int]),
    (
        "simulateTransaction",
        lambda s: [s.unsent, {"encoding": "base64", "sigVerify": True}],
        value(SIMULATION),
    ),
    (
        "simulateTransaction",
        lambda s: [s.unsent, {"encoding": "base64", "innerInstructions": True}],
        value(SIMULATION | {"innerInstructions": list}),
    ),
    ("sendTransaction", lambda s: [s.unsent, {"encoding": "base64"}], str),
    ("requestAirdrop", lambda s: [s.wallet, 1], str),
    ("bursar_faucet", lambda s: [s.wallet, 1], str),
]

ERRORS: list[tuple[str, Callable[[Scene], list[Any]], int, str]] = [
    ("nothing", lambda _: [], -32601, "Method not found"),
    ("getBalance", lambda _: [], -32602, "`params` should have at least 1 argument(s)"),
    (
        "getBalance",
        lambda _: [1],
        -32602,
        "Invalid params: invalid type: integer `1`, expected a string.",
    ),
    ("getBalance", lambda _: ["x"], -32602, "Invalid param: WrongSize"),
    ("getBalance", lambda _: ["0" * 44], -32602, "Invalid param: Invalid"),
    (
        "getSlot",
        lambda _: [{"commitment": "soon"}],
        -32602,
        (
            "Invalid params: unknown variant `soon`, expected one of "
            "`processed`, `confirmed`, `finalized`."
        ),
    ),
    (
        "getSlot",
        lambda _: [{"minContextSlot": 2**60}],
        -32016,
        "Minimum context slot has not been reached",
    ),
    ("getBlockTime", lambda _: [2**60], -32004, f"Block not available for slot {2**60}"),
    ("getAccountInfo", lambda _: ["1" * 31], -32602, "Invalid param: WrongSize"),
    (
        "getAccountInfo",
        lambda s: [s.token_account],
        -32600,
        "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding.",
    ),
    (
        "getMultipleAccounts",
        lambda s: [[s.wallet] * 101],
        -32602,
        "Too many inputs provided; max 100",
    ),
    (
        "getTokenAccountBalance",
        lambda _: [str(Keypair().pubkey())],
        -32602,
        "Invalid param: could not find account",
    ),
    ("getTokenAccountBalance", lambda s: [s.wallet], -32602, "Invalid param: not a Token account"),
    ("getTokenSupply", lambda s: [s.wallet], -32602, "Invalid param: not a Token mint"),
    (
        "getTokenAccountsByOwner",
        lambda s: [s.wallet, {"mint": s.wallet}],
        -32602,
        "Invalid param: not a Token mint",
    ),
    (
        "getTokenAccountsByOwner",
        lambda s: [s.wallet, {"programId": s.wallet}],
        -32602,
        "Invalid param: unrecognized Token program id",
    ),
    (
        "getSignatureStatuses",
        lambda s: [[s.signature] * 257],
        -32602,
        "Too many inputs provided; max 256",
    ),
    (
        "getSignaturesForAddress",
        lambda s: [s.wallet, {"limit": 1001}],
        -32602,
        "Invalid limit; max 1000",
    ),
    (
        "getTransaction",
        lambda s: [s.signature],
        -32015,
        (
            "Transaction version (0) is not supported by the requesting client. Please try the "
            'request again with the following configuration parameter: "maxSupportedTransaction'
            'Version": 0'
        ),
    ),
    (
        "getTransaction",
        lambda s: [s.signature, {"commitment": "processed"}],
        -32602,
        "Method does not support commitment below `confirmed`",
    ),
    (
        "simulateTransaction",
        lambda s: [
            s.unsent,
            {"encoding": "base64", "sigVerify": True, "replaceRecentBlockhash": True},
        ],
        -32602,
        "sigVerify may not be used with replaceRecentBlockhash",
    ),
    (
        "requestAirdrop",
        lambda s: [s.wallet, -1],
        -32602,
        "Invalid params: invalid value: `-1`, expected u64.",
    ),
]


def mismatch(actual: Any, shape: Any, path: str = "result") -> str | None:
    """Where `actual` first differs from `shape`."""
    problem = f"{path}: {actual!r} is not {shape!r}"
    if isinstance(shape, Maybe):
        return None if actual is None else mismatch(actual, shape.shape, path)
    if shape is Number:
        numeric = isinstance(actual, int | float) and not isinstance(actual, bool)
        return None if numeric else problem
    if isinstance(shape, type):
        exact = type(actual) is shape
        return None if exact else problem
    if isinstance(shape, list):
        if not isinstance(actual, list):
            return problem
        if len(shape) != 1:
            return None if actual == shape else problem
        found = [mismatch(item, shape[0], f"{path}[{i}]") for i, item in enumerate(actual)]
        return next(filter(None, found), None)
    if isinstance(shape, dict):
        if not isinstance(actual, dict) or actual.keys() != shape.keys():
            return problem
        found = [mismatch(actual[key], shape[key], f"{path}.{key}") for key in shape]
        return next(filter(None, found), None)
    return None if actual == shape else problem


async def test_every_answer_has_its_shape(rpc: Rpc, scene: Scene) -> None:
    for method, params, shape in SHAPES:
        problem = mismatch(await rpc(method, *params(scene)), shape)
        assert problem is None, f"{method}: {problem}"


async def test_every_error_has_its_code_and_words(rpc: Rpc, scene: Scene) -> None:
    for method, params, code, message in ERRORS:
        with pytest.raises(RpcFailed) as failure:
            await rpc(method, *params(scene))
        assert (failure.value.code, failure.value.message) == (code, message), method
        # Strict clients cannot read these codes without data.
        assert (failure.value.data is not None) == (code == -32016)


async def test_a_preflight_failure_carries_the_simulation(rpc: Rpc, scene: Scene) -> None:
    await rpc("sendTransaction", scene.unsent, {"encoding": "base64"})
    with pytest.raises(RpcFailed) as failure:
        await rpc("sendTransaction", scene.unsent, {"encoding": "base64"})
    assert failure.value.message == (
        "Transaction simulation failed: This transaction has already been processed"
    )
    shape = SIMULATION | {"err": "AlreadyProcessed", "logs": []}
    assert mismatch(failure.value.data, shape) is None


async def test_envelopes(rpc: Rpc) -> None:
    async def raw(body: bytes, content_type: str = "application/json") -> tuple[int, bytes]:
        headers = {"Content-Type": content_type}
        async with rpc.session.post(rpc.url, data=body, headers=headers) as response:
            return response.status, await response.read()

    async def error(body: bytes) -> int:
        answer = await rpc.session.post(
            rpc.url, data=body, headers={"Content-Type": "application/json"}
        )
        parsed = await answer.json()
        assert parsed.keys() == {"jsonrpc", "error", "id"}
        assert parsed["id"] is None
        return parsed["error"]["code"]

    assert await error(b"{") == -32700
    assert await error(b"[" * 2_000) == -32700
    assert await error(b"\xff") == -32700
    assert await error(b"[]") == -32600
    assert await error(b"1") == -32600
    assert await error(b'{"jsonrpc":"1.0","method":"getSlot","id":1}') == -32600
    named = await rpc.post(
        {"jsonrpc": "2.0", "id": "a", "method": "getSlot", "params": {"commitment": "x"}}
    )
    assert (named["id"], named["error"]["code"]) == ("a", -32602)
    # A notification is carried out and not answered.
    assert await raw(b'{"jsonrpc":"2.0","method":"getSlot"}') == (200, b"")
    assert (await raw(b"{}", "text/plain"))[0] == 415
    assert (await raw(b" " * 60_000))[0] == 413
    async with rpc.session.get(f"{rpc.url}/health") as response:
        assert await response.text() == "ok"
    async with rpc.session.get(rpc.url) as response:
        assert response.status == 405


async def test_batches_answer_in_order(rpc: Rpc) -> None:
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "getHealth"},
        {"jsonrpc": "2.0", "method": "getHealth"},
        {"jsonrpc": "2.0", "id": None, "method": "getHealth", "params": None},
        {"jsonrpc": "2.0", "id": "three", "method": "nothing"},
        7,
    ]
    answers = await rpc.post(batch)
    assert [answer["id"] for answer in answers] == [1, None, "three", None]
    assert [answer.get("result") for answer in answers] == ["ok", "ok", None, None]
