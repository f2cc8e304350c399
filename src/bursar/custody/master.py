"""Master keys: where they come from, and how a new one takes over while processes run.

From the environment (`BURSAR_MASTER_KEY`, and the one before it while they change), or from the
file `master.key` in the data folder: one key a line in base64, the newest first. Processes look at
the file again when it was replaced, so a new key is in use everywhere at once.
"""

import base64
import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bursar.config import Config
from bursar.errors import CommandFailed, ConfigError, check

MASTER_KEY_BYTES: Final = 32
FILE_NAME: Final = "master.key"
# How a file that is being written ends. A copy that a person made has another name.
UNFINISHED: Final = ".unfinished"
# A replacement takes two; more means that the file is something else.
_MOST_KEYS: Final = 8


class MasterKeys:
    """The keys at hand, by version. Never prints them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        # Keys that were dropped stay usable here: a row may have been read just before.
        self._ciphers: dict[int, AESGCM] = {}
        self._versions: tuple[int, ...] = ()
        self._keep(keys)

    def __repr__(self) -> str:
        return "MasterKeys(…)"

    def newest(self) -> tuple[int, AESGCM]:
        """Version and cipher of the key to seal with."""
        return self._versions[0], self._ciphers[self._versions[0]]

    def of(self, version: int) -> AESGCM | None:
        return self._ciphers.get(version)

    @property
    def versions(self) -> tuple[int, ...]:
        """Newest first."""
        return self._versions

    def _keep(self, keys: Sequence[bytes]) -> None:
        check(len(keys) > 0, "there is a master key")
        self._versions = tuple(version_of(key) for key in keys)
        self._ciphers |= {version_of(key): AESGCM(key) for key in keys}


class MasterKeyFile(MasterKeys):
    """The keys of the data folder; made there at the first start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            _make(path)
        self._seen = _identity(path)
        super().__init__(read_keys(path))

    def newest(self) -> tuple[int, AESGCM]:
        # A look at the file's name costs microseconds; sealing with a key that was replaced would
        # cost the caller its transaction.
        if _identity(self.path) != self._seen:
            self._reload()
        return super().newest()

    def of(self, version: int) -> AESGCM | None:
        cipher = super().of(version)
        if cipher is None:
            self._reload()
            cipher = super().of(version)
        return cipher

    def _reload(self) -> None:
        """What is in memory goes on working when the file is gone or unreadable."""
        with contextlib.suppress(OSError, CommandFailed):
            self._seen = _identity(self.path)
            self._keep(read_keys(self.path))


def load_master_keys(config: Config) -> MasterKeys:
    if config.master_key is None:
        if config.master_key_previous is not None:
            raise ConfigError(
                "BURSAR_MASTER_KEY_PREVIOUS", "is only for a BURSAR_MASTER_KEY that replaces it"
            )
        return MasterKeyFile(config.data_dir / FILE_NAME)
    previous = config.master_key_previous
    return MasterKeys([config.master_key, *([] if previous is None else [previous])])


def version_of(key: bytes) -> int:
    """An id that follows from the key, so that keys need no numbering, and reveals nothing else of
    it."""
    check(len(key) == MASTER_KEY_BYTES, "the master key has 32 bytes")
    digest = hashlib.sha256(b"bursar master key version" + key).digest()
    return int.from_bytes(digest[:4], "big") >> 1 or 1


def read_keys(path: Path) -> list[bytes]:
    try:
        keys = [base64.b64decode(line, validate=True) for line in path.read_text("ascii").split()]
    except ValueError:
        keys = []
    if not 1 <= len(keys) <= _MOST_KEYS or any(len(key) != MASTER_KEY_BYTES for key in keys):
        raise CommandFailed(
            f"{path} is not a master key (base64 of 32 bytes). Restore it from a backup, or set"
            " BURSAR_MASTER_KEY."
        )
    return keys


def write_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Replaces the file whole: a process that reads it finds the old keys or the new ones."""
    made = _written(path, keys)
    made.replace(path)
    _sync_folder(path)


def _make(path: Path) -> None:
    # Linked into place complete: of several processes that start at once one makes the key, and
    # none reads half of it.
    made = _written(path, [secrets.token_bytes(MASTER_KEY_BYTES)])
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(made)
    made.unlink()
    _sync_folder(path)


def _written(path: Path, keys: Sequence[bytes]) -> Path:
    made = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(b"".join(base64.b64encode(key) + b"\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    return made


def _sync_folder(path: Path) -> None:
    """A key that seals something must be there after a power cut."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
