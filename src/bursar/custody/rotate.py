"""`bursar keys rotate-master`: every key is sealed again, under a new master key, while the service
runs. Killed at any point, it goes on where it was when it is run again.

1. The new version is allowed in the database, then the new key is put first in `master.key`, with
   the old one behind it. From here on processes seal with the new one and open with both.
2. Keys are sealed again, some at a time.
3. The old version is retired in the database. Its foreign keys refuse that while anything is
   sealed with it, and afterwards refuse to store anything that is: a process that slept through
   it all cannot bring the old key back.
4. The old key leaves the file.
"""

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import asyncpg

from bursar.config import Config
from bursar.custody import store
from bursar.custody.master import (
    FILE_NAME,
    MASTER_KEY_BYTES,
    UNFINISHED,
    MasterKeyFile,
    MasterKeys,
    load_master_keys,
    read_keys,
    version_of,
    write_keys,
)
from bursar.custody.setup import check_masters
from bursar.custody.store import SealedTable, SecretTable
from bursar.custody.vault import Vault
from bursar.db import Database, Tx
from bursar.errors import CommandFailed
from bursar.trail.trail import leave_trail

_BATCH: Final = 200
# What a seller answered may be megabytes.
_SECRETS_BATCH: Final = 10
# Each sweep finds only what was stored with the old key since the one before.
_MOST_SWEEPS: Final = 100


async def rotate_master(db: Database, config: Config, actor: str, request_id: str) -> int:
    """How many keys were sealed again. Raises CommandFailed, with every key still usable."""
    if config.master_key is not None:
        count = await _rotate_configured(db, load_master_keys(config))
    else:
        path = config.data_dir / FILE_NAME
        with _locked(path):
            count = await _rotate_file(db, path)
    async with db.transaction() as tx:
        await leave_trail(
            tx,
            realm_id=None,
            actor=actor,
            request_id=request_id,
            action="master_key.rotated",
            subject="master_key",
            after={"keys": count},
        )
    return count


async def _rotate_configured(db: Database, masters: MasterKeys) -> int:
    if len(masters.versions) == 1:
        raise CommandFailed(
            "To replace the master key, set BURSAR_MASTER_KEY to a new one (openssl rand -base64"
            " 32) and BURSAR_MASTER_KEY_PREVIOUS to the present one, restart every process, then"
            " run this again with the same settings."
        )
    return await _reseal_all(db, masters)


async def _rotate_file(db: Database, path: Path) -> int:
    for unfinished in path.parent.glob(f"{path.name}.*{UNFINISHED}"):
        unfinished.unlink()
    keys = read_keys(path)
    if len(keys) == 1:
        key = secrets.token_bytes(MASTER_KEY_BYTES)
        async with db.transaction() as tx:
            # The present key must be the right one before it is made the old one.
            await check_masters(tx, MasterKeys(keys))
            await store.add_master(tx, version_of(key))
        write_keys(path, [key, *keys])
    masters = MasterKeyFile(path)
    count = await _reseal_all(db, masters)
    write_keys(path, read_keys(path)[:1])
    return count


async def _reseal_all(db: Database, masters: MasterKeys) -> int:
    vault, newest = Vault(masters, mints=frozenset()), masters.versions[0]

    async def start(tx: Tx) -> None:
        await check_masters(tx, masters)

    async def retire(tx: Tx) -> None:
        await store.retire_masters(tx, newest)

    await db.transact(start)
    count = 0
    for _ in range(_MOST_SWEEPS):
        for table in store.SEALED_TABLES:
            while done := await _reseal_some(db, vault, table, newest):
                count += done
        for table in store.SECRET_TABLES:
            while done := await _reseal_some_secrets(db, vault, table, newest):
                count += done
        try:
            await db.transact(retire)
        except asyncpg.ForeignKeyViolationError:
            continue  # a process that had not seen the new key yet stored one more
        return count
    raise CommandFailed(
        "Keys are still being sealed with the old master key. Restart the processes that run since"
        " before the change, then run this again."
    )


async def _reseal_some(db: Database, vault: Vault, table: SealedTable, newest: int) -> int:
    async def work(tx: Tx) -> int:
        keys = await store.keys_of_other_masters(tx, table, newest, _BATCH)
        await store.store_resealed(tx, table, [vault.reseal(key) for key in keys])
        return len(keys)

    return await db.transact(work)


async def _reseal_some_secrets(db: Database, vault: Vault, table: SecretTable, newest: int) -> int:
    async def work(tx: Tx) -> int:
        found = await store.secrets_of_other_masters(tx, table, newest, _SECRETS_BATCH)
        await store.store_resealed_secrets(tx, table, [vault.reseal_secret(s) for s in found])
        return len(found)

    return await db.transact(work)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CommandFailed("Another rotate-master is running. Let it finish.") from None
    finally:
        os.close(handle)
