"""Opens the vault of a process, and makes the service's own keys at the first start."""

from importlib.metadata import entry_points
from typing import Final

from bursar.chain.networks import usdc_mint
from bursar.config import MODES, Config, Mode
from bursar.custody import store
from bursar.custody.master import MasterKeys, load_master_keys
from bursar.custody.model import SealedKey
from bursar.custody.provider import EMBEDDED_PROVIDERS, KeyProvider
from bursar.custody.vault import Vault
from bursar.db import Database, Tx
from bursar.errors import CommandFailed, ConfigError, present

PROVIDER_GROUP: Final = "bursar.key_providers"


async def open_vault(db: Database, config: Config) -> Vault:
    """Raises CommandFailed when the master key is not the one that sealed the keys."""
    masters = load_master_keys(config)

    async def work(tx: Tx) -> None:
        await check_masters(tx, masters)

    await db.transact(work)
    mints = frozenset(usdc_mint(config, mode) for mode in MODES if config.network(mode) is not None)
    return Vault(masters, mints, load_providers(config.key_provider), config.key_provider)


async def ensure_fee_payer(db: Database, vault: Vault, mode: Mode) -> SealedKey:
    """The key that pays the fees of a mode. Its address needs SOL; see docs/custody.md."""
    async with db.connection() as tx:
        found = await store.fee_payer_key(tx, mode)
    if found is not None:
        return found
    made = await vault.new_key(store.fee_payer_owner(mode))
    async with db.transaction() as tx:
        await store.insert_system_key(tx, made)
    async with db.connection() as tx:
        kept = await store.fee_payer_key(tx, mode)
    return present(kept, "a fee payer that was made is there")


async def check_masters(tx: Tx, masters: MasterKeys) -> None:
    """Every sealed key can be opened, and the newest master key may seal new ones."""
    await store.lock_masters(tx)
    known, at_hand = await store.master_versions(tx), set(masters.versions)
    missing = await store.masters_in_use(tx) - at_hand
    if missing or (known and not known & at_hand):
        raise CommandFailed(
            "The master key is not the one that sealed the keys in this database. Restore"
            " master.key in the data folder from its backup, or set BURSAR_MASTER_KEY to the right"
            " key; after a change of that variable set BURSAR_MASTER_KEY_PREVIOUS to the one"
            " before. Without it no wallet can pay."
        )
    await store.add_master(tx, masters.versions[0])


def load_providers(makes_keys: str) -> dict[str, KeyProvider]:
    """The embedded one and those of installed packages, each made by calling its entry point."""
    found = dict(EMBEDDED_PROVIDERS)
    for entry in entry_points(group=PROVIDER_GROUP):
        found[entry.name] = entry.load()()
    if makes_keys not in found:
        raise ConfigError(
            "BURSAR_KEY_PROVIDER",
            f"there is no provider {makes_keys!r}; installed are {', '.join(sorted(found))}",
        )
    return found
