"""A model buys from sellers on the web, and never pays twice for one thing."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from mcp import Client

from bursar import AsyncBursar
from tests.mcp_tools.conftest import error_of, over_http, over_stdio, words
from tests.sellers.served import selling
from tests.support import Service, new_account


@pytest.fixture
async def admin(served: Service) -> AsyncGenerator[AsyncBursar]:
    async with AsyncBursar(await served.key(account=new_account()), served.url) as client:
        yield client


async def _key(admin: AsyncBursar, **policy: Any) -> str:
    """Of an agent with 1 USDC."""
    agent = await admin.agents.create("buyer", daily_cap="1", allowlist=["*"], **policy)
    await admin.wallets.fund(agent.id, amount="1")
    made = await admin.keys.create(name="mcp", scope="agent", agent_id=agent.id)
    assert made.key is not None
    return made.key


@pytest.mark.parametrize("connect", [over_http, over_stdio])
async def test_a_model_buys(served: Service, admin: AsyncBursar, connect: Any):
    """Goal: one call, and the goods are in the answer with what they cost."""
    async with (
        selling(served, "honest") as seller,
        connect(served.url, await _key(admin)) as client,
    ):
        result = await client.call_tool("buy", {"url": seller.url, "maxAmount": "0.01"})
        fields = result.structured_content
        assert fields["status"] in ("presented", "paid")
        assert fields["amount"] == "0.001000"
        assert json.loads(fields["response"]["body"]) == {"weather": "fair"}
        assert fields["response"]["contentType"].startswith("application/json")
        assert "0.001000 USDC" in words(result)
        waited = await client.call_tool("get_purchase", {"id": fields["id"]})
        assert waited.structured_content["id"] == fields["id"]
        found = await client.call_tool("get_transaction", {"id": fields["transactionId"]})
        assert found.structured_content["amount"] == "0.001000"


async def test_without_a_key_the_same_within_ten_minutes_is_one_purchase(
    served: Service, admin: AsyncBursar
):
    """Goal: a model that repeats itself pays once; one that means it gives keys."""
    key = await _key(admin)
    async with selling(served, "honest") as seller, over_http(served.url, key) as client:

        async def buy(**more: str) -> Any:
            return (await client.call_tool("buy", {"url": seller.url, **more})).structured_content

        first, *others = await asyncio.gather(*(buy() for _ in range(4)))
        again = await client.call_tool("buy", {"url": seller.url})
        assert {fields["id"] for fields in others} == {first["id"]}
        assert again.structured_content["id"] == first["id"]
        assert "nothing was fetched or paid again" in words(again)
        assert len(seller.presented) == 1
        meant = await buy(idempotencyKey="second")
        assert meant["id"] != first["id"]
        assert (await buy(idempotencyKey="second"))["id"] == meant["id"]
        assert len(seller.presented) == 2


async def test_goods_of_one_person_are_not_handed_to_another(served: Service, admin: AsyncBursar):
    """Goal: an agent that serves several people asks with the credentials of each."""
    key = await _key(admin)
    async with selling(served, "honest") as seller, over_http(served.url, key) as client:

        async def buy(token: str) -> str:
            order = {"url": seller.url, "headers": {"Authorization": f"Bearer {token}"}}
            return (await client.call_tool("buy", order)).structured_content["id"]

        ann, bob = await buy("ann"), await buy("bob")
        assert ann != bob
        assert await buy("ann") == ann


async def test_goods_that_were_lost_are_asked_for_again(served: Service, admin: AsyncBursar):
    """Goal: the words lead a model to retry_purchase, and that gets the goods."""
    key = await _key(admin)
    async with selling(served, "503 once") as seller, over_http(served.url, key) as client:
        lost = await client.call_tool("buy", {"url": seller.url})
        assert "answered 503" in words(lost)
        assert "retry_purchase" in words(lost)
        found = await client.call_tool("retry_purchase", {"id": lost.structured_content["id"]})
        assert found.structured_content["response"]["status"] == 200
        assert len(set(seller.presented)) == 1


async def test_what_stands_in_the_way_is_said(served: Service, admin: AsyncBursar):
    """Goal: a refusal and a person's approval are answers that a model can act on."""
    key = await _key(admin, approval_threshold="0")
    async with selling(served, "honest") as seller, over_http(served.url, key) as client:
        refused = await _buy(client, seller.url, maxAmount="0.0005")
        assert refused.structured_content["rejectCode"] == "max_amount_exceeded"
        assert refused.structured_content["decision"]["maxAmountNow"] == "0.000500"
        assert "more than your own maxAmount" in words(refused)
        waits = await _buy(client, seller.url)
        assert "continue_purchase" in words(waits)
        fields = waits.structured_content
        assert fields["status"] == "pending"
        early = await client.call_tool("continue_purchase", {"id": fields["id"]})
        error_of(early, "invalid_state")
        await admin.transactions.approve(fields["transactionId"])
        went_on = await client.call_tool("continue_purchase", {"id": fields["id"]})
        assert went_on.structured_content["response"]["status"] == 200
        closed = await _buy(client, "http://127.0.0.1:1/closed")
        assert closed.structured_content["failureCode"] == "seller_unreachable"
        assert "Nothing was paid" in words(closed)


async def _buy(client: Client, url: str, **more: str) -> Any:
    return await client.call_tool("buy", {"url": url, **more})
