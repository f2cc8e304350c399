"""From a recipient to the address that is paid. The agent's word never binds the two."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from solders.keypair import Keypair

from bursar.config import Mode
from bursar.db import Tx
from bursar.hostnames import is_address
from bursar.recipient import store

_CACHED_ENTRIES: Final = 50_000


class Directory:
    """Looks recipients up in the account's directory.

    Answers are remembered under the directory's epoch, which the caller read under lock: after a
    change the epoch is another one, so an old answer is never found again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str], str | None] = {}

    async def resolve(
        self, tx: Tx, mode: Mode, realm_id: int, epoch: str, recipients: Iterable[str]
    ) -> dict[str, str | None]:
        """The address of each recipient; None where a hostname has none (only in live mode)."""
        found: dict[str, str | None] = {}
        unknown: list[str] = []
        for recipient in recipients:
            if is_address(recipient):
                found[recipient] = recipient
            elif (realm_id, epoch, recipient) in self._known:
                found[recipient] = self._known[realm_id, epoch, recipient]
            else:
                unknown.append(recipient)
        if unknown:
            if len(self._known) > _CACHED_ENTRIES:
                self._known.clear()
            addresses = await store.addresses_of(tx, realm_id, unknown)
            for hostname in unknown:
                address = addresses.get(hostname) or _sandbox_address(mode, hostname)
                found[hostname] = self._known[realm_id, epoch, hostname] = address
        return found


def _sandbox_address(mode: Mode, hostname: str) -> str | None:
    return test_address(hostname) if mode == "test" else None


@lru_cache(maxsize=4_096)
def test_address(hostname: str) -> str:
    """The address that stands for a hostname in test mode, the same on every installation."""
    seed = hashlib.sha256(b"bursar test recipient " + hostname.encode("ascii")).digest()
    return str(Keypair.from_seed(seed).pubkey())
