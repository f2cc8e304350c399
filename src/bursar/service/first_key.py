"""Keys made on the service's own machine: the first test key, and those of `bursar keys create`."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from bursar.access import store
from bursar.access.issue import issue_key
from bursar.access.model import NewKey, Scope
from bursar.config import Config, Mode
from bursar.db import Database, Tx, moment
from bursar.errors import ConfigError, present
from bursar.ids import new_id

DEFAULT_ACCOUNT = "default"
# The audit log's name for a person with a shell on the service's machine.
OPERATOR = "operator"
COMMAND_LINE = "command line"
FIRST_KEY_FILE: Final = "first-test.key"
# What `serve` says once everything runs; the key is told after it.
RUNNING: Final = "Bursar is running."
# Long enough to try things out; after that the user makes keys of their own.
_FIRST_KEY_DAYS: Final = 30


async def make_first_key(config: Config) -> str | None:
    """Makes a test key on the very first start; None on every later start."""
    dsn = present(config.database_url, "the database runs by now")
    db = await Database.open(dsn, 2, config.database_timeout_seconds)
    try:
        async with db.transaction() as tx:
            if await store.list_all_keys(tx):
                return None
            made = await make_key(
                tx,
                config,
                mode="test",
                scope=Scope.ADMIN,
                agent_id=None,
                account=DEFAULT_ACCOUNT,
                name="first test key",
                expires_in=timedelta(days=_FIRST_KEY_DAYS),
            )
            return made.secret
    finally:
        await db.close()


def hand_over(key: str, folder: Path | None) -> str:
    """The message about the first key. With a `folder`, the key is written to a file there that
    only its owner can read, because the message goes to a log, where a key must not be."""
    said = f"\nA test key to begin with, good for {_FIRST_KEY_DAYS} days"
    if folder is None:
        return f"{said} (shown only now):\n  {key}"
    file = folder / FIRST_KEY_FILE
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as opened:
        opened.write(f"{key}\n")
    return f"{said}, is in {file}"


async def make_key(
    tx: Tx,
    config: Config,
    *,
    mode: Mode,
    scope: Scope,
    agent_id: str | None,
    account: str,
    name: str,
    expires_in: timedelta | None,
) -> NewKey:
    if config.network(mode) is None:
        raise ConfigError(
            "BURSAR_LIVE_NETWORK",
            "live keys need a network: set it to the address of a Solana RPC node, or to localnet"
            " to rehearse live mode on this machine",
        )
    realm_id = await store.ensure_realm(tx, new_id("acc"), account, mode)
    expires_at = None if expires_in is None else await moment(tx) + expires_in
    return await issue_key(
        tx,
        realm_id=realm_id,
        mode=mode,
        scope=scope,
        agent_id=agent_id,
        name=name,
        expires_at=expires_at,
        actor=OPERATOR,
        request_id=COMMAND_LINE,
    )
