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
    """`mint` is the USDC of a chain that is founded now, `former_mint` that of chains which do not
    say what theirs is: they were founded before it could be another."""

    name: str
    mint: str
    former_mint: str

    def genesis_hash(self, seed: bytes) -> str:
        """Made from the data folder's random `seed`: constant for a folder, different in every
        other one."""
        return base58.encode(sha256(b"genesis" + self.name.encode() + seed).digest())


def _address(text: str) -> str:
    return base58.encode(sha256(text.encode()).digest())


# Devnet's USDC: programs that sell or buy for USDC refuse a token that they do not know, and a
# localnet passes for devnet with them.
TEST_MINT: Final = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
FORMER_TEST_MINT: Final = _address("bursar localnet test usdc")
LIVE_MINT: Final = _address("bursar localnet live usdc")

TEST: Final = Network("test", TEST_MINT, former_mint=FORMER_TEST_MINT)
LIVE: Final = Network("live", LIVE_MINT, former_mint=LIVE_MINT)
NETWORKS: Final = {network.name: network for network in (TEST, LIVE)}
