"""Stopping every agent of an account, and letting them go on."""

import asyncio
from typing import Any

import httpx

from tests.integration.test_decisions import preview, read
from tests.support import Service, error_of, new_account, new_agent, spend

STOP = {"reason": "an agent pays the wrong host"}
PAY = {"unsigned": "pay"}


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def funded(service: Service, client: httpx.AsyncClient, **policy: Any) -> dict[str, Any]:
    agent = await new_agent(client, policy=policy)
    await service.fund(agent["id"], "50")
    return agent


async def test_everything_is_refused_until_an_admin_resumes(service: Service):
    """Goal: spends, previews, budgets and /me say so, the code comes first, and all is as before
    once it is over."""
    async with await service.admin() as client:
        first, second = [await funded(service, client) for _ in range(2)]
        await client.patch(f"/v1/agents/{second['id']}", json={"status": "paused"})
        assert (await read(client, "/v1/me"))["stop"] is None
        stopped = await post(client, "/v1/stop", STOP)
        assert stopped["reason"] == STOP["reason"]
        assert stopped["alsoUnsigned"] is False
        assert stopped["stoppedBy"] == (await read(client, "/v1/me"))["id"]
        assert (await read(client, "/v1/me"))["stop"] == stopped

        for agent in (first, second):
            made = await spend(client, agent["id"], "1")
            assert (made["status"], made["rejectCode"]) == ("rejected", "account_stopped")
            assert made["decision"]["maxAmountNow"] == "0.000000"
            assert made["decision"]["retryAt"] is None
            check = made["decision"]["checks"][0]
            assert check == {
                "rule": "account_stopped", "outcome": "fail", "limit": "false", "observed": "true",
            }  # fmt: skip
        assert (await preview(client, first, "1"))["rejectCode"] == "account_stopped"
        budget = await read(client, f"/v1/agents/{first['id']}/budget")
        assert (budget["maxAmountNow"], budget["accountStopped"]) == ("0.000000", True)

        resumed = await post(client, "/v1/resume", PAY)
        assert {name: resumed[name] for name in stopped} == stopped
        assert (resumed["unsigned"], resumed["cancelled"]) == ("pay", 0)
        assert (await read(client, "/v1/me"))["stop"] is None
        assert (await spend(client, first["id"], "1"))["status"] == "approved"
        assert (await spend(client, second["id"], "1"))["rejectCode"] == "agent_paused"


async def test_the_other_mode_and_other_accounts_go_on(service: Service):
    """Goal: a stop is of one account in one mode, and a new agent of it is stopped, too."""
    account = new_account()
    async with (
        await service.admin(account=account) as test,
        await service.admin(account=account, mode="live") as live,
        await service.admin() as other,
    ):
        await post(live, "/v1/stop", STOP)
        for client in (test, other):
            agent = await funded(service, client)
            assert (await spend(client, agent["id"], "1"))["status"] == "approved"
            assert (await read(client, "/v1/me"))["stop"] is None
        late = await funded(service, live)
        assert (await spend(live, late["id"], "1"))["rejectCode"] == "account_stopped"


async def test_who_may(service: Service):
    """Goal: approvers stop and admins resume; agents see the stop and cannot touch it."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent = await new_agent(admin)
        clients = {
            scope: service.client(
                await service.key(
                    account=account, scope=scope, agent_id=agent["id"] if scope == "agent" else None
                )
            )
            for scope in ("approver", "agent", "read")
        }
        for scope in ("agent", "read"):
            error_of(await clients[scope].post("/v1/stop", json=STOP), 403, "forbidden")
        await post(clients["approver"], "/v1/stop", STOP)
        for client in clients.values():
            error_of(await client.post("/v1/resume", json=PAY), 403, "forbidden")
            assert (await read(client, "/v1/me"))["stop"]["reason"] == STOP["reason"]
            await client.aclose()
        await post(admin, "/v1/resume", PAY)


async def test_stopping_twice_loosens_nothing(service: Service):
    """Goal: a second stop changes nothing; one that holds more does, and the first stays its
    beginning. What is not stopped cannot be resumed."""
    async with await service.admin() as client:
        error_of(await client.post("/v1/resume", json=PAY), 409, "invalid_state")
        first = await post(client, "/v1/stop", STOP)
        assert await post(client, "/v1/stop", {"reason": "again"}) == first
        more = await post(client, "/v1/stop", {"reason": "worse", "alsoUnsigned": True})
        assert more == {**first, "reason": "worse", "alsoUnsigned": True}
        assert await post(client, "/v1/stop", {"reason": "again"}) == more
        await post(client, "/v1/resume", PAY)
        error_of(await client.post("/v1/resume", json=PAY), 409, "invalid_state")
        told = await read(client, "/v1/events")
        assert [event["type"] for event in told] == [
            "account.resumed", "account.stopped", "account.stopped", "key.created",
        ]  # fmt: skip
        assert told[1]["data"] == more
        lines = await read(client, "/v1/audit-log")
        kept = [(line["action"], line["before"], line["after"]) for line in lines]
        assert kept[1:3] == [("account.stopped", first, more), ("account.stopped", None, first)]
        assert kept[0] == ("account.resumed", more, told[0]["data"])


async def test_what_is_wrong_with_it_is_said(service: Service):
    """Goal: a stop needs a reason, a resume its word, and neither takes anything else."""
    async with await service.admin() as client:
        for body in ({}, {"reason": " "}, {"reason": "x" * 501}, {"reason": 7}):
            answer = await client.post("/v1/stop", json=body)
            assert error_of(answer, 400, "validation_error")["param"] == "reason"
        for body in ({}, {"unsigned": "both"}, {"unsigned": None}):
            answer = await client.post("/v1/resume", json=body)
            assert error_of(answer, 400, "validation_error")["param"] == "unsigned"
        answer = await client.post("/v1/stop", json={**STOP, "alsoUnsinged": True})
        assert "alsoUnsigned" in error_of(answer, 400, "validation_error")["message"]
        assert (await read(client, "/v1/me"))["stop"] is None


async def test_a_stop_is_never_rate_limited(service: Service):
    """Goal: a key that has used up the limit of its kind still stops, and a stop uses up none."""
    async with await service.admin(mode="live") as client:
        while True:
            answers = await asyncio.gather(
                *(client.post("/v1/resume", json={}) for _ in range(100))
            )
            if any(answer.status_code == 429 for answer in answers):
                break
        error_of(await client.post("/v1/resume", json={}), 429, "rate_limit_exceeded")
        assert int(answers[0].headers["ratelimit-limit"]) == 120
        for _ in range(5):
            answer = await client.post("/v1/stop", json=STOP)
            assert answer.status_code == 200
            assert "ratelimit-limit" not in answer.headers
        assert (await read(client, "/v1/me"))["stop"] is not None


async def test_a_repeated_stop_answers_the_same(service: Service):
    """Goal: with its idempotency key a retry after the resume does not stop again."""
    async with await service.admin() as client:
        headers = {"Idempotency-Key": "stop-1"}
        first = await client.post("/v1/stop", json=STOP, headers=headers)
        await post(client, "/v1/resume", PAY)
        again = await client.post("/v1/stop", json=STOP, headers=headers)
        assert again.json() == first.json()
        assert again.headers["idempotent-replayed"] == "true"
        assert (await read(client, "/v1/me"))["stop"] is None


async def test_nobody_approves_while_it_stands(service: Service):
    """Goal: a pending spend stays pending, naming the code; it can be denied and cancelled."""
    async with await service.admin() as client:
        agent = await funded(service, client, approvalThreshold="0.00")
        denied, cancelled, approved = [await spend(client, agent["id"], "1") for _ in range(3)]
        await post(client, "/v1/stop", STOP)
        for one in (denied, cancelled, approved):
            answer = await client.post(f"/v1/transactions/{one['id']}/approve")
            assert "account_stopped" in error_of(answer, 409, "invalid_state")["message"]
        await post(client, f"/v1/transactions/{denied['id']}/deny")
        await post(client, f"/v1/transactions/{cancelled['id']}/cancel")
        await post(client, "/v1/resume", PAY)
        made = await post(client, f"/v1/transactions/{approved['id']}/approve")
        assert made["status"] == "approved"


async def test_withdrawals_go_on(service: Service):
    """Goal: an operator can move the money to safety."""
    async with await service.admin() as client:
        agent = await funded(service, client)
        await post(client, "/v1/stop", {**STOP, "alsoUnsigned": True})
        body = {"amount": "50", "destination": "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS"}
        answer = await client.post(f"/v1/wallets/{agent['id']}/withdraw", json=body)
        assert answer.status_code == 201, answer.text


# Cancelling one that waits ------------------------------------------------------------------------


async def test_whoever_asked_calls_it_off(service: Service):
    """Goal: rejected as cancelled, with who and why; money and budgets are as before."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent = await funded(service, admin, approvalThreshold="0.00")
        key = await service.key(account=account, scope="agent", agent_id=agent["id"])
        async with service.client(key) as asking:
            before = await read(asking, f"/v1/agents/{agent['id']}/budget")
            made = await spend(asking, agent["id"], "7")
            path = f"/v1/transactions/{made['id']}/cancel"
            ended = await post(asking, path, {"reason": "found it cheaper"})
            assert (ended["status"], ended["rejectCode"]) == ("rejected", "cancelled")
            assert ended["decidedBy"] == (await read(asking, "/v1/me"))["id"] == made["createdBy"]
            assert ended["decisionReason"] == "found it cheaper"
            assert await read(asking, f"/v1/agents/{agent['id']}/budget") == before
            error_of(await asking.post(path), 409, "invalid_state")
        wallet = await read(admin, f"/v1/wallets/{agent['id']}")
        assert (wallet["reserved"], wallet["available"]) == ("0.000000", "50.000000")
        told = [event["type"] for event in await read(admin, "/v1/events")]
        assert told[:2] == ["transaction.rejected", "transaction.pending"]
        line = (await read(admin, "/v1/audit-log"))[0]
        assert (line["action"], line["subject"]) == ("transaction.cancelled", made["id"])


async def test_nobody_else_does(service: Service):
    """Goal: another key of the agent gets 403, another agent's 404, an admin's does it; a spend
    that is decided stays as it is."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent = await funded(service, admin, approvalThreshold="5.00")
        stranger = await new_agent(admin)
        made = await spend(admin, agent["id"], "7")
        path = f"/v1/transactions/{made['id']}/cancel"
        for of, status, code in ((agent, 403, "forbidden"), (stranger, 404, "not_found")):
            key = await service.key(account=account, scope="agent", agent_id=of["id"])
            async with service.client(key) as client:
                error_of(await client.post(path), status, code)
        assert (await post(admin, path))["rejectCode"] == "cancelled"
        approved = await spend(admin, agent["id"], "1")
        answer = await admin.post(f"/v1/transactions/{approved['id']}/cancel")
        assert "approved" in error_of(answer, 409, "invalid_state")["message"]


async def test_approving_and_cancelling_at_once(service: Service):
    """Goal: exactly one of them happens, and the books say the same."""
    async with await service.admin() as client:
        agent = await funded(service, client, approvalThreshold="0.00")
        ends: set[str] = set()
        reserved = 0
        for _ in range(20):
            made = await spend(client, agent["id"], "1")
            path = f"/v1/transactions/{made['id']}"
            answers = await asyncio.gather(
                *(client.post(f"{path}/{verdict}") for verdict in ("cancel", "approve"))
            )
            assert sorted(answer.status_code for answer in answers) == [200, 409]
            won = next(a for a in answers if a.status_code == 200).json()["data"]["status"]
            assert (await read(client, path))["status"] == won
            reserved += won == "approved"
            ends.add(won)
        wallet = await read(client, f"/v1/wallets/{agent['id']}")
        assert wallet["reserved"] == f"{reserved}.000000"
        assert ends <= {"approved", "rejected"}
