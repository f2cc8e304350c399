"""Policy versions in memory. A version never changes within one history of the database, so the
cache is never stale. The history is part of the key, because a failover may lose a version and give
its number to another policy."""

from collections.abc import Iterable
from typing import Final

from bursar.db import Tx
from bursar.policy import store
from bursar.policy.model import Policy, PolicyKey

_MOST_BYTES: Final = 64 * 1024 * 1024


class PolicyCache:
    """Forgets first what it read first."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._known: dict[PolicyKey, Policy] = {}
        self.bytes_used = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: PolicyKey) -> bool:
        return key in self._known

    async def get(self, tx: Tx, keys: Iterable[PolicyKey]) -> dict[PolicyKey, Policy]:
        # Kept here: while the database is asked, another task may push out what is known.
        wanted = set(keys)
        found = {key: self._known[key] for key in wanted if key in self._known}
        missing = wanted - found.keys()
        if missing:
            read = await store.get_versions(tx, sorted(key[:2] for key in missing))
            for key in missing:
                found[key] = read[key[:2]]
                self._remember(key, found[key])
        return found

    def _remember(self, key: PolicyKey, policy: Policy) -> None:
        if key in self._known:
            return
        self._known[key] = policy
        self.bytes_used += policy.bytes_in_memory
        while self.bytes_used > self._most_bytes:
            oldest = next(iter(self._known))
            self.bytes_used -= self._known.pop(oldest).bytes_in_memory
