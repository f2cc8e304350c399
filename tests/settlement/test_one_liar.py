"""Of two nodes one lies, mostly once, about how far the chain is while something is signed. From
then on both tell the truth, which must be enough."""

import base64
from typing import Any

import pytest

from bursar.chain.port import (
    BLOCKHASH_BLOCKS,
    MOST_APART_BLOCKS,
    SAFETY_BLOCKS,
    Blockhash,
    ChainOutOfReach,
    Height,
    vouched,
)
from bursar.chain.solana import Solana
from tests.processes import until
from tests.settlement.bought import buy, follow, follower
from tests.settlement.support import Lie, Stage, in_front_of, the_truth

BEHIND = 600


def behind(method: str, result: Any) -> Any:
    """A blockhash that is true and young, said to be of blocks that are long past."""
    if method == "getLatestBlockhash":
        value = result["value"]
        value = {**value, "lastValidBlockHeight": value["lastValidBlockHeight"] - BEHIND}
        return {**result, "value": value}
    if method == "getEpochInfo":
        return {
            **result,
            "absoluteSlot": result["absoluteSlot"] - BEHIND,
            "blockHeight": result["blockHeight"] - BEHIND,
        }
    return result


class Once:
    """Lies until it is told the truth."""

    def __init__(self, lie: Lie) -> None:
        self._lie = lie
        self.lying = True

    def __call__(self, method: str, result: Any) -> Any:
        return self._lie(method, result) if self.lying else result


async def test_a_purchase_that_can_still_land_is_not_buried(stage: Stage):
    for _ in range(3):
        await stage.pass_blocks()
    agent = await stage.agent("10")
    lie = Once(behind)
    async with in_front_of(stage.rpc, lie) as liar:
        nodes = liar, stage.rpc.url
        bought = await buy(stage, agent, 1_500_000, nodes=nodes)
        lie.lying = False
        worker = await follower(stage, *nodes)
        await follow(stage, worker, times=2)
        assert (await bought.now()).status == "presented"
        await bought.settle()
        await follow(stage, worker, times=2)
    assert (await bought.now()).status == "paid"


async def test_a_slot_from_the_future_hides_no_payment(stage: Stage):
    agent = await stage.agent("10")

    def ahead(method: str, result: Any) -> Any:
        if method == "getEpochInfo":
            return {**result, "absoluteSlot": result["absoluteSlot"] + 10**12}
        return result

    lie = Once(ahead)
    async with in_front_of(stage.rpc, lie) as liar:
        nodes = liar, stage.rpc.url
        bought = await buy(stage, agent, 1_500_000, nodes=nodes)
        lie.lying = False
        await bought.settle()
        await follow(stage, await follower(stage, *nodes), times=2)
    assert (await bought.now()).status == "paid"


async def test_with_a_last_block_that_never_comes_nothing_is_signed(stage: Stage):
    """Its amount would be reserved for ever."""
    agent = await stage.agent("10")

    def late(method: str, result: Any) -> Any:
        if method == "getLatestBlockhash":
            return {**result, "value": {**result["value"], "lastValidBlockHeight": 10**15}}
        return result

    async with in_front_of(stage.rpc, late) as liar:
        with pytest.raises(ChainOutOfReach, match="more than a day apart"):
            await buy(stage, agent, 1_500_000, nodes=(liar, stage.rpc.url))
    async with stage.db.connection() as tx:
        assert await tx.fetchval("SELECT count(*) FROM purchase WHERE raw IS NOT NULL") == 0


async def test_a_payment_that_can_still_land_is_not_signed_again(stage: Stage):
    """The liar also says that it took what it is sent, and keeps it for later."""
    for _ in range(3):
        await stage.pass_blocks()
    agent = await stage.agent("10")
    spend = await stage.spend(agent, "1.5")
    lie = Once(behind)
    async with in_front_of(stage.rpc, lie, keeps=True) as liar:
        settler = await stage.settler(liar, stage.rpc.url)
        for _ in range(2):
            await stage.due()
            await settler.sign()
            lie.lying = False
            await stage.due()
            await settler.follow()
    kept = await stage.attempts(spend)
    assert len(kept) == 1
    for attempt in kept:
        raw = base64.b64encode(bytes(attempt["raw"])).decode()
        await stage.rpc("sendTransaction", raw, {"encoding": "base64", "skipPreflight": True})
    await stage.next_block()
    assert await stage.made(agent, spend) == 1


async def test_what_a_node_still_takes_is_not_dead(stage: Stage):
    """Goal: even where no honest node said a word while it was signed, one that counts the
    blockhash as valid keeps it alive."""
    for _ in range(3):
        await stage.pass_blocks()
    agent = await stage.agent("10")
    spend = await stage.spend(agent, "1.5")
    async with in_front_of(stage.rpc, behind, keeps=True) as liar:
        bought = await buy(stage, agent, 1_500_000, nodes=[liar])
        await stage.due()
        await (await stage.settler(liar)).sign()
    worker, settler = await follower(stage, stage.rpc.url), await stage.settler()
    await follow(stage, worker, times=2)
    await stage.due()
    await settler.follow()
    assert (await bought.now()).status == "presented"
    assert [attempt["state"] for attempt in await stage.attempts(spend)] == ["live"]
    for _ in range(2):
        await stage.pass_blocks()
    await follow(stage, worker, times=2)
    await stage.due()
    await settler.follow()
    assert (await bought.now()).status == "unpaid"
    assert [attempt["state"] for attempt in await stage.attempts(spend)] == ["dead"]


async def test_what_was_signed_while_finality_was_late_is_not_buried_early(stage: Stage):
    """The honest node is behind with its finality, and has caught up when it is asked again."""
    late_by = 60
    for _ in range(3):
        await stage.pass_blocks()
    agent = await stage.agent("10")
    spend = await stage.spend(agent, "1.5")

    def late(method: str, result: Any) -> Any:
        if method == "getEpochInfo":
            fields = "absoluteSlot", "blockHeight"
            return {**result, **{name: result[name] - late_by for name in fields}}
        return result

    def lies(method: str, result: Any) -> Any:
        return (behind if method == "getLatestBlockhash" else late)(method, result)

    liar_says, other_says = Once(lies), Once(late)
    async with (
        in_front_of(stage.rpc, liar_says, keeps=True) as liar,
        in_front_of(stage.rpc, other_says) as other,
    ):
        settler = await stage.settler(liar, other)
        await stage.due()
        await settler.sign()
        (first,) = await stage.attempts(spend)
        liar_says.lying = other_says.lying = False
        past = first["last_valid_height"] + SAFETY_BLOCKS

        async def seems_over() -> bool:
            return (await stage.rpc("getEpochInfo"))["blockHeight"] > past

        await until(seems_over, seconds=60)
        await stage.due()
        await settler.follow()
        await stage.due()
        await settler.sign()
    attempts = await stage.attempts(spend)
    for attempt in attempts:
        raw = base64.b64encode(bytes(attempt["raw"])).decode()
        await stage.rpc("sendTransaction", raw, {"encoding": "base64", "skipPreflight": True})
    await stage.next_block()
    assert await stage.made(agent, spend) <= 1


def without_history(method: str, result: Any) -> Any:
    return [] if method == "getSignaturesForAddress" else result


def lost(method: str, result: Any) -> Any:
    return None if method == "getTransaction" else result


def from_the_future(method: str, result: Any) -> Any:
    if method == "getEpochInfo":
        return {**result, "absoluteSlot": result["absoluteSlot"] + 10**12}
    return result


@pytest.mark.parametrize("lie", [without_history, from_the_future])
async def test_a_snapshot_put_back_is_noticed_by_the_other_node(stage: Stage, lie: Lie):
    """One node has no history of the fee payer, or said once that the chain is far ahead."""
    agent = await stage.agent()
    told = Once(lie)
    async with in_front_of(stage.rpc, told) as liar:
        nodes = liar, stage.rpc.url
        await stage.spend(agent)
        await stage.round(await stage.settler(*nodes), 2)
        told.lying = lie is without_history
        await stage.next_block()
        spend = await stage.spend(agent)
        await (await stage.settler(*nodes)).sign()
        assert await stage.made(agent, spend) == 1
        await stage.forget_attempts(spend)
        await stage.next_block()
        await stage.round(await stage.settler(*nodes), 2)
        await stage.next_block()
        assert await stage.made(agent, spend) == 1


async def test_what_is_listed_and_not_shown_may_be_ours(stage: Stage):
    """Goal: a snapshot was put back, and the node lists what it forgot but does not show it now:
    nothing is signed until it does."""
    agent = await stage.agent()
    told = Once(lost)
    told.lying = False
    async with in_front_of(stage.rpc, told) as node:
        await stage.spend(agent)
        await stage.round(await stage.settler(node), 2)
        await stage.next_block()
        spend = await stage.spend(agent)
        await (await stage.settler(node)).sign()
        await stage.forget_attempts(spend)
        await stage.next_block()
        settler = await stage.settler(node)
        for told.lying in (True, False):
            await stage.round(settler, 2)
            await stage.next_block()
            assert await stage.made(agent, spend) == 1


async def test_what_one_node_does_not_show_another_does(stage: Stage):
    """Goal: a payment settles and a deposit is credited, whatever the first node has lost."""
    agent = await stage.agent("10")
    spend = await stage.spend(agent)
    async with in_front_of(stage.rpc, lost) as first:
        await stage.round(await stage.settler(first, stage.rpc.url), 3)
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 5_000_000)
        await (await stage.reconciler(first, stage.rpc.url)).sweep()
    assert await stage.status(spend) == "settled"
    assert (await stage.balance(agent))["balance"] == "13.500000"


async def test_what_one_node_takes_and_drops_another_passes_on(stage: Stage):
    agent = await stage.agent("10")
    spend = await stage.spend(agent)
    async with in_front_of(stage.rpc, the_truth, keeps=True) as sink:
        await stage.round(await stage.settler(sink, stage.rpc.url), 4)
    assert await stage.made(agent, spend) == 1
    assert len(await stage.attempts(spend)) == 1


async def test_what_nodes_say_together_is_believed():
    told = Blockhash("hash", 1_150, 1_100)
    here, ahead, lagging = Height(1_090, 1_000), Height(1_200, 1_100), Height(900, 800)
    assert vouched(told, [here]) == Blockhash("hash", 1_150, 1_090)
    assert vouched(told, [here, ahead]).last_valid_height == 1_100 + BLOCKHASH_BLOCKS
    assert vouched(told, [here, lagging]) == Blockhash("hash", 1_150, 900)
    far = Height(10**6, 1_000 + MOST_APART_BLOCKS)
    assert vouched(told, [here, far]).last_valid_height == far.height + BLOCKHASH_BLOCKS
    with pytest.raises(ChainOutOfReach):
        vouched(told, [here, Height(10**6, far.height + 1)])


async def test_nodes_at_one_host_have_names_of_their_own():
    chain = Solana.open(["http://gw:1/one", "http://gw:1/two", "http://gw:2/"], 5, 0)
    names = [witness.name for witness in chain.witnesses()]
    await chain.close()
    assert names == ["gw:1 (1)", "gw:1 (2)", "gw:2"]
