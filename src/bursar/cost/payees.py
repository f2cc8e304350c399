"""Which payees are known to have a token account, as a process remembers it for a while.

What it remembers may be wrong by then. So the chain is asked before a payment is signed: rent that
was not reserved is reserved then, or the payment fails.
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
        # By realm and address.
        self._open: set[tuple[int, str]] = set()
        self._until = 0.0

    def is_open(self, realm_id: int, address: str) -> bool:
        """Whether the token account is known to be there: no rent is reserved for it."""
        return (realm_id, address) in self._open and not self._is_old()

    async def need_rent(
        self, tx: Tx, wanted: Iterable[tuple[str, int, str]]
    ) -> set[tuple[str, str]]:
        """Takes (agent, realm, address); returns those (agent, address) whose payment has to
        reserve the rent."""
        if self._is_old() or len(self._open) > _MOST:
            self._open, self._until = set(), asyncio.get_running_loop().time() + _SECONDS
        unknown = {each for each in wanted if each[1:] not in self._open}
        if not unknown:
            return set()
        without = await store.without_rent(tx, unknown)
        self._open |= {each[1:] for each in unknown if without.get((each[0], each[2]))}
        return {(agent_id, address) for agent_id, _, address in unknown} - without.keys()

    def _is_old(self) -> bool:
        return asyncio.get_running_loop().time() > self._until
