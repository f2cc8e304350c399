"""Rounds of one worker side by side: what they do at the same time, and what in turns."""

import asyncio
from collections.abc import Sequence
from typing import Any

from bursar.chain.port import Mention, SendResult
from bursar.settlement import worker
from bursar.settlement.worker import Settler
from tests.processes import until
from tests.settlement.support import Stage

ROUNDS = 3


class Watched:
    """A chain that counts who sends and who reads histories at the moment. `held`: no sending ends
    before it is set."""

    def __init__(self, settler: Settler) -> None:
        self.held = asyncio.Event()
        self.sending = self.most_sending = self.sent = self.histories = 0
        self._chain = settler.chain
        settler.chain = self  # pyright: ignore[reportAttributeAccessIssue]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)

    def witnesses(self) -> Sequence["Watched"]:
        return [self]

    async def signatures_of(self, address: str, **bounds: Any) -> list[Mention]:
        self.histories += 1
        return await self._chain.signatures_of(address, **bounds)

    async def send(self, raw: bytes) -> SendResult:
        self.sending += 1
        self.most_sending = max(self.most_sending, self.sending)
        await self.held.wait()
        try:
            return await self._chain.send(raw)
        finally:
            self.sending -= 1
            self.sent += 1


async def test_rounds_send_in_turns_and_sign_meanwhile(stage: Stage, monkeypatch: Any):
    """Goal: while one round sends, the next ones sign and store; what they send goes out one round
    after the other, and everything is paid once. The chain is looked at once for all of them."""
    monkeypatch.setattr(worker, "SIGN_AT_ONCE", 1)
    agent = await stage.agent()
    settler = await stage.settler()
    # The first look only notes where the history begins.
    first = await stage.spend(agent)
    await stage.round(settler, 2)
    await stage.next_block()
    payments = [await stage.spend(agent) for _ in range(ROUNDS)]
    chain = Watched(settler)
    rounds = asyncio.gather(*(settler.sign() for _ in range(ROUNDS)))

    async def all_are_stored() -> bool:
        return all([await stage.attempts(payment) for payment in payments])

    await until(all_are_stored, seconds=30)
    assert (chain.sending, chain.sent) == (1, 0)
    chain.held.set()
    await rounds
    assert (chain.most_sending, chain.sent) == (1, ROUNDS)
    assert chain.histories == 1
    await stage.round(settler, 2)
    assert [await stage.made(agent, payment) for payment in (first, *payments)] == [1] * (
        ROUNDS + 1
    )
