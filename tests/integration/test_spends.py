"""Spends over HTTP: decided, reserved, counted, approved and denied as the contract says."""

import asyncio
from typing import Any

import pytest

from tests.support import ON_CURVE, Service, error_of, new_agent, spend


async def test_an_approved_spend_reserves_and_counts(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client)
        await service.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "12.5", memo="books", metadata={"order": "1"})
        assert made["status"] == "approved"
        assert made["amount"] == "12.500000"
        assert made["rejectCode"] is None
        assert made["decision"]["remainingToday"] == "87.500000"
        assert made["decision"]["maxAmountNow"] == "37.500000"
        wallet = (await client.get(f"/v1/wallets/{agent['id']}")).json()["data"]
        assert wallet["balance"] == "50.000000"
        assert wallet["reserved"] == "12.500000"
        assert wallet["available"] == "37.500000"
        assert wallet["status"] == "funded"
        budget = (await client.get(f"/v1/agents/{agent['id']}/budget")).json()["data"]
        assert budget["spentToday"] == "12.500000"
        assert budget["maxAmountNow"] == "37.500000"
        again = (await client.get(f"/v1/transactions/{made['id']}")).json()["data"]
        assert again == made


async def test_an_empty_body_teaches_the_whole_payload(service: Service):
    async with await service.admin() as client:
        error = error_of(await client.post("/v1/spend/authorise", json={}), 400, "validation_error")
        assert [d["param"] for d in error["details"]] == ["agentId", "amount", "recipient"]
        for name in ("agentId", "amount", "recipient", "currency", "memo", "metadata"):
            assert name in error["message"]


async def test_concurrent_spends_never_pass_the_cap_and_waste_none_of_it(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00"})
        await service.fund(agent["id"], "100")
        made = await asyncio.gather(*(spend(client, agent["id"], "0.7") for _ in range(40)))
        approved = [s for s in made if s["status"] == "approved"]
        assert len(approved) == 14
        refused = [s for s in made if s["status"] == "rejected"]
        assert {s["rejectCode"] for s in refused} == {"daily_cap_exceeded"}
        left = refused[-1]["decision"]["maxAmountNow"]
        assert left == "0.200000"
        assert (await spend(client, agent["id"], left))["status"] == "approved"


async def test_the_same_key_pays_once(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client)
        await service.fund(agent["id"], "100")
        headers = {"Idempotency-Key": "order-1"}
        made = await asyncio.gather(
            *(spend(client, agent["id"], "1", headers=headers) for _ in range(100))
        )
        assert all(s == made[0] for s in made)
        listed = (await client.get("/v1/transactions")).json()["data"]
        assert [s["id"] for s in listed] == [made[0]["id"]]
        body = {"agentId": agent["id"], "amount": "2", "recipient": "api.example.com"}
        other = await client.post("/v1/spend/authorise", json=body, headers=headers)
        error_of(other, 422, "idempotency_key_reused")


async def test_a_pending_spend_is_approved_or_denied_once(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await service.fund(agent["id"], "100")
        first = await spend(client, agent["id"], "6")
        second = await spend(client, agent["id"], "7")
        assert first["status"] == second["status"] == "pending"
        assert first["expiresAt"] is not None
        approved = await client.post(f"/v1/transactions/{first['id']}/approve")
        assert approved.json()["data"]["status"] == "approved"
        denied = await client.post(
            f"/v1/transactions/{second['id']}/deny", json={"reason": "too much"}
        )
        assert denied.json()["data"]["rejectCode"] == "approval_denied"
        assert denied.json()["data"]["decisionReason"] == "too much"
        for path in (f"{first['id']}/deny", f"{second['id']}/approve"):
            error_of(await client.post(f"/v1/transactions/{path}"), 409, "invalid_state")
        wallet = (await client.get(f"/v1/wallets/{agent['id']}")).json()["data"]
        assert wallet["reserved"] == "6.000000"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"policy": {"frozen": True}}, "policy_frozen"),
        ({"policy": {"dailyCap": "5"}}, "daily_cap_exceeded"),
        ({"policy": {"allowlist": []}}, "recipient_not_allowed"),
        ({"policy": {"blocklist": ["*.example.com"]}}, "recipient_blocked"),
        ({"policy": {"perTransactionCap": "1"}}, "per_transaction_cap_exceeded"),
        ({"status": "paused"}, "agent_paused"),
    ],
)
async def test_approval_checks_the_policy_as_it_is_now(
    service: Service, change: dict[str, Any], code: str
):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await service.fund(agent["id"], "100")
        made = await spend(client, agent["id"], "6")
        await client.patch(f"/v1/agents/{agent['id']}", json=change)
        error = error_of(
            await client.post(f"/v1/transactions/{made['id']}/approve"), 409, "invalid_state"
        )
        assert code in error["message"]
        after = (await client.get(f"/v1/transactions/{made['id']}")).json()["data"]
        assert after["status"] == "pending"


async def test_termination_rejects_pending_spends_and_releases_their_funds(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await service.fund(agent["id"], "100")
        pending = await spend(client, agent["id"], "6")
        approved = await spend(client, agent["id"], "5")
        await client.delete(f"/v1/agents/{agent['id']}")
        first = (await client.get(f"/v1/transactions/{pending['id']}")).json()["data"]
        assert (first["status"], first["rejectCode"]) == ("rejected", "agent_terminated")
        second = (await client.get(f"/v1/transactions/{approved['id']}")).json()["data"]
        assert second["status"] == "approved"
        wallet = (await client.get(f"/v1/wallets/{agent['id']}")).json()["data"]
        assert wallet["reserved"] == "5.000000"
        late = await spend(client, agent["id"], "1")
        assert late["rejectCode"] == "agent_terminated"


async def test_the_directory_decides_where_money_goes(service: Service):
    async with await service.admin(mode="live") as client:
        agent = await new_agent(client)
        await service.fund(agent["id"], "100")
        refused = await spend(client, agent["id"], "1")
        assert refused["rejectCode"] == "recipient_unresolved"
        await client.put("/v1/recipients/API.example.com", json={"address": ON_CURVE})
        paid = await spend(client, agent["id"], "1")
        assert (paid["status"], paid["payTo"]) == ("approved", ON_CURVE)
        await client.delete("/v1/recipients/api.example.com")
        assert (await spend(client, agent["id"], "1"))["rejectCode"] == "recipient_unresolved"
