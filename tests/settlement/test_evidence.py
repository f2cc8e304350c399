"""What the chain is asked when a payment is looked for."""

from typing import Any

from bursar.chain.message import token_account
from bursar.settlement.evidence import Histories
from bursar_localnet.genesis import TEST_MINT
from tests.settlement.support import Stage, in_front_of


async def test_a_history_is_read_on_and_not_again(stage: Stage):
    """Goal: a wallet that pays and is looked at again and again costs its new lines only."""
    lines: list[int] = []

    def count(method: str, result: Any) -> Any:
        if method == "getSignaturesForAddress":
            lines.append(len(result))
        return result

    agent = await stage.agent()
    async with in_front_of(stage.rpc, count) as address:
        settler = await stage.settler(address)
        made = [await stage.spend(agent) for _ in range(3)]
        await stage.round(settler, 2)
        # Long enough ago that every node lists them.
        await stage.pass_blocks()
        account = token_account(agent["wallet"]["address"], TEST_MINT)
        histories = Histories()

        async def read() -> list[str]:
            lines.clear()
            final = await settler.chain.finalized()
            found = await histories.read(settler.chain, account, final.slot, lambda _: False)
            return [memo for mention in found for memo in mention.memos if memo[:4] == "txn_"]

        first = await read()
        assert sorted(first) == sorted(made)
        assert lines == [4, 0]  # with the deposit, and the empty page before it
        assert await read() == first
        assert lines == [0]
        again = await stage.spend(agent)
        await stage.round(settler, 2)
        await stage.next_block()
        assert await read() == [again, *first]
        assert lines == [1, 0]
