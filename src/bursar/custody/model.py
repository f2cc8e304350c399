"""A key at rest, and what a signature is made of."""

from dataclasses import dataclass
from typing import Final

EMBEDDED: Final = "embedded"


@dataclass(frozen=True, slots=True)
class SealedKey:
    """What the database keeps of a key. `owner` is an agent's id, or names one of the service's
    own keys; `provider` is who signs with it; `master_version` is the id of the master key."""

    owner: str
    address: str
    key_version: int
    master_version: int
    sealed: bytes
    provider: str = EMBEDDED


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """What the database keeps of a secret that is no key, such as a webhook's. `owner` says whose
    and which it is."""

    owner: str
    master_version: int
    sealed: bytes


@dataclass(frozen=True, slots=True)
class SignedPayment:
    """Ready to send. The signature is the transaction's id on the chain, known before sending."""

    raw: bytes
    signature: str


@dataclass(frozen=True, slots=True)
class SignedPurchase:
    """Ready to be presented to a seller. The signature is the wallet's own: the transaction's id on
    the chain will be that of a facilitator, which nobody knows yet."""

    raw: bytes
    signature: str
