"""Wallet keys at rest: AES-256-GCM under the master key, bound to the agent they belong to."""

import base64
import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from solders.keypair import Keypair

from bursar.custody.model import SealedKey
from bursar.errors import CommandFailed, check

MASTER_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_SEED_BYTES: Final = 32
FIRST_KEY_VERSION: Final = 1
FIRST_MASTER_VERSION: Final = 1


class Vault:
    """The only code that touches wallet keys in clear. Never prints them, whatever happens."""

    def __init__(self, master_key: bytes) -> None:
        check(len(master_key) == MASTER_KEY_BYTES, "the master key has 32 bytes")
        self._cipher = AESGCM(master_key)

    def __repr__(self) -> str:
        return "Vault(…)"

    def new_wallet_key(self, agent_id: str) -> SealedKey:
        seed = secrets.token_bytes(_SEED_BYTES)
        address = str(Keypair.from_seed(seed).pubkey())
        nonce = os.urandom(_NONCE_BYTES)
        bound = _associated(agent_id, address, FIRST_KEY_VERSION, FIRST_MASTER_VERSION)
        return SealedKey(
            agent_id=agent_id,
            address=address,
            key_version=FIRST_KEY_VERSION,
            master_version=FIRST_MASTER_VERSION,
            sealed=nonce + self._cipher.encrypt(nonce, seed, bound),
        )

    def opens(self, key: SealedKey) -> bool:
        """Whether this master key unseals the key and it is the one of the address."""
        try:
            return str(self._open(key).pubkey()) == key.address
        except (InvalidTag, ValueError):  # ValueError: cut too short to be a sealed key at all
            return False

    def _open(self, key: SealedKey) -> Keypair:
        nonce, ciphertext = key.sealed[:_NONCE_BYTES], key.sealed[_NONCE_BYTES:]
        bound = _associated(key.agent_id, key.address, key.key_version, key.master_version)
        return Keypair.from_seed(self._cipher.decrypt(nonce, ciphertext, bound))


def _associated(agent_id: str, address: str, key_version: int, master_version: int) -> bytes:
    """A sealed key moved to another row, or given another address or version, does not open."""
    return f"wallet|{agent_id}|{address}|{key_version}|{master_version}".encode()


def load_master_key(configured: bytes | None, data_dir: Path) -> bytes:
    """The configured key, or the one in the data folder, made there if it is new."""
    if configured is not None:
        return configured
    path = data_dir / "master.key"
    if not path.exists():
        # Linked into place complete: of several processes that start at once one makes the key,
        # and none reads half of it.
        made = data_dir / f"master.key.{os.getpid()}"
        handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(base64.b64encode(secrets.token_bytes(MASTER_KEY_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(made)
        made.unlink()
    try:
        key = base64.b64decode(path.read_text("ascii").strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != MASTER_KEY_BYTES:
        raise CommandFailed(
            f"{path} is not a master key (base64 of 32 bytes). Restore it from a backup, or set"
            " BURSAR_MASTER_KEY."
        )
    return key
