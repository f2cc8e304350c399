"""Random lives of agents, driven through the HTTP API and compared with an independent model.

By default a short run. `BURSAR_LONG=1` takes 2,000 lives of 50 steps; `BURSAR_SEED` repeats a run.
"""

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import httpx
import pytest
from hypothesis import HealthCheck, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bursar.config import Config
from bursar.ledger.audit import audit
from bursar.ledger.seal import seal_journal
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend.approve import expire_spends
from tests.clockwork import START, ClockedService, clocked_service, settle
from tests.property.model import (
    Agent,
    Decision,
    Spend,
    World,
    micros_of,
    midnight_after,
    money,
    shown,
)
from tests.support import ADDRESS, new_account

T = TypeVar("T")

LONG: Final = bool(os.environ.get("BURSAR_LONG"))
LIVES, STEPS = (2_000, 50) if LONG else (25, 30)
APPROVAL: Final = timedelta(hours=5)
MOST_AGENTS: Final = 3
# Auditing reads the whole database, so not after each of thousands of lives.
AUDIT_EVERY: Final = 100
MILLISECOND: Final = timedelta(milliseconds=1)

HOSTS: Final = ("api.example.com", "pay.example.com", "example.com", "shop.example.org")
OTHER: Final = "So11111111111111111111111111111111111111112"
OWN: Final = "own"
RECIPIENTS: Final = st.sampled_from([HOSTS[0], *HOSTS, ADDRESS, OWN])
ENTRIES: Final = st.lists(
    st.sampled_from(["*", "*.example.com", *HOSTS, ADDRESS]), max_size=3, unique=True
)
CAPS: Final = st.sampled_from([0, 1, 150, 500, 1000, 2500]).map(
    lambda hundredths: hundredths * 10_000
)
AMOUNTS: Final = st.one_of(
    st.sampled_from([1, 10_000, 1_000_000, 2_500_000, 5_000_000, 5_000_001, 12_000_000]),
    st.integers(1, 12_000_000),
)
KEYS: Final = st.none() | st.sampled_from(["order-1", "order-2", "order-3"])
LIMITS: Final = {
    "dailyCap": CAPS,
    "perTransactionCap": st.none() | CAPS,
    "approvalThreshold": st.none() | CAPS,
    "allowlist": ENTRIES | st.just(["*"]),
    "blocklist": st.just([]) | ENTRIES,
}


def as_text(policy: dict[str, Any]) -> dict[str, Any]:
    """A policy as a request says it."""
    return {
        name: money(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in policy.items()
    }


class Lives(RuleBasedStateMachine):
    """One life of an account: what is done to the service is done to the model, and compared."""

    service: ClockedService
    loop: asyncio.AbstractEventLoop
    count: int = 0

    agents = Bundle("agents")
    spends = Bundle("spends")

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        self.number = type(self).count
        self.answers: dict[tuple[str, str], tuple[Any, str]] = {}

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The service lives in the loop of another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def call(self, method: str, path: str, status: int, body: Any = None, **headers: str) -> Any:
        answer = self.client.request(
            method, path, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        assert answer.status_code == status, f"{method} {path} {body}: {answer.text}"
        return answer.json()

    def refused(self, method: str, path: str, status: int, code: str, body: Any = None) -> str:
        error = self.call(method, path, status, body)["error"]
        assert error["code"] == code, error
        return error["message"]

    # Beginning ------------------------------------------------------------------------------------

    @initialize(live=st.booleans(), policy=st.fixed_dictionaries(LIMITS), target=agents)
    def begin(self, live: bool, policy: dict[str, Any]) -> Any:
        key = self.wait(self.service.key(account=new_account(), mode="live" if live else "test"))
        self.client = httpx.Client(
            base_url=self.service.url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )
        self.world = World(live, START, APPROVAL)
        self.wait(self.service.set_clock(START))
        # Most lives need somebody who can spend to get anywhere.
        agent = self.create({**policy, "dailyCap": 25_000_000, "allowlist": ["*"]})
        self.fund(agent, 20_000_000)
        return agent

    @precondition(lambda self: len(self.world.agents) < MOST_AGENTS)
    @rule(policy=st.fixed_dictionaries(LIMITS), target=agents)
    def create_agent(self, policy: dict[str, Any]) -> Any:
        return self.create(policy)

    def create(self, policy: dict[str, Any]) -> Agent:
        body = {"name": "a", "policy": as_text(policy)}
        made = self.call("POST", "/v1/agents", 201, body)["data"]
        assert made["createdAt"] == shown(self.world.now)
        agent = Agent(made["id"], made["wallet"]["address"], "active", {**policy, "frozen": False})
        self.world.agents.append(agent)
        return agent

    # Changes --------------------------------------------------------------------------------------

    @rule(
        agent=agents,
        policy=st.fixed_dictionaries({}, optional={**LIMITS, "frozen": st.booleans()}),
        status=st.none() | st.sampled_from(["active", "active", "paused"]),
        seen=st.sampled_from([None, None, 0, 1]),
    )
    def patch(
        self, agent: Agent, policy: dict[str, Any], status: str | None, seen: int | None
    ) -> None:
        body: dict[str, Any] = {"policy": as_text(policy)}
        if status is not None:
            body["status"] = status
        if seen is not None:
            body["policy"]["version"] = agent.version + seen
        path = f"/v1/agents/{agent.id}"
        if agent.status == "terminated":
            self.refused("PATCH", path, 409, "agent_terminated", body)
        elif seen:
            self.refused("PATCH", path, 409, "policy_version_conflict", body)
        else:
            made = self.call("PATCH", path, 200, body)["data"]
            self.world.patch(agent, status, policy)
            self.compare_agent(agent, made)

    @rule(agent=agents, frozen=st.booleans())
    def freeze(self, agent: Agent, frozen: bool) -> None:
        self.patch(agent, {"frozen": frozen}, None, None)

    @rule(agent=agents, status=st.sampled_from(["paused", "active"]))
    def pause(self, agent: Agent, status: str) -> None:
        self.patch(agent, {}, status, None)

    @rule(agent=agents)
    def let_it_spend(self, agent: Agent) -> None:
        """Most of what else is done stops an agent; this keeps lives from ending in refusals."""
        open_policy: dict[str, Any] = {
            "dailyCap": 25_000_000, "allowlist": ["*"], "blocklist": [], "frozen": False
        }  # fmt: skip
        self.patch(agent, open_policy, "active", None)

    @precondition(lambda self: len(self.world.agents) > 1)
    @rule(agent=agents, sure=st.sampled_from([False, False, True]))
    def terminate(self, agent: Agent, sure: bool) -> None:
        if not sure and agent.status != "terminated":
            return
        made = self.call("DELETE", f"/v1/agents/{agent.id}", 200)["data"]
        self.world.terminate(agent)
        self.compare_agent(agent, made)

    @rule(agent=agents, amount=st.integers(1, 30_000_000))
    def fund(self, agent: Agent, amount: int) -> None:
        self.wait(self.service.fund(agent.id, money(amount)))
        self.world.fund(agent, amount)

    @rule(hostname=st.sampled_from(HOSTS), address=st.sampled_from([ADDRESS, OTHER, None]))
    def direct(self, hostname: str, address: str | None) -> None:
        path = f"/v1/recipients/{hostname}"
        if address is not None:
            self.call("PUT", path, 200, {"address": address})
            self.world.directory[hostname] = address
        else:
            status = 204 if hostname in self.world.directory else 404
            assert self.client.delete(path).status_code == status
            self.world.directory.pop(hostname, None)

    # Spends ---------------------------------------------------------------------------------------

    @rule(agent=agents, amount=AMOUNTS, recipient=RECIPIENTS, key=KEYS, target=spends)
    def spend(self, agent: Agent, amount: int, recipient: str, key: str | None) -> Any:
        return self.authorise(agent, amount, recipient, key)

    @rule(agent=agents, more=st.integers(0, 1), recipient=RECIPIENTS, target=spends)
    def spend_at_the_edge(self, agent: Agent, more: int, recipient: str) -> Any:
        """Exactly what the budget says passes, or one micro-unit more."""
        most = micros_of(self.world.budget(agent)["maxAmountNow"])
        return self.authorise(agent, max(most + more, 1), recipient, None)

    def authorise(self, agent: Agent, amount: int, recipient: str, key: str | None) -> Any:
        recipient = agent.address if recipient == OWN else recipient
        body = {"agentId": agent.id, "amount": money(amount), "recipient": recipient}
        if key is None:
            made = self.call("POST", "/v1/spend/authorise", 201, body)["data"]
            return self.note_spend(agent, amount, recipient, made)
        headers = {"Idempotency-Key": key}
        answer = self.client.post("/v1/spend/authorise", json=body, headers=headers)
        known = self.answers.get((agent.id, key))
        if known is None:
            assert answer.status_code == 201, answer.text
            assert "idempotent-replayed" not in answer.headers
            self.answers[agent.id, key] = (body, answer.text)
            return self.note_spend(agent, amount, recipient, answer.json()["data"])
        if known[0] == body:
            assert (answer.status_code, answer.text) == (201, known[1])
            assert answer.headers["idempotent-replayed"] == "true"
        else:
            assert answer.status_code == 422, answer.text
            assert answer.json()["error"]["code"] == "idempotency_key_reused"
        return multiple()

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), change=st.booleans())
    def retry(self, data: st.DataObject, change: bool) -> None:
        """Whatever happened since, the answer is the one that was given."""
        place = data.draw(st.sampled_from(sorted(self.answers)))
        body, text = self.answers[place]
        headers = {"Idempotency-Key": place[1]}
        wanted = {**body, "memo": "changed"} if change else body
        answer = self.client.post("/v1/spend/authorise", json=wanted, headers=headers)
        if change:
            assert answer.status_code == 422, answer.text
        else:
            assert (answer.status_code, answer.text) == (201, text)

    def note_spend(self, agent: Agent, amount: int, recipient: str, made: Any) -> Spend:
        self.learn(recipient, made["payTo"])
        decision = self.world.decide(agent, amount, recipient)
        self.compare_decision(decision, made)
        spend = self.world.add_spend(agent, made["id"], amount, recipient, decision)
        assert spend.created == self.world.now
        self.compare_spend(spend, made)
        return spend

    @rule(agent=agents, amount=AMOUNTS, recipient=RECIPIENTS)
    def preview(self, agent: Agent, amount: int, recipient: str) -> None:
        recipient = agent.address if recipient == OWN else recipient
        body = {"agentId": agent.id, "amount": money(amount), "recipient": recipient}
        made = self.call("POST", "/v1/spend/preview", 200, body)["data"]
        self.learn(recipient, made["payTo"])
        self.compare_decision(self.world.decide(agent, amount, recipient), made)
        assert made["payTo"] == self.world.pay_to(recipient)
        assert made["policyVersion"] == agent.version

    @rule(spend=spends, reason=st.none() | st.just("because"))
    def approve(self, spend: Spend, reason: str | None) -> None:
        obstacle = self.world.cannot_approve(spend)
        path, body = f"/v1/transactions/{spend.id}/approve", {"reason": reason}
        if obstacle is None:
            made = self.call("POST", path, 200, body)["data"]
            self.world.approve(spend, reason)
            self.compare_spend(spend, made)
        else:
            assert obstacle in self.refused("POST", path, 409, "invalid_state", body)

    @rule(spend=spends, reason=st.none() | st.just("because"))
    def deny(self, spend: Spend, reason: str | None) -> None:
        path, body = f"/v1/transactions/{spend.id}/deny", {"reason": reason}
        if spend.status == "pending":
            made = self.call("POST", path, 200, body)["data"]
            self.world.reject(spend, "approval_denied", reason)
            self.compare_spend(spend, made)
        else:
            self.refused("POST", path, 409, "invalid_state", body)

    @rule(spend=spends)
    def settle(self, spend: Spend) -> None:
        if spend.status == "approved":
            self.wait(settle(self.service.db, spend.id))
            self.world.settle(spend)

    # Time -----------------------------------------------------------------------------------------

    @rule(by=st.sampled_from([1, 60_000, 3_600_000, 5 * 3_600_000 - 1, 5 * 3_600_000]))
    def pass_time(self, by: int) -> None:
        self.set_clock(self.world.now + timedelta(milliseconds=by))

    @rule(early=st.booleans())
    def midnight(self, early: bool) -> None:
        """The first moment of the next day, or the last one of this."""
        moment = midnight_after(self.world.now) - (MILLISECOND if early else timedelta())
        self.set_clock(max(moment, self.world.now))

    @rule()
    def expire(self) -> None:
        while self.wait(expire_spends(self.service.db)):
            pass
        self.world.expire()

    def set_clock(self, now: datetime) -> None:
        self.wait(self.service.set_clock(now))
        self.world.now = now

    # Comparing ------------------------------------------------------------------------------------

    @invariant()
    def compare_wallets(self) -> None:
        for agent in self.world.agents:
            budget = self.call("GET", f"/v1/agents/{agent.id}/budget", 200)["data"]
            assert budget == self.world.budget(agent)
            wallet = self.call("GET", f"/v1/wallets/{agent.id}", 200)["data"]
            expected = agent.show_wallet()
            assert {name: wallet[name] for name in expected} == expected

    @invariant()
    def compare_transactions(self) -> None:
        rows = self.call("GET", "/v1/transactions?limit=200", 200)["data"]
        places = [(row["createdAt"], row["id"]) for row in rows]
        assert places == sorted(places, reverse=True)
        by_id = {row["id"]: row for row in rows}
        assert by_id.keys() == {spend.id for spend in self.world.spends}
        for spend in self.world.spends:
            self.compare_spend(spend, by_id[spend.id])

    def compare_agent(self, agent: Agent, made: Any) -> None:
        assert made["status"] == agent.status
        assert {k: v for k, v in made["policy"].items() if k != "id"} == agent.show_policy()
        assert made["wallet"]["balance"] == money(agent.balance)
        assert made["wallet"]["status"] == agent.wallet_status

    def compare_spend(self, spend: Spend, made: Any) -> None:
        expected = self.world.show(spend)
        assert {name: made[name] for name in expected} == expected

    def compare_decision(self, decision: Decision, made: Any) -> None:
        note(f"expected {decision}")
        assert (made["status"], made["rejectCode"]) == (decision.status, decision.code)
        explained = made["decision"]
        assert {c["rule"]: c["outcome"] for c in explained["checks"]} == decision.outcomes
        assert explained["remainingToday"] == money(decision.remaining)
        assert explained["maxAmountNow"] == money(decision.most)
        assert explained["retryAt"] == shown(decision.retry_at)

    def learn(self, recipient: str, pay_to: str | None) -> None:
        """A hostname's test address is ours to learn once; from then on it must not change."""
        if not self.world.live and "." in recipient and recipient not in self.world.directory:
            assert pay_to is not None
            assert self.world.sandbox.setdefault(recipient, pay_to) == pay_to

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.compare_statistics()
            self.compare_events()
            if not LONG or self.number % AUDIT_EVERY == 0:
                self.wait(seal_journal(self.service.db))
                self.wait(clean(self.service))
        finally:
            self.client.close()

    def compare_statistics(self) -> None:
        first, now = START.replace(hour=0), self.world.now
        instants = {START, START + MILLISECOND, first + timedelta(days=1), now, now + MILLISECOND}
        instants |= {s.created for s in self.world.spends[:3]}
        ends = [
            datetime(1970, 1, 1, tzinfo=UTC),
            *sorted(instants),
            datetime(2100, 1, 1, tzinfo=UTC),
        ]
        for agent_id in (None, *(agent.id for agent in self.world.agents)):
            for start, end in itertools.pairwise(ends):
                for until in (end, ends[-1]):
                    params = {"from": shown(start), "to": shown(until)}
                    if agent_id:
                        params["agentId"] = agent_id
                    answer = self.client.get("/v1/transactions/stats", params=params)
                    expected = self.world.statistics(agent_id, start, until)
                    assert answer.json() == {"data": expected}, params

    def compare_events(self) -> None:
        for agent in self.world.agents:
            found = self.wait(self.events_of(agent))
            assert found == +agent.events, agent.id

    async def events_of(self, agent: Agent) -> Counter[str]:
        async with self.service.db.read() as tx:
            rows = await tx.fetch(
                "SELECT type, count(*) FROM event WHERE agent_id = $1 GROUP BY type", agent.id
            )
        return Counter({row["type"]: row["count"] for row in rows})


async def clean(service: ClockedService) -> None:
    findings = await audit(service.db, lambda _: None)
    assert [finding for finding in findings if not finding.clean] == []


@pytest.mark.timeout(6 * 3600 if LONG else 300)
async def test_the_service_never_differs_from_the_model(postgres: EmbeddedPostgres, config: Config):
    number = int(os.environ.get("BURSAR_SEED", random.SystemRandom().randrange(2**32)))
    async with clocked_service(
        postgres, config, "model", approval_seconds=int(APPROVAL.total_seconds())
    ) as service:
        machine = type("Lives", (Lives,), {})
        machine.service, machine.loop, machine.count = service, asyncio.get_running_loop(), 0
        chosen = settings(
            max_examples=LIVES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        try:
            await asyncio.to_thread(
                run_state_machine_as_test, seed(number)(machine), settings=chosen
            )
        except BaseException as problem:
            problem.add_note(f"Repeat with BURSAR_SEED={number}")
            raise
        await clean(service)
