"""Remembers for a while which payees have a token account.

A payee may have closed its account since. So the chain is asked again before a payment is signed:
rent that was not reserved is reserved then, or the payment fails.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from bursar.cost import store
from bursar.db import Tx

_MOST: Final = 50_000
_SECONDS: Final = 60.0


class Payees:
    def __init__(self) -> None:
        self._open: set[tuple[str, str]] = set()
        self._until = 0.0

    async def need_rent(
        self, tx: Tx, wanted: Iterable[tuple[str, int, str]]
    ) -> set[tuple[str, str]]:
        """Takes (agent, realm, address); returns those (agent, address) whose payment has to
        reserve the rent."""
        now = asyncio.get_running_loop().time()
        if now > self._until or len(self._open) > _MOST:
            self._open, self._until = set(), now + _SECONDS
        unknown = {each for each in wanted if (each[0], each[2]) not in self._open}
        if not unknown:
            return set()
        without = await store.without_rent(tx, unknown)
        self._open |= {payee for payee, is_open in without.items() if is_open}
        return {(agent_id, address) for agent_id, _, address in unknown} - without.keys()
