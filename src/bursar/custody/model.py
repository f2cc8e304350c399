"""A wallet's key at rest."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SealedKey:
    """What the database keeps of a wallet's key."""

    agent_id: str
    address: str
    key_version: int
    master_version: int
    sealed: bytes
