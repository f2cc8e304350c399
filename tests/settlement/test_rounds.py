"""Rounds of one worker side by side: what they do at the same time, and what in turns."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from bursar.settlement import worker
from bursar.settlement.worker import Settler
from tests.processes import until
from tests.settlement.support import Stage

ROUNDS: Final = 3
AT_ONCE: Final = 2


class Watched:
    """A chain that counts who sends at the moment. `held`: no sending ends before it is set."""

    def __init__(self, settler: Settler) -> None:
        self.held = asyncio.Event()
        self.sending = self.most_sending = self.sent = 0
        self._chain: Any = settler.chain
        settler.chain = self  # pyright: ignore[reportAttributeAccessIssue]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)

    async def send_many(self, raws: Sequence[bytes]) -> list[bytes]:
        self.sending += 1
        self.most_sending = max(self.most_sending, self.sending)
        await self.held.wait()
        try:
            return await self._chain.send_many(raws)
        finally:
            self.sending -= 1
            self.sent += 1


async def test_rounds_send_in_turns_and_sign_meanwhile(stage: Stage, monkeypatch: Any):
    """Goal: while one round sends, the next ones sign and store; what they send goes out one round
    after the other, and everything is paid once."""
    monkeypatch.setattr(worker, "SIGN_AT_ONCE", AT_ONCE)
    agent = await stage.agent()
    payments = [await stage.spend(agent) for _ in range(ROUNDS * AT_ONCE)]
    settler = await stage.settler()
    chain = Watched(settler)
    rounds = asyncio.gather(*(settler.sign() for _ in range(ROUNDS)))

    async def all_are_stored() -> bool:
        return all([await stage.attempts(payment) for payment in payments])

    await until(all_are_stored, seconds=30)
    assert (chain.sending, chain.sent) == (1, 0)
    chain.held.set()
    await rounds
    assert (chain.most_sending, chain.sent) == (1, ROUNDS)
    await stage.round(settler, 2)
    assert [await stage.made(agent, payment) for payment in payments] == [1] * len(payments)
