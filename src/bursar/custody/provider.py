"""Who holds keys and signs with them: the embedded provider, or one of your own.

A package adds a provider with an entry point in the group `bursar.key_providers`; the setting
`key_provider` names the one that makes new keys. See docs/custody.md.
"""

import secrets
from dataclasses import dataclass, field
from typing import Final, Protocol

from solders.keypair import Keypair

from bursar.custody.model import EMBEDDED

_SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """`handle` is what it takes to sign later: the seed itself, or the name of a key that lives
    elsewhere. It is stored sealed either way."""

    address: str
    handle: bytes = field(repr=False)


class KeyProvider(Protocol):
    async def create(self, owner: str) -> NewKey:
        """A new ed25519 key for an agent or for the service. Awaited while a database transaction
        is open: a provider that needs the network for it keeps some keys ready."""
        ...

    async def sign(self, handle: bytes, message: bytes) -> bytes:
        """The ed25519 signature (64 bytes) of a message that the vault built itself."""
        ...


class EmbeddedKeys:
    """Keys in this process, in clear only for the one signature."""

    async def create(self, owner: str) -> NewKey:
        del owner
        seed = secrets.token_bytes(_SEED_BYTES)
        return NewKey(str(Keypair.from_seed(seed).pubkey()), seed)

    async def sign(self, handle: bytes, message: bytes) -> bytes:
        return bytes(Keypair.from_seed(handle).sign_message(message))


EMBEDDED_PROVIDERS: Final[dict[str, KeyProvider]] = {EMBEDDED: EmbeddedKeys()}
