"""The contract once more, as plainly as it can be said: no database, no concurrency, no speed.

Nothing here is taken from the service. Every figure is worked out afresh from the list of what
happened, so a counter that drifts in the service has nothing to drift along with.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any

MILLISECOND = timedelta(milliseconds=1)
# In lamports: what a payment holds at the default highest priority fee, and a new token account.
MOST_FEE = 111_667
RENT = 2_039_280


def money(micros: int) -> str:
    return f"{micros // 10**6}.{micros % 10**6:06}"


def cents(micros: int) -> str:
    rounded = (micros + 5_000) // 10_000
    return f"{rounded // 100}.{rounded % 100:02}"


def micros_of(text: str) -> int:
    whole, _, places = text.partition(".")
    return int(whole) * 10**6 + int(places.ljust(6, "0"))


def shown(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def midnight_after(moment: datetime) -> datetime:
    return (moment + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


def listed(entries: list[str], recipient: str) -> bool:
    return any(
        entry in ("*", recipient) or (entry.startswith("*.") and recipient.endswith(entry[1:]))
        for entry in entries
    )


@dataclass
class Spend:
    id: str
    agent: "Agent"
    amount: int
    recipient: str
    pay_to: str | None
    status: str
    code: str | None
    created: datetime
    expires: datetime | None
    updated: datetime
    policy_version: int
    # What it holds of the day's network budget, and in the end what it cost.
    network: int
    decided: datetime | None = None
    reason: str | None = None
    settled: datetime | None = None

    @property
    def day(self) -> date:
        return self.created.date()


@dataclass
class Agent:
    id: str
    address: str
    status: str
    # As in the API, amounts in micro-units.
    policy: dict[str, Any]
    version: int = 1
    deposited: int = 0
    funded_at: datetime | None = None
    spends: list[Spend] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def balance(self) -> int:
        return self.deposited - sum(s.amount for s in self.spends if s.status == "settled")

    @property
    def reserved(self) -> int:
        return sum(s.amount for s in self.spends if s.status in ("pending", "approved"))

    @property
    def available(self) -> int:
        return self.balance - self.reserved

    @property
    def low(self) -> bool:
        return self.balance * 10 < self.policy["dailyCap"]

    @property
    def wallet_status(self) -> str:
        if self.funded_at is None:
            return "provisioned"
        return "funded" if self.balance else "depleted"

    @property
    def waiting(self) -> int:
        return sum(s.status == "pending" for s in self.spends)

    def spent_on(self, day: date, *states: str) -> int:
        states = states or ("pending", "approved", "settled")
        return sum(s.amount for s in self.spends if s.day == day and s.status in states)

    def network_on(self, day: date) -> int:
        return sum(s.network for s in self.spends if s.day == day)

    def show_wallet(self) -> dict[str, Any]:
        return {
            "agentId": self.id,
            "address": self.address,
            "balance": money(self.balance),
            "reserved": money(self.reserved),
            "available": money(self.available),
            "status": self.wallet_status,
            "lastFundedAt": shown(self.funded_at),
        }

    def show_policy(self) -> dict[str, Any]:
        single, threshold = self.policy["perTransactionCap"], self.policy["approvalThreshold"]
        return {
            **self.policy,
            "dailyCap": cents(self.policy["dailyCap"]),
            "perTransactionCap": None if single is None else cents(single),
            "approvalThreshold": None if threshold is None else cents(threshold),
            "version": self.version,
        }


@dataclass(frozen=True)
class Standing:
    """What a decision rests on beside policy and request."""

    spent: int
    available: int
    # In lamports: what the day has cost so far, and what the spend itself holds.
    network: int
    cost: int
    waiting: int


@dataclass(frozen=True)
class Decision:
    status: str
    code: str | None
    outcomes: dict[str, str]
    remaining: int
    most: int
    alone: int
    retry_at: datetime | None


class World:
    def __init__(
        self, live: bool, now: datetime, approval: timedelta, pending_max: int, network: int
    ) -> None:
        self.live = live
        self.now = now
        self.approval = approval
        self.pending_max = pending_max
        # Lamports a day of an agent whose policy does not say otherwise.
        self.network = network
        self.stopped = False
        self.agents: list[Agent] = []
        self.directory: dict[str, str] = {}
        # Test mode: what each hostname resolved to when it was first seen.
        self.sandbox: dict[str, str] = {}

    @property
    def spends(self) -> list[Spend]:
        return [spend for agent in self.agents for spend in agent.spends]

    def pay_to(self, recipient: str) -> str | None:
        """None: nobody. (In test mode a hostname always has somebody.)"""
        if "." not in recipient:
            return recipient
        if recipient in self.directory:
            return self.directory[recipient]
        return None if self.live else self.sandbox.get(recipient, f"not seen yet: {recipient}")

    def blocked(self, entries: list[str], recipient: str) -> bool:
        """Host and address stand for each other. The test address of a host that only a wildcard
        names is its own, so nobody can tell that it is blocked."""
        pay_to = self.pay_to(recipient)
        if pay_to is None:  # two hosts that nobody is paid for are not the same one
            return listed(entries, recipient)
        hosts = {*self.directory, *(entry for entry in entries if entry[:1] != "*")}
        names = {recipient, pay_to, *(host for host in hosts if self.pay_to(host) == pay_to)}
        return any(listed(entries, name) for name in names)

    def told(self, recipient: str, decision: "Decision") -> str | None:
        """The payee that is shown: none of a host that the lists refuse."""
        refused = "fail" in (decision.outcomes["blocklist"], decision.outcomes["allowlist"])
        return None if refused and "." in recipient else self.pay_to(recipient)

    # Decisions ------------------------------------------------------------------------------------

    def network_budget(self, agent: Agent) -> int:
        own = agent.policy["dailyNetworkLamports"]
        return self.network if own is None else own

    def network_cost(self, agent: Agent, recipient: str) -> int:
        """The rent too, unless an open spend of the agent to this payee holds it."""
        pay_to = self.pay_to(recipient)
        rent_held = any(
            s.pay_to == pay_to and s.network >= RENT
            for s in agent.spends
            if s.status in ("pending", "approved")
        )
        return MOST_FEE if pay_to is None or rent_held else MOST_FEE + RENT

    def needs_approval(self, agent: Agent, amount: int) -> bool:
        threshold = agent.policy["approvalThreshold"]
        return threshold is not None and amount > threshold

    def failures(
        self, agent: Agent, amount: int, recipient: str, standing: Standing
    ) -> list[tuple[str, str]]:
        """(code, rule) of all that fails, in the contract's order."""
        policy, pay_to = agent.policy, self.pay_to(recipient)
        single = policy["perTransactionCap"]
        own = agent.address in (recipient, pay_to)
        checks = [
            ("account_stopped", "account_stopped", self.stopped),
            ("agent_terminated", "agent_status", agent.status == "terminated"),
            ("agent_paused", "agent_status", agent.status == "paused"),
            ("policy_frozen", "policy_frozen", policy["frozen"]),
            ("recipient_blocked", "blocklist", self.blocked(policy["blocklist"], recipient)),
            (
                "recipient_not_allowed",
                "allowlist",
                own or not listed(policy["allowlist"], recipient),
            ),
            ("recipient_unresolved", "recipient_resolved", pay_to is None),
            (
                "per_transaction_cap_exceeded",
                "per_transaction_cap",
                single is not None and amount > single,
            ),
            ("daily_cap_exceeded", "daily_cap", standing.spent + amount > policy["dailyCap"]),
            (
                "network_cost_exceeded",
                "network_cost",
                standing.network + standing.cost > self.network_budget(agent),
            ),
            (
                "too_many_pending",
                "pending_count",
                self.needs_approval(agent, amount) and standing.waiting >= self.pending_max,
            ),
            ("insufficient_funds", "funds", amount > standing.available),
        ]
        return [(code, rule) for code, rule, fails in checks if fails]

    def standing(self, agent: Agent, cost: int) -> Standing:
        today = self.now.date()
        return Standing(
            agent.spent_on(today), agent.available, agent.network_on(today), cost, agent.waiting
        )

    def decide(self, agent: Agent, amount: int, recipient: str) -> Decision:
        standing = self.standing(agent, self.network_cost(agent, recipient))
        failures = self.failures(agent, amount, recipient, standing)
        outcomes: dict[str, str] = dict.fromkeys(
            ("account_stopped", "agent_status", "policy_frozen", "blocklist", "allowlist",
             "recipient_resolved", "per_transaction_cap", "daily_cap", "network_cost",
             "pending_count", "funds", "approval_threshold"),
            "pass",
        )  # fmt: skip
        if agent.policy["perTransactionCap"] is None:
            outcomes["per_transaction_cap"] = "not_evaluated"
        if agent.policy["approvalThreshold"] is None:
            outcomes["approval_threshold"] = "not_evaluated"
        waits = self.needs_approval(agent, amount)
        if waits:
            outcomes["approval_threshold"] = "fail"
        else:
            outcomes["pending_count"] = "not_evaluated"
        for _, rule in failures:
            outcomes[rule] = "fail"
        retry_at = None
        if failures:
            status = "rejected"
            if not self.failures(agent, amount, recipient, replace(standing, spent=0, network=0)):
                retry_at = midnight_after(self.now)
        else:
            status = "pending" if waits else "approved"
            standing = replace(
                standing,
                spent=standing.spent + amount,
                available=standing.available - amount,
                network=standing.network + standing.cost,
                waiting=standing.waiting + waits,
            )
        remaining, most = self.room(agent, standing)
        about_amount = {"per_transaction_cap", "daily_cap", "pending_count", "funds"}
        if any(rule not in about_amount for _, rule in failures):
            most = 0
        code = failures[0][0] if failures else None
        alone = self.alone(agent, most)
        return Decision(status, code, outcomes, remaining, most, alone, retry_at)

    def room(self, agent: Agent, standing: Standing) -> tuple[int, int]:
        """(remaining today, the most one spend may be), whoever is paid."""
        remaining = max(agent.policy["dailyCap"] - standing.spent, 0)
        bounds = [remaining, standing.available]
        if agent.policy["perTransactionCap"] is not None:
            bounds.append(agent.policy["perTransactionCap"])
        if agent.policy["approvalThreshold"] is not None and standing.waiting >= self.pending_max:
            bounds.append(agent.policy["approvalThreshold"])
        if standing.network + MOST_FEE > self.network_budget(agent):
            bounds.append(0)
        return remaining, min(bounds)

    def alone(self, agent: Agent, most: int) -> int:
        """How much of it passes without a person."""
        threshold = agent.policy["approvalThreshold"]
        return most if threshold is None else min(most, threshold)

    def budget(self, agent: Agent) -> dict[str, Any]:
        standing = self.standing(agent, MOST_FEE)
        remaining, most = self.room(agent, standing)
        if self.stopped or agent.status != "active" or agent.policy["frozen"]:
            most = 0
        policy, today = agent.show_policy(), self.now.date()
        states = {"settled": "settled", "onItsWay": "approved", "waiting": "pending"}
        return {
            "dailyCap": policy["dailyCap"],
            "spentToday": money(standing.spent),
            "spentTodayBy": {
                name: money(agent.spent_on(today, status)) for name, status in states.items()
            },
            "remainingToday": money(remaining),
            "reserved": money(agent.reserved),
            "available": money(agent.available),
            "maxAmountNow": money(most),
            "maxWithoutApproval": money(self.alone(agent, most)),
            "approvalThreshold": policy["approvalThreshold"],
            "allowlist": policy["allowlist"],
            "dailyNetworkLamports": self.network_budget(agent),
            "networkLamportsToday": standing.network,
            "resetsAt": shown(midnight_after(self.now)),
            "status": agent.status,
            "frozen": agent.policy["frozen"],
            "accountStopped": self.stopped,
            "budgetFrozen": False,
            "limits": [],
            "policyVersion": agent.version,
        }

    # What happens ---------------------------------------------------------------------------------

    def add_spend(
        self, agent: Agent, spend_id: str, amount: int, recipient: str, decision: Decision
    ) -> Spend:
        pending = decision.status == "pending"
        made = Spend(
            id=spend_id,
            agent=agent,
            amount=amount,
            recipient=recipient,
            pay_to=self.told(recipient, decision),
            status=decision.status,
            code=decision.code,
            created=self.now,
            expires=self.now + self.approval if pending else None,
            updated=self.now,
            policy_version=agent.version,
            network=0 if decision.code else self.network_cost(agent, recipient),
        )
        agent.spends.append(made)
        agent.events[f"transaction.{made.status}"] += 1
        return made

    def fund(self, agent: Agent, amount: int) -> None:
        was_low = agent.low
        agent.deposited += amount
        agent.funded_at = self.now
        if agent.status != "terminated":
            agent.events["wallet.funded"] += 1
        self.note_low(agent, was_low)

    def patch(self, agent: Agent, status: str | None, policy: dict[str, Any]) -> None:
        was_low, was_status = agent.low, agent.status
        if {**agent.policy, **policy} != agent.policy:
            agent.policy |= policy
            agent.version += 1
            agent.events["agent.policy_updated"] += 1
        agent.status = status or agent.status
        if (was_status, agent.status) == ("active", "paused"):
            agent.events["agent.paused"] += 1
        if (was_status, agent.status) == ("paused", "active"):
            agent.events["agent.resumed"] += 1
        self.note_low(agent, was_low)

    def terminate(self, agent: Agent) -> None:
        if agent.status == "terminated":
            return
        agent.status = "terminated"
        agent.events["agent.terminated"] += 1
        for spend in agent.spends:
            if spend.status == "pending":
                self.reject(spend, "agent_terminated")

    def cannot_approve(self, spend: Spend) -> str | None:
        """A word that the refusal must hold; None when it can be approved."""
        if spend.status != "pending":
            return spend.status
        if self.stopped:
            return "account_stopped"
        assert spend.expires is not None
        if self.now >= spend.expires:
            return "expired"
        if self.pay_to(spend.recipient) != spend.pay_to:
            return "address"
        agent = spend.agent
        failures = self.failures(
            agent,
            spend.amount,
            spend.recipient,
            Standing(
                agent.spent_on(spend.day) - spend.amount,
                agent.available + spend.amount,
                agent.network_on(spend.day) - spend.network,
                spend.network,
                waiting=0,
            ),
        )
        return failures[0][0] if failures else None

    def approve(self, spend: Spend, reason: str | None) -> None:
        spend.status, spend.decided, spend.updated = "approved", self.now, self.now
        spend.reason = reason
        spend.agent.events["transaction.approved"] += 1

    def reject(self, spend: Spend, code: str, reason: str | None = None) -> None:
        spend.status, spend.code, spend.reason = "rejected", code, reason
        spend.decided = spend.updated = self.now
        spend.network = 0
        spend.agent.events["transaction.rejected"] += 1

    def expire(self) -> None:
        for spend in self.spends:
            if spend.status == "pending" and spend.expires and self.now >= spend.expires:
                self.reject(spend, "approval_expired")

    def settle(self, spend: Spend, fee: int) -> None:
        was_low = spend.agent.low
        spend.status, spend.settled, spend.updated = "settled", self.now, self.now
        spend.network = fee
        spend.agent.events["transaction.settled"] += 1
        self.note_low(spend.agent, was_low)
        if spend.agent.balance == 0 and spend.agent.status != "terminated":
            spend.agent.events["wallet.depleted"] += 1

    def note_low(self, agent: Agent, was_low: bool) -> None:
        if agent.low and not was_low and agent.status != "terminated":
            agent.events["wallet.low_balance"] += 1

    # Read back ------------------------------------------------------------------------------------

    def statistics(self, agent_id: str | None, start: datetime, end: datetime) -> dict[str, Any]:
        rows = [
            s for s in self.spends if agent_id in (None, s.agent.id) and start <= s.created < end
        ]
        totals: Counter[str] = Counter()
        for s in rows:
            if s.status == "settled":
                totals[s.recipient] += s.amount
        largest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:10]
        return {
            "totalSpent": money(sum(totals.values())),
            "transactionCount": len(rows),
            "rejectedCount": sum(s.status == "rejected" for s in rows),
            "topRecipients": [{"hostname": n, "totalUsdc": cents(m)} for n, m in largest],
        }

    def show(self, spend: Spend) -> dict[str, Any]:
        return {
            "id": spend.id,
            "agentId": spend.agent.id,
            "amount": money(spend.amount),
            "currency": "USDC",
            "recipient": spend.recipient,
            "status": spend.status,
            "rejectCode": spend.code,
            "createdAt": shown(spend.created),
            "settledAt": shown(spend.settled),
            "payTo": spend.pay_to,
            "policyVersion": spend.policy_version,
            "decidedAt": shown(spend.decided),
            "decisionReason": spend.reason,
            "expiresAt": shown(spend.expires),
            "updatedAt": shown(spend.updated),
        }
