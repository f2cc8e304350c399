"""The tools as a model uses them, through the official client, over every transport."""

import asyncio
import json
from typing import Any, Final

import pytest
from mcp.types import TextContent

from bursar.api.purchases import PURCHASE
from bursar.api.routes import ROUTES
from bursar.api.spends import SPEND
from bursar.api.transactions import LIST_QUERY
from bursar.mcp import words as mcp_words
from bursar.mcp.endpoint import CATEGORIES
from bursar.mcp.tools import TOOLS
from bursar.mcp.words import MOST_ENTRIES
from bursar.policy.engine import RejectCode
from tests.mcp_tools.conftest import Connect, Spender, error_of, new_spender, over_http, words
from tests.support import Service, new_agent, spend

HOST = "api.example.com"
SPENDING = {"spend", "buy", "continue_purchase", "retry_purchase"}


def purchase(amount: str, key: str, **fields: Any) -> dict[str, Any]:
    return {"amount": amount, "recipient": HOST, "idempotencyKey": key, **fields}


async def test_a_model_is_refused_reads_why_and_spends_less(connect: Connect, spender: Spender):
    """Goal: list the tools, spend too much, learn from the answer what passes, spend that."""
    async with connect(spender.key) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [
            "get_budget", "list_limits", "list_recipients", "preview_spend", "spend",
            "cancel_spend", "get_transaction", "wait_for_transaction", "list_transactions", "buy",
            "get_purchase", "continue_purchase", "retry_purchase",
        ]  # fmt: skip
        budget = await client.call_tool("get_budget")
        assert budget.structured_content["maxAmountNow"] == "10.000000"

        refused = await client.call_tool("spend", purchase("25", "order-1"))
        assert not refused.is_error, "a refusal is an answer"
        answer = refused.structured_content
        assert (answer["status"], answer["rejectCode"]) == ("rejected", "daily_cap_exceeded")
        assert answer["maxAmountNow"] == "10.000000"
        assert "daily_cap_exceeded" in words(refused)
        assert "Up to 10.000000 passes now" in words(refused)

        paid = await client.call_tool("spend", purchase(answer["maxAmountNow"], "order-2"))
        assert paid.structured_content["status"] == "approved"
        found = await client.call_tool("get_transaction", {"id": paid.structured_content["id"]})
        assert found.structured_content["amount"] == "10.000000"
        listed = await client.call_tool("list_transactions")
        assert [row["status"] for row in listed.structured_content["transactions"]] == [
            "approved",
            "rejected",
        ]
    assert len(await spender.transactions()) == 2


async def test_limits_of_its_own_and_of_a_budget_that_it_shares(connect: Connect, service: Service):
    """Goal: an agent sees what stands over it and what all have used, and not who they are."""
    spender = await new_spender(service, limits=[{"window": "hour", "count": 9}])
    async with connect(spender.key) as client:
        async with await service.admin(account=spender.account) as admin:
            limits = [{"window": "month", "amount": "3.00"}]
            made = await admin.post("/v1/budgets", json={"name": "secret plan", "limits": limits})
            budget = made.json()["data"]["id"]
            other = await new_agent(admin, name="the other", budgetId=budget)
            await admin.patch(f"/v1/agents/{spender.agent_id}", json={"budgetId": budget})
            await service.fund(other["id"], "5")
            assert (await spend(admin, other["id"], "2"))["status"] == "approved"
            told = await client.call_tool("list_limits")
            own, shared = told.structured_content["limits"]
            assert (own["budgetId"], own["window"], own["count"], own["usedCount"]) == (
                None, "hour", 9, 0,
            )  # fmt: skip
            assert (shared["budgetId"], shared["amount"], shared["usedAmount"]) == (
                budget, "3.00", "2.000000",
            )  # fmt: skip
            assert shared["resetsAt"].endswith("-01T00:00:00.000Z")
            assert "None is used up." in words(told)
            await client.call_tool("spend", purchase("1", "order-1"))
            told = await client.call_tool("list_limits")
            assert f"Used up: {shared['limitId']} of a budget that you share" in words(told)
            assert "secret plan" not in words(told)
            assert other["id"] not in words(told)
            await admin.patch(f"/v1/budgets/{budget}", json={"frozen": True})
        found = await client.call_tool("get_budget")
        assert found.structured_content["budgetFrozen"]
        assert "a budget that you share is stopped" in words(found)


async def test_the_words_hold_the_fields_too(connect: Connect, spender: Spender):
    """Goal: a client that shows a model only text shows it everything."""
    async with connect(spender.key) as client:
        result = await client.call_tool("preview_spend", {"amount": "11", "recipient": HOST})
    block = result.content[1]
    assert isinstance(block, TextContent)
    assert json.loads(block.text) == result.structured_content
    assert "Nothing was spent" in words(result)
    assert "idempotencyKey" not in words(result), "a preview has none"


async def test_a_wait_for_tomorrow_is_told(connect: Connect, spender: Spender):
    """Goal: when only time is missing, the model learns until when, without a clock of its own."""
    async with connect(spender.key) as client:
        await client.call_tool("spend", purchase("8", "first"))
        refused = await client.call_tool("spend", purchase("5", "second"))
    retry_at = refused.structured_content["retryAt"]
    assert retry_at.endswith("T00:00:00.000Z")
    assert f"This amount passes at {retry_at} (in " in words(refused)
    assert "needs a new idempotencyKey" in words(refused)


async def test_one_purchase_is_one_payment(connect: Connect, spender: Spender):
    """Goal: however often and however fast a model repeats a call, its key pays once."""
    async with connect(spender.key) as client:
        results = await asyncio.gather(
            *(client.call_tool("spend", purchase("3", "order-7")) for _ in range(8))
        )
        later = await client.call_tool("spend", purchase("3", "order-7"))
        other = await client.call_tool("spend", purchase("4", "order-7"))
    assert len({result.structured_content["id"] for result in [*results, later]}) == 1
    assert not all(result.structured_content["replayed"] for result in results)
    assert later.structured_content["replayed"] is True
    assert "Nothing was paid again" in words(later)
    error_of(other, "idempotency_key_reused")
    assert len(await spender.transactions()) == 1


async def test_a_spend_without_a_key_is_not_made(connect: Connect, spender: Spender):
    """Goal: a model cannot forget what keeps a retry from paying twice."""
    async with connect(spender.key) as client:
        result = await client.call_tool("spend", {"amount": "1", "recipient": HOST})
    error = error_of(result, "validation_error")
    assert error["param"] == "idempotencyKey"
    assert await spender.transactions() == []


async def test_a_spend_that_needs_a_person_says_so(connect: Connect, service: Service):
    """Goal: the model neither thinks that it paid nor tries again."""
    spender = await new_spender(service, approvalThreshold="2.00")
    async with connect(spender.key) as client:
        result = await client.call_tool("spend", purchase("3", "k", waitSeconds=1))
    assert result.structured_content["status"] == "pending"
    assert "person's approval" in words(result)
    assert "Do not spend again" in words(result)
    page = f"{service.url}/console/transactions/{result.structured_content['id']}"
    assert result.structured_content["approvalUrl"] == page
    assert words(result).endswith(f"decides at {page}")


async def test_a_spend_that_waits_can_be_called_off(connect: Connect, service: Service):
    """Goal: an agent that no longer needs it spares a person the decision."""
    spender = await new_spender(service, approvalThreshold="2.00")
    async with connect(spender.key) as client:
        waiting = (await client.call_tool("spend", purchase("3", "k"))).structured_content
        called_off = await client.call_tool("cancel_spend", {"id": waiting["id"]})
        assert called_off.structured_content["rejectCode"] == "cancelled"
        assert "Nothing was paid" in words(called_off)
        error_of(await client.call_tool("cancel_spend", {"id": waiting["id"]}), "invalid_state")
        budget = (await client.call_tool("get_budget")).structured_content
    assert budget["spentToday"] == "0.000000"


async def test_a_model_knows_what_passes_without_a_person(connect: Connect, service: Service):
    """Goal: nobody is led to a spend that waits for hours, unless that is wanted."""
    spender = await new_spender(service, approvalThreshold="2.00")
    async with connect(spender.key) as client:
        await client.call_tool("spend", purchase("3", "k"))
        budget = await client.call_tool("get_budget")
        foreseen = await client.call_tool("preview_spend", {"amount": "3", "recipient": HOST})
    fields = budget.structured_content
    assert (fields["maxAmountNow"], fields["maxWithoutApproval"]) == ("7.000000", "2.000000")
    assert fields["spentTodayBy"]["waiting"] == fields["reserved"] == "3.000000"
    assert "of which up to 2.000000 without a person's approval" in words(budget)
    assert foreseen.structured_content["maxWithoutApproval"] == "2.000000"
    assert "Up to 2.000000 passes without" in words(foreseen)


async def test_an_outcome_can_be_waited_for(connect: Connect, service: Service):
    """Goal: a model learns of a person's decision as soon as it is made."""
    spender = await new_spender(service, approvalThreshold="2.00")
    async with connect(spender.key) as client, await service.admin(account=spender.account) as boss:
        spend_id = (await client.call_tool("spend", purchase("3", "k"))).structured_content["id"]
        soon = await client.call_tool("wait_for_transaction", {"id": spend_id, "waitSeconds": 1})
        assert soon.structured_content["status"] == "pending"
        waiting = asyncio.create_task(client.call_tool("wait_for_transaction", {"id": spend_id}))
        await boss.post(f"/v1/transactions/{spend_id}/deny", json={"reason": "too dear"})
        ended = await waiting
    assert ended.structured_content["rejectCode"] == "approval_denied"
    assert "too dear" in words(ended)


async def test_a_model_knows_whom_it_may_pay(connect: Connect, service: Service):
    """Goal: its own lists, as many of them as it can read, and nothing of the directory."""
    hosts = [f"h{number}.example.com" for number in range(MOST_ENTRIES + 1)]
    for allowlist, said in (
        ([HOST, "*.example.org"], f"May be paid: {HOST}, *.example.org. Never: bad.example.org."),
        (["*"], "Anybody may be paid. Never: bad.example.org."),
        ([], "Nobody may be paid: the allowlist is empty. Ask your operator. Never:"),
        (hosts, f"May be paid: {hosts[0]}, "),
    ):
        spender = await new_spender(service, allowlist=allowlist, blocklist=["bad.example.org"])
        async with connect(spender.key) as client:
            result = await client.call_tool("list_recipients")
        assert words(result).startswith(said)
        fields = result.structured_content
        assert fields == {
            "anyone": allowlist == ["*"],
            "allowlist": allowlist[:MOST_ENTRIES],
            "blocklist": ["bad.example.org"],
            "truncated": allowlist == hosts,
            "policyVersion": 1,
        }


async def test_a_stop_is_told(connect: Connect, service: Service):
    """Goal: a model learns that a person stopped everything, before and after it tries."""
    spender = await new_spender(service)
    async with service.client(await service.key(account=spender.account)) as admin:
        assert (await admin.post("/v1/stop", json={"reason": "a look"})).status_code == 200
    async with connect(spender.key) as client:
        assert "every agent of the account is stopped" in words(
            await client.call_tool("get_budget")
        )
        refused = await client.call_tool("spend", purchase("3", "k"))
    assert refused.structured_content["rejectCode"] == "account_stopped"
    assert "Only a person can resume" in words(refused)


async def test_another_agent_is_out_of_reach(connect: Connect, service: Service, spender: Spender):
    """Goal: neither another agent's id nor its transactions get anywhere, in the same account."""
    other = await new_spender(service, account=spender.account)
    async with over_http(service.url, other.key) as client:
        theirs = (await client.call_tool("spend", purchase("1", "k"))).structured_content
    named = {"agentId": other.agent_id}
    async with connect(spender.key) as client:
        for tool, arguments in (
            ("get_budget", {}),
            ("list_limits", {}),
            ("preview_spend", {"amount": "1", "recipient": HOST}),
            ("spend", purchase("1", "k")),
            ("list_transactions", {}),
        ):
            error_of(await client.call_tool(tool, {**arguments, **named}), "not_found")
            own = await client.call_tool(tool, {**arguments, "agentId": spender.agent_id})
            assert not own.is_error
        for tool in ("get_transaction", "wait_for_transaction", "cancel_spend"):
            error_of(await client.call_tool(tool, {"id": theirs["id"]}), "not_found")
    assert len(await other.transactions()) == 1


DEEP: Final = json.loads("[" * 20 + "]" * 20)

HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("spend", {}, "validation_error"),
    ("spend", purchase("-1", "k"), "validation_error"),
    ("spend", purchase("1e3", "k"), "validation_error"),
    ("spend", purchase("１２", "k"), "validation_error"),
    ("spend", {**purchase("1", "k"), "amount": 5}, "validation_error"),
    ("spend", {**purchase("1", "k"), "amount": {"$gt": 0}}, "validation_error"),
    ("spend", purchase("0", "k"), "validation_error"),
    ("spend", {**purchase("1", "k"), "recipient": "https://api.example.com/pay"},
     "validation_error"),
    ("spend", {**purchase("1", "k"), "recipient": "127.0.0.1"}, "validation_error"),
    ("spend", purchase("1", ""), "validation_error"),
    ("spend", purchase("1", "k\r\nX-Evil: 1"), "validation_error"),
    ("spend", purchase("1", " k "), "validation_error"),
    ("spend", purchase("1", "k" * 256), "validation_error"),
    ("spend", purchase("1", "ключ"), "validation_error"),
    ("spend", purchase("1", "k", waitSeconds=31), "validation_error"),
    ("spend", purchase("1", "k", waitSeconds="9, handling=lenient"), "validation_error"),
    ("spend", purchase("1", "k", waitSeconds=True), "validation_error"),
    ("spend", purchase("1", "k", dailyCap="1000000.00"), "validation_error"),
    ("spend", purchase("1", "k", memo="x" * 201), "validation_error"),
    ("spend", purchase("1", "k", metadata=DEEP), "validation_error"),
    ("spend", purchase("1", "k", currency="USDC"), "validation_error"),
    ("spend", purchase("1", "k", agentId=["ag_1"]), "validation_error"),
    ("get_budget", {"agentId": "ag_1/../../keys"}, "not_found"),
    ("get_budget", {"agentId": "../../keys?"}, "not_found"),
    ("get_transaction", {"id": "stats"}, "not_found"),
    ("get_transaction", {"id": "export"}, "not_found"),
    ("get_transaction", {"id": "../keys"}, "not_found"),
    ("get_transaction", {"id": "txn_1/approve"}, "not_found"),
    ("get_transaction", {"id": 7}, "validation_error"),
    ("wait_for_transaction", {"id": "../keys"}, "not_found"),
    ("wait_for_transaction", {"id": "txn_1", "waitSeconds": 31}, "validation_error"),
    ("cancel_spend", {"id": "../keys"}, "not_found"),
    ("cancel_spend", {"id": "txn_1/approve"}, "not_found"),
    ("buy", {}, "validation_error"),
    ("buy", {"url": "https://user@api.example.com/"}, "validation_error"),
    ("buy", {"url": "file:///etc/passwd"}, "validation_error"),
    ("buy", {"url": "https://api.example.com/", "maxAmount": 1}, "validation_error"),
    ("buy", {"url": "https://api.example.com/", "headers": {"Host": "x"}}, "validation_error"),
    ("buy", {"url": "https://api.example.com/", "paymentRequired": {}}, "validation_error"),
    ("get_purchase", {"id": "../keys"}, "not_found"),
    ("continue_purchase", {"id": "pur_1/retry"}, "not_found"),
    ("retry_purchase", {"id": "pur_" + "0" * 26}, "not_found"),
    ("list_transactions", {"limit": 0}, "validation_error"),
    ("list_transactions", {"limit": 101}, "validation_error"),
    ("list_transactions", {"status": "all&agentId=ag_1"}, "validation_error"),
    ("list_transactions", {"from": "yesterday"}, "validation_error"),
    ("list_transactions", {"from": "2026-11-30&limit=9"}, "validation_error"),
    ("list_transactions", {"after": "not a cursor"}, "validation_error"),
    ("list_transactions", {"from": "2026-11-30", "to": "2026-11-01"}, "validation_error"),
]  # fmt: skip


async def test_hostile_arguments_get_nowhere(connect: Connect, spender: Spender):
    """Goal: each is refused with a sentence, none reaches another route, none leaves a trace."""
    async with connect(spender.key) as client:
        for tool, arguments, code in HOSTILE:
            result = await client.call_tool(tool, arguments)
            assert result.is_error, (tool, arguments)
            assert error_of(result, code)["message"], (tool, arguments)
    assert await spender.transactions() == []


async def test_all_mistakes_are_told_at_once(connect: Connect, spender: Spender):
    """Goal: a model mends everything in one go."""
    async with connect(spender.key) as client:
        result = await client.call_tool("spend", {"amonut": "1", "recipient": "x"})
    params = {detail["param"] for detail in error_of(result, "validation_error")["details"]}
    assert params == {"amount", "amonut", "recipient", "idempotencyKey"}
    assert "Did you mean amount?" in words(result)


async def test_null_leaves_out(connect: Connect, spender: Spender):
    """Goal: models that fill in every argument are understood."""
    async with connect(spender.key) as client:
        result = await client.call_tool(
            "spend", purchase("1", "k", memo=None, agentId=None, waitSeconds=None, metadata=None)
        )
    assert result.structured_content["status"] == "approved"


# What the tools lean on ---------------------------------------------------------------------------


def test_every_refusal_has_its_advice():
    """Goal: a reject code that is added cannot be forgotten here."""
    assert list(mcp_words.RECOVERY) == [code.value for code in RejectCode]


def test_tools_count_as_the_endpoints_they_stand_for():
    """Goal: limits, arguments and keys follow the API."""
    agent_id, spend_id, purchase_id = (f"{kind}_{'0' * 26}" for kind in ("ag", "txn", "pur"))
    routes = {(route.method, route.path): route for route in ROUTES}
    for tool in TOOLS.values():
        own = purchase_id if "purchase" in tool.name else spend_id
        request = tool.request({**purchase("1", "k"), "id": own}, agent_id)
        path = request.path.replace(agent_id, ":id").replace(own, ":id")
        assert routes[request.method, path].category is CATEGORIES[tool.name]


def test_arguments_are_the_apis():
    """Goal: no argument that the API would not know, but for what becomes a header."""
    spend = {field.name for field in SPEND.fields}
    assert {field.name for field in TOOLS["preview_spend"].inputs.fields} <= spend
    own = {"idempotencyKey", "waitSeconds"}
    assert {field.name for field in TOOLS["spend"].inputs.fields} - own <= spend
    bought = {field.name for field in TOOLS["buy"].inputs.fields}
    assert bought - own == {field.name for field in PURCHASE.fields} - {"paymentRequired"}
    listed = {field.name for field in TOOLS["list_transactions"].inputs.fields}
    assert listed <= {field.name for field in LIST_QUERY}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_every_tool_explains_itself(tool: Any):
    """Goal: each tool, argument and field has a sentence, and says whether it pays or calls off."""
    assert len(tool.description) > 100
    assert tool.spends == (tool.name in SPENDING)
    assert tool.changes == (tool.name == "cancel_spend")
    properties = tool.inputs.schema()["properties"]
    assert all(schema["description"] for schema in properties.values())
    assert tool.inputs.schema()["additionalProperties"] is False
    for name, schema in tool.output["properties"].items():
        assert schema.get("description") or name == "transactions"
