"""Every type, end to end: over HTTP, through a worker, to a receiver that checks the signature."""

import json
from typing import Any

import httpx
import msgspec
import pytest
import standardwebhooks
import stripe
import svix
from solders.keypair import Keypair

from bursar.api.event_examples import view
from bursar.event.catalog import SUBSCRIBABLE, EventType
from bursar.signature import new_secret, signed_headers
from bursar.webhooks import InvalidSignature, verify
from tests.processes import until
from tests.support import ADDRESS, error_of, new_agent, spend
from tests.webhooks.conftest import Hooks, Received

# Rent-exempt and owned by a program: not a place that money is withdrawn to.
TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
# Events about what admins set up, and not about the life of an agent.
SET_UP = ("recipient.", "pin.", "key.", "webhook.")


async def test_each_type_fires_exactly_when_it_should(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: one life of an agent fires each type the right number of times, to a webhook for all
    and to webhooks of one type each; every delivery passes all stock verifiers."""
    of_a_life = [type_ for type_ in SUBSCRIBABLE if not type_.startswith(SET_UP)]
    single = {t: await hooks.register(client, f"ok/{t}", t.value) for t in of_a_life}
    everything = await hooks.register(client, "ok/all")
    agent = (await new_agent(client, policy={"dailyCap": "100.00", "approvalThreshold": "30.00"}))[
        "id"
    ]
    await _fund(client, agent, "50")  # wallet.funded; 50 is not below 10% of 100
    assert (await spend(client, agent, "200"))["status"] == "rejected"
    await _settled(client, (await spend(client, agent, "10"))["id"])  # 40 left
    waiting = await spend(client, agent, "35")
    assert waiting["status"] == "pending"
    await client.post(f"/v1/transactions/{waiting['id']}/approve")
    await _settled(client, waiting["id"])  # 5 left: below 10
    await _withdrawn(client, agent, "5", ADDRESS)  # depleted
    await _fund(client, agent, "20")
    await _patch(client, agent, {"policy": {"dailyCap": "200.00"}})  # exactly 10% is not low
    await _patch(client, agent, {"policy": {"dailyCap": "200.01"}})  # low by a higher cap
    await _patch(client, agent, {"policy": {"dailyCap": "200.01"}})  # changes nothing
    await _withdrawn(client, agent, "1", TOKEN_PROGRAM, status="failed")
    for status in ("paused", "paused", "active", "active"):
        await _patch(client, agent, {"status": status})
    for _ in range(2):
        assert (await client.post("/v1/stop", json={"reason": "a look"})).status_code == 200
    assert (await client.post("/v1/resume", json={"unsigned": "pay"})).status_code == 200
    await client.delete(f"/v1/agents/{agent}")
    await client.delete(f"/v1/agents/{agent}")
    await _withdrawn(client, agent, "20", ADDRESS)  # empties it, silently: the agent is no more

    expected = {
        "transaction.rejected": 1,
        "transaction.approved": 2,
        "transaction.pending": 1,
        "transaction.settled": 2,
        "wallet.funded": 2,
        "wallet.low_balance": 2,
        "wallet.depleted": 1,
        "agent.policy_updated": 2,
        "agent.paused": 1,
        "agent.resumed": 1,
        "agent.terminated": 1,
        "account.stopped": 1,
        "account.resumed": 1,
        "withdrawal.settled": 2,
        "withdrawal.failed": 1,
    }
    # A freeze that proves wrong takes a lying node: tests/settlement/test_reconcile.py fires it.
    # Purchases take a seller, and have tests of their own.
    others = {type_ for type_ in of_a_life if not type_.startswith("purchase.")}
    assert {*expected, "agent.thawed"} == others
    got = await hooks.receiver.wait_for("ok/all", sum(expected.values()))
    assert _counts(got) == expected
    for type_ in map(EventType, expected):
        arrived = await hooks.receiver.wait_for(f"ok/{type_}", expected[type_])
        assert _counts(arrived) == {type_.value: expected[type_]}
    for delivery in got:
        _verified_by_all(delivery, everything["secret"])
        event = json.loads(delivery.body)
        type_ = EventType(event["type"])
        msgspec.convert(event["data"], view(type_), strict=True)
        assert list(event) == ["id", "type", "createdAt", "mode", "data"]
        assert event["mode"] == "test"
        if not type_.startswith("account."):
            assert event["data"]["id" if type_.startswith("agent.") else "agentId"] == agent
        shown = (await client.get(f"/v1/events/{event['id']}")).json()["data"]
        assert shown == event
    # The same bytes for every webhook.
    bodies = {d.headers["webhook-id"]: d.body for d in got}
    for type_ in of_a_life:
        for delivery in await hooks.receiver.received(f"ok/{type_}"):
            assert bodies[delivery.headers["webhook-id"]] == delivery.body
            with pytest.raises(InvalidSignature):
                verify(delivery.body, delivery.headers["service-signature"], everything["secret"])
            verify(delivery.body, delivery.headers["service-signature"], single[type_]["secret"])
    me = (await client.get("/v1/me")).json()["data"]["id"]
    by = {_type(d): json.loads(d.body)["data"].get("changedBy") for d in got}
    assert by["agent.policy_updated"] == by["agent.resumed"] == me
    policy = next(json.loads(d.body) for d in got if _type(d) == "agent.policy_updated")
    assert policy["data"]["previousPolicy"]["version"] + 1 == policy["data"]["policy"]["version"]
    await _events_can_be_listed(client, agent, expected)


async def _events_can_be_listed(
    client: httpx.AsyncClient, agent: str, expected: dict[str, int]
) -> None:
    async def lived(**query: Any) -> list[dict[str, Any]]:
        answer = await client.get("/v1/events", params={"limit": 100, **query})
        return [e for e in answer.json()["data"] if not e["type"].startswith(SET_UP)]

    listed = await lived()
    assert len(listed) == sum(expected.values())
    assert [e["createdAt"] for e in listed] == sorted(
        (e["createdAt"] for e in listed), reverse=True
    )
    one = (await client.get("/v1/events", params={"type": "wallet.funded"})).json()
    assert [e["type"] for e in one["data"]] == ["wallet.funded"] * 2
    paged: list[dict[str, Any]] = []
    query: dict[str, Any] = {"agentId": agent, "limit": 7}
    while True:
        page = (await client.get("/v1/events", params=query)).json()
        paged += page["data"]
        if not page["hasMore"]:
            break
        query["after"] = page["nextCursor"]
    assert paged == [e for e in listed if not e["type"].startswith("account.")]
    middle = listed[len(listed) // 2]["createdAt"]
    assert await lived(**{"from": middle}) + await lived(to=middle) == listed
    error_of(
        await client.get("/v1/events", params={"from": "2026-11-03", "to": "2026-11-01"}),
        400,
        "validation_error",
    )
    assert (await client.get("/v1/events", params={"agentId": "ag_nobody"})).json()["data"] == []


async def test_what_an_admin_sets_up_is_told(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: whatever moves where money can go, or who hears of it, reaches the receivers that were
    there before, with who did it and no secret; only admins read about keys."""
    watch = await hooks.register(client, "ok/watch")
    me = (await client.get("/v1/me")).json()["data"]["id"]
    first, second = str(Keypair().pubkey()), str(Keypair().pubkey())
    entry = "/v1/recipients/api.example.com"
    for address in (first, first, second):
        assert (await client.put(entry, json={"address": address})).status_code == 200
    await client.delete(entry)
    made = (await client.post("/v1/keys", json={"name": "x", "scope": "read"})).json()["data"]
    other = await hooks.register(client, "ok/newcomer", "webhook.created", "webhook.changed")
    there = f"/v1/webhooks/{other['id']}"
    await client.patch(there, json={"url": hooks.receiver.url("ok/moved")})
    rotated = (await client.post(f"{there}/rotate-secret")).json()["data"]
    async with hooks.service.client(made["key"]) as reader:
        shown = (await reader.get("/v1/events", params={"limit": 100})).json()["data"]
        assert not any(event["type"].startswith("key.") for event in shown)
        (about,) = (
            await client.get("/v1/events", params={"type": "key.created", "limit": 1})
        ).json()["data"]
        assert (await reader.get("/v1/events", params={"type": "key.created"})).json()["data"] == []
        error_of(await reader.get(f"/v1/events/{about['id']}"), 404, "not_found")
        for caller, sees in ((client, True), (reader, False)):
            sent = await caller.get(f"/v1/webhooks/{watch['id']}/deliveries")
            types = {delivery["eventType"] for delivery in sent.json()["data"]}
            assert ("key.created" in types, "recipient.set" in types) == (sees, True)
    await client.delete(f"/v1/keys/{made['id']}")
    await client.delete(f"/v1/keys/{made['id']}")
    await client.delete(there)
    expected = {
        "recipient.set": 2,
        "recipient.deleted": 1,
        "key.created": 1,
        "key.revoked": 1,
        "webhook.created": 1,
        "webhook.changed": 1,
        "webhook.secret_rotated": 1,
        "webhook.deleted": 1,
    }
    got = await hooks.receiver.wait_for("ok/watch", sum(expected.values()))
    assert _counts(got) == expected
    told = {event["type"]: event["data"] for event in (json.loads(d.body) for d in got)}
    for type_, data in told.items():
        msgspec.convert(data, view(EventType(type_)), strict=True)
    for secret in (made["key"], other["secret"], rotated["secret"]):
        assert not any(secret.encode() in delivery.body for delivery in got)
    addresses = {
        json.loads(d.body)["data"]["previousAddress"] for d in got if _type(d) == "recipient.set"
    }
    assert addresses == {None, first}
    assert told["recipient.deleted"]["deletedBy"] == me
    assert told["key.revoked"]["changedBy"] == told["webhook.deleted"]["changedBy"] == me
    moved = told["webhook.changed"]
    assert (moved["urlChanged"], moved["previousOrigin"]) == (True, None)
    assert hooks.receiver.url("ok/moved") == f"{moved['origin']}/ok/moved"
    assert not any(b"ok/newcomer" in d.body or b"ok/moved" in d.body for d in got)
    # It hears of its own change, and not of its own beginning.
    assert await hooks.receiver.received("ok/newcomer") == []
    assert {_type(d) for d in await hooks.receiver.received("ok/moved")} <= {"webhook.changed"}


async def test_a_rotated_secret_signs_along(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: during rotation deliveries verify under both secrets, afterwards under the new one
    alone; a changed byte and a wrong secret fail everywhere."""
    webhook = await hooks.register(client, "ok/rotation", "agent.paused")
    path = f"/v1/webhooks/{webhook['id']}"
    headers = {"Idempotency-Key": "rotate"}
    rotated = (await client.post(f"{path}/rotate-secret", headers=headers)).json()["data"]
    again = (await client.post(f"{path}/rotate-secret", headers=headers)).json()["data"]
    assert again == {**rotated, "secret": None}
    await client.post(f"{path}/test")
    (delivery,) = await hooks.receiver.wait_for("ok/rotation")
    assert delivery.headers["service-signature"].count("v1=") == 2
    for secret in (webhook["secret"], rotated["secret"]):
        _verified_by_all(delivery, secret)
    assert json.loads(delivery.body)["type"] == "webhook.test"
    _refused_by_all(delivery.body + b" ", delivery.headers, rotated["secret"])
    _refused_by_all(delivery.body, delivery.headers, "whsec_" + "A" * 43 + "=")
    async with hooks.service.db.transaction() as tx:
        await tx.execute(
            "UPDATE webhook_secret SET signs_until = moment() - interval '1 second'"
            " WHERE webhook_id = $1 AND signs_until IS NOT NULL",
            webhook["id"],
        )
    await client.post(f"{path}/test")
    _, later = await hooks.receiver.wait_for("ok/rotation", 2)
    _verified_by_all(later, rotated["secret"])
    _refused_by_all(later.body, later.headers, webhook["secret"])


def test_an_old_signature_is_refused():
    """Goal: what was signed long ago is a replay, however right the signature is."""
    body, secret = b'{"id":"evt_1"}', new_secret()
    _refused_by_all(body, signed_headers([secret], "evt_1", 1_700_000_000, body), secret)


async def test_a_test_event_goes_to_its_webhook_only(hooks: Hooks, client: httpx.AsyncClient):
    """Goal: webhook.test is delivered to the webhook that is tested, and its delivery shown."""
    tested = await hooks.register(client, "ok/tested", "agent.paused")
    await hooks.register(client, "ok/untested")
    made = (await client.post(f"/v1/webhooks/{tested['id']}/test")).json()["data"]
    assert (made["status"], made["eventType"], made["attempts"]) == ("pending", "webhook.test", [])
    (delivery,) = await hooks.receiver.wait_for("ok/tested")
    _verified_by_all(delivery, tested["secret"])
    listed = f"/v1/webhooks/{tested['id']}/deliveries"

    async def recorded() -> bool:
        return (await client.get(listed)).json()["data"][0]["status"] == "delivered"

    await until(recorded, seconds=60)
    (shown,) = (await client.get(listed)).json()["data"]
    assert (shown["id"], shown["nextAttemptAt"]) == (made["id"], None)
    (attempt,) = shown["attempts"]
    assert (attempt["status"], attempt["error"], attempt["response"]) == (200, None, "ok")
    # Sent again: the same bytes. Without a webhook named, nobody wants a test event.
    event = f"/v1/events/{made['eventId']}/redeliver"
    assert (await client.post(event)).json()["data"]["deliveries"] == []
    await client.post(event, json={"webhookId": tested["id"]})
    _, second = await hooks.receiver.wait_for("ok/tested", 2)
    assert second.body == delivery.body
    assert await hooks.receiver.received("ok/untested") == []


# Verifiers --------------------------------------------------------------------------------------


def _verified_by_all(delivery: Received, secret: str) -> None:
    header = delivery.headers["service-signature"]
    event = verify(delivery.body, header, secret)
    assert event == json.loads(delivery.body)
    stripe.Webhook.construct_event(delivery.body, header, secret)
    standardwebhooks.Webhook(secret).verify(delivery.body.decode(), delivery.headers)
    svix.Webhook(secret).verify(delivery.body, delivery.headers)


def _refused_by_all(body: bytes, headers: dict[str, str], secret: str) -> None:
    with pytest.raises(InvalidSignature):
        verify(body, headers["service-signature"], secret)
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body, headers["service-signature"], secret)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(secret).verify(body.decode(), headers)
    with pytest.raises(svix.WebhookVerificationError):
        svix.Webhook(secret).verify(body, headers)


def _type(delivery: Received) -> str:
    return json.loads(delivery.body)["type"]


def _counts(deliveries: list[Received]) -> dict[str, int]:
    """How many events of each type; a retry is not another event."""
    found: dict[str, int] = {}
    for type_ in {d.headers["webhook-id"]: _type(d) for d in deliveries}.values():
        found[type_] = found.get(type_, 0) + 1
    return found


# Steps ------------------------------------------------------------------------------------------


async def _fund(client: httpx.AsyncClient, agent: str, amount: str) -> None:
    answer = await client.post(f"/v1/test/wallets/{agent}/fund", json={"amount": amount})
    assert answer.json()["data"]["status"] == "credited", answer.text


async def _patch(client: httpx.AsyncClient, agent: str, body: dict[str, Any]) -> None:
    assert (await client.patch(f"/v1/agents/{agent}", json=body)).status_code == 200


async def _settled(client: httpx.AsyncClient, spend_id: str) -> None:
    await _until_status(client, f"/v1/transactions/{spend_id}", "settled")


async def _withdrawn(
    client: httpx.AsyncClient, agent: str, amount: str, to: str, status: str = "settled"
) -> None:
    body = {"amount": amount, "destination": to, "allowOffCurve": True}
    answer = await client.post(f"/v1/wallets/{agent}/withdraw", json=body)
    assert answer.status_code == 201, answer.text
    await _until_status(client, f"/v1/withdrawals/{answer.json()['data']['id']}", status)


async def _until_status(client: httpx.AsyncClient, path: str, status: str) -> None:
    async def reached() -> bool:
        return (await client.get(path)).json()["data"]["status"] == status

    await until(reached, seconds=60, every=0.1)
