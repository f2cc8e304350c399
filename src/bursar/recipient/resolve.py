"""Finds the address that a recipient is paid at. The agent cannot influence it."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from solders.keypair import Keypair

from bursar.config import Mode
from bursar.db import Tx
from bursar.hostnames import is_address
from bursar.policy.model import EntryList, PolicyKey
from bursar.recipient import store

_CACHED_ENTRIES: Final = 50_000


class Directory:
    """Looks recipients up in the account's directory.

    Answers are remembered under the directory's epoch, which the caller read under lock. A change
    of the directory begins another epoch, so an old answer is never found again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str], str | None] = {}
        self._blocked: dict[tuple[str, PolicyKey, str], bool] = {}

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

    def remembered(self, realm_id: int, epoch: str, recipient: str) -> str | None:
        """The address of a recipient, if it needs no look at the database."""
        if is_address(recipient):
            return recipient
        return self._known.get((realm_id, epoch, recipient))

    async def paid_to_blocked(
        self,
        tx: Tx,
        mode: Mode,
        realm_id: int,
        epoch: str,
        policy: tuple[PolicyKey, EntryList],
        addresses: Iterable[str],
    ) -> set[str]:
        """Which of the addresses the directory also gives to a host on the policy's blocklist."""
        key, blocks = policy
        wanted = set(addresses)
        if not blocks.names_hosts or not wanted:
            return set()
        known = {
            a: self._blocked[epoch, key, a] for a in wanted if (epoch, key, a) in self._blocked
        }
        unknown = wanted - known.keys()
        if unknown:
            named = await store.hostnames_of(tx, realm_id, sorted(unknown))
            blocked = {address for address, host in named if blocks.matches(host)}
            if mode == "test":
                derived = {a: h for a, h in _test_addresses(blocks.hosts).items() if a in unknown}
                resolved = await self.resolve(tx, mode, realm_id, epoch, derived.values())
                blocked |= {
                    address for address, host in derived.items() if resolved[host] == address
                }
            if len(self._blocked) > _CACHED_ENTRIES:
                self._blocked.clear()
            known |= {address: address in blocked for address in unknown}
            self._blocked |= {(epoch, key, address): known[address] for address in unknown}
        return {address for address, is_blocked in known.items() if is_blocked}


@lru_cache(maxsize=32)
def _test_addresses(hostnames: tuple[str, ...]) -> dict[str, str]:
    return {test_address(hostname): hostname for hostname in hostnames}


def _sandbox_address(mode: Mode, hostname: str) -> str | None:
    return test_address(hostname) if mode == "test" else None


@lru_cache(maxsize=4_096)
def test_address(hostname: str) -> str:
    """The address that a hostname is paid at in test mode; the same on every installation."""
    seed = hashlib.sha256(b"bursar test recipient " + hostname.encode("ascii")).digest()
    return str(Keypair.from_seed(seed).pubkey())
