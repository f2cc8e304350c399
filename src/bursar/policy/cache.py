"""Policy versions in memory. A version never changes, so what is here is never stale."""

from collections.abc import Iterable
from typing import Final

from bursar.db import Tx
from bursar.policy import store
from bursar.policy.model import Policy

_MOST: Final = 20_000


class PolicyCache:
    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Policy] = {}

    async def get(
        self, tx: Tx, versions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], Policy]:
        """The policies of these (agent, version)."""
        wanted = set(versions)
        missing = wanted - self._known.keys()
        if missing:
            if len(self._known) + len(missing) > _MOST:
                self._known.clear()
                missing = wanted
            self._known.update(await store.get_versions(tx, sorted(missing)))
        return {version: self._known[version] for version in wanted}
