"""What clients were told against what the service shows and what the chain holds.

It shares nothing with the service but the public interface of both: the API as each tenant sees
it, and the RPC of the chain. Everything that is wrong is written to the journal.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import asyncpg

from bursar.chain.message import token_account
from bursar.db import OUT_OF_REACH
from bursar.money import parse_micros
from bursar_localnet.genesis import TEST_MINT
from tests.processes import until
from tests.prove.journal import Journal, Told
from tests.prove.stage import Stage
from tests.prove.workload import Tenant

# Longer than any attempt needs to die and the next one to land.
STUCK_SECONDS: Final = 120.0
_MOVING: Final = (
    "SELECT (SELECT count(*) FROM spend WHERE status = 'approved')"
    " + (SELECT count(*) FROM withdrawal WHERE status = 'pending')"
    " + (SELECT count(*) FROM payment WHERE state IN ('waiting', 'live'))"
    " + (SELECT count(*) FROM delivery WHERE status = 'pending')"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One spend, as its tenant's export shows it now."""

    agent_id: str
    micros: int
    recipient: str
    status: str
    signature: str
    policy_version: int
    created_at: str


@dataclass
class Auditor:
    stage: Stage
    journal: Journal
    tenants: Sequence[Tenant]
    # How long it took, each time, until nothing was on its way.
    calmed: list[float] = field(default_factory=list)
    # Successful transactions on the chain, by the memo in them.
    paid: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    shown: dict[str, Shown] = field(default_factory=dict)
    _newest: dict[str, str] = field(default_factory=dict)
    _difference: str = ""

    async def audit(self, *, everything: bool) -> None:
        """While nobody asks for anything and nothing is broken. Reads spends again that cannot have
        changed only when `everything` is wanted."""
        if not await self._calm():
            return
        shown = await self._export(everything=everything)
        await self._look_at_chain()
        withdrawals = await self._withdrawals()
        self._check_spends(shown)
        self._check_caps(shown)
        self._check_chain(shown, withdrawals)
        await self._check_balances(shown)
        self._check_webhooks(shown, withdrawals)
        if everything:
            await self._check_deposits()

    async def _calm(self) -> bool:
        try:
            self.calmed.append(await until(self._nothing_moves, seconds=STUCK_SECONDS, every=0.2))
        except AssertionError:
            async with self.stage.db.connection() as tx:
                open_ = await tx.fetch(
                    "SELECT id, state, problem FROM payment WHERE state IN ('waiting', 'live')"
                )
                moving = await tx.fetchval(_MOVING)
            self.journal.accuse(
                "stuck",
                f"{moving} after {STUCK_SECONDS} s, payments {[dict(row) for row in open_[:5]]}",
            )
            return False
        return True

    async def _nothing_moves(self) -> bool:
        try:
            async with self.stage.db.connection() as tx:
                return await tx.fetchval(_MOVING) == 0
        except (*OUT_OF_REACH, asyncpg.PostgresError):
            return False  # the pool still holds sessions of a server that is gone

    # What is shown ----------------------------------------------------------------------------

    async def _export(self, *, everything: bool) -> dict[str, Shown]:
        """Every spend of every tenant, by id."""
        if everything:
            self.shown = {}
        changing = [s.created_at for s in self.shown.values() if s.status == "pending"]
        newest = max((s.created_at for s in self.shown.values()), default="")
        start = min([*changing, newest])
        shown = self.shown
        for number, tenant in enumerate(self.tenants):
            url = f"{self.stage.urls[number % len(self.stage.urls)]}/v1/transactions/export"
            for row in await self._rows(f"{url}?from={start}" if start else url, tenant):
                micros = parse_micros(row["amount"])
                assert micros is not None
                shown[row["id"]] = Shown(
                    row["agentId"], micros, row["recipient"], row["status"], row["signature"],
                    int(row["policyVersion"]), row["createdAt"],
                )  # fmt: skip
        return shown

    async def _rows(self, url: str, tenant: Tenant) -> Iterator[dict[str, str]]:
        headers = {"Authorization": f"Bearer {tenant.keys[0]}"}
        timeout = aiohttp.ClientTimeout(total=120)
        async with self.stage.rpc.session.get(url, headers=headers, timeout=timeout) as answer:
            assert answer.status == 200, await answer.text()
            return csv.DictReader((await answer.text()).splitlines())

    async def _page(self, path: str, tenant: Tenant) -> list[dict[str, Any]]:
        """All rows of a list."""
        headers = {"Authorization": f"Bearer {tenant.keys[0]}"}
        rows: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            async with self.stage.rpc.session.get(
                f"{self.stage.urls[0]}{path}", headers=headers, params={"limit": "100", **after}
            ) as answer:
                page = await answer.json()
            assert answer.status == 200, page
            rows += page["data"]
            if not page["hasMore"]:
                return rows
            after = {"after": page["nextCursor"]}

    async def _withdrawals(self) -> dict[str, str]:
        """The state of each, by id."""
        return {
            row["id"]: row["status"]
            for tenant in self.tenants
            for agent in tenant.agents
            for row in await self._page(f"/v1/wallets/{agent.id}/withdrawals", tenant)
        }

    async def _look_at_chain(self) -> None:
        """Reads what is new at every wallet's token account since the last time."""
        for tenant in self.tenants:
            for agent in tenant.agents:
                await self._look_at(token_account(agent.address, TEST_MINT))

    async def _look_at(self, account: str) -> None:
        until_ = {"until": self._newest[account]} if account in self._newest else {}
        before: dict[str, str] = {}
        newest: str | None = None
        while True:
            page = await self.stage.rpc(
                "getSignaturesForAddress", account, {"limit": 1000} | until_ | before
            )
            for line in page:
                newest = newest or line["signature"]
                memo = (line["memo"] or "").partition("] ")[2]
                if line["err"] is None and memo.startswith(("txn_", "wdr_")):
                    self.paid[memo].add(line["signature"])
            if len(page) < 1000:
                break
            before = {"before": page[-1]["signature"]}
        if newest is not None:
            self._newest[account] = newest

    # What must be so --------------------------------------------------------------------------

    def _check_spends(self, shown: dict[str, Shown]) -> None:
        told = {spend.spend_id: spend for spend in self.journal.spends.values()}
        if len(told) != len(self.journal.spends):
            self.journal.accuse("double", "two keys were told of one spend")
        for spend_id in told.keys() - shown.keys():
            self.journal.accuse("lost", f"{told[spend_id]}")
        for spend_id in shown.keys() - told.keys():
            self.journal.accuse("double", f"nobody asked for {spend_id} {shown[spend_id]}")
        for spend_id, spend in told.items():
            now = shown.get(spend_id)
            if now is not None:
                self._check_spend(spend, now)

    def _check_spend(self, told: Told, now: Shown) -> None:
        fixed = (told.agent_id, told.micros, told.recipient, told.policy_version, told.created_at)
        if fixed != (now.agent_id, now.micros, now.recipient, now.policy_version, now.created_at):
            self.journal.accuse("lost", f"told {told}, shown {now}")
        last = self.journal.decided.get(told.spend_id, told.status)
        if now.status not in _MAY_BECOME[last]:
            self.journal.accuse("lost", f"{told.spend_id} was {last}, is {now.status}")
        if told.status == "rejected":
            return
        rules = self.journal.rules.get((told.agent_id, told.policy_version))
        if rules is None:
            self.journal.accuse("old policy", f"decided by a version nobody made: {told}")
        elif (
            rules.frozen
            or told.recipient not in rules.allowlist
            or (rules.most_micros is not None and told.micros > rules.most_micros)
        ):
            self.journal.accuse("cap", f"{told} passed {rules}")

    def _check_caps(self, shown: dict[str, Shown]) -> None:
        """Of each agent and UTC day; the cap of a test's agent never changes."""
        totals: Counter[tuple[str, str]] = Counter()
        for spend in shown.values():
            if spend.status != "rejected":
                totals[spend.agent_id, spend.created_at[:10]] += spend.micros
        for (agent_id, day), micros in totals.items():
            cap = self.journal.rules[agent_id, 1].cap_micros
            if micros > cap:
                self.journal.accuse("cap", f"{agent_id} spent {micros} of {cap} on {day}")

    def _check_chain(self, shown: dict[str, Shown], withdrawals: dict[str, str]) -> None:
        states = {spend_id: spend.status for spend_id, spend in shown.items()} | withdrawals
        for payment_id, status in states.items():
            times = len(self.paid.get(payment_id, ()))
            if times > 1:
                self.journal.accuse("double", f"{payment_id} is {times} times on the chain")
            elif times != (status == "settled"):
                self.journal.accuse("chain", f"{payment_id} is {status}, {times} times paid")
            elif times and payment_id in shown:
                (signature,) = self.paid[payment_id]
                if signature != shown[payment_id].signature:
                    self.journal.accuse("chain", f"{payment_id} shows another signature")
        for payment_id in self.paid.keys() - states.keys():
            self.journal.accuse("double", f"{payment_id} was paid, and nobody knows it")
        for payment_id in self.journal.withdrawals.keys() - withdrawals.keys():
            self.journal.accuse("lost", f"withdrawal {payment_id}")

    async def _check_balances(self, shown: dict[str, Shown]) -> None:
        """Ledger and chain, to the micro-unit; what is reserved is what waits for approval."""
        waiting: Counter[str] = Counter()
        for spend in shown.values():
            if spend.status == "pending":
                waiting[spend.agent_id] += spend.micros
        for tenant in self.tenants:
            for agent in tenant.agents:
                if not await self._same(tenant, agent.id, agent.address, waiting[agent.id]):
                    self.journal.accuse("ledger", self._difference)

    async def _same(self, tenant: Tenant, agent_id: str, address: str, reserved: int) -> bool:
        """A deposit that is just being noticed is given a moment."""
        account = token_account(address, TEST_MINT)
        headers = {"Authorization": f"Bearer {tenant.keys[1]}"}

        async def same() -> bool:
            held = await self.stage.rpc("getTokenAccountBalance", account)
            url = f"{self.stage.urls[0]}/v1/wallets/{agent_id}"
            async with self.stage.rpc.session.get(url, headers=headers) as answer:
                wallet = (await answer.json())["data"]
            self._difference = f"{wallet}, the chain {held['value']['amount']}, waiting {reserved}"
            return (
                parse_micros(wallet["balance"]) == int(held["value"]["amount"])
                and parse_micros(wallet["reserved"]) == reserved
            )

        try:
            await until(same, seconds=20, every=0.5)
        except AssertionError:
            return False
        return True

    async def _check_deposits(self) -> None:
        """Each was credited, once."""
        credited: Counter[tuple[str, str]] = Counter()
        for tenant in self.tenants:
            for agent in tenant.agents:
                for row in await self._page(f"/v1/wallets/{agent.id}/deposits", tenant):
                    credited[row["signature"], agent.id] += row["status"] == "credited"
        for deposit in self.journal.deposits.items():
            if credited[deposit] != 1:
                self.journal.accuse("ledger", f"{deposit} was credited {credited[deposit]} times")

    def _check_webhooks(self, shown: dict[str, Shown], withdrawals: dict[str, str]) -> None:
        receiver = self.stage.receiver
        for tenant in self.tenants:
            if not tenant.hooked:
                continue
            agents = {agent.id for agent in tenant.agents}
            wanted = {
                ("transaction.settled", spend_id)
                for spend_id, spend in shown.items()
                if spend.agent_id in agents and spend.status == "settled"
            } | {
                ("withdrawal.settled", payment_id)
                for payment_id, agent_id in self.journal.withdrawals.items()
                if agent_id in agents and withdrawals.get(payment_id) == "settled"
            }
            for missing in sorted(wanted - receiver.told[tenant.name])[:5]:
                self.journal.accuse("webhook", f"{tenant.name} was never told of {missing}")
        if receiver.forged:
            self.journal.accuse("webhook", f"{receiver.forged} deliveries with a wrong signature")


_MAY_BECOME: Final = {
    "rejected": {"rejected"},
    "pending": {"pending"},
    "approved": {"approved", "settled", "rejected"},
}
