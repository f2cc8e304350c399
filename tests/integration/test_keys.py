"""API keys over HTTP: made, shown once, listed, revoked, expired, and written into the trail."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bursar.access.limits import Category
from bursar.access.model import well_formed
from bursar.clock import iso
from bursar.config import Config
from bursar.ids import is_id, new_id
from tests.processes import running_api, until
from tests.support import ON_CURVE, POLICY, Service, error_of, new_account, new_agent

KEY_FIELDS = {
    "id", "name", "scope", "agentId", "mode", "createdAt", "expiresAt", "lastUsedAt", "revokedAt",
}  # fmt: skip


@pytest.fixture(scope="module")
async def second_url(service: Service, config: Config) -> AsyncGenerator[str]:
    """Another process on the same database."""
    async with running_api(config) as url:
        yield url


async def _new_key(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/keys", json={"name": "k", "scope": "read", **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


def _in(seconds: float) -> str:
    return iso(datetime.now(UTC) + timedelta(seconds=seconds))


async def test_a_key_is_shown_once_and_works(service: Service):
    """Goal: POST shows every field and the secret; the list shows the same key without it."""
    async with await service.admin() as admin:
        expires = _in(3600)
        made = await _new_key(admin, name="  dashboards ", scope="read", expiresAt=expires)
        assert set(made) == KEY_FIELDS | {"key"}
        assert is_id("key", made["id"])
        assert well_formed(made["key"])
        assert made["key"].startswith("bur_test_")
        assert made["name"] == "dashboards"
        assert (made["scope"], made["agentId"], made["mode"]) == ("read", None, "test")
        assert made["expiresAt"] == expires
        assert made["lastUsedAt"] is None
        assert made["revokedAt"] is None
        listed = (await admin.get("/v1/keys")).json()
        assert listed["data"][0] == {name: made[name] for name in KEY_FIELDS}
        assert made["key"] not in json.dumps(listed)
        async with service.client(made["key"]) as reader:
            assert (await reader.get("/v1/agents")).status_code == 200


@pytest.mark.parametrize("mode", ["test", "live"])
async def test_me_is_the_calling_key_and_its_limits(service: Service, mode: Any):
    """Goal: every key can ask who it is, and what the limit table gives it."""
    account = new_account()
    async with await service.admin(account=account, mode=mode) as admin:
        agent = await new_agent(admin)
        made = await _new_key(admin, name="mine", scope="agent", agentId=agent["id"])
        async with service.client(made["key"]) as client:
            me = (await client.get("/v1/me")).json()["data"]
        assert set(me) == KEY_FIELDS | {"account", "limits", "stop"}
        assert me["id"] == made["id"]
        assert (me["account"], me["mode"], me["agentId"]) == (account, mode, agent["id"])
        assert me["stop"] is None
        # The table of the specification, per minute, live and test.
        table = {
            "Agent Management": (120, 300),
            "Agent Reads": (600, 1200),
            "Spend Authorise": (1200, 3000),
            "Wallet Operations": (300, 600),
            "Transactions": (300, 600),
            "Webhook Management": (60, 120),
        }
        limits = {row["category"]: row["requestsPerMinute"] for row in me["limits"]}
        assert limits == {name: row[mode == "test"] for name, row in table.items()}
        assert len(limits) == len(Category)


async def test_a_replay_does_not_show_the_secret_again(service: Service):
    """Goal: the same request with the same Idempotency-Key makes one key and shows null for it."""
    async with await service.admin() as admin:
        headers = {"Idempotency-Key": "make one key"}
        body = {"name": "once", "scope": "approver"}
        first = await admin.post("/v1/keys", json=body, headers=headers)
        again = await admin.post("/v1/keys", json=body, headers=headers)
        assert first.status_code == again.status_code == 201
        assert again.headers["idempotent-replayed"] == "true"
        assert first.json()["data"]["key"] is not None
        assert again.json()["data"] == {**first.json()["data"], "key": None}
        listed = (await admin.get("/v1/keys")).json()["data"]
        assert [key["name"] for key in listed].count("once") == 1
        async with service.db.connection() as tx:
            stored = await tx.fetch("SELECT body FROM idempotency WHERE key = 'make one key'")
        assert stored
        assert all(first.json()["data"]["key"].encode() not in row["body"] for row in stored)


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"expiresAt": "2020-01-01T00:00:00Z"}, ["expiresAt"]),
        ({"expiresAt": "tomorrow"}, ["expiresAt"]),
        ({"scope": "agent"}, ["agentId"]),
        ({"scope": "agent", "agentId": None}, ["agentId"]),
        ({"scope": "read", "agentId": "ag_00000000000000000000000000"}, ["agentId"]),
        ({"scope": "owner"}, ["scope"]),
        ({"name": " "}, ["name"]),
        ({"name": "x" * 101}, ["name"]),
        ({"scope": "agent", "expiresAt": "2020-01-01T00:00:00Z"}, ["agentId", "expiresAt"]),
        ({"name": 1, "scope": None, "expiresAt": 5}, ["expiresAt", "name", "scope"]),
        ({"mode": "live"}, ["mode"]),
    ],
    ids=str,
)
async def test_a_bad_request_names_every_fault(
    service: Service, fields: dict[str, Any], params: list[str]
):
    """Goal: 400 with all faults, and no key made."""
    async with await service.admin() as admin:
        answer = await admin.post("/v1/keys", json={"name": "k", "scope": "read", **fields})
        error = error_of(answer, 400, "validation_error")
        assert sorted(fault["param"] for fault in error["details"]) == params
        assert len((await admin.get("/v1/keys")).json()["data"]) == 1


async def test_an_agent_key_needs_an_agent_that_exists(service: Service):
    """Goal: 404 for an unknown agent, but the request's own faults (400) come first."""
    async with await service.admin() as admin:
        for agent_id in (new_id("ag"), "nonsense", "ag_"):
            body = {"name": "k", "scope": "agent", "agentId": agent_id}
            error_of(await admin.post("/v1/keys", json=body), 404, "not_found")
            late = {**body, "expiresAt": "2020-01-01T00:00:00Z"}
            error_of(await admin.post("/v1/keys", json=late), 400, "validation_error")


async def test_an_agent_key_waits_for_no_other_tenants_wallet(service: Service):
    """Goal: naming a stranger's agent takes no lock on it, so nobody can hold up another's."""
    async with await service.admin() as admin, await service.admin() as stranger:
        agent = await new_agent(admin)
        async with service.db.transaction() as tx:
            await tx.execute("SELECT FROM wallet WHERE agent_id = $1 FOR UPDATE", agent["id"])
            body = {"name": "k", "scope": "agent", "agentId": agent["id"]}
            answer = await asyncio.wait_for(stranger.post("/v1/keys", json=body), 5)
        error_of(answer, 404, "not_found")


async def test_the_list_of_keys_pages_newest_first(service: Service):
    """Goal: every key exactly once, the newest first."""
    async with await service.admin() as admin:
        made = [(await _new_key(admin, name=f"key {n}"))["id"] for n in range(5)]
        seen: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(5):
            page = (await admin.get("/v1/keys", params={"limit": "2", **cursor})).json()
            seen += [row["id"] for row in page["data"]]
            cursor = {"after": page["nextCursor"]}
            if not page["hasMore"]:
                break
        assert seen[:5] == made[::-1]
        assert len(seen) == 6


async def test_a_revoked_key_stops_with_the_answer_here(service: Service):
    """Goal: 204, then 401 at once in this process; revoking again changes nothing."""
    async with await service.admin() as admin:
        made = await _new_key(admin)
        async with service.client(made["key"]) as client:
            assert (await client.get("/v1/me")).status_code == 200
            revoked = await admin.delete(f"/v1/keys/{made['id']}")
            assert revoked.status_code == 204
            assert revoked.content == b""
            error_of(await client.get("/v1/me"), 401, "unauthorized")
        first = (await admin.get("/v1/keys")).json()["data"][0]
        assert first["revokedAt"] is not None
        assert (await admin.delete(f"/v1/keys/{made['id']}")).status_code == 204
        assert (await admin.get("/v1/keys")).json()["data"][0] == first
        error_of(await admin.delete(f"/v1/keys/{new_id('key')}"), 404, "not_found")


async def _stops_within_a_second(client: httpx.AsyncClient) -> None:
    async def refused() -> bool:
        return (await client.get("/v1/me")).status_code == 401

    assert await until(refused, seconds=5) < 1.0
    for _ in range(20):
        assert await refused(), "a key that stopped came back"


async def test_a_revoked_key_stops_in_another_process(service: Service, second_url: str):
    """Goal: within one second everywhere, though the other process uses the key all the time."""
    async with await service.admin() as admin:
        made = await _new_key(admin)
        headers = {"Authorization": f"Bearer {made['key']}"}
        async with httpx.AsyncClient(base_url=second_url, headers=headers) as elsewhere:
            for _ in range(20):
                assert (await elsewhere.get("/v1/me")).status_code == 200
            assert (await admin.delete(f"/v1/keys/{made['id']}")).status_code == 204
            await _stops_within_a_second(elsewhere)


async def test_the_keys_of_a_terminated_agent_stop(service: Service, second_url: str):
    """Goal: DELETE of an agent ends its keys, here at once and elsewhere within a second."""
    async with await service.admin() as admin:
        agent = await new_agent(admin)
        made = await _new_key(admin, scope="agent", agentId=agent["id"])
        headers = {"Authorization": f"Bearer {made['key']}"}
        async with (
            httpx.AsyncClient(base_url=second_url, headers=headers) as elsewhere,
            service.client(made["key"]) as here,
        ):
            assert (await elsewhere.get("/v1/me")).status_code == 200
            assert (await here.get("/v1/me")).status_code == 200
            assert (await admin.delete(f"/v1/agents/{agent['id']}")).status_code == 200
            error_of(await here.get("/v1/me"), 401, "unauthorized")
            await _stops_within_a_second(elsewhere)
        keys = {key["id"]: key for key in (await admin.get("/v1/keys")).json()["data"]}
        assert keys[made["id"]]["revokedAt"] is not None


async def test_an_expired_key_stops(service: Service):
    """Goal: a key works until its moment and not for one request longer, however often it is
    used."""
    async with await service.admin() as admin:
        made = await _new_key(admin, expiresAt=_in(0.7))
        ends = datetime.fromisoformat(made["expiresAt"])
        async with service.client(made["key"]) as client:
            taken = 0
            while (sent := datetime.now(UTC)) < ends + timedelta(seconds=1):
                status = (await client.get("/v1/me")).status_code
                assert status == (401 if sent >= ends else 200) or datetime.now(UTC) >= ends > sent
                taken += status == 200
            assert taken > 0
        listed = (await admin.get("/v1/keys")).json()["data"][0]
        assert listed["id"] == made["id"]
        assert listed["revokedAt"] is None


async def test_last_use_is_noted(service: Service):
    """Goal: `lastUsedAt` is null until the first use and the moment of a use soon after."""
    async with await service.admin() as admin:
        made = await _new_key(admin)
        async with service.client(made["key"]) as client:
            assert (await client.get("/v1/agents")).status_code == 200

        async def noted() -> bool:
            keys = (await admin.get("/v1/keys")).json()["data"]
            used = next(key["lastUsedAt"] for key in keys if key["id"] == made["id"])
            return used is not None and used >= made["createdAt"]

        await until(noted, seconds=30)


# The trail ---------------------------------------------------------------------------------------


async def _trail(service: Service, subject: str) -> list[dict[str, Any]]:
    async with service.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT actor, request_id, action, before, after FROM audit_log"
            " WHERE subject = $1 ORDER BY id",
            subject,
        )
    return [
        dict(row) | {name: row[name] and json.loads(row[name]) for name in ("before", "after")}
        for row in rows
    ]


async def _caller(client: httpx.AsyncClient) -> str:
    return (await client.get("/v1/me")).json()["data"]["id"]


async def test_making_and_revoking_a_key_leaves_a_trail(service: Service):
    """Goal: who, by which request, what was before and after; never the secret."""
    async with await service.admin() as admin:
        who = await _caller(admin)
        answer = await admin.post("/v1/keys", json={"name": "k", "scope": "read"})
        made = answer.json()["data"]
        secret = made.pop("key")
        revoked = await admin.delete(f"/v1/keys/{made['id']}")
        again = await admin.delete(f"/v1/keys/{made['id']}")
        after = (await admin.get("/v1/keys")).json()["data"][0]
        trail = await _trail(service, made["id"])
        assert trail == [
            {
                "actor": who,
                "request_id": answer.headers["x-request-id"],
                "action": "key.created",
                "before": None,
                "after": made,
            },
            {
                "actor": who,
                "request_id": revoked.headers["x-request-id"],
                "action": "key.revoked",
                "before": made,
                "after": after,
            },
        ]
        assert again.status_code == 204
        assert secret not in json.dumps(trail)


async def test_changes_of_an_agent_leave_a_trail(service: Service):
    """Goal: create, change and terminate each leave one line; what changes nothing leaves none."""
    async with await service.admin() as admin:
        agent = await new_agent(admin)
        path = f"/v1/agents/{agent['id']}"
        headers = {"X-Request-Id": "change.of-policy:1"}
        changed = await admin.patch(path, json={"policy": {"dailyCap": "5"}}, headers=headers)
        assert (await admin.patch(path, json={})).status_code == 200
        stale = await admin.patch(path, json={"policy": {"dailyCap": "6", "version": 1}})
        error_of(stale, 409, "policy_version_conflict")
        ended = await admin.delete(path)
        assert (await admin.delete(path)).status_code == 200
        trail = await _trail(service, agent["id"])
        assert [line["action"] for line in trail] == [
            "agent.created",
            "agent.changed",
            "agent.terminated",
        ]
        assert [(line["before"], line["after"]) for line in trail] == [
            (None, agent),
            (agent, changed.json()["data"]),
            (changed.json()["data"], ended.json()["data"]),
        ]
        assert trail[1]["request_id"] == headers["X-Request-Id"]
        assert {line["actor"] for line in trail} == {await _caller(admin)}


async def test_changes_of_the_directory_leave_a_trail(service: Service):
    """Goal: set, reset to the same (no line), and delete of a recipient, with before and after."""
    async with await service.admin() as admin:
        host = f"{new_id('req')[4:]}.example.com"
        path = f"/v1/recipients/{host}"
        first = (await admin.put(path, json={"address": ON_CURVE})).json()["data"]
        assert (await admin.put(path, json={"address": ON_CURVE})).json()["data"] == first
        assert (await admin.delete(path)).status_code == 204
        trail = await _trail(service, host)
        assert [(line["action"], line["before"], line["after"]) for line in trail] == [
            ("recipient.set", None, first),
            ("recipient.deleted", first, None),
        ]


async def test_a_refused_request_leaves_no_trail(service: Service):
    """Goal: the audit log holds what happened, not what was tried."""
    async with service.db.connection() as tx:
        before = await tx.fetchval("SELECT count(*) FROM audit_log")
    account = new_account()
    reader = await service.key(account=account, scope="read")
    async with service.client(reader) as client:
        error_of(
            await client.post("/v1/agents", json={"name": "x", "policy": POLICY}), 403, "forbidden"
        )
    async with service.db.connection() as tx:
        lines = await tx.fetchval("SELECT count(*) FROM audit_log")
    assert lines == before + 1, "only the making of the key itself"
