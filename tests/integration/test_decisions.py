"""Decisions over HTTP: each refusal and what it tells, preview, waiting, approval and its end."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import httpx
import pytest

from bursar.clock import SystemClock
from bursar.config import Mode
from bursar.service.api import Api
from bursar.spend.approve import expire_spends
from tests.processes import until
from tests.support import ON_CURVE, Service, error_of, events_of, new_account, new_agent, spend

HOST: Final = "api.example.com"
OTHER_ADDRESS: Final = "So11111111111111111111111111111111111111112"
Agent = dict[str, Any]
Change = Callable[[httpx.AsyncClient, Agent], Awaitable[None]]


async def read(client: httpx.AsyncClient, path: str, **query: str) -> Any:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def change(client: httpx.AsyncClient, agent: Agent, **body: Any) -> None:
    answer = await client.patch(f"/v1/agents/{agent['id']}", json=body)
    assert answer.status_code == 200, answer.text


async def preview(client: httpx.AsyncClient, agent: Agent, amount: str, **fields: Any) -> Any:
    body = {"agentId": agent["id"], "amount": amount, "recipient": HOST, **fields}
    answer = await client.post("/v1/spend/preview", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def rows_of(service: Service, agent: Agent) -> dict[str, Any]:
    """Everything a spend may leave behind, counted; and the wallet row itself."""
    async with service.db.connection() as tx:
        counts = {
            table: await tx.fetchval(f"SELECT count(*) FROM {table} WHERE agent_id = $1", a)
            for table in (
                "spend", "event", "transfer", "usage", "spend_total", "total_delta", "payment"
            )
            for a in (agent["id"],)
        }  # fmt: skip
        counts["idempotency"] = await tx.fetchval(
            "SELECT count(*) FROM idempotency JOIN agent USING (realm_id) WHERE agent.id = $1",
            agent["id"],
        )
        row = await tx.fetchrow("SELECT * FROM wallet WHERE agent_id = $1", agent["id"])
    return {**counts, "wallet": dict(row or {})}


async def transactions_of(service: Service, agent: Agent) -> list[tuple[str, Any]]:
    """What was told of the agent's transactions."""
    async with service.db.connection() as tx:
        rows = await events_of(tx, agent["id"])
    return [(row.type, json.loads(row.data)) for row in rows if row.type.startswith("transaction.")]


# Each code ----------------------------------------------------------------------------------------


async def terminated(client: httpx.AsyncClient, agent: Agent) -> None:
    await client.delete(f"/v1/agents/{agent['id']}")


async def paused(client: httpx.AsyncClient, agent: Agent) -> None:
    await change(client, agent, status="paused")


def policy(**fields: Any) -> Change:
    async def apply(client: httpx.AsyncClient, agent: Agent) -> None:
        await change(client, agent, policy=fields)

    return apply


# (code, mode, what is done before, amount, recipient, failing rules). The agent has a cap of 100,
# 50 in its wallet, and may pay anybody below example.com.
CASES: Final[list[tuple[str, Mode, Change, str, str, list[str]]]] = [
    ("agent_terminated", "test", terminated, "1", HOST, ["agent_status"]),
    ("agent_paused", "test", paused, "1", HOST, ["agent_status"]),
    ("policy_frozen", "test", policy(frozen=True), "1", HOST, ["policy_frozen"]),
    ("recipient_blocked", "test", policy(blocklist=[HOST]), "1", HOST, ["blocklist"]),
    ("recipient_not_allowed", "test", policy(), "1", "example.com", ["allowlist"]),
    ("recipient_not_allowed", "test", policy(), "1", ON_CURVE, ["allowlist"]),
    ("recipient_not_allowed", "test", policy(allowlist=[]), "1", HOST, ["allowlist"]),
    ("recipient_unresolved", "live", policy(), "1", HOST, ["recipient_resolved"]),
    (
        "per_transaction_cap_exceeded",
        "test",
        policy(perTransactionCap="5.00"),
        "5.000001",
        HOST,
        ["per_transaction_cap"],
    ),
    ("daily_cap_exceeded", "test", policy(dailyCap="40"), "40.000001", HOST, ["daily_cap"]),
    ("daily_cap_exceeded", "test", policy(dailyCap="0"), "0.000001", HOST, ["daily_cap"]),
    ("daily_cap_exceeded", "test", policy(), "100.000001", HOST, ["daily_cap", "funds"]),
    ("insufficient_funds", "test", policy(), "50.000001", HOST, ["funds"]),
]


@pytest.mark.parametrize(("code", "mode", "before", "amount", "recipient", "rules"), CASES)
async def test_each_refusal_is_an_answer_that_explains_itself(
    service: Service,
    code: str,
    mode: Mode,
    before: Change,
    amount: str,
    recipient: str,
    rules: list[str],
):
    """Stored, listed, fired, and the same in preview; nothing is reserved."""
    async with await service.admin(mode=mode) as client:
        agent = await new_agent(client, policy={"allowlist": ["*.example.com"]})
        await service.fund(agent["id"], "50")
        await before(client, agent)
        foreseen = await preview(client, agent, amount, recipient=recipient)
        made = await spend(client, agent["id"], amount, recipient=recipient)
        assert (made["status"], made["rejectCode"]) == ("rejected", code)
        checks = made["decision"]["checks"]
        assert [c["rule"] for c in checks if c["outcome"] == "fail"] == rules
        assert [c["rule"] for c in checks] == [
            "account_stopped", "agent_status", "policy_frozen", "blocklist", "allowlist",
            "recipient_resolved", "per_transaction_cap", "daily_cap", "network_cost",
            "pending_count", "funds", "approval_threshold",
        ]  # fmt: skip
        assert foreseen == {name: made[name] for name in foreseen}
        for name in ("signature", "blockTime", "settledAt", "expiresAt", "decidedBy", "decidedAt"):
            assert made[name] is None
        assert await read(client, f"/v1/transactions/{made['id']}") == made
        assert await read(client, "/v1/transactions") == [made]
        assert await transactions_of(service, agent) == [("transaction.rejected", made)]
        wallet = await read(client, f"/v1/wallets/{agent['id']}")
        assert (wallet["balance"], wallet["reserved"]) == ("50.000000", "0.000000")
        # What it says would pass is what passes.
        most = made["decision"]["maxAmountNow"]
        if most != "0.000000":
            again = await spend(client, agent["id"], most, recipient=recipient)
            assert again["status"] == "approved"


async def test_the_wallets_own_address_is_never_allowed(service: Service):
    """Neither by its address, nor through a hostname that the directory points back at it."""
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"allowlist": ["*"]})
        await service.fund(agent["id"], "50")
        own = agent["wallet"]["address"]
        made = await spend(client, agent["id"], "1", recipient=own)
        assert (made["rejectCode"], made["payTo"]) == ("recipient_not_allowed", own)
        await client.put(f"/v1/recipients/{HOST}", json={"address": own})
        assert (await spend(client, agent["id"], "1"))["rejectCode"] == "recipient_not_allowed"
        assert (await spend(client, agent["id"], "1", recipient=ON_CURVE))["status"] == "approved"


async def test_a_wildcard_allows_all_below_and_not_the_apex(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"allowlist": ["*.Example.com"]})
        await service.fund(agent["id"], "50")
        for recipient, status in (
            ("api.example.com", "approved"),
            ("a.b.example.com", "approved"),
            ("example.com", "rejected"),
            ("notexample.com", "rejected"),
        ):
            made = await spend(client, agent["id"], "1", recipient=recipient)
            assert (made["recipient"], made["status"]) == (recipient, status)


async def test_the_earlier_reason_wins_and_all_are_shown(service: Service):
    async with await service.admin(mode="live") as client:
        agent = await new_agent(
            client,
            policy={
                "dailyCap": "1",
                "perTransactionCap": "0.5",
                "approvalThreshold": "0.1",
                "dailyNetworkLamports": 0,
            },
        )
        steps: list[tuple[str, Change]] = [
            ("recipient_unresolved", policy()),
            ("recipient_not_allowed", policy(allowlist=[])),
            ("recipient_blocked", policy(blocklist=["*"])),
            ("policy_frozen", policy(frozen=True)),
            ("agent_paused", paused),
            ("agent_terminated", terminated),
        ]
        for code, apply in steps:
            await apply(client, agent)
            made = await spend(client, agent["id"], "2")
            assert (made["status"], made["rejectCode"]) == ("rejected", code)
        made = await spend(client, agent["id"], "2")
        passed = [c["rule"] for c in made["decision"]["checks"] if c["outcome"] != "fail"]
        # Nothing waits, and `docs/stop.md` is about the other.
        assert passed == ["account_stopped", "pending_count"]
        assert made["decision"]["maxAmountNow"] == "0.000000"
        assert made["decision"]["retryAt"] is None


# Preview, budget, bodies --------------------------------------------------------------------------


async def test_preview_is_what_authorise_answers_and_leaves_no_trace(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(
            client, policy={"approvalThreshold": "5.00", "perTransactionCap": "20.00"}
        )
        await service.fund(agent["id"], "50")
        for amount, status in (("5", "approved"), ("5.000001", "pending"), ("21", "rejected")):
            before = await rows_of(service, agent)
            foreseen = await preview(client, agent, amount, memo="x", metadata={"a": "b"})
            assert await rows_of(service, agent) == before
            assert set(foreseen) == {"status", "rejectCode", "policyVersion", "payTo", "decision"}
            made = await spend(client, agent["id"], amount)
            assert made["status"] == status
            assert foreseen == {name: made[name] for name in foreseen}
            shown = await read(client, f"/v1/agents/{agent['id']}/budget")
            for name in ("remainingToday", "maxAmountNow", "maxWithoutApproval"):
                assert shown[name] == made["decision"][name]
            wallet = await read(client, f"/v1/wallets/{agent['id']}")
            assert shown["available"] == wallet["available"]
        assert [type_ for type_, _ in await transactions_of(service, agent)] == [
            "transaction.approved", "transaction.pending", "transaction.rejected"
        ]  # fmt: skip


async def test_the_budget_tells_what_one_spend_may_be(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "30.00"})
        path = f"/v1/agents/{agent['id']}/budget"
        assert (await read(client, path))["maxAmountNow"] == "0.000000"
        await service.fund(agent["id"], "20")
        shown = await read(client, path)
        assert datetime.fromisoformat(shown.pop("resetsAt")).hour == 0
        assert shown == {
            "dailyCap": "30.00",
            "spentToday": "0.000000",
            "spentTodayBy": {"settled": "0.000000", "onItsWay": "0.000000", "waiting": "0.000000"},
            "remainingToday": "30.000000",
            "reserved": "0.000000",
            "available": "20.000000",
            "maxAmountNow": "20.000000",
            "maxWithoutApproval": "20.000000",
            "approvalThreshold": None,
            "allowlist": agent["policy"]["allowlist"],
            "status": "active",
            "accountStopped": False,
            "budgetFrozen": False,
            "frozen": False,
            "policyVersion": 1,
            "dailyNetworkLamports": 100_000_000,
            "networkLamportsToday": 0,
            "limits": [],
        }
        await change(client, agent, policy={"perTransactionCap": "7"})
        assert (await read(client, path))["maxAmountNow"] == "7.000000"
        await change(client, agent, policy={"frozen": True})
        shown = await read(client, path)
        assert (shown["maxAmountNow"], shown["remainingToday"]) == ("0.000000", "30.000000")
        assert (shown["frozen"], shown["policyVersion"]) == (True, 3)
        await change(client, agent, status="paused", policy={"frozen": False})
        shown = await read(client, path)
        assert (shown["maxAmountNow"], shown["status"]) == ("0.000000", "paused")


async def test_an_agent_key_spends_for_its_own_agent_only(service: Service):
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent, other = await new_agent(admin), await new_agent(admin)
        await service.fund(agent["id"], "50")
        key = await service.key(account=account, scope="agent", agent_id=agent["id"])
        async with service.client(key) as client:
            body = {"amount": "1", "recipient": HOST}
            for path, status in (("/v1/spend/preview", 200), ("/v1/spend/authorise", 201)):
                answer = await client.post(path, json=body)
                assert answer.status_code == status, answer.text
                answer = await client.post(path, json={**body, "agentId": agent["id"]})
                assert answer.status_code == status, answer.text
                for unknown in (other["id"], "ag_nobody", "x"):
                    answer = await client.post(path, json={**body, "agentId": unknown})
                    error_of(answer, 404, "not_found")
            assert {t["agentId"] for t in await read(client, "/v1/transactions")} == {agent["id"]}
            error_of(await client.get(f"/v1/agents/{other['id']}/budget"), 404, "not_found")
        for path in ("/v1/spend/preview", "/v1/spend/authorise"):
            error = error_of(await admin.post(path, json=body), 400, "validation_error")
            assert [d["param"] for d in error["details"]] == ["agentId"]


async def test_no_spend_comes_of_a_malformed_request_or_an_unknown_agent(service: Service):
    async with await service.admin() as client, await service.admin() as stranger:
        agent = await new_agent(client)
        await service.fund(agent["id"], "50")
        good: dict[str, Any] = {"agentId": agent["id"], "amount": "1", "recipient": HOST}
        bad: list[tuple[dict[str, Any], str]] = [
            ({"amount": 1}, "amount"),
            ({"amount": "0"}, "amount"),
            ({"amount": "1.0000001"}, "amount"),
            ({"amount": "-1"}, "amount"),
            ({"amount": "1e3"}, "amount"),
            ({"amount": "1000000000000"}, "amount"),
            ({"recipient": "localhost"}, "recipient"),
            ({"recipient": "https://api.example.com"}, "recipient"),
            ({"recipient": "10.0.0.1"}, "recipient"),
            ({"currency": "EUR"}, "currency"),
            ({"currency": "usdc"}, "currency"),
            ({"currency": None}, "currency"),
            ({"memo": "x" * 201}, "memo"),
            ({"memo": 5}, "memo"),
            ({"metadata": {"k" * 41: "v"}}, f"metadata.{'k' * 40}"),
            ({"metadata": {"": "v"}}, "metadata."),
            ({"metadata": {"k": "v" * 501}}, "metadata.k"),
            ({"metadata": {"k": 1}}, "metadata.k"),
            ({"metadata": {str(n): "v" for n in range(51)}}, "metadata"),
            ({"memmo": "x"}, "memmo"),
        ]
        for wrong, param in bad:
            for path in ("/v1/spend/authorise", "/v1/spend/preview"):
                answer = await client.post(path, json={**good, **wrong})
                error = error_of(answer, 400, "validation_error")
                assert [d["param"] for d in error["details"]] == [param], wrong
        error_of(await stranger.post("/v1/spend/authorise", json=good), 404, "not_found")
        assert await read(client, "/v1/transactions") == []
        # Fifty pairs with the longest keys, some with the longest value: just below 8 KiB in all.
        metadata = {f"{n:040}": "v" * (500 if n < 8 else 40) for n in range(50)}
        made = await spend(
            client, agent["id"], "1", currency="USDC", memo="é" * 200, metadata=metadata
        )
        assert (made["memo"], made["metadata"], made["currency"]) == (
            "é" * 200, metadata, "USDC"
        )  # fmt: skip
        assert await read(client, f"/v1/transactions/{made['id']}") == made
        empty = await spend(client, agent["id"], "1", memo=None)
        assert (empty["memo"], empty["metadata"]) == (None, {})


async def test_a_recipient_is_stored_shown_and_found_in_its_canonical_form(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"allowlist": ["bücher.example.com", ON_CURVE]})
        await service.fund(agent["id"], "50")
        canonical = "xn--bcher-kva.example.com"
        spellings = (
            "BÜCHER.example.COM",
            "bücher.example.com.",
            canonical,
            "bu\u0308cher.example.com",
        )
        made = [await spend(client, agent["id"], "1", recipient=text) for text in spellings]
        assert {(m["recipient"], m["status"]) for m in made} == {(canonical, "approved")}
        for text in spellings:
            assert len(await read(client, "/v1/transactions", recipient=text)) == 4
        # Base58 is case-sensitive: an address stays as it is.
        paid = await spend(client, agent["id"], "1", recipient=ON_CURVE)
        assert (paid["recipient"], paid["payTo"]) == (ON_CURVE, ON_CURVE)


async def test_the_test_address_of_a_hostname_is_the_same_everywhere(service: Service):
    """Derived from the hostname alone: other accounts and other installations see the same."""
    seen: set[str] = set()
    for _ in range(2):
        async with await service.admin() as client:
            agent = await new_agent(client)
            await service.fund(agent["id"], "50")
            seen.add((await spend(client, agent["id"], "1"))["payTo"])
            seen.add((await spend(client, agent["id"], "1", recipient="API.EXAMPLE.COM."))["payTo"])
    assert seen == {"DVX9E2FV8EYG1bD7uWhSGpiBpDdaT6JWH6XAuJrAL2C8"}


# Events -------------------------------------------------------------------------------------------


async def test_every_move_of_a_spend_fires_the_whole_transaction(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await service.fund(agent["id"], "50")
        approved = await spend(client, agent["id"], "1")
        refused = await spend(client, agent["id"], "100")
        first = await spend(client, agent["id"], "6")
        second = await spend(client, agent["id"], "7")
        third = await spend(client, agent["id"], "8")
        fired = [
            ("transaction.approved", approved),
            ("transaction.rejected", refused),
            *(("transaction.pending", made) for made in (first, second, third)),
        ]
        yes = await client.post(f"/v1/transactions/{first['id']}/approve", json={"reason": "ok"})
        no = await client.post(f"/v1/transactions/{second['id']}/deny")
        await client.delete(f"/v1/agents/{agent['id']}")
        fired.append(("transaction.approved", yes.json()["data"]))
        fired.append(("transaction.rejected", no.json()["data"]))
        ended = await read(client, f"/v1/transactions/{third['id']}")
        assert ended["rejectCode"] == "agent_terminated"
        fired.append(("transaction.rejected", ended))

        def by_id(events: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
            return sorted(events, key=lambda e: (e[1]["id"], e[1]["status"]))

        assert by_id(await transactions_of(service, agent)) == by_id(fired)


# Prefer: wait -------------------------------------------------------------------------------------


async def test_prefer_wait_returns_at_once_for_a_refusal(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client)
        started = time.monotonic()
        made = await spend(client, agent["id"], "1", headers={"Prefer": "wait=20"})
        assert made["rejectCode"] == "insufficient_funds"
        assert time.monotonic() - started < 5


async def test_prefer_wait_answers_as_it_stands_after_the_time(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client)
        await service.fund(agent["id"], "50")
        started = time.monotonic()
        made = await spend(client, agent["id"], "1", headers={"Prefer": "wait=1"})
        assert made["status"] == "approved"
        assert 1 <= time.monotonic() - started < 5
        assert await read(client, f"/v1/transactions/{made['id']}") == made


async def test_a_transaction_can_be_waited_for(service: Service):
    """Goal: who looks is told as soon as it has ended; another agent's stays out of sight."""
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "0"})
        await service.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "1")
        path = f"/v1/transactions/{made['id']}"
        started = time.monotonic()
        assert (await client.get(path, headers={"Prefer": "wait=1"})).json()["data"] == made
        assert time.monotonic() - started >= 1
        looking = asyncio.create_task(client.get(path, headers={"Prefer": "wait=25"}))
        denied = await client.post(f"{path}/deny")
        started = time.monotonic()
        assert (await looking).json() == denied.json()
        # It has ended, so there is nothing to wait for.
        assert (await client.get(path, headers={"Prefer": "wait=25"})).json() == denied.json()
        assert time.monotonic() - started < 5
    async with await service.admin() as stranger:
        answer = await stranger.get(path, headers={"Prefer": "wait=25"})
        error_of(answer, 404, "not_found")


async def test_the_budget_says_how_far_todays_spends_came(service: Service):
    """Goal: the parts add up, and an agent knows what passes without a person."""
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "30", "approvalThreshold": "4"})
        await service.fund(agent["id"], "50")
        path = f"/v1/agents/{agent['id']}/budget"
        await spend(client, agent["id"], "3")
        waiting = await spend(client, agent["id"], "6")
        shown = await read(client, path)
        assert shown["spentToday"] == "9.000000"
        by = shown["spentTodayBy"]
        assert by["waiting"] == "6.000000"
        assert {by["settled"], by["onItsWay"]} == {"0.000000", "3.000000"}
        assert (shown["maxAmountNow"], shown["maxWithoutApproval"]) == ("21.000000", "4.000000")
        assert shown["approvalThreshold"] == "4.00"
        await client.post(f"/v1/transactions/{waiting['id']}/cancel")
        shown = await read(client, path)
        assert (shown["spentToday"], shown["spentTodayBy"]["waiting"]) == ("3.000000", "0.000000")
        refused = await spend(client, agent["id"], "40")
        assert refused["decision"]["maxAmountNow"] == "27.000000"
        assert refused["decision"]["maxWithoutApproval"] == "4.000000"


async def test_everyone_who_waits_hears_of_the_end_however_long_others_wait(service: Service):
    """A short wait that is over must not end a longer one for the same spend."""
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "0"})
        await service.fund(agent["id"], "50")
        key = {"Idempotency-Key": "one"}
        long = asyncio.create_task(
            spend(client, agent["id"], "1", headers={**key, "Prefer": "wait=25"})
        )

        async def is_there() -> bool:
            return bool(await read(client, "/v1/transactions"))

        await until(is_there, seconds=10)
        short = await spend(client, agent["id"], "1", headers={**key, "Prefer": "wait=1"})
        assert short["status"] == "pending"
        assert not long.done()
        denied = await client.post(f"/v1/transactions/{short['id']}/deny")
        started = time.monotonic()
        assert await long == denied.json()["data"]
        assert time.monotonic() - started < 5


# Approval -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def hasty(service: Service) -> AsyncGenerator[Service]:
    """The same service in a second process' place: pending spends end after a second."""
    api = await Api.start(replace(service.config, approval_seconds=1), SystemClock())
    try:
        yield replace(service, url=f"http://127.0.0.1:{api.port}")
    finally:
        await api.stop()


async def test_a_pending_spend_that_nobody_decides_expires(hasty: Service):
    """From `expiresAt` on it cannot be approved; then it is rejected and gives all back."""
    async with await hasty.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await hasty.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "6")
        lasts = datetime.fromisoformat(made["expiresAt"]) - datetime.fromisoformat(
            made["createdAt"]
        )
        assert lasts.total_seconds() == 1
        path = f"/v1/transactions/{made['id']}"

        async def is_over() -> bool:
            asof = (await read(client, f"/v1/wallets/{agent['id']}/balance"))["asOf"]
            return asof >= made["expiresAt"]

        await until(is_over, seconds=10)
        error = error_of(await client.post(f"{path}/approve"), 409, "invalid_state")
        assert "expired" in error["message"]
        assert (await read(client, path))["status"] == "pending"
        await expire_spends(hasty.db)
        ended = await read(client, path)
        assert (ended["status"], ended["rejectCode"]) == ("rejected", "approval_expired")
        assert ended["decidedAt"] >= ended["expiresAt"]
        assert (await transactions_of(hasty, agent))[-1] == ("transaction.rejected", ended)
        shown = await read(client, f"/v1/agents/{agent['id']}/budget")
        assert (shown["spentToday"], shown["available"]) == ("0.000000", "50.000000")
        error_of(await client.post(f"{path}/deny"), 409, "invalid_state")
        await expire_spends(hasty.db)
        assert await read(client, path) == ended


async def test_an_expired_spend_can_still_be_denied(hasty: Service):
    async with await hasty.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "0"})
        await hasty.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "6", headers={"Prefer": "wait=2"})
        assert made["status"] == "pending"
        denied = await client.post(f"/v1/transactions/{made['id']}/deny")
        assert denied.json()["data"]["rejectCode"] == "approval_denied"


@pytest.mark.parametrize("mode", ["test", "live"])
async def test_approval_is_refused_once_the_directory_names_another_address(
    service: Service, mode: Mode
):
    """The address was fixed at creation; nobody approved the new one."""
    account = new_account()
    async with (
        await service.admin(mode=mode, account=account) as client,
        await service.admin(mode=mode, account=account) as asking,
    ):
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await service.fund(agent["id"], "50")
        await client.put(f"/v1/recipients/{HOST}", json={"address": ON_CURVE})
        made = await spend(asking, agent["id"], "6")
        assert (made["status"], made["payTo"]) == ("pending", ON_CURVE)
        path = f"/v1/transactions/{made['id']}"
        await client.put(f"/v1/recipients/{HOST}", json={"address": OTHER_ADDRESS})
        error = error_of(await client.post(f"{path}/approve"), 409, "invalid_state")
        assert "recipient_unresolved" in error["message"]
        await client.delete(f"/v1/recipients/{HOST}")
        error_of(await client.post(f"{path}/approve"), 409, "invalid_state")
        assert await read(client, path) == made
        # Named as before it holds again.
        await client.put(f"/v1/recipients/{HOST}", json={"address": ON_CURVE})
        approved = (await client.post(f"{path}/approve")).json()["data"]
        assert (approved["status"], approved["payTo"]) == ("approved", ON_CURVE)


@pytest.fixture(scope="module")
async def strict(service: Service) -> AsyncGenerator[Service]:
    """The same service, where nobody approves what he asked for in test mode either."""
    api = await Api.start(replace(service.config, test_self_approval=False), SystemClock())
    try:
        yield replace(service, url=f"http://127.0.0.1:{api.port}")
    finally:
        await api.stop()


async def ask_and_approve(service: Service, mode: Mode) -> None:
    """One key asks; it may not approve, may deny; another may approve."""
    account = new_account()
    approver = await service.key(account=account, mode=mode, scope="approver")
    async with (
        await service.admin(mode=mode, account=account) as client,
        service.client(approver) as other,
    ):
        agent = await new_agent(client, policy={"allowlist": [ON_CURVE], "approvalThreshold": "0"})
        await service.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "6", recipient=ON_CURVE)
        path = f"/v1/transactions/{made['id']}"
        error = error_of(await client.post(f"{path}/approve"), 403, "forbidden")
        assert "another key" in error["message"]
        assert await read(client, path) == made
        approved = (await other.post(f"{path}/approve")).json()["data"]
        assert (approved["status"], approved["createdBy"]) == ("approved", made["createdBy"])
        assert approved["decidedBy"] != made["createdBy"]
        second = await spend(client, agent["id"], "1", recipient=ON_CURVE)
        denied = await client.post(f"/v1/transactions/{second['id']}/deny")
        assert denied.json()["data"]["rejectCode"] == "approval_denied"


async def test_in_live_mode_the_key_that_asked_cannot_approve(service: Service):
    await ask_and_approve(service, "live")


async def test_a_setting_keeps_the_key_that_asked_from_approving_in_test_mode(strict: Service):
    await ask_and_approve(strict, "test")


async def test_in_test_mode_the_key_that_asked_may_approve(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"approvalThreshold": "0"})
        await service.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "6")
        approved = await client.post(f"/v1/transactions/{made['id']}/approve")
        assert approved.json()["data"]["status"] == "approved"


async def test_approval_counts_the_spends_own_amount_once(service: Service):
    """With its reservation filling the day and the wallet to the last micro-unit it passes."""
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00", "approvalThreshold": "5.00"})
        await service.fund(agent["id"], "10")
        first = await spend(client, agent["id"], "4")
        second = await spend(client, agent["id"], "6")
        assert (first["status"], second["status"]) == ("approved", "pending")
        path = f"/v1/transactions/{second['id']}"
        await change(client, agent, policy={"dailyCap": "9.99"})
        error = error_of(await client.post(f"{path}/approve"), 409, "invalid_state")
        assert "daily_cap_exceeded" in error["message"]
        await change(client, agent, policy={"dailyCap": "10", "approvalThreshold": "0"})
        answer = await client.post(f"{path}/approve", json={"reason": "fine"})
        approved = answer.json()["data"]
        assert approved["status"] == "approved"
        assert approved["decisionReason"] == "fine"
        assert approved["decidedBy"] == approved["createdBy"]
        assert approved["decidedAt"] == approved["updatedAt"] > approved["createdAt"]
        # What was decided at creation stays as it was.
        assert (approved["decision"], approved["policyVersion"]) == (
            second["decision"], second["policyVersion"]
        )  # fmt: skip


async def test_denial_gives_the_amount_back_at_once(service: Service):
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00", "approvalThreshold": "5.00"})
        await service.fund(agent["id"], "10")
        made = await spend(client, agent["id"], "10")
        assert (await spend(client, agent["id"], "1"))["rejectCode"] == "daily_cap_exceeded"
        await client.post(f"/v1/transactions/{made['id']}/deny", json={"reason": None})
        shown = await read(client, f"/v1/agents/{agent['id']}/budget")
        assert (shown["spentToday"], shown["maxAmountNow"]) == ("0.000000", "10.000000")
        assert (await spend(client, agent["id"], "5"))["status"] == "approved"


async def test_only_a_spend_of_ones_own_tenant_can_be_decided(service: Service):
    async with await service.admin() as client, await service.admin() as stranger:
        agent = await new_agent(client, policy={"approvalThreshold": "5.00"})
        await service.fund(agent["id"], "50")
        made = await spend(client, agent["id"], "6")
        for verb in ("approve", "deny"):
            for path in (f"{made['id']}/{verb}", f"txn_none/{verb}"):
                error_of(await stranger.post(f"/v1/transactions/{path}"), 404, "not_found")
        assert await read(client, f"/v1/transactions/{made['id']}") == made
