"""Goal: who may see a purchase and what of it, where an agent's key can reach, and how many it can
have under way: a wallet that fetches is neither a way inside nor a way to flood a stranger."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx

from tests.hostile_targets import HOSTILE_URLS
from tests.processes import until
from tests.purchases.market import Agent, Market, made, shown
from tests.sellers.stall import PRIVATE, Stall, open_stall
from tests.support import error_of, events_of, new_account, new_agent

SENT = "sent-by-the-caller-alone"


async def bought(market: Market, stall: Stall) -> tuple[Agent, dict[str, Any]]:
    """Something with a secret in the request, and one in the answer."""
    agent = await market.agent()
    purchase = await agent.buy(stall.url, headers={"X-Secret": SENT}, method="POST", body=SENT)
    return agent, await agent.ended(purchase)


# Who sees it -------------------------------------------------------------------------------------


async def test_other_accounts_and_agents_do_not_see_it(market: Market, stall: Stall):
    agent, purchase = await bought(market, stall)
    neighbour = await market.agent(account=agent.account)
    stranger = await market.agent()
    path = f"/v1/purchases/{purchase['id']}"
    for client in (neighbour.client, stranger.client, stranger.admin):
        error_of(await client.get(path), 404, "not_found")
        error_of(await client.post(f"{path}/retry"), 404, "not_found")
        error_of(await client.post(f"{path}/continue", json={}), 404, "not_found")
        listed = await client.get("/v1/purchases", params={"agentId": agent.id})
        assert shown(listed) == []
        body = {"url": stall.url, "agentId": agent.id}
        error_of(await client.post("/v1/purchases", json=body), 404, "not_found")
    assert len(stall.presented) == 1


async def test_only_the_agents_keys_and_admins_read_what_came(market: Market, stall: Stall):
    agent, purchase = await bought(market, stall)
    path = f"/v1/purchases/{purchase['id']}"
    full = shown(await agent.client.get(path))
    assert full["header"]["value"] == stall.presented[0]
    assert full["response"]["headers"][PRIVATE.lower()] == "for the buyer"
    assert shown(await agent.admin.get(path)) == full
    for scope in ("read", "approver"):
        client = await market.client(account=agent.account, scope=scope)
        assert shown(await client.get(path)) == full | {"header": None, "response": None}
        error_of(await client.post(f"{path}/retry"), 403, "forbidden")
        error_of(await client.post(f"{path}/continue", json={}), 403, "forbidden")
        error_of(await client.post("/v1/purchases", json={"url": "x"}), 403, "forbidden")


async def test_what_came_is_in_no_list_event_or_log(market: Market, stall: Stall):
    agent, purchase = await bought(market, stall)
    paid = stall.presented[0]
    async with market.db.connection() as tx:
        events = await events_of(tx, agent.id)
        rows = await tx.fetch("SELECT to_json(p)::text AS row FROM purchase p")
        sealed = await tx.fetch(
            "SELECT encode(sealed, 'escape') AS row FROM purchase_secret WHERE purchase_id = $1",
            purchase["id"],
        )
    assert "purchase.paid" in [event.type for event in events]
    assert len(sealed) == 3
    transaction = json.loads(base64.b64decode(paid))["payload"]["transaction"]
    answers = [
        await client.get(path)
        for client in (agent.client, agent.admin)
        for path in ("/v1/purchases", "/v1/transactions")
    ]
    answers += [await agent.admin.get(path) for path in ("/v1/events", "/v1/audit-log")]
    left = {
        "log": market.log.read_text(),
        "events": "".join(event.data for event in events),
        "rows": "".join(row["row"] for row in (*rows, *sealed)),
        "answers": "".join(answer.text for answer in answers),
    }
    assert purchase["id"] in left["log"]
    assert purchase["id"] in left["events"]
    for where, text in left.items():
        for secret in (SENT, paid, transaction, "for the buyer"):
            assert secret not in text, (where, secret)


# Where it reaches --------------------------------------------------------------------------------


async def test_no_key_reaches_inside(market: Market):
    """Goal: every URL that leads inside is refused when it is given, and stored nowhere."""
    account = new_account()
    admin = await market.client(account=account, mode="live")
    agent = await new_agent(admin, policy={"dailyCap": "5.00", "allowlist": ["*"]})
    client = await market.client(account=account, mode="live", scope="agent", agent_id=agent["id"])
    reached = [
        url
        for url in HOSTILE_URLS
        if (await client.post("/v1/purchases", json={"url": url})).status_code != 400
    ]
    assert reached == []
    assert shown(await client.get("/v1/purchases")) == []


async def test_in_test_mode_only_what_is_listed(market: Market):
    agent = await market.agent(allowlist=["*"])
    listed = ("127.", "localhost", "LOCALHOST")
    reached = [
        url
        for url in HOSTILE_URLS
        if not url.lower().startswith(tuple(f"https://{host.lower()}" for host in listed))
        and not url.startswith("http://")
        and (await agent.post(url)).status_code != 400
    ]
    assert reached == []


async def test_headers_that_are_not_the_callers(market: Market, stall: Stall):
    agent = await market.agent()
    for name, value in (
        ("Host", "inside.example.com"), ("Content-Length", "0"), ("Transfer-Encoding", "chunked"),
        ("Connection", "close"), ("Expect", "100-continue"), ("Upgrade", "h2c"), ("TE", "trailers"),
        ("Proxy-Authorization", "x"), ("PAYMENT-SIGNATURE", "x"), ("X-PAYMENT", "x"),
        ("Authorization", "Payment x"), ("X", "a\r\nHost: b"), ("X Y", "a"), ("X", "ä"),
    ):  # fmt: skip
        answer = await agent.post(stall.url, headers={name: value})
        error_of(answer, 400, "validation_error")
    error_of(
        await agent.post(stall.url, headers={f"X-{number}": "" for number in range(51)}),
        400,
        "validation_error",
    )
    error_of(
        await agent.post(stall.url, method="POST", body="x" * 262_145), 400, "validation_error"
    )
    assert stall.asked == []


async def test_a_redirect_does_not_lead_elsewhere(market: Market, stall: Stall):
    """Goal: the answer of a host that the policy refuses is not to be had through one it allows."""
    agent = await market.agent()
    async with open_stall(market.rpc) as first:
        first.status, first.location = 307, stall.url.replace("127.0.0.1", "localhost")
        purchase = await agent.buy(first.url)
    assert (purchase["status"], purchase["response"]["status"]) == ("free", 307)
    assert stall.asked == []


async def test_an_answer_is_cut_at_the_limit(market: Market):
    """Goal: of an endless body as much is kept as the service allows, and it says so."""
    agent = await market.agent()
    async with open_stall(market.rpc) as stall:
        stall.status, stall.goods = 200, "x" * (1024 * 1024 + 1)
        free = await agent.buy(stall.url)
        assert (len(free["response"]["body"]), free["response"]["truncated"]) == (1024**2, True)
        stall.goods = "x" * 1024 * 1024
        assert not (await agent.buy(stall.url))["response"]["truncated"]
        stall.goods = b"\xff\x00"
        binary = (await agent.buy(stall.url))["response"]
        assert (binary["body"], binary["encoding"]) == ("/wA=", "base64")


# How much ----------------------------------------------------------------------------------------


async def _refused(
    tasks: Sequence[asyncio.Task[httpx.Response]], count: int
) -> list[dict[str, Any]]:
    """The errors of those that are told to come back, once there are so many."""

    async def told() -> bool:
        return sum(task.done() for task in tasks) >= count

    await until(told, seconds=20)
    answers = [task.result() for task in tasks if task.done()]
    assert len(answers) == count
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers)
    return [error_of(answer, 503, "unavailable") for answer in answers]


async def test_purchases_under_way_are_bounded(market: Market, stall: Stall):
    """Goal: 100 of an agent and 100 at one host; what is beyond is told so, and asks nobody."""
    agents = [await market.agent()]
    agents.append(await market.agent(account=agents[0].account))
    stall.open.clear()
    asked: list[asyncio.Task[httpx.Response]] = []
    # With a second client: one of httpx has no more than 100 connections.
    key = {"account": agents[0].account, "scope": "agent", "agent_id": agents[0].id}
    also = replace(agents[0], client=await market.client(**key))
    for buyers, words in (
        ([agents[0]] * 60 + [also] * 45, "This agent has 100"),
        ([agents[1]] * 5, "from this host, has 100"),
    ):
        tasks = [asyncio.create_task(agent.post(stall.url)) for agent in buyers]
        asked += tasks
        refused = await _refused(tasks, 5)
        assert all(words in error["message"] for error in refused)
    # Neither another account nor what is refused without a visit is held up by it.
    other = asyncio.create_task((await market.agent()).post(stall.url))
    assert (await agents[0].buy("http://localhost:9/"))["status"] == "rejected"
    stall.open.set()
    assert made(await other)["status"] in ("presented", "paid")
    answers = await asyncio.gather(*asked)
    taken = [made(answer) for answer in answers if answer.status_code == 201]
    assert len(taken) == 100
    # There is room again.
    assert (await agents[0].buy(stall.url))["status"] in ("presented", "paid")


async def test_what_is_signed_waits_for_nobody(market: Market, stall: Stall):
    """Goal: a purchase has its turn from the question to the payment. While as many as there may be
    are being paid for, no other is asked for, let alone signed."""
    agent = await market.agent()
    stall.paying.clear()
    tasks = [asyncio.create_task(agent.post(stall.url)) for _ in range(12)]
    await stall.until_presented(8)
    waiting = [task for task in tasks if not task.done()]
    assert (len(waiting), len(stall.asked), len(stall.presented)) == (12, 8, 8)
    stall.paying.set()
    bought = [made(task) for task in await asyncio.gather(*tasks)]
    assert {one["response"]["status"] for one in bought} == {200}
    assert (len(stall.asked), len(stall.presented)) == (12, 12)
