"""Links to a public explorer, for networks that it can see. Nothing is loaded from there."""

from typing import Final, Literal

_ROOT: Final = "https://explorer.solana.com"
_CLUSTERS: Final = {"solana-mainnet": "", "solana-devnet": "?cluster=devnet"}


def explorer(network: str, kind: Literal["tx", "address"], value: str) -> str | None:
    """None for a chain of this machine."""
    cluster = _CLUSTERS.get(network)
    return None if cluster is None else f"{_ROOT}/{kind}/{value}{cluster}"
