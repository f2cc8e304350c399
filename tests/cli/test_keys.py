"""`bursar keys` as a process of its own, on the database of a service that runs."""

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from bursar.access.model import well_formed
from bursar.cli.main import app
from bursar.config import load_defaults, variable
from bursar.ids import is_id, new_id
from bursar.service.postgres import EmbeddedPostgres
from tests.processes import Finished, bursar, until
from tests.support import Service, new_account, new_agent


@pytest.fixture
def dsn(service: Service) -> str:
    assert service.config.database_url is not None
    return service.config.database_url


def _ok(done: Finished) -> str:
    assert done.code == 0, done.err
    return done.out


def _refused(done: Finished, code: int, *words: str) -> None:
    assert done.code == code, (done.code, done.out, done.err)
    assert done.out == ""
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err, done.err


async def test_create_prints_one_json_object(service: Service, dsn: str):
    """Goal: `--json` prints exactly the six fields, of a key that works, in an account it made."""
    account = new_account()
    done = await bursar(
        *("keys", "create", "--mode", "test", "--scope", "read", "--account", account, "--json"),
        database_url=dsn,
    )
    made = json.loads(_ok(done))
    assert list(made) == ["id", "key", "mode", "scope", "account", "agentId"]
    assert is_id("key", made["id"])
    assert well_formed(made["key"])
    assert (made["mode"], made["scope"], made["agentId"]) == ("test", "read", None)
    assert made["account"] == account
    assert done.err == ""
    async with service.client(made["key"]) as client:
        me = (await client.get("/v1/me")).json()["data"]
    assert (me["id"], me["account"], me["scope"]) == (made["id"], account, "read")
    assert me["expiresAt"] is None


async def test_create_on_the_data_folder(service: Service, postgres: EmbeddedPostgres):
    """Goal: without an address the database of the data folder is used, by flag or variable, and
    the secret is the only line of the output."""
    folder = str(postgres.data_dir)
    account = new_account()
    words = ("keys", "create", "--mode", "test", "--account", account)
    by_flag, by_variable, flag_wins = await asyncio.gather(
        bursar(*words, "--data-dir", folder),
        bursar(*words, data_dir=folder),
        bursar(*words, "--data-dir", folder, data_dir="nowhere"),
    )
    for done in (by_flag, by_variable, flag_wins):
        key = _ok(done).removesuffix("\n")
        assert well_formed(key), done.out
        async with service.client(key) as client:
            me = (await client.get("/v1/me")).json()["data"]
        assert (me["account"], me["scope"], me["mode"]) == (account, "admin", "test")
        assert me["id"] in done.err
        assert key not in done.err


async def test_an_agent_key_with_name_and_expiry(service: Service, dsn: str):
    """Goal: the options that describe a key arrive in it."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent = await new_agent(admin)
        options = ("--agent", agent["id"], "--name", "night job", "--expires-in", "2", "--json")
        done = await bursar(
            *("keys", "create", "--mode", "test", "--scope", "agent", "--account", account),
            *options,
            database_url=dsn,
        )
        made = json.loads(_ok(done))
        assert (made["scope"], made["agentId"]) == ("agent", agent["id"])
        row = (await admin.get("/v1/keys")).json()["data"][0]
        assert (row["id"], row["name"], row["agentId"]) == (made["id"], "night job", agent["id"])
        created, expires = (datetime.fromisoformat(row[n]) for n in ("createdAt", "expiresAt"))
        assert timedelta(0) <= timedelta(days=2) - (expires - created) < timedelta(seconds=5)


async def test_list_and_revoke(service: Service, dsn: str):
    """Goal: what was made is listed without its secret; revoked it stops within a second, and the
    trail says that the operator did both."""
    account = new_account()
    done = await bursar(
        *("keys", "create", "--mode", "test", "--account", account, "--name", "to go", "--json"),
        database_url=dsn,
    )
    made = json.loads(_ok(done))
    listed = _ok(await bursar("keys", "list", "--json", database_url=dsn))
    rows = {row["id"]: row for row in json.loads(listed)}
    row = rows[made["id"]]
    assert (row["account"], row["name"], row["revokedAt"]) == (account, "to go", None)
    assert made["key"] not in listed
    async with service.client(made["key"]) as client:
        assert (await client.get("/v1/me")).status_code == 200
        assert made["id"] in _ok(await bursar("keys", "revoke", made["id"], database_url=dsn))

        async def refused() -> bool:
            return (await client.get("/v1/me")).status_code == 401

        assert await until(refused, seconds=5) < 1.0
    line = next(
        text
        for text in _ok(await bursar("keys", "list", database_url=dsn)).splitlines()
        if made["id"] in text
    )
    assert "revoked" in line
    assert account in line
    shown = json.loads(_ok(await bursar("log", "--local", "--json", database_url=dsn)))
    assert [
        (line["account"], line["mode"], line["actor"], line["action"])
        for line in shown
        if line["subject"] == made["id"]
    ] == [
        (account, "test", "operator", "key.revoked"),
        (account, "test", "operator", "key.created"),
    ]
    async with service.db.connection() as tx:
        trail = await tx.fetch(
            "SELECT actor, action, before IS NULL AS new, after FROM audit_log"
            " WHERE subject = $1 ORDER BY id",
            made["id"],
        )
    assert [(r["actor"], r["action"], r["new"]) for r in trail] == [
        ("operator", "key.created", True),
        ("operator", "key.revoked", False),
    ]
    assert all(made["key"] not in row["after"] for row in trail)


async def test_what_cannot_be_made_is_refused_by_name(service: Service, dsn: str):
    """Goal: a bad option is exit code 2 and names itself; nothing is made."""
    account = new_account()
    create = ("keys", "create", "--account", account, "--mode")
    cases: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        ((*create, "prod"), ("--mode", "test", "live", "prod")),
        ((*create, "test", "--scope", "owner"), ("--scope", "approver", "owner")),
        ((*create, "test", "--scope", "agent"), ("--agent",)),
        ((*create, "test", "--agent", new_id("ag")), ("--agent",)),
        ((*create, "test", "--expires-in", "0"), ("--expires-in",)),
        ((*create, "test", "--expires-in", "99999999999"), ("--expires-in",)),
        ((*create, "test", "--expires-in", "soon"), ("--expires-in",)),
        ((*create, "test", "--name", " "), ("--name",)),
        ((*create, "test", "--name", "x" * 101), ("--name",)),
        (("keys", "create", "--mode", "test", "--account", ""), ("--account",)),
        (("keys", "create"), ("--mode",)),
    ]
    for done, (_, words) in zip(
        await _side_by_side([(words, {"database_url": dsn}) for words, _ in cases]),
        cases,
        strict=True,
    ):
        _refused(done, 2, *words)
    async with service.db.connection() as tx:
        assert await tx.fetchval("SELECT count(*) FROM account WHERE name = $1", account) == 0


async def test_live_without_a_network_says_what_to_set(service: Service, dsn: str):
    """Goal: no live key without a network, and the message is the way out."""
    account = new_account()
    words = ("keys", "create", "--mode", "live", "--account", account, "--json")
    none, empty, rehearsal = await _side_by_side(
        [
            (words, {"database_url": dsn}),
            (words, {"database_url": dsn, "live_network": ""}),
            (words, {"database_url": dsn, "live_network": "localnet"}),
        ]
    )
    for done in (none, empty):
        _refused(done, 2, "BURSAR_LIVE_NETWORK", "RPC", "localnet")
    made = json.loads(_ok(rehearsal))
    assert made["key"].startswith("bur_live_")
    async with service.client(made["key"]) as client:
        assert (await client.get("/v1/me")).json()["data"]["mode"] == "live"


async def test_a_database_that_is_not_ours_is_explained(
    dsn: str, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
):
    """Goal: out of reach, unknown, not Bursar's: exit code 1 and one sentence, no traceback."""
    words = ("keys", "create", "--mode", "test")
    empty_folder = str(tmp_path_factory.mktemp("empty"))
    nobody_there, unknown, not_bursar, no_folder, listing, revoking = await _side_by_side(
        [
            (words, {"database_url": "postgresql://127.0.0.1:1/bursar"}),
            (words, {"database_url": postgres.dsn_for("no_such_database")}),
            (words, {"database_url": postgres.admin_dsn}),
            (words, {"data_dir": empty_folder}),
            (("keys", "list"), {"database_url": postgres.admin_dsn}),
            (("keys", "revoke", new_id("key")), {"database_url": postgres.admin_dsn}),
        ]
    )
    _refused(nobody_there, 1, "BURSAR_DATABASE_URL", "bursar serve")
    _refused(unknown, 1, "BURSAR_DATABASE_URL", "no_such_database")
    _refused(no_folder, 1, "bursar serve")
    for done in (not_bursar, listing, revoking):
        _refused(done, 1, "BURSAR_DATABASE_URL")


async def test_a_bad_setting_names_its_variable(dsn: str):
    """Goal: exit code 2 and the variable's name; what may hold a password is not repeated."""
    words = ("keys", "list")
    no_address, no_number = await _side_by_side(
        [
            (words, {"database_url": "mysql://user:hunter2@host/db"}),
            (words, {"database_url": dsn, "database_timeout_seconds": "soon"}),
        ]
    )
    _refused(no_address, 2, "BURSAR_DATABASE_URL", "postgresql://")
    assert "hunter2" not in no_address.err
    _refused(no_number, 2, "BURSAR_DATABASE_TIMEOUT_SECONDS", "soon")


async def test_an_unknown_key_or_agent_cannot_be_used(service: Service, dsn: str):
    """Goal: exit code 1 for what does not exist, also for an agent of another account."""
    async with await service.admin() as admin:
        agent = await new_agent(admin)
    words = ("keys", "create", "--mode", "test", "--scope", "agent", "--account", new_account())
    unknown_key, bad_id, unknown_agent, foreign_agent = await _side_by_side(
        [
            (("keys", "revoke", new_id("key")), {"database_url": dsn}),
            (("keys", "revoke", "nonsense"), {"database_url": dsn}),
            ((*words, "--agent", new_id("ag")), {"database_url": dsn}),
            ((*words, "--agent", agent["id"]), {"database_url": dsn}),
        ]
    )
    for done in (unknown_key, bad_id):
        _refused(done, 1, "bursar keys list")
    for done in (unknown_agent, foreign_agent):
        _refused(done, 1, "agent")


def test_every_flag_that_is_a_setting_has_its_variable():
    """Goal: a flag of the same name as a setting says its variable, and no command has a setting
    under another name."""
    import typer

    found: set[str] = set()
    for command in _commands(typer.main.get_command(app)):
        for option in command.params:
            if option.name in load_defaults():
                found.add(option.name)
                assert option.opts == [f"--{option.name.replace('_', '-')}"]
                assert f"[{variable(option.name)}]" in option.help, (command.name, option.name)
    assert found == {"host", "port", "data_dir", "backup_dir", "workers"}


def _commands(command: Any) -> list[Any]:
    below = getattr(command, "commands", {}).values()
    # `bursar localnet` is a node by itself, beside any service: its port is not the service's.
    return [
        command,
        *(deeper for child in below if child.name != "localnet" for deeper in _commands(child)),
    ]


async def _side_by_side(
    runs: list[tuple[tuple[str, ...], dict[str, str]]],
) -> list[Finished]:
    """Two at a time: a command is mostly the start of Python."""
    turns = asyncio.Semaphore(2)

    async def one(words: tuple[str, ...], variables: dict[str, str]) -> Finished:
        async with turns:
            return await bursar(*words, **variables)

    return await asyncio.gather(*(one(words, variables) for words, variables in runs))
