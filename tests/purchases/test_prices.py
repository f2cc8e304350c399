"""Goal: a price that is decided at once, on what was read before, is the one that the locks would
have given; and where what it rests on has changed since, nothing is written.

In this process, on the market's database: what happens in between is up to the test.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import pytest
from solders.keypair import Keypair

from bursar.policy.cache import PolicyCache
from bursar.purchase import pin_store, store
from bursar.purchase.choose import Choice
from bursar.purchase.decide import Judge, Priced, Read
from bursar.purchase.model import PurchaseRow
from bursar.purchase.order import Order
from bursar.purchase.payee import Binding
from bursar.recipient.resolve import Directory
from bursar.spend.model import bounds_of
from bursar.spend.view import show_decision
from tests.databases import until_waited_for
from tests.purchases.market import Agent, Market, shown
from tests.settlement.bought import offered, open_purchase

HOST = "seller.example"
NETWORK = "solana:localnet"
PAYEE, OTHER = (str(Keypair.from_seed(bytes([number] * 32)).pubkey()) for number in (1, 2))


@dataclass
class Desk:
    """An agent's purchase whose seller has named its price, and what was read of it before."""

    market: Market
    agent: Agent
    purchase: PurchaseRow
    choice: Choice
    read: Read
    judge: Judge

    def choose(self, _: Binding) -> Choice:
        return self.choice

    async def at_once(self) -> Priced | None:
        return await self.judge.price_at_once(
            self.market.db, self.purchase, self.read, self.choose, NETWORK
        )

    async def locked(self) -> Priced | None:
        return await self.market.db.transact(
            lambda tx: self.judge.price_under_locks(
                tx, self.purchase, self.choose, NETWORK, takes_turn=True
            )
        )

    async def priced(self) -> Priced | None:
        return await self.judge.price(
            self.market.db, self.purchase, self.read, self.choose, NETWORK
        )

    async def spends(self) -> int:
        async with self.market.db.connection() as tx:
            return await tx.fetchval(
                "SELECT count(*) FROM spend WHERE purchase_id = $1", self.purchase.id
            )

    async def run(self, statement: str, *values: Any) -> None:
        async with self.market.db.connection() as tx:
            await tx.execute(statement, *values)


async def desk(
    market: Market,
    policy: dict[str, Any] | None = None,
    *,
    micros: int = 400_000,
    funds: str = "2",
    pay_to: str = PAYEE,
    has_account: bool = True,
    max_micros: int | None = None,
    pinned: bool = True,
    account: str | None = None,
) -> Desk:
    """Of an agent of its own. `pinned`: the origin is paid at `PAYEE`, as it said before."""
    rules: dict[str, Any] = {"allowlist": [HOST], "payees": "pinned", **(policy or {})}
    agent = await market.agent(funds, account=account, **rules)
    order = Order(f"https://{HOST}/{secrets.token_hex(4)}", "GET", (), b"")
    purchase = await open_purchase(market.db, agent.id, order, max_micros)
    judge = Judge(PolicyCache(), Directory(), bounds_of(market.config), approval_seconds=600)
    async with market.db.connection() as tx:
        if pinned:
            await pin_store.pin(tx, purchase.realm_id, purchase.origin, PAYEE, "key_test")
    async with market.db.transaction() as tx:
        # Windows are closed by the first decision of an hour, under the locks.
        await tx.execute("SELECT close_windows(ARRAY[$1::text], NULL)", agent.id)
    async with market.db.connection() as tx:
        read = await judge.read(tx, "test", purchase.realm_id, agent.id, order)
    offer = offered(micros, Keypair(), pay_to)
    return Desk(market, agent, purchase, Choice(offer, has_account), read, judge)


# The same ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "ends"),
    [
        ({}, "approved"),
        ({"policy": {"dailyCap": "0.4"}}, "approved"),
        ({"policy": {"dailyCap": "0.39"}}, "daily_cap_exceeded"),
        ({"policy": {"perTransactionCap": "0.3"}}, "per_transaction_cap_exceeded"),
        ({"policy": {"approvalThreshold": "0.2"}}, "pending"),
        ({"policy": {"allowlist": ["other.example"]}}, "recipient_not_allowed"),
        ({"policy": {"blocklist": [HOST]}}, "recipient_blocked"),
        ({"policy": {"payees": "directory"}}, "recipient_unresolved"),
        ({"funds": "0.3"}, "insufficient_funds"),
        ({"max_micros": 1_000}, "max_amount_exceeded"),
        ({"has_account": False}, "payee_account_missing"),
    ],
    ids=str,
)
async def test_as_under_the_locks(market: Market, case: dict[str, Any], ends: str):
    at_once, locked = await desk(market, **case), await desk(market, **case)
    one, other = await at_once.at_once(), await locked.locked()
    assert one is not None
    assert other is not None
    assert (one.spend.reject_code or one.spend.verdict) == ends
    for priced, of in ((one, at_once), (other, locked)):
        async with market.db.connection() as tx:
            row = await tx.fetchrow("SELECT * FROM purchase WHERE id = $1", of.purchase.id)
        assert row is not None
        stored = {name: row[name] for name in ("status", "reject_code", "amount_micros", "pay_to")}
        told = priced.purchase
        assert stored == {name: getattr(told, name) for name in stored}
        assert (row["spend_id"], row["updated_at"], row["busy_until"]) == (
            priced.spend.id,
            told.updated_at,
            told.busy_until,
        )
        assert await of.spends() == 1
    same = ("verdict", "reject_code", "amount_micros", "recipient", "pay_to", "network_lamports")
    assert [getattr(one.spend, name) for name in same] == [
        getattr(other.spend, name) for name in same
    ]
    decisions = [show_decision(priced.spend.decision) for priced in (one, other)]
    assert [check.outcome for check in decisions[0].checks] == [
        check.outcome for check in decisions[1].checks
    ]
    balances = [await of.agent.balance() for of in (at_once, locked)]
    assert balances[0]["available"] == balances[1]["available"]


@pytest.mark.parametrize(
    "case",
    [
        {"pinned": False},
        {"pay_to": OTHER},
        {"policy": {"limits": [{"window": "day", "amount": "1"}]}},
    ],
    ids=str,
)
async def test_what_only_the_locks_can_decide(market: Market, case: dict[str, Any]):
    """Goal: a payee that has to be pinned, one that differs, limits: nothing is written at once."""
    found = await desk(market, **case)
    assert await found.at_once() is None
    assert await found.spends() == 0
    assert await found.priced() is not None
    assert await found.spends() == 1


# Changed since -----------------------------------------------------------------------------------


async def _freeze(found: Desk) -> None:
    agent = found.agent
    shown(await agent.admin.patch(f"/v1/agents/{agent.id}", json={"policy": {"frozen": True}}))


async def _lower_the_cap(found: Desk) -> None:
    agent = found.agent
    shown(await agent.admin.patch(f"/v1/agents/{agent.id}", json={"policy": {"dailyCap": "0.1"}}))


async def _pause(found: Desk) -> None:
    agent = found.agent
    shown(await agent.admin.patch(f"/v1/agents/{agent.id}", json={"status": "paused"}))


async def _stop(found: Desk) -> None:
    shown(await found.agent.admin.post("/v1/stop", json={"reason": "a test"}))


async def _list_another_payee(found: Desk) -> None:
    shown(await found.agent.admin.put(f"/v1/recipients/{HOST}", json={"address": OTHER}))


async def _spend_the_money(found: Desk) -> None:
    other = await open_purchase(
        found.market.db, found.agent.id, Order(found.purchase.url, "GET", (), b"")
    )
    choice = Choice(offered(1_700_000, Keypair(), PAYEE), True)
    spent = Desk(found.market, found.agent, other, choice, found.read, found.judge)
    priced = await spent.locked()
    assert priced is not None
    assert priced.spend.verdict == "approved"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_freeze, "policy_frozen"),
        (_lower_the_cap, "daily_cap_exceeded"),
        (_pause, "agent_paused"),
        (_stop, "account_stopped"),
        (_list_another_payee, "payee_mismatch"),
        (_spend_the_money, "insufficient_funds"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_change_since_is_decided_under_the_locks(
    market: Market, change: Callable[[Desk], Awaitable[None]], code: str
):
    found = await desk(market)
    await change(found)
    assert await found.at_once() is None
    assert await found.spends() == 0
    priced = await found.priced()
    assert priced is not None
    assert priced.spend.reject_code == code


async def test_a_listing_that_changed_before_the_rules_were_read(market: Market):
    """Goal: the address is compared too, and not only the numbers that change with it: a statement
    may have read the one before the change and the others after it."""
    found = await desk(market)
    await _list_another_payee(found)
    async with market.db.connection() as tx:
        order = Order(found.purchase.url, "GET", (), b"")
        read = await found.judge.read(tx, "test", found.purchase.realm_id, found.agent.id, order)
    found.read = replace(read, bound=found.read.bound)
    with pytest.raises(asyncpg.SerializationError):
        await found.at_once()
    assert await found.spends() == 0
    priced = await found.priced()
    assert priced is not None
    assert priced.spend.reject_code == "payee_mismatch"


@pytest.mark.parametrize(
    ("statement", "ends"),
    [
        ("DELETE FROM pin WHERE realm_id = $1 AND origin = $2", "approved"),
        (
            f"UPDATE pin SET address = '{OTHER}' WHERE realm_id = $1 AND origin = $2",
            "payee_changed",
        ),
    ],
    ids=["forgotten", "accepted"],
)
async def test_a_pin_that_changed_since(market: Market, statement: str, ends: str):
    """Goal: nothing is approved for a payee that is no longer where the origin is paid; one that
    is new to it by now is pinned, in turn."""
    found = await desk(market)
    await found.run(statement, found.purchase.realm_id, found.purchase.origin)
    with pytest.raises(asyncpg.SerializationError):
        await found.at_once()
    assert await found.spends() == 0
    priced = await found.priced()
    assert priced is not None
    assert (priced.spend.reject_code or priced.spend.verdict) == ends
    async with market.db.connection() as tx:
        pin = await pin_store.get_pin(tx, found.purchase.realm_id, found.purchase.origin)
    assert pin is not None
    assert pin.address == (PAYEE if ends == "approved" else OTHER)


async def test_two_that_find_no_pin_any_more(market: Market):
    """Goal: of two purchases whose pin was forgotten while their seller was asked, one pins its
    payee and the other is held to it."""
    one = await desk(market)
    other = await desk(market, account=one.agent.account, pinned=False)
    other.read = replace(other.read, bound=one.read.bound)
    other.choice = Choice(replace(other.choice.offer, pay_to=OTHER), True)
    pin = one.purchase.realm_id, one.purchase.origin
    await one.run("DELETE FROM pin WHERE realm_id = $1 AND origin = $2", *pin)
    both = await asyncio.gather(one.priced(), other.priced())
    ends = sorted(
        str(priced.spend.reject_code or priced.spend.verdict) for priced in both if priced
    )
    assert ends == ["approved", "payee_changed"]


async def test_a_purchase_that_ended_since(market: Market):
    """Goal: what was given up gets no price, so nothing is reserved for it."""
    found = await desk(market)
    await found.run(
        "UPDATE purchase SET status = 'failed', failure_code = 'interrupted', busy_until = NULL"
        " WHERE id = $1",
        found.purchase.id,
    )
    with pytest.raises(asyncpg.SerializationError):
        await found.at_once()
    assert await found.priced() is None
    assert await found.spends() == 0
    assert (await found.agent.balance())["available"] == "2.000000"


async def test_a_statement_by_itself_waits_for_who_changes_its_row(market: Market):
    """Goal: it is written on what the other left, and nothing of the other is lost."""
    found = await desk(market)
    free = "UPDATE purchase SET busy_until = NULL, problem = $2 WHERE id = $1"
    await found.run(free, found.purchase.id, "before")
    async with market.db.transaction() as tx:
        await tx.execute(free, found.purchase.id, "meanwhile")
        taking = asyncio.create_task(
            market.db.alone(lambda tx: store.take(tx, found.purchase.id, 60, ["open"]))
        )
        await until_waited_for(tx)
    taken = await taking
    assert taken is not None
    assert taken.problem == "meanwhile"
    assert taken.busy_until is not None
