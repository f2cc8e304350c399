"""What counts as the same request, what takes no key, and what a second one waits for."""

import time
from dataclasses import replace
from typing import Any

import pytest

from bursar.access import store
from bursar.access.idempotency import WAIT_SECONDS
from bursar.clock import SystemClock
from bursar.service.api import Api
from tests.support import ON_CURVE, POLICY, Service, error_of, new_account, new_agent

SPEND = {"amount": "1", "recipient": "api.example.com"}
AGENT = {"name": "agent", "policy": POLICY}
# Path, body, and others that mean the same.
SAME: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("/v1/spend/authorise", SPEND, [{"memo": None}, {"currency": "USDC"}, {"metadata": {}}]),
    (
        "/v1/wallets/{}/withdraw",
        {"amount": "1", "destination": ON_CURVE},
        [{"memo": None}, {"allowOffCurve": False}, {"metadata": {}}],
    ),
    ("/v1/agents", AGENT, [{"metadata": {}}, {"policy": {**POLICY, "perTransactionCap": None}}]),
    ("/v1/keys", {"name": "k", "scope": "read"}, [{"agentId": None}, {"expiresAt": None}]),
]
OTHER: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("/v1/spend/authorise", SPEND, [{"memo": ""}, {"metadata": {"a": ""}}]),
    ("/v1/agents", AGENT, [{"policy": {**POLICY, "perTransactionCap": "0"}}]),
]


@pytest.mark.parametrize(("path", "body", "ways"), SAME, ids=lambda part: str(part)[:20])
async def test_what_means_the_same_is_the_same(
    service: Service, path: str, body: dict[str, Any], ways: list[dict[str, Any]]
):
    """Goal: a field that says what leaving it out says makes no other request, either way round."""
    await _repeated(service, path, body, ways, 201)


@pytest.mark.parametrize(("path", "body", "ways"), OTHER, ids=lambda part: str(part)[:20])
async def test_what_means_something_else_is_another(
    service: Service, path: str, body: dict[str, Any], ways: list[dict[str, Any]]
):
    """Goal: an empty text and a limit of zero are not the same as none."""
    await _repeated(service, path, body, ways, 422)


async def _repeated(
    service: Service, path: str, body: dict[str, Any], ways: list[dict[str, Any]], status: int
) -> None:
    async with await service.admin() as client:
        agent_id = (await new_agent(client))["id"]
        await service.fund(agent_id, "10")
        of = {"agentId": agent_id} if path.startswith("/v1/spend") else {}
        path = path.format(agent_id)
        for number, way in enumerate(ways):
            for name, order in (("a", ({}, way)), ("b", (way, {}))):
                headers = {"Idempotency-Key": f"{number}{name}"}
                first, second = [
                    await client.post(path, json={**of, **body, **more}, headers=headers)
                    for more in order
                ]
                assert (first.status_code, second.status_code) == (201, status), way
                if status == 201:
                    assert second.headers["idempotent-replayed"] == "true"


async def test_a_preview_ignores_the_key(service: Service):
    """Goal: whatever it is, and whatever it stood for; a malformed one is still no fault of it."""
    async with await service.admin() as client:
        body = {"agentId": (await new_agent(client))["id"], **SPEND}
        for amount in ("1", "2"):
            for key in ("k", "k" * 300):
                answer = await client.post(
                    "/v1/spend/preview",
                    json={**body, "amount": amount},
                    headers={"Idempotency-Key": key},
                )
                assert answer.status_code == 200, answer.text
                assert "idempotent-replayed" not in answer.headers


async def test_a_second_request_waits_five_seconds_for_the_first(service: Service):
    """Goal: then 409 that can be retried, with Retry-After; and the retry goes through."""
    account = new_account()
    async with await service.admin(account=account) as client:
        async with service.db.transaction() as tx:
            realm_id = await store.ensure_realm(tx, "acc_unused", account, "test")
            # As the first one does while it is running.
            await store.lock_idempotency_key(tx, realm_id, "POST /v1/keys", "", "k", 1)
            body, headers = {"name": "k", "scope": "read"}, {"Idempotency-Key": "k"}
            began = time.monotonic()
            answer = await client.post("/v1/keys", json=body, headers=headers)
            waited = time.monotonic() - began
        error = error_of(answer, 409, "idempotency_in_progress")
        assert error["retryable"]
        assert answer.headers["retry-after"] == "1"
        assert WAIT_SECONDS == 5
        assert waited >= WAIT_SECONDS
        assert (await client.post("/v1/keys", json=body, headers=headers)).status_code == 201


async def test_a_live_key_without_its_network(service: Service):
    """Goal: 503 that names the setting where a wallet would be made, and nothing is made."""
    async with await service.admin(mode="live") as client:
        api = await Api.start(replace(service.config, live_network=None), SystemClock())
        try:
            url = f"http://127.0.0.1:{api.port}/v1/agents"
            answer = await client.post(url, json=AGENT, headers={"Idempotency-Key": "k"})
            error = error_of(answer, 503, "unavailable")
            assert "BURSAR_LIVE_NETWORK" in error["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert (await client.get(url)).json()["data"] == []
        finally:
            await api.stop()
        # The setting is back: the same request goes through.
        answer = await client.post("/v1/agents", json=AGENT, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201
