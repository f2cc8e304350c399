"""Goal: a price that is decided at once, on what was read before, is the one that the locks would
have given; and where what it rests on has changed since, nothing is written.

In this process, on the market's database: what happens in between is up to the test.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from solders.keypair import Keypair

from bursar.policy.cache import PolicyCache
from bursar.purchase import pin_store
from bursar.purchase.decide import Judge, Priced, Standing
from bursar.purchase.model import PurchaseRow
from bursar.purchase.offer import Offer
from bursar.purchase.order import Order
from bursar.recipient.resolve import Directory
from bursar.spend.model import bounds_of
from bursar.spend.view import show_decision
from bursar_localnet.genesis import TEST_MINT
from tests.purchases.market import Agent, Market, shown
from tests.settlement.bought import open_purchase

HOST = "seller.example"
NETWORK = "solana:localnet"
PAYEE, OTHER = (str(Keypair().pubkey()) for _ in range(2))


@dataclass
class Desk:
    """An agent's purchase whose seller has named its price, and what was read of it before."""

    market: Market
    agent: Agent
    purchase: PurchaseRow
    offer: Offer
    standing: Standing
    judge: Judge

    async def at_once(self) -> Priced | None:
        async with self.market.db.connection() as tx:
            return await self.judge.price_at_once(tx, self.purchase, self.offer, self.standing)

    async def locked(self) -> Priced | None:
        return await self.market.db.transact(
            lambda tx: self.judge.price(
                tx,
                self.purchase,
                self.offer,
                NETWORK,
                has_account=self.standing.has_account,
                may_pin=False,
            )
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
) -> Desk:
    """Of an agent of its own. `pinned`: the origin is paid at `PAYEE`, as it said before."""
    rules: dict[str, Any] = {"allowlist": [HOST], "payees": "pinned", **(policy or {})}
    agent = await market.agent(funds, **rules)
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
        read = await judge.read(tx, purchase.realm_id, agent.id, order)
    binding = judge.binding(purchase, read.agent, read.bound)
    offer = Offer(
        protocol="x402",
        scheme="exact",
        network="solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1",
        asset=TEST_MINT,
        amount=str(micros),
        pay_to=pay_to,
        fee_payer=str(Keypair().pubkey()),
        memo=None,
        echo={},
    )
    standing = Standing(read.agent, binding, NETWORK, has_account)
    return Desk(market, agent, purchase, offer, standing, judge)


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
    assert await found.locked() is not None
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
    offer = Offer(
        protocol="x402",
        scheme="exact",
        network=found.offer.network,
        asset=TEST_MINT,
        amount="1700000",
        pay_to=PAYEE,
        fee_payer=found.offer.fee_payer,
        memo=None,
        echo={},
    )
    spent = Desk(found.market, found.agent, other, offer, found.standing, found.judge)
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
    priced = await found.locked()
    assert priced is not None
    assert priced.spend.reject_code == code


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM pin WHERE realm_id = $1 AND origin = $2",
        "UPDATE pin SET address = '" + OTHER + "' WHERE realm_id = $1 AND origin = $2",
    ],
    ids=["forgotten", "accepted"],
)
async def test_a_pin_that_changed_since(market: Market, statement: str):
    """Goal: nothing is approved for a payee that is no longer where the origin is paid."""
    found = await desk(market)
    await found.run(statement, found.purchase.realm_id, found.purchase.origin)
    with pytest.raises(asyncpg.SerializationError):
        await found.at_once()
    assert await found.spends() == 0


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
    assert await found.locked() is None
    assert await found.spends() == 0
    assert (await found.agent.balance())["available"] == "2.000000"
