"""What is wrong with a request is told whole, and before anything is looked up for it."""

from typing import Any

import httpx
import pytest

from tests.support import ADDRESS, Service, error_of, new_agent, spend

NO_AGENT = "ag_00000000000000000000000000"


def faults(answer: httpx.Response) -> list[str]:
    return [fault["param"] for fault in error_of(answer, 400, "validation_error")["details"]]


async def test_an_address_off_the_curve_is_one_fault_of_many(service: Service):
    """Goal: told with the other faults, before the key's earlier use and before the agent's 404."""
    async with await service.admin() as client:
        path = f"/v1/wallets/{NO_AGENT}/withdraw"
        body: dict[str, Any] = {"amount": "0", "destination": ADDRESS, "memmo": "x"}
        answer = await client.post(path, json=body)
        assert faults(answer) == ["destination", "amount", "memmo"]
        only = {"amount": "1", "destination": ADDRESS}
        assert faults(await client.post(path, json=only)) == ["destination"]
        assert faults(await client.post(path, json={**only, "allowOffCurve": False}))
        error_of(await client.post(path, json={**only, "allowOffCurve": True}), 404, "not_found")


async def test_a_keys_fields_are_judged_together(service: Service):
    """Goal: scope and agent, expiry and the rest in one reply, before the key's earlier use."""
    async with await service.admin() as client:
        once = {"Idempotency-Key": "one"}
        good = {"name": "a", "scope": "read"}
        assert (await client.post("/v1/keys", json=good, headers=once)).status_code == 201
        past = "2001-01-01T00:00:00Z"
        for body, wrong in (
            ({"scope": "agent", "expiresAt": past}, ["agentId", "expiresAt", "name"]),
            ({"name": "a", "scope": "agent"}, ["agentId"]),
            ({"name": "a", "scope": "agent", "agentId": None}, ["agentId"]),
            ({"name": "a", "scope": "read", "agentId": NO_AGENT}, ["agentId"]),
            ({"name": "a", "scope": "read", "agentId": ""}, ["agentId"]),
            ({"name": "a", "scope": "root", "expiresAt": past}, ["expiresAt", "scope"]),
            ({"name": "a", "scope": "read", "expiresAt": "0001-01-01T00:00:00Z"}, ["expiresAt"]),
        ):
            assert faults(await client.post("/v1/keys", json=body, headers=once)) == wrong


@pytest.mark.parametrize(
    ("path", "start", "end"),
    [
        ("/v1/transactions", "from", "to"),
        ("/v1/transactions", "settledFrom", "settledTo"),
        ("/v1/transactions/stats", "from", "to"),
        ("/v1/transactions/export", "from", "to"),
        ("/v1/transactions/export", "settledFrom", "settledTo"),
        ("/v1/deposits/export", "from", "to"),
        ("/v1/events", "from", "to"),
    ],
)
async def test_a_start_after_the_end_is_one_fault_of_many(
    service: Service, path: str, start: str, end: str
):
    """Goal: told with an unknown parameter and whatever else is wrong."""
    async with await service.admin() as client:
        dates = f"{start}=2026-11-15T00:00:00.001Z&{end}=2026-11-15T00:00:00Z"
        assert faults(await client.get(f"{path}?{dates}")) == [start]
        assert faults(await client.get(f"{path}?{dates}&zzz=1")) == ["zzz", start]


ODD_IDS = ["", "x", " ", "ag_", NO_AGENT.upper(), "a" * 500, "ä" * 100]


@pytest.mark.parametrize("odd", ODD_IDS, ids=lambda odd: odd[:10] or "empty")
async def test_an_id_of_the_wrong_form_is_not_found_wherever_it_stands(service: Service, odd: str):
    """Goal: in bodies 404; in filters nothing: an empty list, and zeros in statistics."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        await spend(client, agent["id"], "1")
        await client.patch(f"/v1/agents/{agent['id']}", json={"status": "paused"})
        (event,) = (await client.get("/v1/events?type=agent.paused")).json()["data"]
        wish = {"agentId": odd, "amount": "1", "recipient": "api.example.com"}
        for path, body in (
            ("/v1/spend/authorise", wish),
            ("/v1/spend/preview", wish),
            ("/v1/keys", {"name": "k", "scope": "agent", "agentId": odd}),
            (f"/v1/events/{event['id']}/redeliver", {"webhookId": odd}),
        ):
            error_of(await client.post(path, json=body), 404, "not_found")
        of = {"agentId": odd}
        for path in ("/v1/transactions", "/v1/events"):
            listed = (await client.get(path, params=of)).json()
            assert listed == {"data": [], "hasMore": False, "nextCursor": None}
        stats = (await client.get("/v1/transactions/stats", params=of)).json()["data"]
        assert stats == {
            "totalSpent": "0.000000",
            "transactionCount": 0,
            "rejectedCount": 0,
            "topRecipients": [],
        }
        exported = await client.get("/v1/transactions/export", params=of)
        assert len(exported.text.splitlines()) == 1


FIRST_DATES = ["0001-01-01", "0001-01-01T00:00:00+14:00", "1900-01-01", "1969-12-31T23:59:59Z"]
LAST_DATES = ["9999-12-31", "9999-12-31T23:59:59.9999Z", "9999-12-31T23:59:59-14:00", "9999-01-01"]


async def test_every_date_of_the_calendar_bounds_a_list(service: Service):
    """Goal: a date before all rows leaves out none, nor does one after them; turned round, all."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        await spend(client, agent["id"], "1")
        await client.patch(f"/v1/agents/{agent['id']}", json={"status": "paused"})

        async def found(first: str, last: str) -> list[int]:
            bounds = {"from": first, "to": last}
            spends = await client.get("/v1/transactions", params=bounds)
            stats = await client.get("/v1/transactions/stats", params=bounds)
            events = await client.get("/v1/events", params=bounds)
            assert {spends.status_code, stats.status_code, events.status_code} == {200}
            return [
                len(spends.json()["data"]),
                stats.json()["data"]["transactionCount"],
                min(len(events.json()["data"]), 1),
            ]

        for first in FIRST_DATES:
            for last in LAST_DATES:
                assert await found(first, last) == [1, 1, 1], (first, last)
        for first in FIRST_DATES:
            assert await found(first, first) == [0, 0, 0], first
        for last in LAST_DATES:
            assert await found(last, last) == [0, 0, 0], last
        answer = await client.get(f"/v1/transactions?from={LAST_DATES[0]}&to={FIRST_DATES[0]}")
        assert faults(answer) == ["from"]
        key = {"name": "k", "scope": "read", "expiresAt": "9999-12-31T23:59:59.999Z"}
        made = await client.post("/v1/keys", json=key)
        assert made.json()["data"]["expiresAt"] == key["expiresAt"]
