"""Planted secrets: driven through a whole service, they turn up in nothing it leaves behind."""

import asyncio
import base64
import json
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import asyncpg
import httpx
import pytest
from solders.keypair import Keypair

from bursar.access.model import Scope, key_hash
from bursar.config import Config, load_config
from bursar.custody.master import MasterKeys
from bursar.custody.model import SealedKey
from bursar.custody.vault import Vault
from bursar.db import Database
from bursar.event.catalog import EventType
from bursar.migrations.migrate import migrate
from bursar.service.first_key import make_key
from bursar.service.postgres import EmbeddedPostgres, running_postgres
from bursar.service.programs import binary
from bursar_localnet import base58
from tests.processes import bursar, running_api
from tests.support import POLICY
from tests.webhooks.conftest import running_receiver, running_worker

MASTER_KEY = b"master-key-that-must-not-be-seen"
PASSWORD = "password-that-must-not-be-seen"
# Behind the origin of a webhook's URL. Whoever reads webhooks reads it; other receivers do not.
HOOK_PATH = "path-that-no-event-tells"
ANY_WEBHOOK_SECRET = re.compile(r"whsec_[0-9A-Za-z+/]{20,}")
ANY_KEY = re.compile(r"bur_(?:test|live)_[0-9A-Za-z]{20,}")


@dataclass
class Evidence:
    """All that a service left behind, and the secrets that must not be in it."""

    secrets: dict[str, bytes]
    logs: str = ""
    dump: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    # Of every request but those that are meant to hand a key to its owner.
    answers: list[httpx.Response] = field(default_factory=list)

    def statuses(self) -> set[int]:
        return {answer.status_code for answer in self.answers}


def spellings(secret: bytes) -> Iterator[bytes]:
    """The ways in which bytes end up in text: as they are, and as programs like to print them."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield base64.b64encode(secret).rstrip(b"=")
    yield base64.urlsafe_b64encode(secret).rstrip(b"=")
    yield base58.encode(secret).encode()
    yield repr(secret)[2:-1].encode()
    yield json.dumps(list(secret))[1:-1].encode()
    yield json.dumps(list(secret), separators=(",", ":"))[1:-1].encode()


@pytest.fixture(scope="module")
async def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Drives a service of its own, at its most talkative, through good times and bad."""
    folder = tmp_path_factory.mktemp("secrets")
    found = Evidence({"master key": MASTER_KEY, "database password": PASSWORD.encode()})
    log = folder / "api.log"
    async with running_postgres(folder / "postgres", durable=False) as postgres:
        await migrate(postgres.dsn)
        config = load_config(
            {},
            data_dir=folder / "data",
            database_url=f"{postgres.dsn}&password={PASSWORD}",
            database_timeout_seconds=2,
            master_key=base64.b64encode(MASTER_KEY).decode(),
            live_network="localnet",
            webhooks_allow="127.0.0.0/8",
            webhooks_retry_seconds="1,1,1",
            log_level="debug",
        )
        config.data_dir.mkdir()
        admin = await first_key(config)
        found.secrets["API key"] = admin.encode()
        with log.open("wb") as out:
            headers = {"Authorization": f"Bearer {admin}"}
            async with (
                running_api(config, out) as url,
                httpx.AsyncClient(base_url=url, headers=headers, verify=False) as client,
            ):
                await drive(client, found)
                await sign_webhooks(client, config, out, found)
                await break_the_database(client, postgres, found)
                await read_wallet_seeds(postgres, found)
        found.dump = await dump(postgres)
    # Stopped, so that everything is on disk.
    for path in folder.rglob("*"):
        if path.is_file():
            found.files[str(path.relative_to(folder))] = path.read_bytes()
    found.logs = log.read_text()
    return found


async def first_key(config: Config) -> str:
    assert config.database_url is not None
    db = await Database.open(config.database_url, 2, 10)
    async with db.transaction() as tx:
        made = await make_key(
            tx, config, mode="test", scope=Scope.ADMIN, agent_id=None, account="a", name="n",
            expires_in=None,
        )  # fmt: skip
    await db.close()
    return made.secret


async def drive(client: httpx.AsyncClient, found: Evidence) -> None:
    """Ordinary work, and every mistake in which a caller puts a key where it does not belong."""
    admin = found.secrets["API key"].decode()
    body = {"name": "k", "scope": "read"}
    headers = {"Idempotency-Key": "same"}
    made = await client.post("/v1/keys", json=body, headers=headers)
    assert made.status_code == 201
    found.secrets["key made over HTTP"] = made.json()["data"]["key"].encode()
    replayed = await client.post("/v1/keys", json=body, headers=headers)
    assert replayed.json()["data"]["key"] is None
    typo = admin[:-1] + ("0" if admin[-1] != "0" else "1")
    agent = {"name": "a", "policy": POLICY, "metadata": {"team": "x"}}
    found.answers += [
        replayed,
        await client.get("/v1/me"),
        await client.get("/v1/keys"),
        await client.post("/v1/agents", json=agent),
        await client.post("/v1/agents", content=admin.encode()),
        await client.post("/v1/agents", json={**agent, "name": [admin]}),
        await client.post("/v1/agents", json={**agent, "metadata": {"k": {"k": admin}}}),
        await client.post("/v1/keys", json={"name": admin * 9, "scope": "admin"}),
        await client.get(f"/v1/agents/{admin}"),
        await client.get(f"/v1/{admin}"),
        await client.delete(f"/v1/keys/{admin}"),
        await client.get("/v1/agents", params={"after": admin}),
        await client.get("/v1/agents", params={"status": admin}),
        await client.get("/v1/me", headers={"X-Request-Id": admin}),
        await client.request(admin[:20].upper(), "/v1/me"),
        await client.get("/v1/me", headers={"Authorization": f"Bearer {typo}"}),
        await client.get("/v1/me", headers={"Authorization": f"Basic {admin}"}),
        await client.get("/v1/me", headers={"Authorization": f"{admin}"}),
        await client.get("/metrics"),
        await client.get("/readyz"),
        await client.get("/openapi.json"),
    ]
    found.secrets["mistyped key"] = typo.encode()
    assert found.statuses() >= {200, 201, 400, 401, 404, 405}


async def sign_webhooks(
    client: httpx.AsyncClient, config: Config, log: IO[bytes], found: Evidence
) -> None:
    """Secrets are made, rotated, replayed and signed with, towards receivers good and bad."""

    def keep(name: str, answer: httpx.Response) -> None:
        secret: str = answer.json()["data"]["secret"]
        found.secrets[f"webhook secret, {name}"] = secret.encode()
        # What Standard Webhooks signs with.
        found.secrets[f"webhook key, {name}"] = base64.b64decode(secret.removeprefix("whsec_"))

    async with running_receiver() as receiver, running_worker(config, log):
        for kind in ("ok", "fail"):
            body = {"url": receiver.url(f"{kind}/{HOOK_PATH}"), "events": ["*"]}
            headers = {"Idempotency-Key": f"webhook {kind}"}
            made = await client.post("/v1/webhooks", json=body, headers=headers)
            assert made.status_code == 201, made.text
            keep(kind, made)
            path = f"/v1/webhooks/{made.json()['data']['id']}"
            rotation = {"Idempotency-Key": f"rotation {kind}"}
            rotated = await client.post(f"{path}/rotate-secret", headers=rotation)
            keep(f"{kind}, rotated", rotated)
            found.answers += [
                await client.post("/v1/webhooks", json=body, headers=headers),
                await client.post(f"{path}/rotate-secret", headers=rotation),
                await client.post(f"{path}/test"),
                await client.get(path),
                await client.get("/v1/webhooks"),
                await client.patch(path, json={"events": ["agent.paused"]}),
            ]
            await receiver.wait_for(f"{kind}/{HOOK_PATH}", 1 if kind == "ok" else 2)
            found.answers.append(await client.get(f"{path}/deliveries"))
            assert HOOK_PATH in (await client.get(path)).text
            moved = {"url": receiver.url(f"{kind}/{HOOK_PATH}?token={HOOK_PATH}")}
            assert (await client.patch(path, json=moved)).status_code == 200
            assert (await client.delete(path)).status_code == 204
    found.events = (await client.get("/v1/events", params={"limit": 100})).json()["data"]
    replayed = [a for a in found.answers if "idempotent-replayed" in a.headers]
    assert [a.json()["data"].get("secret") for a in replayed[-4:]] == [None] * 4


async def break_the_database(
    client: httpx.AsyncClient, postgres: EmbeddedPostgres, found: Evidence
) -> None:
    """500s right after a key and a seed were made, with errors that quote rows; then 503s."""
    connection = await asyncpg.connect(postgres.dsn)
    key = {"name": "k", "scope": "read"}
    agent = {"name": "a", "policy": POLICY}
    webhook = {"url": "https://example.com/hook", "events": ["*"]}
    made = (("/v1/keys", key), ("/v1/agents", agent), ("/v1/webhooks", webhook))
    await connection.execute("ALTER TABLE audit_log RENAME TO gone")
    found.answers += [await client.post(path, json=body) for path, body in made]
    await connection.execute("ALTER TABLE gone RENAME TO audit_log")
    # PostgreSQL's detail of these quotes the whole row.
    tables = ("api_key", "wallet_key", "webhook_secret")
    for table in tables:
        await connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT no CHECK (false) NOT VALID")
    found.answers += [await client.post(path, json=body) for path, body in made]
    for table in tables:
        await connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT no")
    assert [answer.status_code for answer in found.answers[-6:]] == [500] * 6
    async with connection.transaction():
        await connection.execute("LOCK TABLE agent IN ACCESS EXCLUSIVE MODE")
        found.answers.append(await client.get("/v1/agents"))
    assert found.answers[-1].status_code == 503
    await connection.close()


async def read_wallet_seeds(postgres: EmbeddedPostgres, found: Evidence) -> None:
    connection = await asyncpg.connect(postgres.dsn)
    rows = await connection.fetch(
        "SELECT agent_id AS owner, address, key_version, master_version, sealed FROM wallet_key"
    )
    await connection.close()
    vault = Vault(MasterKeys([MASTER_KEY]), frozenset())
    assert rows
    for row in rows:
        key = SealedKey(**dict(row))
        seed = vault._unseal(key)
        assert str(Keypair.from_seed(seed).pubkey()) == key.address
        found.secrets[f"seed of {key.owner}"] = seed


async def dump(postgres: EmbeddedPostgres) -> str:
    """Everything in the database, by its own tool."""
    process = await asyncio.create_subprocess_exec(
        binary("pg_dump"), "--dbname", postgres.dsn, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return output.decode()


def test_the_service_was_driven_hard_enough(evidence: Evidence):
    """Goal: there is something to search, and secrets of every kind to search for."""
    assert {500, 503} <= evidence.statuses()
    messages = {json.loads(line)["message"] for line in evidence.logs.splitlines()}
    assert {"api_started", "request", "internal_error", "database_out_of_reach"} <= messages
    assert {"worker_started", "worker_stopped"} <= messages
    assert evidence.dump.count("\n") > 100
    assert any("pg_wal" in name for name in evidence.files)
    kinds = {re.split(" of |, ", name)[0] for name in evidence.secrets}
    assert kinds == {"master key", "database password", "API key", "key made over HTTP",
                     "mistyped key", "seed", "webhook secret", "webhook key"}  # fmt: skip
    assert sum(name.startswith("webhook secret") for name in evidence.secrets) == 4
    # A line of the audit log and an event for each of two.
    assert evidence.dump.count("webhook.secret_rotated") == 4


def test_no_secret_is_in_the_logs(evidence: Evidence):
    """Goal: not one line at level debug, not one traceback, quotes a secret in any spelling."""
    raw = evidence.logs.encode()
    for name, secret in evidence.secrets.items():
        assert [text for text in spellings(secret) if text in raw] == [], name
    # Nor one that we cannot know, because its request failed.
    assert ANY_KEY.findall(evidence.logs) == []
    assert ANY_WEBHOOK_SECRET.findall(evidence.logs) == []
    assert "Authorization" not in evidence.logs
    assert "Bearer" not in evidence.logs


def test_no_secret_is_in_an_answer(evidence: Evidence):
    """Goal: errors tell a caller nothing but its own words, and a key is shown only once."""
    own_words = re.compile(r'"(?:param|message)":"[^"]*"')
    for answer in evidence.answers:
        text = str(answer.headers) + own_words.sub("", answer.text)
        for name, secret in evidence.secrets.items():
            found = [s for s in spellings(secret) if s in text.encode()]
            assert found == [], (name, answer.request.url.path)
        if answer.status_code in (401, 500, 503):
            assert ANY_KEY.findall(answer.text) == []
            assert not re.search(r"asyncpg|Traceback|relation|constraint|SELECT", answer.text)


def test_no_event_tells_the_path_of_a_webhook(evidence: Evidence):
    """Goal: a receiver learns that another one was set up or moved, not how to write to it."""
    told = [event for event in evidence.events if event["type"].startswith("webhook.")]
    assert {event["type"] for event in told} == {
        type_.value for type_ in EventType if type_.startswith("webhook.")
    }
    assert HOOK_PATH not in json.dumps(evidence.events)


def test_no_secret_is_in_the_database(evidence: Evidence):
    """Goal: a full dump holds hashes and sealed keys, and none of the secrets themselves."""
    raw = evidence.dump.encode()
    for name, secret in evidence.secrets.items():
        assert [text for text in spellings(secret) if text in raw] == [], name
    assert ANY_KEY.findall(evidence.dump) == []
    assert ANY_WEBHOOK_SECRET.findall(evidence.dump) == []
    # What stands for them is there, so the dump was no empty one.
    for name in ("API key", "key made over HTTP"):
        assert key_hash(evidence.secrets[name].decode()).hex() in evidence.dump
    assert all(name[8:] in evidence.dump for name in evidence.secrets if name.startswith("seed"))


def test_no_secret_is_in_any_file(evidence: Evidence):
    """Goal: not in the data folder, PostgreSQL's tables, its write-ahead log or its own log."""
    for path, content in evidence.files.items():
        for name, secret in evidence.secrets.items():
            found = [text for text in spellings(secret) if text in content]
            assert found == [], (name, path)


async def test_a_traceback_of_the_vault_shows_no_key():
    """Goal: an exception while a key is open in memory prints neither it nor the master key."""
    vault = Vault(MasterKeys([MASTER_KEY]), frozenset())
    key = await vault.new_key("ag_1")
    seed = vault._unseal(key)
    try:
        vault.reseal(replace(key, owner="ag_2"))
    except Exception:  # noqa: BLE001 - whatever it is
        shown = traceback.format_exc()
    else:
        pytest.fail("a key moved to another agent must not open")
    for secret in (MASTER_KEY, seed):
        assert [text for text in spellings(secret) if text in shown.encode()] == []


BAD_URLS = [
    "postgresql://user:hunter2@[::1/db",
    "postgresql://user:hunter2@127.0.0.1:1/db",
    "postgresql://user:hunter2@127.0.0.1:port/db",
    "postgresql://user:hun/ter2@127.0.0.1/db",
    "postgresql://user:hunter2@127.0.0.1:1/db?sslmode=hunter2",
]


async def test_a_command_that_cannot_start_keeps_the_secret(tmp_path: Path):
    """Goal: a bad address ends in one clear line, with nothing of its password, no traceback."""
    runs = [
        bursar(*command, data_dir=str(tmp_path), database_url=url, database_timeout_seconds="2")
        for url in BAD_URLS
        for command in (["api"], ["keys", "list"])
    ]
    for done in await asyncio.gather(*runs):
        assert done.code in (1, 2), done.err
        assert "BURSAR_DATABASE_URL" in done.err
        assert done.err.count("\n") == 1, done.err
        assert not re.search("hun|ter2", done.out + done.err)
