"""Every method of both clients, against a whole service."""

import asyncio
import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest

import bursar
from bursar import AsyncBursar, Bursar
from bursar.client.endpoint import Endpoint, Resource
from bursar.client.model import Transaction
from tests.processes import until
from tests.sellers.served import selling
from tests.support import ON_CURVE, Service, new_account

Colour = Literal["sync", "async"]
BOTH: list[Colour] = ["sync", "async"]


class Driver:
    """Calls either client the same way, and remembers which methods were called."""

    def __init__(self, colour: Colour, key: str, url: str) -> None:
        self.colour: Colour = colour
        # Typed as one of them: the other has the same methods, which is the point.
        self.client: Any = (Bursar if colour == "sync" else AsyncBursar)(key, url)
        self.called: set[str] = set()

    async def ask(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.called.add(method.__qualname__)
        if self.colour == "sync":
            return await asyncio.to_thread(method, *args, **kwargs)
        return await method(*args, **kwargs)

    async def rows(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """All of a list or a download."""
        self.called.add(method.__qualname__)
        if self.colour == "sync":
            return await asyncio.to_thread(lambda: [*method(*args, **kwargs)])
        return [row async for row in method(*args, **kwargs)]

    async def page(self, pages: Any) -> Any:
        return await (asyncio.to_thread(pages.page) if self.colour == "sync" else pages.page())

    async def close(self) -> None:
        closed = self.client.close()
        if closed is not None:
            await closed


@pytest.mark.parametrize("colour", BOTH)
async def test_every_method(served: Service, colour: Colour):
    """Goal: each method of each resource does what it says, and none is left out."""
    driver = Driver(colour, await served.key(account=new_account()), served.url)
    for part in (
        _agents, _money, _approvals, _directory, _budgets, _backtests, _webhooks_and_events, _keys,
        _stop,
    ):  # fmt: skip
        await part(driver)
    async with selling(served, "other payee") as seller:
        await _purchases(driver, seller.url)
    every = {
        endpoint.describe.__qualname__
        for resource in vars(driver.client).values()
        if isinstance(resource, Resource)
        for endpoint in vars(type(resource)).values()
        if isinstance(endpoint, Endpoint)
    }
    assert driver.called == every
    await driver.close()


async def _agents(driver: Driver) -> None:
    agents = driver.client.agents
    made = await driver.ask(
        agents.create,
        "buyer",
        daily_cap=Decimal("100.00"),
        allowlist=["api.example.com", "*.example.org"],
        blocklist=["bad.example.org"],
        per_transaction_cap="50",
        metadata={"team": "search"},
    )
    assert (made.policy.daily_cap, made.policy.per_transaction_cap) == (Decimal(100), Decimal(50))
    assert made.policy.allowlist == ("api.example.com", "*.example.org")
    assert made.created_at.tzinfo is not None
    assert await driver.ask(agents.get, made.id) == made
    changed = await driver.ask(
        agents.update,
        made.id,
        name="shopper",
        metadata={"team": "search", "tier": "1"},
        daily_cap="20",
        per_transaction_cap=None,
        policy_version=1,
    )
    assert (changed.name, changed.policy.version) == ("shopper", 2)
    assert (changed.policy.daily_cap, changed.policy.per_transaction_cap) == (Decimal(20), None)
    with pytest.raises(bursar.PolicyVersionConflict):
        await driver.ask(agents.update, made.id, frozen=True, policy_version=1)
    assert (await driver.ask(agents.pause, made.id)).status == "paused"
    assert (await driver.ask(agents.resume, made.id)).status == "active"
    assert (await driver.ask(agents.freeze, made.id)).policy.frozen is True
    assert (await driver.ask(agents.unfreeze, made.id)).policy.frozen is False
    versions = await driver.rows(agents.policies, made.id, limit=2)
    assert [version.version for version in versions] == [4, 3, 2, 1]
    budget = await driver.ask(agents.budget, made.id)
    assert (budget.daily_cap, budget.available, budget.policy_version) == (Decimal(20), 0, 4)
    for number in range(4):
        await driver.ask(agents.create, f"extra {number}", daily_cap="1", allowlist=[])
    listed = await driver.rows(agents.list, limit=2)
    assert [agent.name for agent in listed][-1] == "shopper"
    assert len({agent.id for agent in listed}) == 5
    first = await driver.page(agents.list(limit=2))
    assert first.has_more
    rest = await driver.rows(agents.list, limit=2, after=first.next_cursor)
    assert [*first.data, *rest] == listed
    found = await driver.rows(agents.list, metadata={"team": "search", "tier": "1"})
    assert [agent.id for agent in found] == [made.id]
    assert await driver.rows(agents.list, metadata={"team": 'a"]b'}) == []
    many = await driver.ask(agents.update_many, where_metadata={"team": "search"}, daily_cap="21")
    assert (many.matched, many.changed) == (1, 1)
    assert (await driver.ask(agents.get, made.id)).policy.daily_cap == Decimal(21)
    ended = await driver.ask(agents.terminate, made.id)
    assert (ended.status, ended.terminated_at is not None) == ("terminated", True)
    assert len(await driver.rows(agents.list, status="terminated")) == 1
    with pytest.raises(bursar.AgentTerminated) as caught:
        await driver.ask(agents.resume, made.id)
    assert caught.value.status == 409
    assert caught.value.request_id


async def _money(driver: Driver) -> None:
    wallets, transactions = driver.client.wallets, driver.client.transactions
    agent = await _agent(driver)
    deposit = await driver.ask(wallets.fund, agent, amount="30")
    assert (deposit.status, deposit.amount) == ("credited", Decimal(30))
    assert await driver.rows(wallets.deposits, agent) == [deposit]
    preview = await driver.ask(
        driver.client.spend.preview, agent_id=agent, amount="31", recipient="api.example.com"
    )
    assert preview.reject_code == "insufficient_funds"
    assert preview.decision.max_amount_now == Decimal(30)
    spend = {"agent_id": agent, "recipient": "api.example.com"}
    paid = await driver.ask(
        driver.client.spend.authorise, amount=Decimal("12.5"), memo="books", wait=30, **spend
    )
    assert (paid.status, paid.amount, paid.memo) == ("settled", Decimal("12.5"), "books")
    assert paid.signature
    refused = await driver.ask(driver.client.spend.authorise, amount="31", **spend)
    assert (refused.status, refused.reject_code) == ("rejected", "insufficient_funds")
    assert {check.rule: check.outcome for check in refused.decision.checks}["funds"] == "fail"
    assert await driver.ask(transactions.get, paid.id) == paid
    assert await driver.ask(transactions.get, paid.id, wait=1) == paid
    assert await driver.ask(transactions.wait, paid.id) == paid
    assert await driver.rows(transactions.list, agent_id=agent) == [refused, paid]
    today = datetime.now(UTC).date()
    known = await driver.rows(
        transactions.list,
        agent_id=agent,
        status="settled",
        recipient="API.example.com",
        from_=today - timedelta(days=1),
        to=datetime.now(UTC) + timedelta(hours=1),
        settled_from="2020-01-01",
        settled_to=today + timedelta(days=1),
        limit=1,
    )
    assert known == [paid]
    stats = await driver.ask(transactions.stats, agent_id=agent, from_=today)
    assert (stats.total_spent, stats.transaction_count) == (Decimal("12.5"), 2)
    assert stats.rejected_count == 1
    assert stats.top_recipients[0].total_usdc == Decimal("12.5")
    text = b"".join(await driver.rows(transactions.export, agent_id=agent)).decode()
    assert [row["id"] for row in csv.DictReader(io.StringIO(text))] == [refused.id, paid.id]
    wallet = await driver.ask(wallets.get, agent)
    assert (wallet.balance, wallet.status) == (Decimal("17.5"), "funded")
    assert (await driver.ask(wallets.balance, agent)).available == Decimal("17.5")
    taken = await driver.ask(
        wallets.withdraw, agent, amount="7.5", destination=ON_CURVE, memo="home"
    )
    assert taken.status == "pending"

    async def settled() -> bool:
        return (await driver.ask(wallets.get_withdrawal, taken.id)).status == "settled"

    await until(settled, seconds=30, every=0.2)
    listed = await driver.rows(wallets.withdrawals, agent)
    assert [(w.id, w.amount) for w in listed] == [(taken.id, Decimal("7.5"))]
    for export, count in ((wallets.export_withdrawals, 1), (wallets.export_deposits, 1)):
        text = b"".join(await driver.rows(export, agent_id=agent)).decode()
        assert len(list(csv.DictReader(io.StringIO(text)))) == count
    with pytest.raises(bursar.InsufficientFunds) as caught:
        await driver.ask(
            wallets.withdraw, agent, amount="11", destination=ON_CURVE, idempotency_key="my-own"
        )
    assert caught.value.idempotency_key == "my-own"


async def _purchases(driver: Driver, url: str) -> None:
    purchases, pins = driver.client.purchases, driver.client.pins
    agent = await driver.ask(
        driver.client.agents.create,
        "buyer",
        daily_cap="1",
        allowlist=["*"],
        approval_threshold="0",
        payees="pinned",
    )
    await driver.ask(driver.client.wallets.fund, agent.id, amount="1")
    made = await driver.ask(purchases.create, url, agent_id=agent.id, max_amount=Decimal("0.01"))
    assert (made.status, made.amount) == ("pending", Decimal("0.001"))
    # The seller names another payee each time, so it is asked once more in between.
    refused = await driver.ask(purchases.create, url, agent_id=agent.id)
    assert refused.status in ("pending", "rejected")
    await driver.ask(driver.client.transactions.approve, made.transaction_id)
    bought = await driver.ask(purchases.continue_, made.id, wait=20)
    assert bought.status in ("presented", "paid")
    assert bought.response.status == 200
    again = await driver.ask(purchases.retry, made.id)
    assert again.response.body == bought.response.body
    assert "eyJ" not in repr(again)
    changed = await driver.ask(purchases.create, url, agent_id=agent.id)
    assert (changed.status, changed.reject_code) == ("rejected", "payee_changed")
    assert (await driver.ask(purchases.get, changed.id)).host == "127.0.0.1"
    rows = await driver.rows(
        purchases.list,
        agent_id=agent.id,
        status=bought.status,
        host="127.0.0.1",
        from_=made.created_at,
    )
    assert [row.id for row in rows] == [made.id]
    (pin,) = await driver.rows(pins.list)
    assert (pin.address, pin.offered is None) == (bought.pay_to, False)
    accepted = await driver.ask(pins.accept, pin.origin, address=pin.offered)
    assert (accepted.address, accepted.offered) == (pin.offered, None)
    assert await driver.ask(pins.forget, pin.origin) is None
    assert await driver.rows(pins.list) == []


async def _approvals(driver: Driver) -> None:
    transactions = driver.client.transactions
    agent = await _agent(driver, approval_threshold="5")
    await driver.ask(driver.client.wallets.fund, agent, amount="30")

    async def spend() -> Transaction:
        return await driver.ask(
            driver.client.spend.authorise,
            agent_id=agent,
            amount="6",
            recipient="api.example.com",
            metadata={"order": "1"},
        )

    first, second, third = await spend(), await spend(), await spend()
    assert (first.status, first.metadata) == ("pending", {"order": "1"})
    approved = await driver.ask(transactions.approve, first.id, reason="fine")
    assert approved.decision_reason == "fine"
    assert (await driver.ask(transactions.deny, second.id)).reject_code == "approval_denied"
    with pytest.raises(bursar.InvalidState):
        await driver.ask(transactions.approve, second.id)
    cancelled = await driver.ask(transactions.cancel, third.id, reason="found it elsewhere")
    assert (cancelled.status, cancelled.reject_code) == ("rejected", "cancelled")


async def _directory(driver: Driver) -> None:
    recipients = driver.client.recipients
    entry = await driver.ask(recipients.put, "Pay.Example.com", address=ON_CURVE)
    assert (entry.hostname, entry.address) == ("pay.example.com", ON_CURVE)
    assert await driver.ask(recipients.get, "pay.example.com") == entry
    assert await driver.rows(recipients.list) == [entry]
    assert await driver.ask(recipients.delete, "pay.example.com") is None
    with pytest.raises(bursar.NotFound):
        await driver.ask(recipients.get, "pay.example.com")


async def _budgets(driver: Driver) -> None:
    budgets = driver.client.budgets
    made = await driver.ask(
        budgets.create, "team", limits=[{"window": "week", "amount": Decimal("2.50")}]
    )
    assert made.limits[0].amount == Decimal("2.50")
    changed = await driver.ask(budgets.update, made.id, frozen=True)
    assert changed.frozen
    assert await driver.ask(budgets.get, made.id) == changed
    assert await driver.rows(budgets.list) == [changed]
    agent_id = await _agent(driver, budget_id=made.id, limits=[{"window": "day", "count": 3}])
    agent = await driver.ask(driver.client.agents.get, agent_id)
    assert (agent.budget_id, agent.policy.limits[0].count) == (made.id, 3)
    with pytest.raises(bursar.InvalidState):
        await driver.ask(budgets.delete, made.id)
    await driver.ask(driver.client.agents.update, agent_id, budget_id=None, limits=[])
    assert await driver.ask(budgets.delete, made.id) is None


async def _backtests(driver: Driver) -> None:
    client = driver.client
    agent_id = await _agent(driver)
    await driver.ask(client.wallets.fund, agent_id, amount="5")
    await driver.ask(
        client.spend.authorise, agent_id=agent_id, amount="2", recipient="api.example.com"
    )
    made = await driver.ask(client.backtests.create, agent_id=agent_id, daily_cap=Decimal(1))

    async def done() -> bool:
        return (await driver.ask(client.backtests.get, made.id)).status == "done"

    await until(done, seconds=60)
    found = await driver.ask(client.backtests.get, made.id)
    assert found.reproduced is not None
    assert (found.reproduced.of, found.reproduced.same) == (1, 1)
    assert [(one.was, one.would, one.rule) for one in found.changed] == [
        ("approved", "rejected", "daily_cap")
    ]
    exported = b"".join(await driver.rows(client.backtests.export, made.id))
    assert found.changed[0].transaction_id.encode() in exported
    drafts = client.drafts
    drafted = await driver.ask(drafts.put, agent_id, daily_cap="1", policy_version=1)
    assert (drafted.base_version, drafted.policy.daily_cap) == (1, Decimal(1))
    await driver.ask(
        client.spend.authorise, agent_id=agent_id, amount="2", recipient="api.example.com"
    )

    async def followed() -> bool:
        return (await driver.ask(drafts.get, agent_id)).differing == 1

    await until(followed, seconds=30)
    assert await driver.ask(drafts.delete, agent_id) is None
    await driver.ask(drafts.put, agent_id, daily_cap="3")
    promoted = await driver.ask(drafts.promote, agent_id)
    assert (promoted.policy.version, promoted.policy.daily_cap) == (2, Decimal(3))


async def _webhooks_and_events(driver: Driver) -> None:
    webhooks, events = driver.client.webhooks, driver.client.events
    # Nobody listens there: what is sent to it fails, and says so.
    made = await driver.ask(
        webhooks.create, url="http://127.0.0.1:1/hook", events=["agent.paused", "agent.paused"]
    )
    assert made.events == ("agent.paused",)
    assert made.secret.startswith("whsec_")
    changed = await driver.ask(webhooks.update, made.id, events=["*"], status="enabled")
    assert changed.events == ("*",)
    assert await driver.ask(webhooks.get, made.id) == changed
    assert await driver.rows(webhooks.list) == [changed]
    rotated = await driver.ask(webhooks.rotate_secret, made.id)
    assert rotated.secret not in (None, made.secret)
    sent = await driver.ask(webhooks.test, made.id)
    assert (sent.event_type, sent.webhook_id) == ("webhook.test", made.id)

    async def tried() -> bool:
        delivery = (await driver.rows(webhooks.deliveries, made.id))[0]
        return any(attempt.error is not None for attempt in delivery.attempts)

    await until(tried, seconds=30, every=0.5)
    agent = await _agent(driver)
    await driver.ask(driver.client.agents.pause, agent)
    found = await driver.rows(events.list, agent_id=agent, event_type="agent.paused")
    assert [event.data["id"] for event in found] == [agent]
    assert await driver.rows(events.list, to="2020-01-01") == []
    assert await driver.ask(events.get, found[0].id) == found[0]
    again = await driver.ask(events.redeliver, found[0].id, webhook_id=made.id)
    assert [delivery.event_id for delivery in again.deliveries] == [found[0].id]
    assert await driver.ask(webhooks.delete, made.id) is None


async def _keys(driver: Driver) -> None:
    keys = driver.client.keys
    me = await driver.ask(keys.me)
    assert (me.scope, me.mode) == ("admin", "test")
    assert {limit.category for limit in me.limits} >= {"Agent Reads", "Spend Authorise"}
    agent = await _agent(driver)
    ends = datetime.now(UTC) + timedelta(days=1)
    made = await driver.ask(
        keys.create, "robot", scope="agent", agent_id=agent, expires_at=ends, idempotency_key="k1"
    )
    assert made.agent_id == agent
    replayed = await driver.ask(
        keys.create, "robot", scope="agent", agent_id=agent, expires_at=ends, idempotency_key="k1"
    )
    assert (replayed.id, replayed.key) == (made.id, None)
    robot = Driver(driver.colour, made.key, driver.client.agents.transport.base_url)
    # The agent of an agent key needs no name.
    answer = await robot.ask(robot.client.spend.authorise, amount="1", recipient="api.example.com")
    assert (answer.agent_id, answer.reject_code) == (agent, "insufficient_funds")
    with pytest.raises(bursar.Forbidden):
        await robot.ask(robot.client.agents.pause, agent)
    assert [key.id for key in await driver.rows(keys.list)] == [made.id, me.id]
    assert await driver.ask(keys.revoke, made.id) is None
    lines = await driver.rows(driver.client.audit_log.list, subject=made.id)
    assert [line.action for line in lines] == ["key.revoked", "key.created"]
    exported = b"".join(await driver.rows(driver.client.audit_log.export, subject=made.id))
    assert [row["id"] for row in csv.DictReader(io.StringIO(exported.decode()))] == [
        line.id for line in lines
    ]

    async def refused() -> bool:
        try:
            await robot.ask(robot.client.keys.me)
        except bursar.Unauthorized:
            return True
        return False

    await until(refused, seconds=5, every=0.1)
    await robot.close()


async def _stop(driver: Driver) -> None:
    account = driver.client.account
    agent = await _agent(driver)
    stopped = await driver.ask(account.stop, reason="an agent pays the wrong host")
    assert stopped.reason == "an agent pays the wrong host"
    assert (await driver.ask(driver.client.keys.me)).stop == stopped
    refused = await driver.ask(
        driver.client.spend.authorise, agent_id=agent, amount="1", recipient="api.example.com"
    )
    assert refused.reject_code == "account_stopped"
    await driver.ask(account.resume, unsigned="pay")
    assert (await driver.ask(driver.client.keys.me)).stop is None


async def _agent(driver: Driver, **policy: Any) -> str:
    made = await driver.ask(
        driver.client.agents.create,
        "agent",
        daily_cap="100",
        allowlist=["api.example.com"],
        **policy,
    )
    return made.id


@pytest.mark.parametrize("colour", BOTH)
async def test_errors_say_everything_at_once(served: Service, colour: Colour):
    """Goal: all faults of a request, by place, and what to quote to whoever runs the service."""
    driver = Driver(colour, await served.key(account=new_account()), served.url)
    with pytest.raises(bursar.ValidationError) as caught:
        await driver.ask(
            driver.client.agents.create, "", daily_cap=Decimal(-1), allowlist=["http://x"]
        )
    problem = caught.value
    assert {fault.param for fault in problem.details} == {
        "name",
        "policy.dailyCap",
        "policy.allowlist[0]",
    }
    assert problem.request_id is not None
    assert problem.idempotency_key is not None
    await driver.close()


def test_with_closes_the_connections(served: Service):
    with Bursar("bur_test_wrong", served.url) as client, pytest.raises(bursar.Unauthorized):
        client.keys.me()
    with pytest.raises(RuntimeError, match="closed"):
        client.keys.me()


async def test_async_with_closes_the_connections(served: Service):
    async with AsyncBursar("bur_test_wrong", served.url) as client:
        with pytest.raises(bursar.Unauthorized):
            await client.keys.me()
    with pytest.raises(RuntimeError, match="closed"):
        await client.keys.me()
