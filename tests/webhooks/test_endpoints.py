"""The endpoints of webhooks: what they take, what they show, and what becomes of deliveries."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from bursar.config import Config
from bursar.custody.rotate import rotate_master
from bursar.custody.setup import open_vault
from bursar.spend.feed import EVENT_DAYS
from bursar.webhook import store
from tests.processes import until
from tests.support import error_of, new_agent
from tests.webhooks.conftest import Hooks


async def test_a_webhook_lives(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: register, read, change, delete; the secret is in the first answer and in no other."""
    url = hooks.receiver.url("ok/life")
    body = {"url": url, "events": ["agent.paused", "agent.paused", "wallet.funded"]}
    headers = {"Idempotency-Key": "once"}
    answer = await client.post("/v1/webhooks", json=body, headers=headers)
    made = answer.json()["data"]
    assert list(made) == [
        "id", "url", "events", "status", "disabledReason", "createdAt", "secret",
    ]  # fmt: skip
    assert made["events"] == ["agent.paused", "wallet.funded"]
    assert (made["status"], made["disabledReason"]) == ("enabled", None)
    replayed = await client.post("/v1/webhooks", json=body, headers=headers)
    assert replayed.json()["data"] == {**made, "secret": None}
    shown = {name: value for name, value in made.items() if name != "secret"}
    path = f"/v1/webhooks/{made['id']}"
    assert (await client.get(path)).json() == {"data": shown}
    assert (await client.get("/v1/webhooks")).json()["data"] == [shown]
    changed = await client.patch(path, json={"events": ["*", "agent.paused"], "status": "disabled"})
    assert changed.json()["data"] == {
        **shown, "events": ["*"], "status": "disabled", "disabledReason": "requested",
    }  # fmt: skip
    error_of(await client.post(f"{path}/test"), 409, "invalid_state")
    assert (await client.patch(path, json={})).json() == changed.json()
    enabled = await client.patch(path, json={"status": "enabled"})
    assert enabled.json()["data"] == {**shown, "events": ["*"]}
    assert (await client.delete(path)).status_code == 204
    for method, tail in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/test"),
                         ("POST", "/rotate-secret"), ("GET", "/deliveries")):  # fmt: skip
        error_of(await client.request(method, path + tail), 404, "not_found")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "url"),
        ({"url": "https://example.com/x"}, "events"),
        ({"url": "https://example.com/x", "events": []}, "events"),
        ({"url": "https://example.com/x", "events": "*"}, "events"),
        ({"url": "https://example.com/x", "events": ["wallet.depletedd"]}, "events[0]"),
        ({"url": "https://example.com/x", "events": ["webhook.test"]}, "events[0]"),
        ({"url": "https://example.com/x", "events": [None]}, "events[0]"),
        ({"url": "https://example.com/x", "events": [["*"]]}, "events[0]"),
        ({"url": 1, "events": ["*"]}, "url"),
        ({"url": "https://example.com/" + "x" * 2048, "events": ["*"]}, "url"),
        ({"url": "http://example.com/x", "events": ["*"]}, "url"),
        ({"url": "https://10.0.0.1/x", "events": ["*"]}, "url"),
        ({"url": "https://example.com/x", "events": ["*"], "secret": "mine"}, "secret"),
    ],
)
async def test_a_bad_registration_is_explained(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
):
    """Goal: 400 that names the place."""
    answer = await client.post("/v1/webhooks", json=body)
    assert error_of(answer, 400, "validation_error")["param"] == param


async def test_faults_of_the_url_come_with_the_others(client: httpx.AsyncClient):
    """Goal: one answer tells all that is wrong, where the URL leads included."""
    body = {"url": "https://10.0.0.1/x", "events": ["no.such"], "secret": "mine"}
    made = await client.post(
        "/v1/webhooks", json={"url": "https://example.com/hook", "events": ["*"]}
    )
    path = f"/v1/webhooks/{made.json()['data']['id']}"
    for answer in (await client.post("/v1/webhooks", json=body),
                   await client.patch(path, json=body)):  # fmt: skip
        details = error_of(answer, 400, "validation_error")["details"]
        assert [detail["param"] for detail in details] == ["url", "events[0]", "secret"]
        assert "private address" in details[0]["message"]
    # One fault for one mistake.
    for url in ("", 7, "https://example.com/" + "x" * 2048, "ftp://example.com/x"):
        answer = await client.post("/v1/webhooks", json={"url": url, "events": ["*"]})
        details = error_of(answer, 400, "validation_error")["details"]
        assert [detail["param"] for detail in details] == ["url"]


async def test_an_account_has_so_many_webhooks(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: of many at once exactly 100 are made, then 409; deleting one makes room; the same URL
    twice is fine."""
    body = {"url": "https://example.com/hook", "events": ["agent.paused"]}
    answers = await asyncio.gather(*(client.post("/v1/webhooks", json=body) for _ in range(104)))
    assert sorted(answer.status_code for answer in answers) == [201] * 100 + [409] * 4
    full = next(answer for answer in answers if answer.status_code == 409)
    error_of(full, 409, "limit_reached")
    made = next(answer for answer in answers if answer.status_code == 201)
    await client.delete(f"/v1/webhooks/{made.json()['data']['id']}")
    assert (await client.post("/v1/webhooks", json=body)).status_code == 201


async def test_failures_are_retried_and_shown(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: attempt after attempt is listed with what was answered; the last one fails for good;
    every attempt has the same id and the same bytes."""
    webhook = await hooks.register(client, "fail/always", "agent.paused")
    agent = await new_agent(client)
    await client.patch(f"/v1/agents/{agent['id']}", json={"status": "paused"})
    delivery = await _finished(client, webhook["id"], seconds=30)
    assert (delivery["status"], delivery["nextAttemptAt"]) == ("failed", None)
    assert len(delivery["attempts"]) == 8
    for attempt in delivery["attempts"]:
        assert (attempt["status"], attempt["error"]) == (500, None)
        assert attempt["response"] == "not today "
    arrived = await hooks.receiver.received("fail/always")
    assert len(arrived) == 8
    assert len({(a.headers["webhook-id"], a.body) for a in arrived}) == 1
    waits = [b.at - a.at for a, b in itertools.pairwise(arrived)]
    assert all(wait >= 0.99 for wait in waits), waits
    assert len({round(wait, 4) for wait in waits}) > 1
    shown = (await client.get(f"/v1/webhooks/{webhook['id']}")).json()["data"]
    assert shown["status"] == "enabled"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("reset/x", "the connection ended before an answer"),
        ("redirect/x", "redirects are not followed"),
        ("hang/x", "no answer within 2 s"),
    ],
)
async def test_what_is_no_success(hooks: Hooks, client: httpx.AsyncClient, path: str, error: str):
    """Goal: resets, redirects and silence are failures with a reason; nobody follows a redirect."""
    webhook = await hooks.register(client, path)
    await client.post(f"/v1/webhooks/{webhook['id']}/test")
    attempt = await _first_attempt(client, webhook["id"])
    assert error in attempt["error"]
    assert await hooks.receiver.received("ok/redirected") == []
    await client.delete(f"/v1/webhooks/{webhook['id']}")


@pytest.mark.parametrize("path", ["flood/x", "bomb/x", "cookie/x"])
async def test_an_answers_body_costs_little(hooks: Hooks, client: httpx.AsyncClient, path: str):
    """Goal: endless and packed bodies are read to a small bound; the status decides."""
    webhook = await hooks.register(client, path)
    for _ in range(2):
        await client.post(f"/v1/webhooks/{webhook['id']}/test")
    attempt = await _first_attempt(client, webhook["id"])
    assert attempt["status"] == 200
    assert len(attempt["response"]) <= 1000
    first, second = await hooks.receiver.wait_for(path, 2)
    assert "cookie" not in first.headers | second.headers


async def test_retry_after_is_honoured(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: the next attempt comes no sooner than the receiver asked for."""
    webhook = await hooks.register(client, "later/x")
    await client.post(f"/v1/webhooks/{webhook['id']}/test")
    first, second = await hooks.receiver.wait_for("later/x", 2)
    assert 3 <= second.at - first.at < 6


async def test_410_disables(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: a receiver that says it is gone is left alone; enabled again, what waited goes on."""
    webhook = await hooks.register(client, "gone/x", "agent.paused")
    path = f"/v1/webhooks/{webhook['id']}"
    await client.post(f"{path}/test")

    async def disabled() -> bool:
        return (await client.get(path)).json()["data"]["status"] == "disabled"

    await until(disabled, seconds=10)
    assert (await client.get(path)).json()["data"]["disabledReason"] == "gone"
    agent = await new_agent(client)
    await client.patch(f"/v1/agents/{agent['id']}", json={"status": "paused"})
    await asyncio.sleep(1.5)
    assert len(await hooks.receiver.received("gone/x")) == 1
    change = {"status": "enabled", "url": hooks.receiver.url("ok/back")}
    assert (await client.patch(path, json=change)).json()["data"]["disabledReason"] is None
    (resumed,) = await hooks.receiver.wait_for("ok/back")
    assert json.loads(resumed.body)["type"] == "webhook.test"


async def test_five_days_of_failures_disable(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: a webhook that has only failed since five days ago is disabled by the next failure,
    not one that has failed for less."""
    long, short = [
        await hooks.register(client, f"fail/{n}", "agent.paused") for n in ("long", "short")
    ]
    async with hooks.service.db.transaction() as tx:
        for webhook, hours in ((long, 120), (short, 119)):
            await tx.execute(
                "UPDATE webhook SET failing_since = moment() - make_interval(hours => $2)"
                " WHERE id = $1",
                webhook["id"],
                hours,
            )
    for webhook in (long, short):
        await client.post(f"/v1/webhooks/{webhook['id']}/test")
        await hooks.receiver.wait_for(f"fail/{'long' if webhook is long else 'short'}")
    path = f"/v1/webhooks/{long['id']}"

    async def disabled() -> bool:
        return (await client.get(path)).json()["data"]["disabledReason"] == "failing"

    await until(disabled, seconds=10)
    shown = (await client.get(f"/v1/webhooks/{short['id']}")).json()["data"]
    assert shown["status"] == "enabled"


async def test_deleting_drops_what_waits(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: after a DELETE nothing arrives any more, and the worker clears up."""
    webhook = await hooks.register(client, "fail/deleted")
    await client.post(f"/v1/webhooks/{webhook['id']}/test")
    await hooks.receiver.wait_for("fail/deleted")
    await client.delete(f"/v1/webhooks/{webhook['id']}")
    await asyncio.sleep(0.3)
    before = len(await hooks.receiver.received("fail/deleted"))
    await asyncio.sleep(2.5)
    assert len(await hooks.receiver.received("fail/deleted")) == before
    async with hooks.service.db.transaction() as tx:
        assert await store.sweep_deliveries(tx, EVENT_DAYS, 100) >= 1
        left = await tx.fetchval(
            "SELECT count(*) FROM delivery WHERE webhook_id = $1", webhook["id"]
        )
    assert left == 0


async def test_no_more_than_four_at_once(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: however much waits, a receiver has at most four requests at a time."""
    await hooks.register(client, "slow/many", "agent.policy_updated")
    agent = await new_agent(client)
    for number in range(40):
        body = {"policy": {"dailyCap": f"{number + 200}.00"}}
        await client.patch(f"/v1/agents/{agent['id']}", json=body)
    await hooks.receiver.wait_for("slow/many", 40)
    assert 2 <= await hooks.receiver.most_at_once("slow/many") <= 4


async def test_secrets_are_sealed_and_change_their_master_key(
    hooks: Hooks, client: httpx.AsyncClient
):
    """Goal: no secret is in the database in clear; after `rotate-master` all still sign."""
    webhook = await hooks.register(client, "ok/sealed")
    secret: str = webhook["secret"]
    async with hooks.service.db.connection() as tx:
        row = await tx.fetchrow("SELECT * FROM webhook_secret WHERE webhook_id = $1", webhook["id"])
        text = str(await tx.fetch("SELECT webhook::text FROM webhook")) + str(
            await tx.fetch("SELECT audit_log::text FROM audit_log")
        )
        answers = await tx.fetch("SELECT convert_from(body, 'UTF8') FROM idempotency")
    assert row is not None
    assert secret not in text + str(answers)
    assert secret.encode()[6:] not in row["sealed"]
    config: Config = hooks.config
    await rotate_master(hooks.service.db, config, "test", "test")
    async with hooks.service.db.connection() as tx:
        found = await store.secrets_in_force(tx, [webhook["id"]])
    assert found[webhook["id"]][0].master_version != row["master_version"]
    vault = await open_vault(hooks.service.db, config)
    assert vault.open_secret(found[webhook["id"]][0]).decode() == secret
    await client.post(f"/v1/webhooks/{webhook['id']}/test")
    await hooks.receiver.wait_for("ok/sealed")


async def _first_attempt(client: httpx.AsyncClient, webhook_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def tried() -> bool:
        answer = await client.get(f"/v1/webhooks/{webhook_id}/deliveries")
        found[:] = answer.json()["data"][-1]["attempts"]
        return bool(found)

    await until(tried, seconds=15)
    return found[0]


async def _finished(client: httpx.AsyncClient, webhook_id: str, seconds: float) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def done() -> bool:
        answer = await client.get(f"/v1/webhooks/{webhook_id}/deliveries")
        found[:] = answer.json()["data"]
        return bool(found) and found[0]["status"] != "pending"

    await until(done, seconds=seconds, every=0.2)
    return found[0]
