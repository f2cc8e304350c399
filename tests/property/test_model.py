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
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from bursar.config import Config
from bursar.ledger.audit import audit
from bursar.ledger.seal import seal_journal
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend import totals
from bursar.spend.approve import expire_spends
from tests.clockwork import SETTLED_LAMPORTS, START, ClockedService, clocked_service, settle
from tests.property.model import (
    MOST_FEE,
    RENT,
    Agent,
    Decision,
    Spend,
    World,
    listed,
    micros_of,
    midnight_after,
    money,
    shown,
)
from tests.support import ON_CURVE, events_of, new_account

T = TypeVar("T")

LONG: Final = bool(os.environ.get("BURSAR_LONG"))
# `make quick` is waited for.
QUICK: Final = bool(os.environ.get("BURSAR_QUICK"))
LIVES, STEPS = (2_000, 50) if LONG else (4, 30) if QUICK else (15, 30)
APPROVAL: Final = timedelta(hours=5)
MOST_AGENTS: Final = 3
# So few that lives meet them.
PENDING_MAX: Final = 3
NETWORK: Final = 3 * RENT + 4 * MOST_FEE
# Auditing reads the whole database, so not after each of thousands of lives.
AUDIT_EVERY: Final = 100
MILLISECOND: Final = timedelta(milliseconds=1)

HOSTS: Final = ("api.example.com", "pay.example.com", "example.com", "shop.example.org")
OTHER: Final = "So11111111111111111111111111111111111111112"
OWN: Final = "own"
RECIPIENTS: Final = st.sampled_from([HOSTS[0], *HOSTS, ON_CURVE, OWN])
ENTRIES: Final = st.lists(
    st.sampled_from(["*", "*.example.com", *HOSTS, ON_CURVE]), max_size=3, unique=True
)
CAPS: Final = st.sampled_from([2_500, 1_000, 500, 150, 1, 0]).map(lambda number: number * 10_000)
AMOUNTS: Final = st.one_of(
    st.sampled_from([1, 10_000, 1_000_000, 2_500_000, 5_000_000, 5_000_001, 12_000_000]),
    st.integers(1, 12_000_000),
)
PLAIN_AMOUNTS: Final = st.one_of(
    st.sampled_from([1_500_000, 2_000_001, 4_000_000, 9_000_000]), st.integers(100_000, 9_000_000)
)
LAMPORTS: Final = st.sampled_from([0, MOST_FEE, RENT, RENT + MOST_FEE, RENT + 3 * MOST_FEE, 10**8])
KEYS: Final = st.none() | st.sampled_from(["order-1", "order-2", "order-3"])
LIMITS: Final = {
    "dailyCap": CAPS,
    "perTransactionCap": st.none() | CAPS,
    "approvalThreshold": st.none() | CAPS,
    "dailyNetworkLamports": st.none() | LAMPORTS,
    "allowlist": ENTRIES | st.just(["*"]),
    "blocklist": st.just([]) | ENTRIES,
    "payees": st.sampled_from(["directory", "pinned", "host"]),
    # simulation/test_fleet.py re-decides what limits say.
    "limits": st.just([]),
}
# Without these most lives would soon be nothing but refusals.
OPEN: Final[dict[str, Any]] = {
    "dailyCap": 25_000_000, "perTransactionCap": None, "approvalThreshold": 2_000_000,
    "dailyNetworkLamports": None, "allowlist": ["*"], "blocklist": [], "payees": "pinned",
    "limits": [], "frozen": False,
}  # fmt: skip


AMOUNT_FIELDS: Final = ("dailyCap", "perTransactionCap", "approvalThreshold")


def as_text(policy: dict[str, Any]) -> dict[str, Any]:
    """A policy as a request says it."""
    return {
        name: money(value) if name in AMOUNT_FIELDS and value is not None else value
        for name, value in policy.items()
    }


# Every step is one of these, each the name of a method below. A life knows all of the first and
# some of the second, so that lives differ in more than their order.
SPENDING: Final = ("spend", "spend_plainly", "spend_plainly", "spend_at_the_edge")
REST: Final = (
    "preview", "retry", "decide", "decide_in_a_squeeze", "decide_at_the_end", "settle", "create",
    "patch", "open", "freeze", "pause", "terminate", "stop", "go_on", "fund", "direct", "pass_time",
    "midnight", "expire", "fold",
)  # fmt: skip


class Lives(RuleBasedStateMachine):
    """One life of an account: what is done to the service is done to the model, and compared."""

    service: ClockedService
    loop: asyncio.AbstractEventLoop
    count: int = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        self.number = type(self).count
        self.answers: dict[tuple[str, str], tuple[Any, str]] = {}

    @initialize(live=st.booleans(), rest=st.sets(st.sampled_from(REST), min_size=6))
    def begin(self, live: bool, rest: set[str]) -> None:
        account, mode = new_account(), "live" if live else "test"
        # Who asks for a spend may not approve it.
        self.client, self.asking = (
            httpx.Client(
                base_url=self.service.url, headers={"Authorization": f"Bearer {key}"}, timeout=30
            )
            for key in (self.wait(self.service.key(account=account, mode=mode)) for _ in "12")
        )
        self.world = World(live, START, APPROVAL, PENDING_MAX, NETWORK)
        self.wait(self.service.set_clock(START))
        self.steps = [*SPENDING, *sorted(rest)]
        self.direct_to(HOSTS[0], ON_CURVE)
        agent = self.create_with({k: v for k, v in OPEN.items() if k != "frozen"})
        self.fund_with(agent, 40_000_000)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        getattr(self, data.draw(st.sampled_from(self.steps), label="step"))(data)

    # Changes --------------------------------------------------------------------------------------

    def create(self, data: st.DataObject) -> None:
        if len(self.world.agents) < MOST_AGENTS:
            self.create_with(data.draw(st.fixed_dictionaries(LIMITS)))

    def create_with(self, policy: dict[str, Any]) -> Agent:
        body = {"name": "a", "policy": as_text(policy)}
        made = self.call("POST", "/v1/agents", 201, body)["data"]
        assert made["createdAt"] == shown(self.world.now)
        agent = Agent(made["id"], made["wallet"]["address"], "active", {**policy, "frozen": False})
        self.world.agents.append(agent)
        return agent

    def patch(self, data: st.DataObject) -> None:
        policy = data.draw(st.fixed_dictionaries({}, optional={**LIMITS, "frozen": st.booleans()}))
        status = data.draw(st.sampled_from([None, "active", "paused"]))
        # Told which version was last seen: not at all, rightly, or wrongly.
        behind = data.draw(st.sampled_from([None, None, 0, 1]))
        self.patch_with(self.pick_agent(data), policy, status, behind)

    def open(self, data: st.DataObject) -> None:
        if self.world.stopped:
            self.go_on(data)
        self.patch_with(self.pick_agent(data), OPEN, "active")

    def freeze(self, data: st.DataObject) -> None:
        self.patch_with(self.pick_agent(data), {"frozen": True})

    def pause(self, data: st.DataObject) -> None:
        self.patch_with(self.pick_agent(data), {}, "paused")

    def stop(self, _: st.DataObject) -> None:
        made = self.call("POST", "/v1/stop", 200, {"reason": "a look"})["data"]
        assert self.world.stopped or made["stoppedAt"] == shown(self.world.now)
        self.world.stopped = True

    def go_on(self, _: st.DataObject) -> None:
        if self.world.stopped:
            self.call("POST", "/v1/resume", 200, {"unsigned": "pay"})
            self.world.stopped = False
        else:
            self.refused("POST", "/v1/resume", 409, "invalid_state", {"unsigned": "pay"})

    def patch_with(
        self,
        agent: Agent,
        policy: dict[str, Any],
        status: str | None = None,
        behind: int | None = None,
    ) -> None:
        body: dict[str, Any] = {"policy": as_text(policy)}
        if status is not None:
            body["status"] = status
        if behind is not None:
            body["policy"]["version"] = agent.version + behind
        path = f"/v1/agents/{agent.id}"
        if agent.status == "terminated":
            self.refused("PATCH", path, 409, "agent_terminated", body)
        elif behind:
            self.refused("PATCH", path, 409, "policy_version_conflict", body)
        else:
            made = self.call("PATCH", path, 200, body)["data"]
            self.world.patch(agent, status, policy)
            self.compare_agent(agent, made)

    def terminate(self, data: st.DataObject) -> None:
        """Never the first one: somebody must be left to spend."""
        agent = self.pick_agent(data)
        if agent is not self.world.agents[0]:
            made = self.call("DELETE", f"/v1/agents/{agent.id}", 200)["data"]
            self.world.terminate(agent)
            self.compare_agent(agent, made)

    def fund(self, data: st.DataObject) -> None:
        self.fund_with(self.pick_agent(data), data.draw(st.integers(1, 30_000_000)))

    def fund_with(self, agent: Agent, amount: int) -> None:
        self.wait(self.service.fund(agent.id, money(amount)))
        self.world.fund(agent, amount)

    def direct(self, data: st.DataObject) -> None:
        self.direct_to(
            data.draw(st.sampled_from(HOSTS)), data.draw(st.sampled_from([ON_CURVE, OTHER, None]))
        )

    def direct_to(self, hostname: str, address: str | None) -> None:
        path = f"/v1/recipients/{hostname}"
        if address is not None:
            self.call("PUT", path, 200, {"address": address})
            self.world.directory[hostname] = address
        else:
            status = 204 if hostname in self.world.directory else 404
            assert self.client.delete(path).status_code == status
            self.world.directory.pop(hostname, None)

    # Spends ---------------------------------------------------------------------------------------

    def spend(self, data: st.DataObject) -> None:
        self.authorise(
            self.pick_agent(data), data.draw(AMOUNTS), data.draw(RECIPIENTS), data.draw(KEYS)
        )

    def spend_plainly(self, data: st.DataObject) -> None:
        """Something that passes but for caps and funds: a stopped agent is let go first."""
        agent = self.pick_agent(data)
        if agent.status == "terminated":
            agent = self.world.agents[0]
        stopped = agent.status == "paused" or agent.policy["frozen"]
        if stopped or not listed(agent.policy["allowlist"], HOSTS[0]):
            self.patch_with(agent, OPEN, "active")
        self.authorise(agent, data.draw(PLAIN_AMOUNTS), HOSTS[0], None)

    def spend_at_the_edge(self, data: st.DataObject) -> None:
        """Exactly what the budget says passes, or one micro-unit more."""
        agent = self.pick_agent(data)
        most = micros_of(self.world.budget(agent)["maxAmountNow"])
        self.authorise(agent, max(most + data.draw(st.integers(0, 1)), 1), HOSTS[0], None)

    def authorise(self, agent: Agent, amount: int, recipient: str, key: str | None) -> None:
        recipient = agent.address if recipient == OWN else recipient
        body = {"agentId": agent.id, "amount": money(amount), "recipient": recipient}
        headers = {} if key is None else {"Idempotency-Key": key}
        known = None if key is None else self.answers.get((agent.id, key))
        answer = self.asking.post("/v1/spend/authorise", json=body, headers=headers)
        if known is None:
            assert answer.status_code == 201, answer.text
            assert "idempotent-replayed" not in answer.headers
            self.note_spend(agent, amount, recipient, answer.json()["data"])
            if key is not None:
                self.answers[agent.id, key] = (body, answer.text)
        else:
            self.compare_retry(answer, known, body)

    def note_spend(self, agent: Agent, amount: int, recipient: str, made: Any) -> None:
        self.learn(recipient, made["payTo"])
        decision = self.world.decide(agent, amount, recipient)
        self.compare_decision(decision, made)
        spend = self.world.add_spend(agent, made["id"], amount, recipient, decision)
        self.compare_spend(spend, made)

    def retry(self, data: st.DataObject) -> None:
        """Whatever happened since, the answer is the one that was given."""
        if self.answers:
            place = data.draw(st.sampled_from(sorted(self.answers)))
            body = self.answers[place][0]
            if data.draw(st.booleans()):
                body = {**body, "memo": "changed"}
            headers = {"Idempotency-Key": place[1]}
            answer = self.asking.post("/v1/spend/authorise", json=body, headers=headers)
            self.compare_retry(answer, self.answers[place], body)

    def preview(self, data: st.DataObject) -> None:
        agent, amount = self.pick_agent(data), data.draw(AMOUNTS)
        recipient = data.draw(RECIPIENTS)
        recipient = agent.address if recipient == OWN else recipient
        body = {"agentId": agent.id, "amount": money(amount), "recipient": recipient}
        made = self.call("POST", "/v1/spend/preview", 200, body)["data"]
        self.learn(recipient, made["payTo"])
        decision = self.world.decide(agent, amount, recipient)
        self.compare_decision(decision, made)
        assert made["payTo"] == self.world.told(recipient, decision)
        assert made["policyVersion"] == agent.version

    def decide(self, data: st.DataObject) -> None:
        status = data.draw(st.sampled_from(["pending", "pending", "approved", "rejected"]))
        verb = data.draw(st.sampled_from(["approve", "deny", "cancel"]))
        reason = data.draw(st.sampled_from([None, "because"]))
        if (spend := self.pick_spend(data, status)) is not None:
            self.decide_on(spend, verb, reason)

    def decide_in_a_squeeze(self, data: st.DataObject) -> None:
        """With the cap at what the spend's own day holds, or up to a cent below; perhaps on the
        next day."""
        if (spend := self.pick_spend(data, "pending")) is not None:
            if data.draw(st.booleans()):
                self.midnight(data)
            cap = spend.agent.spent_on(spend.day) // 10_000 - data.draw(st.integers(0, 1))
            self.patch_with(spend.agent, {**OPEN, "dailyCap": max(cap, 0) * 10_000}, "active")
            self.decide_on(spend, "approve", None)

    def decide_at_the_end(self, data: st.DataObject) -> None:
        """At the moment a spend expires, or the one before."""
        if (spend := self.pick_spend(data, "pending")) is not None:
            assert spend.expires is not None
            early = data.draw(st.sampled_from([timedelta(), MILLISECOND]))
            self.set_clock(max(spend.expires - early, self.world.now))
            self.decide_on(spend, "approve", None)

    def decide_on(self, spend: Spend, verb: str, reason: str | None) -> None:
        path, body = f"/v1/transactions/{spend.id}/{verb}", {"reason": reason}
        if verb == "approve":
            obstacle = self.world.cannot_approve(spend)
        else:
            obstacle = None if spend.status == "pending" else spend.status
        if obstacle is not None:
            assert obstacle in self.refused("POST", path, 409, "invalid_state", body)
            return
        made = self.call("POST", path, 200, body)["data"]
        if verb == "approve":
            self.world.approve(spend, reason)
        else:
            code = {"deny": "approval_denied", "cancel": "cancelled"}[verb]
            self.world.reject(spend, code, reason)
        self.compare_spend(spend, made)

    def settle(self, data: st.DataObject) -> None:
        if (spend := self.pick_spend(data, "approved")) is not None:
            self.wait(settle(self.service.db, spend.id))
            self.world.settle(spend, SETTLED_LAMPORTS)

    # Time -----------------------------------------------------------------------------------------

    def pass_time(self, data: st.DataObject) -> None:
        by = data.draw(st.sampled_from([1, 60_000, 3_600_000, 5 * 3_600_000]))
        self.set_clock(self.world.now + timedelta(milliseconds=by))

    def midnight(self, data: st.DataObject) -> None:
        """The first moment of the next day, or the last one of this."""
        early = data.draw(st.sampled_from([timedelta(), MILLISECOND]))
        self.set_clock(max(midnight_after(self.world.now) - early, self.world.now))

    def expire(self, _: st.DataObject) -> None:
        while self.wait(expire_spends(self.service.db)):
            pass
        self.world.expire()

    def fold(self, _: st.DataObject) -> None:
        """Statistics are the same, whether or not a worker was here."""
        while self.wait(totals.fold(self.service.db)):
            pass

    def set_clock(self, now: datetime) -> None:
        self.wait(self.service.set_clock(now))
        self.world.now = now

    # Means ----------------------------------------------------------------------------------------

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The service lives in the loop of another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(300)

    def call(self, method: str, path: str, status: int, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.status_code == status, f"{method} {path} {body}: {answer.text}"
        return answer.json()

    def refused(self, method: str, path: str, status: int, code: str, body: Any) -> str:
        error = self.call(method, path, status, body)["error"]
        assert error["code"] == code, error
        return error["message"]

    def pick_agent(self, data: st.DataObject) -> Agent:
        agents = self.world.agents
        return agents[data.draw(st.integers(0, len(agents) - 1), label="agent")]

    def pick_spend(self, data: st.DataObject, status: str) -> Spend | None:
        spends = [spend for spend in self.world.spends if spend.status == status]
        return spends[data.draw(st.integers(0, len(spends) - 1))] if spends else None

    # Comparing ------------------------------------------------------------------------------------

    @invariant()
    def compare_wallets(self) -> None:
        for agent in self.world.agents:
            budget = self.call("GET", f"/v1/agents/{agent.id}/budget", 200)["data"]
            assert budget == self.world.budget(agent)
            wallet = self.call("GET", f"/v1/wallets/{agent.id}", 200)["data"]
            shown = agent.show_wallet()
            assert {name: wallet[name] for name in shown} == shown

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
        assert explained["maxWithoutApproval"] == money(decision.alone)
        assert explained["retryAt"] == shown(decision.retry_at)

    def compare_retry(self, answer: httpx.Response, known: tuple[Any, str], body: Any) -> None:
        if body == known[0]:
            assert (answer.status_code, answer.text) == (201, known[1])
            assert answer.headers["idempotent-replayed"] == "true"
        else:
            assert answer.status_code == 422, answer.text
            assert answer.json()["error"]["code"] == "idempotency_key_reused"

    def learn(self, recipient: str, pay_to: str | None) -> None:
        """A hostname's test address is ours to learn once; from then on it must not change."""
        if pay_to is None or self.world.live or recipient in self.world.directory:
            return
        if "." in recipient:
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
            self.asking.close()

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
        async with self.service.db.connection() as tx:
            return Counter(event.type for event in await events_of(tx, agent.id))


async def clean(service: ClockedService) -> None:
    findings = await audit(service.db, lambda _: None)
    assert [finding for finding in findings if not finding.clean] == []


# A failure takes minutes to be made small.
@pytest.mark.timeout(6 * 3600 if LONG else 1_800)
async def test_the_service_never_differs_from_the_model(postgres: EmbeddedPostgres, config: Config):
    number = int(os.environ.get("BURSAR_SEED", random.SystemRandom().randrange(2**32)))
    async with clocked_service(
        postgres,
        config,
        "model",
        approval_seconds=int(APPROVAL.total_seconds()),
        pending_max=PENDING_MAX,
        agent_network_lamports=NETWORK,
    ) as service:
        machine = type("Lives", (Lives,), {})
        machine.service, machine.loop, machine.count = service, asyncio.get_running_loop(), 0
        chosen = settings(
            max_examples=LIVES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        try:
            await asyncio.to_thread(
                run_state_machine_as_test, seed(number)(machine), settings=chosen
            )
        except BaseException as problem:
            problem.add_note(f"Repeat with BURSAR_SEED={number}")
            raise
        await clean(service)
