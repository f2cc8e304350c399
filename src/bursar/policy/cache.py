"""Policy versions in memory. A version never changes within one history of the database, so what is
here is never stale; after a failover that forgot one, its number may be another policy's."""

from collections.abc import Iterable
from typing import Final

from bursar.db import Tx
from bursar.policy import store
from bursar.policy.model import Policy, PolicyKey

_MOST: Final = 20_000


class PolicyCache:
    def __init__(self) -> None:
        self._known: dict[PolicyKey, Policy] = {}

    async def get(self, tx: Tx, keys: Iterable[PolicyKey]) -> dict[PolicyKey, Policy]:
        wanted = set(keys)
        missing = wanted - self._known.keys()
        if missing:
            if len(self._known) + len(missing) > _MOST:
                self._known.clear()
                missing = wanted
            read = await store.get_versions(tx, sorted(key[:2] for key in missing))
            self._known.update((key, read[key[:2]]) for key in missing)
        return {key: self._known[key] for key in wanted}
