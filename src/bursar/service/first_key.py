"""Keys made from the machine itself: the first test key, and the operator's command."""

from datetime import timedelta

from bursar.access import store
from bursar.access.issue import issue_key
from bursar.access.model import NewKey, Scope
from bursar.config import Config, Mode
from bursar.db import Database, Tx, moment
from bursar.errors import ConfigError, present
from bursar.ids import new_id

DEFAULT_ACCOUNT = "default"
# How the audit log names whoever can reach the database from a shell.
OPERATOR = "operator"
COMMAND_LINE = "command line"


async def make_first_key(config: Config) -> str | None:
    """On the very first start a test key to begin with; later none, for none was lost."""
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
                expires_in=None,
            )
            return made.secret
    finally:
        await db.close()


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
