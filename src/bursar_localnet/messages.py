"""Messages that landed while their blockhash may still count.

Nodes know a repeated transaction by its message, not only by its signature: a facilitator that
simulates a payment before it signs has no signature of its own to be known by.
"""

from bursar_localnet.disk import Disk
from bursar_localnet.slots import MAX_BLOCKHASH_AGE, Slots
from bursar_localnet.wire import Wire, parse_transaction


class RecentMessages:
    """Older ones need not be kept: their blockhash is refused."""

    def __init__(self, slots: Slots, disk: Disk) -> None:
        self._slots = slots
        # In the order in which they landed.
        self._landed: dict[bytes, int] = {}
        for slot, raw in disk.raw_since(self._oldest()):
            self.add(parse_transaction(raw), slot)

    def __contains__(self, message_hash: bytes) -> bool:
        return message_hash in self._landed

    def add(self, wire: Wire, slot: int) -> None:
        oldest = self._oldest()
        while self._landed and next(iter(self._landed.values())) < oldest:
            del self._landed[next(iter(self._landed))]
        self._landed[wire.message_hash] = slot

    def forget(self, wire: Wire) -> None:
        """Another fork won, which never had it."""
        self._landed.pop(wire.message_hash, None)

    def _oldest(self) -> int:
        # What landed in a slot has a blockhash of that slot at the latest.
        return self._slots.processed - MAX_BLOCKHASH_AGE
