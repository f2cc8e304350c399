"""Where a person has to approve, a client that opens pages is asked to open the console's. Nothing
that a client does or answers approves anything."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitRequestURLParams, ElicitResult

from bursar.console.visit import ROOT
from bursar.mcp.tool import CONSOLE
from tests.mcp_tools.conftest import Spender, new_spender, over_http, over_stdio, words
from tests.sellers.served import selling
from tests.support import Service

Open = Callable[[Spender, "Person"], AbstractAsyncContextManager[Client]]


class Person:
    """Who sits before the client and is asked; may decide in the console before answering."""

    def __init__(
        self, action: Any, decide: Callable[[str], Awaitable[object]] | None = None
    ) -> None:
        self.asked: list[ElicitRequestURLParams] = []
        self._action = action
        self._decide = decide

    async def __call__(self, context: object, params: Any) -> ElicitResult:
        del context
        self.asked.append(params)
        if self._decide is not None:
            await self._decide(params.url.rpartition("/")[2])
        return ElicitResult(action=self._action)


def _http(spender: Spender, person: Person) -> AbstractAsyncContextManager[Client]:
    return over_http(spender.service.url, spender.key, elicitation_callback=person)


def _stdio(spender: Spender, person: Person) -> AbstractAsyncContextManager[Client]:
    return over_stdio(spender.service.url, spender.key, elicitation_callback=person)


def _stdio_before_2026(spender: Spender, person: Person) -> AbstractAsyncContextManager[Client]:
    url = spender.service.url
    return over_stdio(url, spender.key, mode="legacy", elicitation_callback=person)


@pytest.fixture
async def spender(service: Service) -> Spender:
    """Whatever is over 2 waits for a person."""
    return await new_spender(service, approvalThreshold="2.00")


def purchase(amount: str = "3", **more: Any) -> dict[str, Any]:
    return {"amount": amount, "recipient": "api.example.com", "idempotencyKey": "order-1", **more}


@pytest.mark.parametrize("connect", [_http, _stdio, _stdio_before_2026])
async def test_a_person_is_shown_the_page_and_decides_there(spender: Spender, connect: Open):
    """Goal: the answer of the call is what the person decided."""
    async with await spender.service.admin(account=spender.account) as console:

        async def deny(spend_id: str) -> None:
            answer = await console.post(f"/v1/transactions/{spend_id}/deny", json={"reason": "no"})
            assert answer.status_code == 200

        person = Person("accept", deny)
        async with connect(spender, person) as client:
            result = await client.call_tool("spend", purchase())
    (asked,) = person.asked
    fields = result.structured_content
    assert asked.url == f"{spender.service.url}/console/transactions/{fields['id']}"
    assert (asked.mode, "waits for a person's approval" in asked.message) == ("url", True)
    assert (fields["status"], fields["rejectCode"]) == ("rejected", "approval_denied")
    assert len(await spender.transactions()) == 1


@pytest.mark.parametrize("connect", [_http, _stdio, _stdio_before_2026])
async def test_a_purchase_that_a_person_denies_is_not_made_anew(served: Service, connect: Open):
    """Goal: the answer of the call is the person's no; nobody is asked for the same again."""
    spender = await new_spender(served, approvalThreshold="0", allowlist=["*"])
    async with (
        await served.admin(account=spender.account) as console,
        selling(served, "honest") as seller,
    ):

        async def deny(spend_id: str) -> None:
            answer = await console.post(f"/v1/transactions/{spend_id}/deny", json={"reason": "no"})
            assert answer.status_code == 200

        async with connect(spender, Person("accept", deny)) as client:
            result = await client.call_tool("buy", {"url": seller.url})
    fields = result.structured_content
    assert (fields["status"], fields["rejectCode"]) == ("rejected", "approval_denied")
    assert len(await spender.transactions()) == 1


@pytest.mark.parametrize(
    ("connect", "action"),
    [
        (_http, "accept"),
        (_http, "decline"),
        (_http, "cancel"),
        (_stdio, "accept"),
        (_stdio_before_2026, "decline"),
    ],
)
async def test_no_answer_of_a_client_approves(spender: Spender, connect: Open, action: str):
    """Goal: it is asked once, and without a person's decision the spend waits on."""
    person = Person(action)
    async with connect(spender, person) as client:
        result = await client.call_tool("spend", purchase(waitSeconds=1))
        again = await client.call_tool("spend", purchase(waitSeconds=1))
    assert len(person.asked) == 1
    for answer in (result, again):
        assert answer.structured_content["status"] == "pending"
        assert answer.structured_content["approvalUrl"] == person.asked[0].url
        assert person.asked[0].url in words(answer)
    assert [spend["status"] for spend in await spender.transactions()] == ["pending"]


async def test_nobody_is_asked_where_nobody_has_to(spender: Spender):
    """Goal: small spends, refusals, previews and looks open no page."""
    person = Person("accept")
    async with _http(spender, person) as client:
        for tool, arguments in (
            ("spend", purchase("2")),
            ("spend", {**purchase("99"), "idempotencyKey": "order-2"}),
            ("preview_spend", {"amount": "3", "recipient": "api.example.com"}),
            ("get_budget", {}),
        ):
            assert not (await client.call_tool(tool, arguments)).is_error
    assert person.asked == []


async def test_without_a_way_to_ask_the_words_have_the_page(spender: Spender):
    """Goal: revisions with a handshake have no way back over HTTP, so the model tells its user."""
    person = Person("accept")
    url, key = spender.service.url, spender.key
    async with over_http(url, key, mode="legacy", elicitation_callback=person) as client:
        result = await client.call_tool("spend", purchase())
    assert person.asked == []
    assert f"decides at {url}/console/transactions/txn_" in words(result)


@pytest.mark.parametrize("host", ["a b", "evil.example/console?", "u@evil.example", "evil:1:2"])
async def test_no_page_is_made_of_a_strange_host(spender: Spender, host: str):
    """Goal: what a client says of itself never becomes another link."""
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "spend", "arguments": purchase()},
    }
    async with spender.service.client(spender.key) as client:
        answer = await client.post("/mcp", json=message, headers={"host": host})
    assert host not in answer.text
    if answer.status_code == 200:
        assert answer.json()["result"]["structuredContent"]["approvalUrl"] is None


def test_the_page_is_the_consoles():
    assert CONSOLE == ROOT
