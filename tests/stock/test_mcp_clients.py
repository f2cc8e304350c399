"""Goal: the official clients of the Model Context Protocol do with Bursar what they are made for:
both TypeScript ones and the Python one, over HTTP and over standard input and output."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs
import pytest

from bursar.mcp.tools import TOOLS
from tests.mcp_tools.conftest import over_http, words
from tests.processes import clean_environment
from tests.stock.market import ROOT, STOCK, Market, run
from tests.support import new_account, new_agent

KITS: Final = ["sdk", "client"]
FOLDER: Final = ROOT / "tests/stock/mcp"
HOST: Final = "api.example.com"
# The newest revision of the protocol, and the newest that begins with a handshake: the only ones
# that the older kit knows.
NEWEST: Final = {"sdk": "2025-11-25", "client": "2026-07-28"}


@dataclass(frozen=True)
class Desk:
    """An agent with its key, and the key of somebody who approves."""

    market: Market
    agent_id: str
    key: str
    approver: str

    async def client(self, kit: str, calls: Sequence[Any], **more: Any) -> dict[str, Any]:
        """What an official TypeScript client saw."""
        given = {
            "kit": kit,
            "url": self.market.service.url,
            "key": self.key,
            "calls": calls,
            **more,
        }
        environment = await self.market.environment(self.key)
        node = STOCK / "x402/bin/node"
        said = await run(node, "client.mjs", json.dumps(given), cwd=FOLDER, environment=environment)
        return json.loads(said)

    @property
    def command(self) -> dict[str, Any]:
        """`bursar mcp`, as a client starts it."""
        url = self.market.service.url
        return {
            "command": sys.executable,
            "args": ["-m", "bursar.cli.main", "mcp"],
            "env": {**clean_environment(), "BURSAR_API_KEY": self.key, "BURSAR_BASE_URL": url},
        }


@pytest.fixture
async def desk(market: Market) -> Desk:
    service, account = market.service, new_account()
    async with await service.admin(account=account) as admin:
        policy = {"dailyCap": "20", "approvalThreshold": "5", "allowlist": ["127.0.0.1", HOST]}
        agent = await new_agent(admin, policy=policy)
        path = f"/v1/test/wallets/{agent['id']}/fund"
        assert (await admin.post(path, json={"amount": "50"})).status_code == 201
    return Desk(
        market,
        agent["id"],
        await service.key(account=account, scope="agent", agent_id=agent["id"]),
        await service.key(account=account, scope="approver"),
    )


def purchase(amount: str, key: str, **more: Any) -> dict[str, Any]:
    return {"amount": amount, "recipient": HOST, "idempotencyKey": key, **more}


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("kit", KITS)
async def test_a_client_spends_and_buys(desk: Desk, kit: str, transport: str):
    """Goal: the newest revision that it knows, every tool with its schemas, answers that fit them,
    and the policy."""
    calls: list[Any] = [
        ["get_budget", {}],
        ["list_recipients", {}],
        ["preview_spend", {"amount": "6", "recipient": HOST}],
        ["spend", purchase("3", "order-1", waitSeconds=20)],
        ["list_transactions", {}],
        ["buy", {"url": desk.market.shop, "waitSeconds": 20}],
        ["spend", purchase("90", "order-2")],
    ]
    more = {"command": desk.command} if transport == "stdio" else {}
    saw = await desk.client(kit, calls, **more)
    assert saw["version"] == NEWEST[kit]
    assert [tool["name"] for tool in saw["tools"]] == list(TOOLS)
    schemas = {tool["name"]: tool["outputSchema"] for tool in saw["tools"]}
    for (name, _), answer in zip(calls, saw["answers"], strict=True):
        assert not answer.get("isError"), answer
        jsonschema_rs.validate(schemas[name], answer["structuredContent"])
    budget, recipients, preview, paid, listed, bought, refused = (
        answer["structuredContent"] for answer in saw["answers"]
    )
    assert (budget["maxAmountNow"], budget["maxWithoutApproval"]) == ("20.000000", "5.000000")
    assert recipients["allowlist"] == ["127.0.0.1", HOST]
    assert preview["status"] == "pending"
    assert paid["status"] == "settled"
    assert [row["id"] for row in listed["transactions"]] == [paid["id"]]
    assert (bought["status"], bought["response"]["status"]) == ("paid", 200)
    assert refused["rejectCode"] == "daily_cap_exceeded"
    assert [resource["uri"] for resource in saw["resources"]] == ["bursar://policy"]
    policy = json.loads(saw["policy"]["contents"][0]["text"])
    assert (policy["dailyCap"], policy["approvalThreshold"]) == ("20.00", "5.00")


@pytest.mark.parametrize(
    ("kit", "transport"), [("client", "http"), ("client", "stdio"), ("sdk", "stdio")]
)
async def test_a_person_is_led_to_the_console(desk: Desk, kit: str, transport: str):
    """Goal: the client opens the page; the person approves there, and the call ends with the money
    paid."""
    more = {"command": desk.command} if transport == "stdio" else {}
    decide = {"how": "approve", "key": desk.approver}
    saw = await desk.client(kit, [["spend", purchase("6", "order-1")]], decide=decide, **more)
    (asked,), (answer,) = saw["asked"], saw["answers"]
    fields = answer["structuredContent"]
    url = desk.market.service.url
    assert (asked["mode"], asked["url"]) == ("url", f"{url}/console/transactions/{fields['id']}")
    assert fields["status"] == "settled"


async def test_a_client_without_a_way_back_tells_the_page(desk: Desk):
    """Goal: over HTTP the older kit cannot be asked in the middle of a call."""
    decide = {"how": "approve", "key": desk.approver}
    saw = await desk.client("sdk", [["spend", purchase("6", "order-1")]], decide=decide)
    (answer,) = saw["answers"]
    assert saw["asked"] == []
    assert answer["structuredContent"]["status"] == "pending"
    assert f"{desk.market.service.url}/console/transactions/txn_" in answer["content"][0]["text"]


MISTAKES: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("spend", {"amount": "1", "recipient": HOST}, "idempotencyKey is required"),
    ("spend", {**purchase("1", "k"), "amount": 1}, "amount must be"),
    ("spend", purchase("-1", "k"), "amount"),
    ("spend", {**purchase("1", "k"), "recipient": f"https://{HOST}/pay"}, "recipient"),
    ("spend", {"amonut": "1", "recipient": HOST, "idempotencyKey": "k"}, "Did you mean amount?"),
    ("spend", purchase("2", "order-1"), "idempotency_key_reused"),
    ("get_budget", {"agentId": "ag_" + "0" * 26}, "not_found"),
    ("get_transaction", {"id": "txn_" + "0" * 26}, "not_found"),
    ("list_transactions", {"limit": 1000}, "limit"),
    ("list_transactions", {"from": "2026-11-30", "to": "2026-11-01"}, "from"),
    ("buy", {"url": "ftp://example.com/"}, "url"),
    ("retry_purchase", {"id": "pur_" + "0" * 26}, "not_found"),
]


async def test_every_client_shows_the_same_words_for_a_mistake(desk: Desk):
    """Goal: what a model is told of its mistake does not depend on the client that it lives in."""
    calls = [(name, arguments) for name, arguments, _ in MISTAKES]
    async with over_http(desk.market.service.url, desk.key) as client:
        await client.call_tool("spend", purchase("1", "order-1"))
        python = [await client.call_tool(name, arguments) for name, arguments in calls]
    said = [words(answer) for answer in python]
    assert all(answer.is_error for answer in python)
    for text, (_, _, expected) in zip(said, MISTAKES, strict=True):
        assert text.startswith("Error ")
        assert expected in text
    assert len(MISTAKES) >= 10
    for kit in KITS:
        answers = (await desk.client(kit, calls))["answers"]
        assert all(answer["isError"] for answer in answers)
        assert [answer["content"][0]["text"] for answer in answers] == said
