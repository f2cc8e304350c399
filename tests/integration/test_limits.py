"""Limits of policies and budgets above agents: exact, explained, given back, changed at once."""

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from tests.support import Service, error_of, new_agent, spend

WINDOWS = ("hour", "day", "week", "month", "lifetime")


@pytest.fixture
async def client(service: Service) -> AsyncGenerator[httpx.AsyncClient]:
    async with await service.admin() as opened:
        yield opened


async def funded(service: Service, client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    agent = await new_agent(client, **fields)
    await service.fund(agent["id"], "1000")
    return agent


async def new_budget(client: httpx.AsyncClient, *limits: dict[str, Any], **fields: Any) -> Any:
    answer = await client.post("/v1/budgets", json={"name": "b", "limits": limits, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


async def read(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def check_of(made: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [check for check in made["decision"]["checks"] if check["rule"] == rule]


@pytest.mark.parametrize("window", WINDOWS)
async def test_an_amount_is_never_passed(service: Service, client: httpx.AsyncClient, window: str):
    """Goal: to the micro-unit; the refusal names the limit, what would pass, and when."""
    agent = await funded(service, client, policy={"limits": [{"window": window, "amount": "5.00"}]})
    (limit,) = agent["policy"]["limits"]
    assert (await spend(client, agent["id"], "3"))["status"] == "approved"
    refused = await spend(client, agent["id"], "2.000001")
    assert (refused["status"], refused["rejectCode"]) == ("rejected", "limit_exceeded")
    assert check_of(refused, "limit") == [
        {
            "rule": "limit",
            "outcome": "fail",
            "limit": "5.00",
            "observed": "5.000001",
            "limitId": limit["id"],
        }
    ]
    assert refused["decision"]["maxAmountNow"] == "2.000000"
    assert (refused["decision"]["retryAt"] is None) == (window == "lifetime")
    assert (await read(client, f"/v1/agents/{agent['id']}/budget"))["maxAmountNow"] == "2.000000"
    assert (await spend(client, agent["id"], "2"))["status"] == "approved"
    assert (await read(client, f"/v1/agents/{agent['id']}/budget"))["maxAmountNow"] == "0.000000"


async def test_a_count_is_never_passed(service: Service, client: httpx.AsyncClient):
    """Goal: refusals do not count, and what is given back does not either."""
    policy = {"limits": [{"window": "day", "count": 2}], "approvalThreshold": "5.00"}
    agent = await funded(service, client, policy=policy)
    waiting = await spend(client, agent["id"], "6")
    assert waiting["status"] == "pending"
    assert (await spend(client, agent["id"], "1"))["status"] == "approved"
    for _ in range(3):
        refused = await spend(client, agent["id"], "1")
        assert refused["rejectCode"] == "limit_exceeded"
        assert refused["decision"]["maxAmountNow"] == "0.000000"
    denied = await client.post(f"/v1/transactions/{waiting['id']}/deny", json={})
    assert denied.status_code == 200
    assert (await spend(client, agent["id"], "1"))["status"] == "approved"
    assert (await spend(client, agent["id"], "1"))["rejectCode"] == "limit_exceeded"


async def test_what_was_spent_before_counts(service: Service, client: httpx.AsyncClient):
    """Goal: a new limit holds for the window that is running; of one recipient, from when it was
    set, and it keeps its count when it stays."""
    agent = await funded(service, client, policy={"allowlist": ["*"]})
    path = f"/v1/agents/{agent['id']}"
    assert (await spend(client, agent["id"], "4"))["status"] == "approved"
    limits = [
        {"window": "week", "amount": "6.00"},
        {"window": "day", "amount": "3.00", "recipient": "*.example.com"},
    ]
    answer = await client.patch(path, json={"policy": {"limits": limits}})
    assert answer.status_code == 200, answer.text
    stands = answer.json()["data"]["policy"]["limits"]
    assert [limit["countsFrom"] is None for limit in stands] == [True, False]
    assert (await spend(client, agent["id"], "2.5"))["rejectCode"] == "limit_exceeded"
    assert (await spend(client, agent["id"], "1.5"))["status"] == "approved"
    # With their ids they stay as they are counted, though the amounts change.
    for limit in stands:
        limit["amount"] = "2.00" if limit["recipient"] else "100.00"
        del limit["countsFrom"]
    answer = await client.patch(path, json={"policy": {"limits": stands}})
    assert answer.status_code == 200, answer.text
    refused = await spend(client, agent["id"], "0.6")
    assert refused["rejectCode"] == "limit_exceeded"
    assert refused["decision"]["maxAmountNow"] == "0.500000"
    # Another recipient is not its business.
    elsewhere = await spend(client, agent["id"], "5", recipient="example.org")
    assert elsewhere["status"] == "approved"
    assert len(check_of(elsewhere, "limit")) == 1


async def test_setting_what_is_set_changes_nothing(service: Service, client: httpx.AsyncClient):
    """Goal: limits that are sent again, without their ids, are those that stand: no new version,
    and what they have counted goes on counting."""
    limit = {"window": "day", "amount": "5.00", "recipient": "api.example.com"}
    limits = [limit, {"window": "day", "count": 9}, {"window": "day", "count": 9}]
    agent = await funded(service, client, policy={"limits": limits})
    stands = agent["policy"]["limits"]
    assert (await spend(client, agent["id"], "5"))["status"] == "approved"
    again = await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"limits": limits}})
    policy = again.json()["data"]["policy"]
    assert (policy["version"], policy["limits"]) == (agent["policy"]["version"], stands)
    assert (await spend(client, agent["id"], "1"))["rejectCode"] == "limit_exceeded"
    bulk = await client.patch("/v1/agents?status=active", json={"policy": {"limits": limits}})
    assert bulk.json()["data"]["changed"] == 0
    # What is new beside them is new, and what is named is not given to another.
    more = [{"window": "day", "count": 9, "id": stands[1]["id"]}, *limits]
    changed = await client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"limits": more}})
    ids = [one["id"] for one in changed.json()["data"]["policy"]["limits"]]
    assert ids[:3] == [stands[1]["id"], stands[0]["id"], stands[2]["id"]]
    assert ids[3] not in [one["id"] for one in stands]
    made = await client.post(
        "/v1/budgets", json={"name": "all", "limits": [{"window": "day", "amount": "5.00"}]}
    )
    budget = made.json()["data"]
    kept = await client.patch(
        f"/v1/budgets/{budget['id']}", json={"limits": [{"window": "day", "amount": "5.00"}]}
    )
    assert kept.json()["data"]["limits"][0]["id"] == budget["limits"][0]["id"]


async def test_limits_of_agents_are_apart(service: Service, client: httpx.AsyncClient):
    """Goal: what one agent pays to a recipient is not counted against another, from the first."""
    limits = [
        {"window": "day", "amount": "3.00", "recipient": "*.example.com"},
        {"window": "day", "count": 1, "recipient": "api.example.com"},
    ]
    one, two = [await funded(service, client, policy={"limits": limits}) for _ in range(2)]
    named = {limit["id"] for agent in (one, two) for limit in agent["policy"]["limits"]}
    assert len(named) == 4
    assert all(id_.startswith("lim_") for id_ in named)
    for agent in (one, two):
        assert (await spend(client, agent["id"], "3"))["status"] == "approved"
        refused = await spend(client, agent["id"], "0.5")
        assert [check["outcome"] for check in check_of(refused, "limit")] == ["fail", "fail"]


async def test_limits_of_others_cannot_be_named(service: Service, client: httpx.AsyncClient):
    """Goal: no agent gets at what another one's limit has counted."""
    limits = [{"window": "day", "amount": "3.00", "recipient": "a.example.com"}]
    one = await funded(service, client, policy={"limits": limits})
    two = await funded(service, client)
    named = [{**limits[0], "id": one["policy"]["limits"][0]["id"]}]
    answer = await client.patch(f"/v1/agents/{two['id']}", json={"policy": {"limits": named}})
    assert error_of(answer, 400, "validation_error")["param"] == "policy.limits[0].id"
    body = {"name": "x", "policy": {"dailyCap": "1", "allowlist": [], "limits": named}}
    error_of(await client.post("/v1/agents", json=body), 400, "validation_error")


async def test_a_spend_passes_every_budget_above_it(service: Service, client: httpx.AsyncClient):
    """Goal: the nearest and the highest alike, and the refusal names which."""
    company = await new_budget(client, {"window": "month", "amount": "10.00"})
    team = await new_budget(
        client, {"window": "day", "amount": "6.00"}, {"window": "hour", "count": 3},
        parentId=company["id"],
    )  # fmt: skip
    ours = [await funded(service, client, budgetId=team["id"]) for _ in range(2)]
    other = await funded(service, client, budgetId=company["id"])
    assert (await spend(client, ours[0]["id"], "4"))["status"] == "approved"
    refused = await spend(client, ours[1]["id"], "3")
    assert refused["rejectCode"] == "budget_exceeded"
    (day, hour, month) = check_of(refused, "budget")
    assert [c["outcome"] for c in (day, hour, month)] == ["fail", "pass", "pass"]
    assert (day["budgetId"], month["budgetId"]) == (team["id"], company["id"])
    assert refused["decision"]["maxAmountNow"] == "2.000000"
    assert (await spend(client, other["id"], "5"))["status"] == "approved"
    refused = await spend(client, ours[1]["id"], "2")
    assert [c["outcome"] for c in check_of(refused, "budget")] == ["pass", "pass", "fail"]
    assert (await spend(client, ours[1]["id"], "1"))["status"] == "approved"
    shown = await read(client, f"/v1/budgets/{company['id']}")
    assert shown["use"]["month"] == {"amount": "10.000000", "count": 3}
    assert (await read(client, f"/v1/budgets/{team['id']}"))["use"]["hour"]["count"] == 2
    answer = await client.patch(f"/v1/budgets/{company['id']}", json={"frozen": True})
    assert answer.status_code == 200
    frozen = await spend(client, ours[0]["id"], "1")
    assert frozen["rejectCode"] == "budget_frozen"
    error_of(await client.delete(f"/v1/budgets/{team['id']}"), 409, "invalid_state")


async def test_a_change_of_a_budget_holds_for_every_agent_at_once(
    service: Service, client: httpx.AsyncClient
):
    """Goal: also for one whose budget the process has read again only for another agent."""
    budget = await new_budget(client, {"window": "day", "amount": "50.00"})
    one, two = [await funded(service, client, budgetId=budget["id"]) for _ in range(2)]
    path = f"/v1/budgets/{budget['id']}"
    for change, code in (
        ({"limits": [{"window": "day", "amount": "10.00"}]}, "budget_exceeded"),
        ({"limits": [], "frozen": True}, "budget_frozen"),
    ):
        # Twice each: then all that a decision needs is remembered.
        for agent in (one, two, one, two):
            assert (await spend(client, agent["id"], "2"))["status"] == "approved"
        answer = await client.patch(path, json=change)
        assert answer.status_code == 200, answer.text
        for agent in (two, one, two, one):
            assert (await spend(client, agent["id"], "9"))["rejectCode"] == code
        await client.patch(path, json={"limits": []})


async def test_a_budget_is_deleted_or_used_but_not_both(
    service: Service, client: httpx.AsyncClient
):
    """Goal: whoever comes second is told so."""
    agent = await funded(service, client)
    for _ in range(10):
        budget = await new_budget(client)
        deleted, moved, below = await asyncio.gather(
            client.delete(f"/v1/budgets/{budget['id']}"),
            client.patch(f"/v1/agents/{agent['id']}", json={"budgetId": budget["id"]}),
            client.post("/v1/budgets", json={"name": "b", "limits": [], "parentId": budget["id"]}),
        )
        assert deleted.status_code in (204, 409), deleted.text
        expected = (400, 400) if deleted.status_code == 204 else (200, 201)
        found = (moved.status_code, below.status_code)
        assert found == expected or deleted.status_code == 409, (moved.text, below.text)
        await client.patch(f"/v1/agents/{agent['id']}", json={"budgetId": None})


async def test_a_purchase_may_be_refused_before_any_limit_is_asked(
    service: Service, client: httpx.AsyncClient
):
    """Goal: its host is judged by the lists, whatever limits and budgets stand."""
    limits = [{"window": "day", "count": 2}, {"window": "day", "count": 2, "recipient": "*"}]
    budget = await new_budget(client, {"window": "day", "amount": "5.00"})
    policy = {"limits": limits, "blocklist": ["blocked.example.com"]}
    agent = await funded(service, client, budgetId=budget["id"], policy=policy)
    order = {"agentId": agent["id"], "url": "https://blocked.example.com/x", "maxAmount": "1"}
    answer = await client.post("/v1/purchases", json=order)
    assert answer.status_code == 201, answer.text
    refused = answer.json()["data"]
    assert refused["rejectCode"] == "recipient_blocked"
    outcomes = {
        check["outcome"] for rule in ("limit", "budget") for check in check_of(refused, rule)
    }
    assert outcomes == {"not_evaluated"}
    await client.patch(f"/v1/budgets/{budget['id']}", json={"frozen": True})
    order["url"] = "https://api.example.com/x"
    refused = (await client.post("/v1/purchases", json=order)).json()["data"]
    assert refused["rejectCode"] == "budget_frozen"
    assert check_of(refused, "budget_frozen")[0]["outcome"] == "fail"


async def test_what_is_given_back_is_given_to_every_budget(
    service: Service, client: httpx.AsyncClient
):
    """Goal: also when the agent has left the budget meanwhile."""
    top = await new_budget(client, {"window": "day", "amount": "100.00"})
    low = await new_budget(client, {"window": "day", "amount": "100.00"}, parentId=top["id"])
    agent = await funded(service, client, budgetId=low["id"], policy={"approvalThreshold": "1.00"})
    waiting = await spend(client, agent["id"], "5")
    answer = await client.patch(f"/v1/agents/{agent['id']}", json={"budgetId": None})
    assert answer.json()["data"]["budgetId"] is None
    await client.post(f"/v1/transactions/{waiting['id']}/deny", json={})
    for budget in (top, low):
        use = (await read(client, f"/v1/budgets/{budget['id']}"))["use"]
        assert {tuple(window.values()) for window in use.values()} == {("0.000000", 0)}


async def test_an_approval_looks_at_limits_again(service: Service, client: httpx.AsyncClient):
    """Goal: by the limits as they are now, the spend itself not counted twice."""
    budget = await new_budget(client, {"window": "day", "amount": "5.00"})
    limits = [{"window": "day", "amount": "5.00", "count": 1}]
    policy = {"approvalThreshold": "1.00", "limits": limits}
    agent = await funded(service, client, budgetId=budget["id"], policy=policy)
    waiting = await spend(client, agent["id"], "5")
    path = f"/v1/budgets/{budget['id']}"
    lowered = [{"window": "day", "amount": "4.99"}]
    await client.patch(path, json={"limits": lowered})
    approve = f"/v1/transactions/{waiting['id']}/approve"
    error = error_of(await client.post(approve, json={}), 409, "invalid_state")
    assert "budget_exceeded" in error["message"]
    await client.patch(path, json={"limits": [{"window": "day", "amount": "5.00"}]})
    assert (await client.post(approve, json={})).json()["data"]["status"] == "approved"


async def test_a_crowd_under_one_budget_gets_exactly_what_it_has(
    service: Service, client: httpx.AsyncClient
):
    """Goal: forty agents at once, two levels, amounts at random: what fits is approved to the last
    micro-unit, and the numbers that each decision rests on follow from those before it."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    top = await new_budget(client, {"window": "month", "amount": "30.00"})
    low = await new_budget(client, {"window": "day", "count": 60}, parentId=top["id"])
    agents = [
        await funded(service, client, budgetId=chance.choice([top, low])["id"]) for _ in range(12)
    ]
    wanted = [
        (chance.choice(agents)["id"], f"{chance.randrange(1, 2_000_000) / 1_000_000:.6f}")
        for _ in range(120)
    ]
    made = await asyncio.gather(*(spend(client, agent, amount) for agent, amount in wanted))
    approved = [each for each in made if each["status"] == "approved"]
    total = sum(_micros(each["amount"]) for each in approved)
    assert total <= 30_000_000, seed
    # Nothing that still fits is refused: the smallest refusal is larger than what is left.
    left = 30_000_000 - total
    refused = [_micros(e["amount"]) for e in made if e["rejectCode"] == "budget_exceeded"]
    under_low = {a["id"] for a in agents if a["budgetId"] == low["id"]}
    low_count = sum(each["agentId"] in under_low for each in approved)
    assert low_count <= 60, seed
    assert refused, seed
    last = await spend(client, agents[0]["id"], f"{left / 1_000_000:.6f}") if left else None
    assert last is None or last["status"] == "approved" or low_count == 60, seed
    use = (await read(client, f"/v1/budgets/{top['id']}"))["use"]["month"]
    spent = total + (_micros(last["amount"]) if last and last["status"] == "approved" else 0)
    assert _micros(use["amount"]) == spent, seed


def _micros(amount: str) -> int:
    return int(amount.replace(".", ""))
