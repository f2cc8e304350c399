"""Who is paid in the end: what a blocklist means for hosts and addresses, what a refusal tells of a
payee, and addresses that no key can spend from."""

from typing import Any, Final

import httpx
import pytest
from solders.keypair import Keypair

from bursar.config import Mode
from bursar.recipient.resolve import test_address as sandbox_address
from tests.support import ADDRESS, ON_CURVE, Service, error_of, new_account, new_agent, spend

HOST: Final = "api.example.com"
TWIN: Final = "twin.example.org"


async def set_address(client: httpx.AsyncClient, hostname: str, address: str, **more: Any) -> None:
    answer = await client.put(f"/v1/recipients/{hostname}", json={"address": address, **more})
    assert answer.status_code == 200, answer.text


async def funded(service: Service, client: httpx.AsyncClient, **policy: Any) -> str:
    agent = await new_agent(client, policy={"allowlist": ["*"], **policy})
    await service.fund(agent["id"], "50")
    return agent["id"]


def blocklist(transaction: dict[str, Any]) -> str:
    (outcome,) = (
        check["outcome"]
        for check in transaction["decision"]["checks"]
        if check["rule"] == "blocklist"
    )
    return outcome


async def test_an_entry_says_who_changed_it(service: Service):
    """Goal: `updatedBy` is the key that gave the address; the same address again changes nothing.
    The list is narrowed by a part of the name, or by the address."""
    account = new_account()
    moved = str(Keypair().pubkey())
    async with (
        await service.admin(account=account) as first,
        await service.admin(account=account) as second,
    ):
        keys = [(await one.get("/v1/me")).json()["data"]["id"] for one in (first, second)]
        await set_address(first, HOST, ON_CURVE)
        await set_address(second, HOST, ON_CURVE)
        same = (await first.get(f"/v1/recipients/{HOST}")).json()["data"]
        assert (same["createdBy"], same["updatedBy"]) == (keys[0], keys[0])
        assert same["createdAt"] == same["updatedAt"]
        await set_address(second, HOST, moved)
        await set_address(second, TWIN, ON_CURVE)
        for query, found in (
            ({"hostname": "API.exa"}, [HOST]),
            ({"address": ON_CURVE}, [TWIN]),
            ({"hostname": "twin", "address": moved}, []),
        ):
            listed = (await first.get("/v1/recipients", params=query)).json()["data"]
            assert [entry["hostname"] for entry in listed] == found
        (entry,) = (await first.get("/v1/recipients", params={"address": moved})).json()["data"]
        assert (entry["createdBy"], entry["updatedBy"]) == tuple(keys)


# Blocklists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["test", "live"])
@pytest.mark.parametrize("entry", [HOST, "*.example.com"])
async def test_blocking_a_host_blocks_the_address_it_resolves_to(
    service: Service, mode: Mode, entry: str
):
    """By itself, and through another host of the same address; from the directory's change on."""
    async with await service.admin(mode=mode) as client:
        agent = await funded(service, client, blocklist=[entry])
        await set_address(client, HOST, ON_CURVE)
        await set_address(client, TWIN, ON_CURVE)
        for recipient in (HOST, ON_CURVE, TWIN):
            made = await spend(client, agent, "1", recipient=recipient)
            assert (made["rejectCode"], blocklist(made)) == ("recipient_blocked", "fail"), recipient
        await set_address(client, HOST, str(Keypair().pubkey()))
        for recipient in (ON_CURVE, TWIN):
            assert (await spend(client, agent, "1", recipient=recipient))["status"] == "approved"


@pytest.mark.parametrize("mode", ["test", "live"])
async def test_blocking_an_address_blocks_the_hosts_that_resolve_to_it(
    service: Service, mode: Mode
):
    async with await service.admin(mode=mode) as client:
        agent = await funded(service, client, blocklist=[ON_CURVE])
        await set_address(client, HOST, ON_CURVE)
        await set_address(client, TWIN, str(Keypair().pubkey()))
        assert (await spend(client, agent, "1"))["rejectCode"] == "recipient_blocked"
        assert (await spend(client, agent, "1", recipient=TWIN))["status"] == "approved"


async def test_in_test_mode_a_blocked_host_blocks_its_derived_address(service: Service):
    """As long as the directory names no other one for it."""
    async with await service.admin() as client:
        agent = await funded(service, client, blocklist=[HOST])
        derived = sandbox_address(HOST)
        made = await spend(client, agent, "1", recipient=derived)
        assert made["rejectCode"] == "recipient_blocked"
        await set_address(client, HOST, ON_CURVE)
        assert (await spend(client, agent, "1", recipient=derived))["status"] == "approved"


async def test_a_spend_whose_payee_was_blocked_meanwhile_cannot_be_approved(service: Service):
    async with await service.admin() as client:
        agent = await funded(service, client, approvalThreshold="0")
        made = await spend(client, agent, "1", recipient=ON_CURVE)
        assert made["status"] == "pending"
        await set_address(client, HOST, ON_CURVE)
        await client.patch(f"/v1/agents/{agent}", json={"policy": {"blocklist": [HOST]}})
        refused = await client.post(f"/v1/transactions/{made['id']}/approve")
        assert "recipient_blocked" in error_of(refused, 409, "invalid_state")["message"]


# What a refusal tells -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["test", "live"])
async def test_a_refused_host_does_not_tell_its_address(service: Service, mode: Mode):
    """Goal: an agent key cannot read the directory by asking for what it may not pay."""
    account = new_account()
    async with await service.admin(mode=mode, account=account) as admin:
        agent = (await new_agent(admin, policy={"allowlist": ["other.example.com"]}))["id"]
        await set_address(admin, HOST, ON_CURVE)
        key = await service.key(account=account, mode=mode, scope="agent", agent_id=agent)
        async with service.client(key) as client:
            body = {"amount": "1", "recipient": HOST}
            for path, status in (("preview", 200), ("authorise", 201)):
                answer = await client.post(f"/v1/spend/{path}", json=body)
                assert answer.status_code == status, answer.text
                assert answer.json()["data"]["status"] == "rejected"
                assert answer.json()["data"]["payTo"] is None
                assert ON_CURVE not in answer.text
            for path in ("/v1/transactions", "/v1/transactions/export"):
                answer = await client.get(path)
                assert answer.status_code == 200
                assert HOST in answer.text
                assert ON_CURVE not in answer.text


# Addresses off the curve --------------------------------------------------------------------------


async def test_a_spend_off_the_curve_needs_a_word_of_its_own(service: Service):
    async with await service.admin() as client:
        agent = await funded(service, client)
        body = {"agentId": agent, "amount": "1", "recipient": ADDRESS}
        for path in ("preview", "authorise"):
            for flag in ({}, {"allowOffCurve": False}):
                refused = await client.post(f"/v1/spend/{path}", json={**body, **flag})
                error = error_of(refused, 400, "validation_error")
                assert error["param"] == "recipient"
                assert "curve" in error["message"]
                assert "allowOffCurve" in error["message"]
        assert (await client.get("/v1/transactions")).json()["data"] == []
        made = await spend(client, agent, "1", recipient=ADDRESS, allowOffCurve=True)
        assert (made["status"], made["payTo"]) == ("approved", ADDRESS)
        assert (await spend(client, agent, "1", recipient=ON_CURVE))["status"] == "approved"


async def test_the_directory_takes_an_address_off_the_curve_only_on_purpose(service: Service):
    async with await service.admin() as client:
        path = f"/v1/recipients/{HOST}"
        refused = await client.put(path, json={"address": ADDRESS})
        error = error_of(refused, 400, "validation_error")
        assert error["param"] == "address"
        assert "allowOffCurve" in error["message"]
        error_of(await client.get(path), 404, "not_found")
        await set_address(client, HOST, ADDRESS, allowOffCurve=True)
        # Who set it on purpose need not say so again at every spend.
        agent = await funded(service, client)
        assert (await spend(client, agent, "1"))["payTo"] == ADDRESS
