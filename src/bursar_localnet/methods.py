"""Every JSON-RPC method over HTTP, one function each; `METHODS` at the end is the list.

A function answers from memory and disk as they are now and never waits. `rpc` sends the answer only
once everything it may be based on is durable.
"""

from collections.abc import Callable
from typing import Any, Final

from bursar_localnet import account_methods, base58, transaction_methods
from bursar_localnet.answers import API_VERSION, with_context
from bursar_localnet.chain import Chain
from bursar_localnet.encode import encode_transaction_with_meta
from bursar_localnet.params import BLOCK_NOT_AVAILABLE, Params, RpcError, invalid
from bursar_localnet.slots import MAX_BLOCKHASH_AGE, SLOTS_PER_EPOCH

Method = Callable[[Chain, Params], Any]

_MAX_SLOT_RANGE: Final = 500_000


def get_health(_chain: Chain, _params: Params) -> Any:
    return "ok"


def get_version(_chain: Chain, _params: Params) -> Any:
    return {"feature-set": 0, "solana-core": API_VERSION, "bursar-localnet": "1"}


def get_genesis_hash(chain: Chain, _params: Params) -> Any:
    return chain.genesis_hash


def get_identity(chain: Chain, _params: Params) -> Any:
    return {"identity": chain.identity}


def get_slot(chain: Chain, params: Params) -> Any:
    commitment = params.config(0).reached(chain.slots)
    return chain.slots.at(commitment)


def get_block_time(chain: Chain, params: Params) -> Any:
    return chain.slots.unix_time(_existing_slot(chain, params.integer(0)))


def get_epoch_info(chain: Chain, params: Params) -> Any:
    commitment = params.config(0).reached(chain.slots)
    slot = chain.slots.at(commitment)
    return {
        "absoluteSlot": slot,
        "blockHeight": slot,
        "epoch": slot // SLOTS_PER_EPOCH,
        "slotIndex": slot % SLOTS_PER_EPOCH,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": chain.count(),
    }


def get_epoch_schedule(_chain: Chain, _params: Params) -> Any:
    return {
        "firstNormalEpoch": 0,
        "firstNormalSlot": 0,
        "leaderScheduleSlotOffset": SLOTS_PER_EPOCH,
        "slotsPerEpoch": SLOTS_PER_EPOCH,
        "warmup": False,
    }


def get_first_available_block(chain: Chain, _params: Params) -> Any:
    return chain.slots.first


def get_latest_blockhash(chain: Chain, params: Params) -> Any:
    commitment = params.config(0).reached(chain.slots)
    slot = chain.slots.at(commitment)
    latest = {
        "blockhash": base58.encode(chain.slots.blockhash(slot)),
        "lastValidBlockHeight": slot + MAX_BLOCKHASH_AGE,
    }
    return with_context(chain, commitment, latest)


def is_blockhash_valid(chain: Chain, params: Params) -> Any:
    blockhash = bytes(params.address(0))
    commitment = params.config(1).reached(chain.slots)
    slot = chain.slots.slot_of_blockhash(blockhash)
    valid = slot is not None and slot <= chain.slots.at(commitment)
    return with_context(chain, commitment, valid)


def get_recent_prioritization_fees(chain: Chain, params: Params) -> Any:
    """Always zero: nobody competes for blocks here."""
    slot = chain.slots.at("processed")
    first = max(chain.slots.first, slot - MAX_BLOCKHASH_AGE + 1)
    return [{"prioritizationFee": 0, "slot": recent} for recent in range(first, slot + 1)]


def get_minimum_balance(chain: Chain, params: Params) -> Any:
    return chain.minimum_balance(params.integer(0))


def get_transaction_count(chain: Chain, _params: Params) -> Any:
    return chain.count()


def get_slot_leader(chain: Chain, _params: Params) -> Any:
    return chain.identity


def get_block(chain: Chain, params: Params) -> Any:
    slot = _existing_slot(chain, params.integer(0))
    config = params.config(1)
    if slot > chain.slots.at(config.commitment()):
        raise _not_available(slot)
    block: dict[str, Any] = {
        "blockHeight": slot,
        "blockTime": chain.slots.unix_time(slot),
        "blockhash": base58.encode(chain.slots.blockhash(slot)),
        "parentSlot": slot - 1,
        "previousBlockhash": base58.encode(chain.slots.blockhash(slot - 1)),
    }
    details = config.choice("transactionDetails", ("full", "signatures", "none"), "full")
    if details == "signatures":
        block["signatures"] = [base58.encode(tx.signature) for tx in chain.in_slot(slot)]
    elif details == "full":
        landed = chain.in_slot(slot)
        block["transactions"] = [encode_transaction_with_meta(tx, config) for tx in landed]
    return block


def get_blocks(chain: Chain, params: Params) -> Any:
    first = max(params.integer(0), chain.slots.first)
    last = chain.slots.at("finalized")
    end = params.optional_integer(1)
    if end is not None:
        last = min(last, end)
    if last - first > _MAX_SLOT_RANGE:
        raise invalid(f"Slot range too large; max {_MAX_SLOT_RANGE}")
    return list(range(first, last + 1))


def _existing_slot(chain: Chain, slot: int) -> int:
    if not chain.slots.first <= slot <= chain.slots.processed:
        raise _not_available(slot)
    return slot


def _not_available(slot: int) -> RpcError:
    return RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")


METHODS: Final[dict[str, Method]] = {
    "getHealth": get_health,
    "getVersion": get_version,
    "getGenesisHash": get_genesis_hash,
    "getIdentity": get_identity,
    "getSlot": get_slot,
    "getBlockHeight": get_slot,
    "getBlockTime": get_block_time,
    "getBlock": get_block,
    "getBlocks": get_blocks,
    "getEpochInfo": get_epoch_info,
    "getEpochSchedule": get_epoch_schedule,
    "getFirstAvailableBlock": get_first_available_block,
    "getSlotLeader": get_slot_leader,
    "getLatestBlockhash": get_latest_blockhash,
    "isBlockhashValid": is_blockhash_valid,
    "getRecentPrioritizationFees": get_recent_prioritization_fees,
    "getMinimumBalanceForRentExemption": get_minimum_balance,
    "getTransactionCount": get_transaction_count,
    **account_methods.METHODS,
    **transaction_methods.METHODS,
}
