"""The data folder: one sqlite file with one owner. Nothing is acknowledged before it is in there.

A write-ahead log with `synchronous = FULL`: a commit that returned survives a power cut. The folder
is locked while a node runs, because two nodes on one file would each see only half of it.
"""

import fcntl
import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from solders.account import Account
from solders.pubkey import Pubkey

from bursar_localnet.errors import LocalnetFailed
from bursar_localnet.genesis import Network
from bursar_localnet.record import Entry, Landed, Mention, Record
from bursar_localnet.slots import Era
from bursar_localnet.tokens import read_token_account

# Addresses, signatures and accounts are stored as raw bytes. An account is one value, because its
# unsigned 64-bit lamports would not fit sqlite's INTEGER.
_SCHEMA: Final = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE era (
  first_slot INTEGER PRIMARY KEY,
  unix_ms    INTEGER NOT NULL,
  slot_ms    INTEGER NOT NULL
) STRICT;
CREATE TABLE account (
  address BLOB PRIMARY KEY,
  program BLOB NOT NULL,
  holder  BLOB,
  body    BLOB NOT NULL
) STRICT;
CREATE INDEX account_program ON account (program);
CREATE INDEX account_holder ON account (holder) WHERE holder IS NOT NULL;
CREATE TABLE landed (
  sequence  INTEGER PRIMARY KEY,
  signature BLOB NOT NULL UNIQUE,
  slot      INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  memo      TEXT,
  raw       BLOB NOT NULL,
  record    BLOB NOT NULL
) STRICT;
CREATE INDEX landed_slot ON landed (slot);
CREATE TABLE mention (
  address  BLOB NOT NULL,
  sequence INTEGER NOT NULL,
  PRIMARY KEY (address, sequence)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
"""
_SCHEMA_VERSION: Final = 1
CHAIN_FILE: Final = "chain.sqlite3"
_SETTING: Final = "SELECT value FROM setting WHERE name = ?"
# A record is large, and only one of a failure tells what a list of mentions shows. By the sequence
# of the mention, which its key is in the order of: a page is read, and not the whole history.
_MENTIONS: Final = """
SELECT signature, slot, memo, CASE WHEN failed THEN record END
  FROM landed
  JOIN mention USING (sequence)
 WHERE address = ? AND mention.sequence < ? AND mention.sequence > ? AND slot <= ?
 ORDER BY mention.sequence DESC
 LIMIT ?
"""
_LANDED_COLUMNS: Final = "sequence, signature, slot, raw, record"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Disk:
    def __init__(self, folder: Path) -> None:
        """Raises LocalnetFailed when another process has the folder."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _lock(folder)
        path = folder / CHAIN_FILE
        # The file holds the faucet's key; sqlite gives its log the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _SCHEMA_VERSION):
            raise LocalnetFailed(f"{path} was written by another version of the localnet.")
        self.is_new = version == 0

    def found(self, settings: Mapping[str, bytes], accounts: Mapping[Pubkey, Account]) -> None:
        """The first start: all of it or nothing."""
        with self._transaction():
            for statement in _SCHEMA.split(";\n"):
                self._db.execute(statement)
            self._db.executemany("INSERT INTO setting VALUES (?, ?)", settings.items())
            self._write_accounts({bytes(key): account for key, account in accounts.items()})

    def append(self, entries: Sequence[Entry]) -> None:
        """One commit for all of them: either every one is on disk when this returns, or none."""
        with self._transaction():
            self._insert(entries)

    def rewrite(
        self,
        dropped: Sequence[bytes],
        accounts: Mapping[bytes, Account | None],
        entries: Sequence[Entry],
    ) -> None:
        """Applies a fork in one commit: deletes lost transactions, restores accounts, adds the
        replacements."""
        with self._transaction():
            for signature in dropped:
                self._db.execute(
                    "DELETE FROM mention WHERE sequence = "
                    "(SELECT sequence FROM landed WHERE signature = ?)",
                    (signature,),
                )
                self._db.execute("DELETE FROM landed WHERE signature = ?", (signature,))
            self._write_accounts(accounts)
            self._insert(entries)

    def add_era(self, era: Era) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO era VALUES (?, ?, ?)",
            (era.first_slot, era.unix_ms, era.slot_ms),
        )

    def eras(self) -> list[Era]:
        return [Era(*row) for row in self._db.execute("SELECT * FROM era ORDER BY first_slot")]

    def setting(self, name: str) -> bytes:
        """Of those that every chain has."""
        return self._db.execute(_SETTING, (name,)).fetchone()[0]

    def mint(self, network: Network) -> str:
        return _mint(self._db, network)

    def accounts(self) -> Iterator[tuple[Pubkey, Account]]:
        for address, body in self._db.execute("SELECT address, body FROM account"):
            yield Pubkey(address), Account.from_bytes(body)

    def raw_since(self, slot: int) -> Iterator[tuple[int, bytes]]:
        """Slot and bytes of what landed in this slot or later, the oldest first."""
        return self._db.execute(
            "SELECT slot, raw FROM landed WHERE slot >= ? ORDER BY sequence", (slot,)
        )

    def last_slot(self) -> int:
        return self._db.execute("SELECT coalesce(max(slot), 0) FROM landed").fetchone()[0]

    def count(self) -> int:
        return self._db.execute("SELECT coalesce(max(sequence), 0) FROM landed").fetchone()[0]

    def slot_of(self, signature: bytes) -> int | None:
        row = self._db.execute(
            "SELECT slot FROM landed WHERE signature = ?", (signature,)
        ).fetchone()
        return None if row is None else row[0]

    def find(self, signature: bytes) -> Landed | None:
        rows = self._landed("WHERE signature = ?", (signature,))
        return next(rows, None)

    def in_slot(self, slot: int) -> list[Landed]:
        return list(self._landed("WHERE slot = ? ORDER BY sequence", (slot,)))

    def mentioning(
        self, address: bytes, *, below: int, above: int, max_slot: int, limit: int
    ) -> list[Mention]:
        """Newest first; only sequences strictly between `above` and `below`."""
        return [
            Mention(signature, slot, memo, None if record is None else _decode(record).err)
            for signature, slot, memo, record in self._db.execute(
                _MENTIONS, (address, below, above, max_slot, limit)
            )
        ]

    def owned_by(self, program: bytes) -> list[Pubkey]:
        return self._addresses("SELECT address FROM account WHERE program = ?", program)

    def held_by(self, holder: bytes) -> list[Pubkey]:
        """Token accounts of this wallet."""
        return self._addresses("SELECT address FROM account WHERE holder = ?", holder)

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _insert(self, entries: Iterable[Entry]) -> None:
        changed: dict[bytes, Account | None] = {}
        for entry in entries:
            cursor = self._db.execute(
                "INSERT INTO landed (signature, slot, failed, memo, raw, record) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (
                    entry.signature,
                    entry.slot,
                    entry.record.err is not None,
                    entry.memo,
                    entry.raw,
                    _encode(entry.record),
                ),
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO mention VALUES (?, ?)",
                [(address, cursor.lastrowid) for address in entry.mentions],
            )
            changed.update(entry.accounts)
        self._write_accounts(changed)

    def _write_accounts(self, accounts: Mapping[bytes, Account | None]) -> None:
        gone = [(address,) for address, account in accounts.items() if account is None]
        self._db.executemany("DELETE FROM account WHERE address = ?", gone)
        self._db.executemany(
            "INSERT INTO account VALUES (?, ?, ?, ?) ON CONFLICT (address) DO UPDATE "
            "SET program = excluded.program, holder = excluded.holder, body = excluded.body",
            [
                (address, bytes(account.owner), _holder(account), bytes(account))
                for address, account in accounts.items()
                if account is not None
            ],
        )

    def _landed(self, where: str, values: tuple[Any, ...]) -> Iterator[Landed]:
        query = f"SELECT {_LANDED_COLUMNS} FROM landed {where}"  # noqa: S608  fixed texts only
        for sequence, signature, slot, raw, record in self._db.execute(query, values):
            yield Landed(sequence, signature, slot, raw, _decode(record))

    def _addresses(self, query: str, value: bytes) -> list[Pubkey]:
        return [Pubkey(row[0]) for row in self._db.execute(query, (value,))]


def chain_mint(folder: Path, network: Network) -> str:
    """The USDC of the chain in this folder, or of the one that would be founded there now."""
    path = folder / CHAIN_FILE
    if not path.exists():
        return network.mint
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        founded = db.execute("PRAGMA user_version").fetchone()[0] != 0
        return _mint(db, network) if founded else network.mint


def remove_chain(folder: Path) -> None:
    """The chain is gone, with all that was on it. Raises LocalnetFailed when a node runs on it, or
    there is none."""
    if not (folder / CHAIN_FILE).exists():
        raise LocalnetFailed(f"{folder} holds no chain.")
    lock = _lock(folder)
    try:
        # The log first: alone, it would be taken for that of the next chain.
        for end in ("-wal", "-shm", ""):
            (folder / f"{CHAIN_FILE}{end}").unlink(missing_ok=True)
    finally:
        os.close(lock)


class ChainCopy:
    """A copy of a chain's file, also while a node runs on it."""

    def __init__(self, chain: Path, copy: Path) -> None:
        self._chain = chain
        self._copy = copy
        self._source: sqlite3.Connection | None = None
        self._version: int | None = None

    def renew(self) -> None:
        """Brings the copy up to date, completely or not at all; cheap if nothing changed. A chain
        that does not exist yet is not copied."""
        if self._source is None:
            if not self._chain.exists():
                return
            uri = f"{self._chain.absolute().as_uri()}?mode=ro"
            self._source = sqlite3.connect(uri, uri=True, check_same_thread=False)
        # Counts the commits of other connections. Read before copying, so that later commits are
        # copied next time.
        version = self._source.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        new = self._copy.with_name(f"{self._copy.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_RDWR, 0o600))
        target = sqlite3.connect(new)
        try:
            self._source.backup(target)
            # One file, without a log beside it.
            target.execute("PRAGMA journal_mode = DELETE")
        finally:
            target.close()
        new.replace(self._copy)
        self._version = version


def check_chain(path: Path) -> None:
    """Raises LocalnetFailed when the file of a chain is damaged."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        found = db.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.DatabaseError as problem:
        found = str(problem)
    finally:
        db.close()
    if found != "ok":
        raise LocalnetFailed(f"{path} is damaged: {found}")


def _mint(db: sqlite3.Connection, network: Network) -> str:
    noted = db.execute(_SETTING, ("mint",)).fetchone()
    return network.former_mint if noted is None else noted[0].decode()


def _holder(account: Account) -> bytes | None:
    token = read_token_account(account)
    return None if token is None else token.holder


def _lock(folder: Path) -> int:
    """The lock belongs to the open file, so the kernel releases it however the process ends."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode()
        os.close(lock)
        raise LocalnetFailed(
            f"Another localnet is running on {folder} (process {owner}). "
            "Stop it, or choose another --data-dir."
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock
