"""JSON-RPC methods that send transactions and look them up."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from bursar_localnet import base58
from bursar_localnet.answers import with_context
from bursar_localnet.chain import Chain, Refused, keys_of
from bursar_localnet.encode import (
    encode_account,
    encode_inner,
    encode_return_data,
    encode_transaction,
)
from bursar_localnet.params import (
    PREFLIGHT_FAILURE,
    SIGNATURE_FAILURE,
    Config,
    Params,
    RpcError,
    invalid,
    to_address,
    to_signature,
)
from bursar_localnet.reasons import reason
from bursar_localnet.record import Landed, Record
from bursar_localnet.slots import MAX_BLOCKHASH_AGE, Commitment
from bursar_localnet.wire import (
    Undecodable,
    Wire,
    decode_message,
    decode_transaction,
    parse_transaction,
)

_MAX_STATUSES: Final = 256
_MAX_HISTORY: Final = 1_000
# Lamports or micro-units: a billion SOL, or a trillion USDC, which is the most that the API
# accepts. Nine times as much still fits a client's signed 64-bit number.
_MOST_GIVEN: Final = 10**18


def send_transaction(chain: Chain, params: Params) -> Any:
    """With preflight a failure is answered as an error. Without, the signature is always answered,
    even for a transaction that will never land: nodes do the same."""
    config = params.config(1)
    wire = _wire(params.text(0), config)
    if config.flag("skipPreflight"):
        if wire.signatures_hold():
            with suppress(Refused):
                chain.submit(wire, preflight=None)
        return str(wire.signature)
    commitment = config.reached(chain.slots, key="preflightCommitment")
    if not wire.signatures_hold():
        raise RpcError(SIGNATURE_FAILURE, "Transaction signature verification failure")
    try:
        return base58.encode(chain.submit(wire, commitment))
    except Refused as refusal:
        raise preflight_failure(refusal) from None


def simulate_transaction(chain: Chain, params: Params) -> Any:
    config = params.config(1)
    commitment = config.reached(chain.slots)
    verify, replace = config.flag("sigVerify"), config.flag("replaceRecentBlockhash")
    if verify and replace:
        raise invalid("sigVerify may not be used with replaceRecentBlockhash")
    wire = _wire(params.text(0), config)
    if verify and not wire.signatures_hold():
        raise RpcError(SIGNATURE_FAILURE, "Transaction signature verification failure")
    try:
        record, accounts = chain.simulate(wire, commitment, any_blockhash=replace)
    except Refused as refusal:
        return with_context(chain, commitment, _simulation(refusal.err, None))
    result = _simulation(record.err, record)
    wanted = config.nested("accounts")
    if wanted is not None:
        addresses = [to_address(text) for text in wanted.items("addresses")]
        result["accounts"] = [
            _simulated_account(chain, address, accounts, commitment, wanted, record)
            for address in addresses
        ]
    if config.flag("innerInstructions"):
        keys = keys_of(record, wire)
        result["innerInstructions"] = [
            {"index": index, "instructions": encode_inner(calls, keys, parsed=True)}
            for index, calls in record.inner
        ]
    if replace:
        slot = chain.slots.at(commitment)
        result["replacementBlockhash"] = {
            "blockhash": base58.encode(chain.slots.blockhash(slot)),
            "lastValidBlockHeight": slot + MAX_BLOCKHASH_AGE,
        }
    return with_context(chain, commitment, result)


def get_fee_for_message(chain: Chain, params: Params) -> Any:
    """What the VM would charge; null once the blockhash is too old."""
    commitment = params.config(1).reached(chain.slots)
    try:
        message = decode_message(params.text(0))
        if chain.slots.slot_of_blockhash(bytes(message.recent_blockhash)) is None:
            return with_context(chain, commitment, None)
        unsigned = [Signature.default()] * message.header.num_required_signatures
        wire = parse_transaction(bytes(VersionedTransaction.populate(message, unsigned)))
    except Undecodable as problem:
        raise invalid(str(problem)) from None
    record, _ = chain.simulate(wire, commitment, any_blockhash=True)
    return with_context(chain, commitment, record.fee)


def get_signature_statuses(chain: Chain, params: Params) -> Any:
    signatures = [to_signature(text) for text in params.items(0, _MAX_STATUSES)]
    search = params.config(1).flag("searchTransactionHistory")
    found = [chain.find(signature, search_history=search) for signature in signatures]
    value = [None if landed is None else _status(chain, landed) for landed in found]
    return with_context(chain, "processed", value)


def get_signatures_for_address(chain: Chain, params: Params) -> Any:
    address, config = params.address(0), params.config(1)
    commitment = _at_least_confirmed(config)
    config.check_min_context(chain.slots, commitment)
    limit = config.integer("limit")
    if limit is not None and not 1 <= limit <= _MAX_HISTORY:
        raise invalid(f"Invalid limit; max {_MAX_HISTORY}")
    before_text = config.text("before")
    before = _bound(chain, before_text)
    if before_text is not None and before is None:
        # An unknown `before` gives an empty page. The newest page instead would make a client that
        # pages backwards loop for ever.
        return []
    found = chain.mentioning(
        address,
        commitment,
        before=before,
        until=_bound(chain, config.text("until")),
        limit=limit or _MAX_HISTORY,
    )
    return [
        {
            "blockTime": chain.slots.unix_time(mention.slot),
            "confirmationStatus": chain.level_of(mention.slot),
            "err": mention.err,
            "memo": mention.memo,
            "signature": base58.encode(mention.signature),
            "slot": mention.slot,
        }
        for mention in found
    ]


def get_transaction(chain: Chain, params: Params) -> Any:
    signature, config = params.signature(0), params.config(1)
    commitment = _at_least_confirmed(config)
    landed = chain.find(signature)
    if landed is None or landed.slot > chain.slots.at(commitment):
        return None
    return encode_transaction(landed, config, chain.slots.unix_time(landed.slot))


def request_airdrop(chain: Chain, params: Params) -> Any:
    return _give(lambda: chain.airdrop(params.address(0), _gift(params)))


def faucet(chain: Chain, params: Params) -> Any:
    """A method of our own: `[owner, micro-units, reference]` mints test USDC into the owner's token
    account, only once for each reference; without a reference every time."""
    reference = None if params.optional(2) is None else params.address(2)
    return _give(lambda: chain.mint_to(params.address(0), _gift(params), reference))


def _gift(params: Params) -> int:
    amount = params.integer(1)
    if amount > _MOST_GIVEN:
        raise invalid(f"Invalid param: the faucet gives at most {_MOST_GIVEN} at once")
    return amount


def preflight_failure(refusal: Refused) -> RpcError:
    return RpcError(
        PREFLIGHT_FAILURE,
        f"Transaction simulation failed: {reason(refusal.err)}",
        _simulation(refusal.err, refusal.record),
    )


def _wire(text: str, config: Config) -> Wire:
    encoding = config.choice("encoding", ("base58", "base64"), "base58")
    try:
        return decode_transaction(text, encoding)
    except Undecodable as problem:
        raise invalid(str(problem)) from None


def _simulation(err: Any, record: Record | None) -> dict[str, Any]:
    return {
        "accounts": None,
        "err": err,
        "fee": record.fee if record else None,
        "innerInstructions": None,
        "loadedAccountsDataSize": 0,
        "logs": record.logs if record else [],
        "replacementBlockhash": None,
        "returnData": encode_return_data(record) if record else None,
        "unitsConsumed": record.units if record else 0,
    }


def _simulated_account(
    chain: Chain,
    address: Pubkey,
    accounts: dict[Pubkey, Any],
    commitment: Commitment,
    config: Config,
    record: Record,
) -> Any:
    if record.err is not None:
        return None
    account = accounts.get(address) or chain.account(address, commitment)
    return None if account is None else encode_account(chain, account, commitment, config)


def _status(chain: Chain, landed: Landed) -> dict[str, Any]:
    level = chain.level_of(landed.slot)
    err = landed.record.err
    return {
        "confirmationStatus": level,
        "confirmations": None if level == "finalized" else chain.slots.processed - landed.slot,
        "err": err,
        "slot": landed.slot,
        "status": {"Ok": None} if err is None else {"Err": err},
    }


def _at_least_confirmed(config: Config) -> Commitment:
    commitment = config.commitment()
    if commitment == "processed":
        raise invalid("Method does not support commitment below `confirmed`")
    return commitment


def _bound(chain: Chain, text: str | None) -> Landed | None:
    return None if text is None else chain.find(to_signature(text))


def _give(send: Callable[[], bytes]) -> str:
    try:
        return base58.encode(send())
    except Refused as refusal:
        raise preflight_failure(refusal) from None


METHODS: Final[dict[str, Callable[[Chain, Params], Any]]] = {
    "sendTransaction": send_transaction,
    "simulateTransaction": simulate_transaction,
    "getFeeForMessage": get_fee_for_message,
    "getSignatureStatuses": get_signature_statuses,
    "getSignaturesForAddress": get_signatures_for_address,
    "getTransaction": get_transaction,
    "requestAirdrop": request_airdrop,
    "bursar_faucet": faucet,
}
