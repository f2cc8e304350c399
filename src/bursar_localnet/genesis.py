"""The two local networks: one for test mode, one to rehearse live mode on.

They never share a mint or a genesis hash, so a client pointed at the wrong one notices at once.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from bursar_localnet import base58

DECIMALS: Final = 6


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    mint: str

    def genesis_hash(self, seed: bytes) -> str:
        """Made from the data folder's random `seed`: constant for a folder, different in every
        other one."""
        return base58.encode(sha256(b"genesis" + self.name.encode() + seed).digest())


def _address(text: str) -> str:
    return base58.encode(sha256(text.encode()).digest())


TEST_MINT: Final = _address("bursar localnet test usdc")
LIVE_MINT: Final = _address("bursar localnet live usdc")

TEST: Final = Network("test", TEST_MINT)
LIVE: Final = Network("live", LIVE_MINT)
NETWORKS: Final = {network.name: network for network in (TEST, LIVE)}
