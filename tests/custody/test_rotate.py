"""Goal: the master key is replaced while the service runs, and no key is ever out of reach."""

import asyncio
import base64
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import pytest

from bursar.config import Config, load_config
from bursar.custody import store
from bursar.custody.master import MasterKeyFile, read_keys, version_of, write_keys
from bursar.custody.model import SealedKey
from bursar.custody.rotate import rotate_master
from bursar.custody.setup import check_masters, ensure_fee_payer, open_vault
from bursar.custody.vault import KeyUnusable, Vault
from bursar.db import Database
from bursar.errors import CommandFailed
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.processes import bursar, clean_environment

# More than two batches.
WALLETS = 450
NEW = bytes(range(1, 33))


@dataclass(frozen=True)
class Installation:
    config: Config
    db: Database
    vault: Vault  # of a process that runs all the time

    @property
    def master_file(self) -> Path:
        return self.config.data_dir / "master.key"

    async def keys(self) -> list[SealedKey]:
        async with self.db.connection() as tx:
            agents = await tx.fetch("SELECT agent_id FROM wallet_key")
            found = await store.wallet_keys(tx, [row["agent_id"] for row in agents])
            fee_payer = await store.fee_payer_key(tx, "test")
        assert fee_payer is not None
        return [*found.values(), fee_payer]

    async def add_wallets(self, name: str, count: int) -> None:
        """Agents as far as keys need them, sealed by the process that runs."""
        keys = [await self.vault.new_key(f"ag_{name}_{n:05}") for n in range(count)]
        async with self.db.transaction() as tx:
            await tx.execute(ONE_REALM)
            await tx.executemany(ONE_AGENT, [(key.owner,) for key in keys])
            await tx.copy_records_to_table(
                "wallet_key",
                columns=["agent_id", "address", "key_version", "master_version", "sealed"],
                records=[
                    (k.owner, k.address, k.key_version, k.master_version, k.sealed) for k in keys
                ],
            )

    async def versions(self) -> set[int]:
        async with self.db.connection() as tx:
            return await store.master_versions(tx)

    async def all_open(self, vault: Vault) -> int:
        keys = await self.keys()
        for key in keys:
            vault.reseal(key)
        return len(keys)

    async def is_clean(self) -> None:
        """One master key everywhere: in the file, in force, and on every row."""
        masters = MasterKeyFile(self.master_file)
        assert len(masters.versions) == 1
        assert await self.versions() == set(masters.versions)
        assert {key.master_version for key in await self.keys()} == set(masters.versions)
        assert await self.all_open(Vault(masters, frozenset())) == WALLETS + 1
        # The process that ran all the time finds its way too.
        assert await self.all_open(self.vault) == WALLETS + 1


ONE_REALM = """
INSERT INTO account (id, name) VALUES ('acc_1', 'one') ON CONFLICT DO NOTHING;
INSERT INTO realm (account_id, mode) VALUES ('acc_1', 'test') ON CONFLICT DO NOTHING;
"""
ONE_AGENT = """
INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)
SELECT $1::text, min(id), 'a', 'pol_' || $1::text, moment(), moment() FROM realm
"""


@pytest.fixture
async def installed(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncGenerator[Installation]:
    async with own_database(postgres) as (dsn, db):
        # Policies are another concern; without them an agent is one row.
        async with db.connection() as tx:
            await tx.execute("ALTER TABLE agent DROP CONSTRAINT agent_id_policy_version_fkey")
        config = replace(load_config({}, data_dir=tmp_path, log_level="error"), database_url=dsn)
        vault = await open_vault(db, config)
        installation = Installation(config, db, vault)
        await installation.add_wallets("first", WALLETS)
        await ensure_fee_payer(db, vault, "test")
        yield installation


async def rotate(installed: Installation) -> int:
    return await rotate_master(installed.db, installed.config, "operator", "command line")


async def test_every_key_gets_the_new_seal(installed: Installation):
    """Goal: wallets and fee payer, same addresses, a line in the trail; as often as wanted."""
    before = {key.owner: key for key in await installed.keys()}
    for _ in range(2):
        old = installed.master_file.read_text()
        assert await rotate(installed) == WALLETS + 1
        assert installed.master_file.read_text() != old
        await installed.is_clean()
    for key in await installed.keys():
        assert key.address == before[key.owner].address
        assert key.sealed != before[key.owner].sealed
    async with installed.db.connection() as tx:
        actions = await tx.fetch("SELECT actor, action FROM audit_log")
    assert [tuple(row) for row in actions] == [("operator", "master_key.rotated")] * 2


async def test_the_command(installed: Installation):
    done = await bursar(
        *("keys", "rotate-master"),
        data_dir=str(installed.config.data_dir),
        database_url=str(installed.config.database_url),
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{WALLETS + 1} keys are sealed with the new master key")
    await installed.is_clean()


# The program rotates, and kills itself at the n-th call of a step, before or after it.
PROGRAM = """
import asyncio, os, signal, sys
from bursar.config import load_config
from bursar.custody import rotate, store
from bursar.db import Database

step, when, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
home = rotate if step == "write_keys" else store
real = getattr(home, step)

def struck(*arguments):
    global left
    left -= 1
    if left == 0 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*arguments)
    if step == "write_keys" and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

async def struck_later(*arguments):
    result = await struck(*arguments)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(home, step, struck if step == "write_keys" else struck_later)

async def main():
    config = load_config(os.environ)
    db = await Database.open(config.database_url, 2, 10)
    await rotate.rotate_master(db, config, "operator", "command line")

asyncio.run(main())
"""
STEPS = [
    ("add_master", 2),
    ("write_keys", 1),
    ("store_resealed", 2),
    ("retire_masters", 1),
    ("write_keys", 2),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("step", "nth"), STEPS, ids=str)
async def test_killed_in_the_middle(installed: Installation, step: str, nth: int, when: str):
    """Goal: after kill -9 at any step every key still opens, the service starts, new keys can be
    made, and running it again finishes the work."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, step, when, str(nth)),
        env=clean_environment() | installed.config.child_environment(),
    )
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    # The file is whole, and a process that starts now finds every key.
    started = await open_vault(installed.db, installed.config)
    assert await installed.all_open(started) == WALLETS + 1
    assert await installed.all_open(installed.vault) == WALLETS + 1
    assert (await started.new_key("ag_x")).master_version in await installed.versions()
    assert 0 <= await rotate(installed) <= WALLETS + 1
    await installed.is_clean()
    left = sorted(path.name for path in await asyncio.to_thread(_listed, installed))
    assert left == ["master.key", "master.key.lock"]


def _listed(installed: Installation) -> list[Path]:
    return list(installed.config.data_dir.iterdir())


async def test_keys_made_and_used_meanwhile(installed: Installation):
    """Goal: a process that runs all the time seals and opens throughout, and none of its keys is
    left behind under the old master key."""
    rotating = asyncio.create_task(rotate(installed))
    rounds = 0
    while not rotating.done() or rounds < 3:
        await installed.add_wallets(f"new{rounds}", 3)
        await installed.all_open(installed.vault)
        rounds += 1
    await rotating
    masters = MasterKeyFile(installed.master_file)
    assert await installed.all_open(Vault(masters, frozenset())) == WALLETS + 1 + 3 * rounds
    assert {key.master_version for key in await installed.keys()} == set(masters.versions)


async def test_a_process_that_slept_through_it_cannot_bring_the_old_key_back(
    installed: Installation,
):
    """Goal: what is sealed with a retired master key is refused by the database, not lost later."""
    sleeper = replace(installed, vault=Vault(_Stuck(installed.master_file), frozenset()))
    await rotate(installed)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await sleeper.add_wallets("late", 1)
    await installed.is_clean()


class _Stuck(MasterKeyFile):
    """Never looks at the file again."""

    def _reload(self) -> None:
        pass


async def test_a_key_stored_late_is_swept_up(installed: Installation):
    """Goal: sealed before the change, committed in the middle of it: the old master key is not
    retired before that key has its new seal."""
    late = await installed.vault.new_key("ag_late")
    async with installed.db.transaction() as tx:
        await tx.execute(ONE_AGENT, late.owner)
        await tx.execute(
            "INSERT INTO wallet_key (agent_id, address, key_version, master_version, sealed)"
            " VALUES ($1, $2, $3, $4, $5)",
            *(late.owner, late.address, late.key_version, late.master_version, late.sealed),
        )
        rotating = asyncio.create_task(rotate(installed))
        await asyncio.sleep(0.5)
        assert not rotating.done(), "it waits for whoever may still store an old seal"
        assert len(read_keys(installed.master_file)) == 2
    assert await rotating == WALLETS + 2
    masters = MasterKeyFile(installed.master_file)
    assert {key.master_version for key in await installed.keys()} == set(masters.versions)


async def test_two_at_once(installed: Installation):
    """Goal: the second is told to wait, and changes nothing."""
    results = await asyncio.gather(*(rotate(installed) for _ in range(2)), return_exceptions=True)
    told = [str(result) for result in results if isinstance(result, CommandFailed)]
    assert told == ["Another rotate-master is running. Let it finish."]
    await installed.is_clean()


# From the environment ----------------------------------------------------------------------------


async def test_a_configured_key_is_replaced_in_three_steps(installed: Installation):
    """Goal: new and previous key set, all sealed again, previous key taken away."""
    old = read_keys(installed.master_file)[0]
    alone = replace(installed.config, master_key=old)
    with pytest.raises(CommandFailed, match="BURSAR_MASTER_KEY_PREVIOUS"):
        await rotate(replace(installed, config=alone))
    both = replace(installed.config, master_key=NEW, master_key_previous=old)
    during = await open_vault(installed.db, both)
    await replace(installed, vault=during).add_wallets("during", 1)
    assert await installed.all_open(during) == WALLETS + 2
    assert await rotate(replace(installed, config=both)) == WALLETS + 1
    after = await open_vault(installed.db, replace(both, master_key_previous=None))
    assert await installed.all_open(after) == WALLETS + 2
    assert await installed.versions() == {version_of(NEW)}


async def test_the_wrong_master_key_does_not_start(installed: Installation):
    """Goal: a lost or mistaken key is told at the start, not at the first payment."""
    wrong = replace(installed.config, master_key=NEW)
    with pytest.raises(CommandFailed, match="not the one that sealed the keys") as refused:
        await open_vault(installed.db, wrong)
    assert base64.b64encode(NEW).decode() not in str(refused.value)
    # The new one alone, in the middle of a change, is not enough either.
    old = read_keys(installed.master_file)[0]
    await open_vault(installed.db, replace(wrong, master_key_previous=old))
    with pytest.raises(CommandFailed, match="BURSAR_MASTER_KEY_PREVIOUS"):
        await open_vault(installed.db, wrong)
    write_keys(installed.master_file, [bytes(32)])
    with pytest.raises(CommandFailed):
        await rotate(installed)
    assert read_keys(installed.master_file) == [bytes(32)]


async def test_a_key_that_does_not_open_stops_the_change(installed: Installation):
    """Goal: a damaged row is named, and the old master key stays until it is dealt with."""
    async with installed.db.transaction() as tx:
        await tx.execute(
            "UPDATE wallet_key SET sealed = '\\x00'::bytea WHERE agent_id = 'ag_first_00007'"
        )
    with pytest.raises(KeyUnusable, match="ag_first_00007"):
        await rotate(installed)
    assert len(read_keys(installed.master_file)) == 2


async def test_the_fee_payer_is_made_once(installed: Installation):
    """Goal: processes that start at once use the same one; each mode has its own."""
    made = await asyncio.gather(
        *(ensure_fee_payer(installed.db, installed.vault, "live") for _ in range(5))
    )
    assert len({key.address for key in made}) == 1
    test = await ensure_fee_payer(installed.db, installed.vault, "test")
    assert test.address != made[0].address
    async with installed.db.transaction() as tx:
        await check_masters(tx, MasterKeyFile(installed.master_file))


async def test_a_copy_beside_it_stays(installed: Installation):
    """Goal: the old key, which older backups need, is not removed where a person kept it."""
    copies = [
        installed.master_file.with_name(f"master.key.{n}") for n in ("2026-11-18", "20261118")
    ]
    for copy in copies:
        copy.write_bytes(installed.master_file.read_bytes())
    await rotate(installed)
    assert all(len(read_keys(copy)) == 1 for copy in copies)
