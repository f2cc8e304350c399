"""Goal: whatever a seller does, and whatever is killed meanwhile, a purchase is paid once or never.
Counted on the chain, not in our books.

150 purchases by default, 2,000 with BURSAR_LONG=1; BURSAR_SEED chooses the accidents.
"""

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import aiohttp
import httpx
import pytest

from bursar.service.postgres import EmbeddedPostgres
from tests.processes import until
from tests.purchases.market import ENDED, Agent, Market, open_market
from tests.sellers.hostile import PRICE_MICROS, TRICKS, HostileSeller, hostile_seller
from tests.settlement.books import ledger_is_chain, paid_times
from tests.settlement.stage import database
from tests.simulation.world import seeded

LONG: Final = os.environ.get("BURSAR_LONG") == "1"
PURCHASES: Final = 2_000 if LONG else 150
AGENTS: Final = 12 if LONG else 6
CLIENTS: Final = 24 if LONG else 12
# A blockhash lives for 9 s, and is proven dead 11 s later.
SLOT_MS: Final = 60
# While the blockhash lives, and when it is dead.
LATE_SECONDS: Final = {"settles late": 2.5, "settles too late": 12.0}
# Of each kind: what was killed needs a while to be back.
PROCESSES: Final = 2
# Between two kills. They take turns, and each has run for ten seconds when it is killed again: for
# what dies sooner the supervisor waits longer and longer, until hardly anything is up.
REST_SECONDS: Final = (2.5, 4.0)
# A kill is aimed at a purchase that has just come so far, and waits so long for one.
STEPS: Final = {
    "asked": "status = 'open' AND spend_id IS NULL",
    "decided": "status = 'open' AND spend_id IS NOT NULL",
    "presented": "status = 'presented'",
}
AIM_SECONDS: Final = 1.0
# What hangs open after a kill is given up when its time is over, and what was signed when it died.
CALM_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class Expected:
    """How a purchase from a trickster ends, and how many transfers the chain shows."""

    status: str
    transfers: int
    failure: str | None = None


PAID: Final = Expected("paid", 1)
UNPAID: Final = Expected("unpaid", 0)
UNUSABLE: Final = Expected("failed", 0, "unsupported_payment")
EXPECTED: Final = dict.fromkeys(TRICKS, PAID) | {
    "pretends": UNPAID,
    "402 for ever, unsettled": UNPAID,
    "other asset": UNUSABLE,
    "other network": UNUSABLE,
}


@pytest.fixture(scope="module")
async def market(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Market]:
    """On a chain whose blocks are short, so that what dies is proven dead soon."""
    async with (
        database(postgres) as dsn,
        open_market(
            tmp_path_factory.mktemp("market"),
            dsn,
            slot_ms=SLOT_MS,
            processes=PROCESSES,
            log_level="error",
            # A seller that hangs is given up then; others answer within it on a busy machine, too.
            purchases_timeout_seconds=3,
        ) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
async def sellers(market: Market) -> AsyncGenerator[dict[str, HostileSeller]]:
    """One for each trick, and one that settles when it is too late."""
    async with AsyncExitStack() as stack:
        tricks = {**TRICKS, "settles too late": TRICKS["settles late"]}
        yield {
            name: await stack.enter_async_context(
                hostile_seller(market.rpc, trick, late_seconds=LATE_SECONDS.get(name, 0.0))
            )
            for name, trick in tricks.items()
        }


# Each trick by itself ----------------------------------------------------------------------------


@pytest.mark.timeout(900)
async def test_each_trick(market: Market, sellers: Mapping[str, HostileSeller]):
    """Goal: an agent that buys, and asks for lost goods until it has them, pays each seller at most
    once; and gets everything back that was not taken."""
    made = await asyncio.gather(*(market.agent("1") for _ in TRICKS))
    agents = dict(zip(TRICKS, made, strict=True))
    began = time.monotonic()
    found = dict(
        zip(
            agents,
            await asyncio.gather(
                *(_patient(market, agents[name], sellers[name]) for name in agents)
            ),
            strict=True,
        )
    )
    print(f"\nall ended after {time.monotonic() - began:.0f} s")
    assert found == EXPECTED
    for name, agent in agents.items():
        now = await agent.balance()
        left = "0.999000" if EXPECTED[name].transfers else "1.000000"
        assert (now["balance"], now["available"]) == (left, left), name
    audit = await market.audit()
    assert audit.code == 0, audit.out + audit.err


async def _patient(market: Market, agent: Agent, seller: HostileSeller) -> Expected:
    """Buys, and asks for the goods up to three times more."""
    purchase = await agent.buy(seller.url)
    for _ in range(3):
        response = purchase["response"]
        if purchase["status"] not in ("presented", "paid") or (response or {}).get("status") == 200:
            break
        answer = await agent.retry(purchase)
        if answer.status_code == 200:
            purchase = answer.json()["data"]
    ended = await agent.ended(purchase)
    paid = await market.paid(agent, *seller.payees)
    assert paid in ([], [PRICE_MICROS]), paid
    return Expected(ended["status"], len(paid), ended["failureCode"])


# All of them, while everything is killed ---------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """One purchase to be made. `brought`: the agent asks the seller itself; `needs_approval`: a
    person has to approve it first; `retries`: how often the goods are asked for again."""

    number: int
    trick: str
    agent: Agent
    brought: bool
    needs_approval: bool
    retries: int

    def url(self, seller: HostileSeller) -> str:
        return f"{seller.url}?purchase={self.number}"


@dataclass
class Fire:
    """What is killed while the purchases are made, and at which step of one, how often."""

    market: Market
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter[str])

    async def burn(self) -> None:
        """Until cancelled."""
        victims = [(kind, n) for n in range(1, PROCESSES + 1) for kind in ("api", "worker")]
        # Four take turns at three steps: in the end each is killed at each.
        turns = zip(itertools.cycle(victims), itertools.cycle(STEPS), strict=False)
        for (kind, number), step in turns:
            await asyncio.sleep(self.chance.uniform(*REST_SECONDS))
            await self._reached(step)
            self.kills[f"{kind} {step}"] += self.market.kill(f"{kind}-{number}")

    async def _reached(self, step: str) -> None:
        """Returns when a purchase has just come there, or none has for a while."""
        async with self.market.db.connection() as tx:
            since = await tx.fetchval("SELECT clock_timestamp()")
            query = f"SELECT count(*) > 0 FROM purchase WHERE {STEPS[step]} AND updated_at > $1"
            with suppress(AssertionError):
                await until(lambda: tx.fetchval(query, since), seconds=AIM_SECONDS, every=0.002)


@pytest.mark.timeout(7_200 if LONG else 1_800)
async def test_every_purchase_is_paid_once_or_never(
    market: Market, sellers: Mapping[str, HostileSeller]
):
    seed, chance = seeded("hostile sellers")
    rich = partial(market.agent, "100", dailyCap="1000.00")
    agents = await asyncio.gather(*(rich() for _ in range(AGENTS)))
    careful = await asyncio.gather(*(rich(approvalThreshold="0") for _ in range(AGENTS // 3)))
    plans = [_plan(chance, number, list(sellers), agents, careful) for number in range(PURCHASES)]
    fire = Fire(market, chance)
    began = time.monotonic()
    burning = asyncio.create_task(fire.burn())
    try:
        ids = await _make_all(plans, sellers, chance)
    finally:
        burning.cancel()
    burned = time.monotonic() - began
    await market.answers()
    if not LONG:
        await _pass_time(market)
    by_id = {ids[plan.number]: plan for plan in plans}
    calm = await until(lambda: _all_ended(market, by_id), seconds=CALM_SECONDS, every=0.5)
    await asyncio.gather(*(seller.late() for seller in sellers.values()))
    await until(lambda: ledger_is_chain(market.rpc, market.db), seconds=30, every=0.5)
    await _check(market, plans, ids, seed)
    ends = await _ends(market, list(ids.values()))
    print(
        f"\nhostile sellers: {PURCHASES} purchases in {burned:.0f} s, all ended {calm:.0f} s after"
        f" the last kill; kills {dict(fire.kills)}; ends {dict(ends)}; presented"
        f" {sum(len(seller.presented) for seller in sellers.values())} times"
    )
    audit = await market.audit()
    assert audit.code == 0, audit.out + audit.err


def _plan(
    chance: random.Random, number: int, tricks: list[str], agents: list[Agent], careful: list[Agent]
) -> Plan:
    needs_approval = chance.random() < 0.15
    return Plan(
        number=number,
        # Each in turn, so that none is left out.
        trick=tricks[number % len(tricks)],
        agent=chance.choice(careful if needs_approval else agents),
        brought=chance.random() < 0.15,
        needs_approval=needs_approval,
        retries=chance.choice((0, 0, 1, 2)),
    )


async def _make_all(
    plans: list[Plan], sellers: Mapping[str, HostileSeller], chance: random.Random
) -> dict[int, str]:
    """A few at a time; the purchases' ids, by plan."""
    left = iter(plans)
    ids: dict[int, str] = {}

    async def work() -> None:
        for plan in left:
            ids[plan.number] = await _make(plan, sellers[plan.trick])
            await asyncio.sleep(chance.uniform(0, 0.2))

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return ids


async def _make(plan: Plan, seller: HostileSeller) -> str:
    """As the docs tell every client to: the same request again, with the same key, until there is
    an answer."""
    url = plan.url(seller)
    body: dict[str, Any] = {"url": url}
    if plan.brought:
        body["paymentRequired"] = await _asked(url)
    purchase = await _post(plan, "/v1/purchases", body, key=f"purchase-{plan.number}")
    assert purchase is not None
    path = f"/v1/purchases/{purchase['id']}"
    if purchase["status"] == "pending":
        await _post(plan, f"/v1/transactions/{purchase['transactionId']}/approve", {}, admin=True)
        purchase = await _post(plan, f"{path}/continue", {}) or purchase
    if plan.brought and purchase["header"] is not None:
        header = {purchase["header"]["name"]: purchase["header"]["value"]}
        for _ in range(1 + plan.retries):
            await _present(url, header)
    else:
        for _ in range(plan.retries):
            await _post(plan, f"{path}/retry", None)
    return purchase["id"]


async def _post(
    plan: Plan, path: str, body: Any, *, key: str | None = None, admin: bool = False
) -> dict[str, Any] | None:
    """What was answered in the end; None where it was no longer to be had (409)."""
    client = plan.agent.admin if admin else plan.agent.client
    headers = {} if key is None else {"Idempotency-Key": key}
    for _ in range(600):
        with suppress(httpx.TransportError):
            answer = await client.post(path, json=body, headers=headers)
            if answer.status_code in (200, 201):
                return answer.json()["data"]
            if answer.status_code == 409 and key is None:
                return None
            assert answer.status_code in (409, 429, 503), answer.text
        await asyncio.sleep(0.1)
    raise AssertionError(f"no answer for {plan}")


async def _asked(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return {"status": answer.status, "headers": dict(answer.headers), "body": ""}


async def _present(url: str, header: dict[str, str]) -> None:
    """The agent itself does, and makes of it what it may."""
    timeout = aiohttp.ClientTimeout(total=1)
    with suppress(aiohttp.ClientError, TimeoutError):
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers=header, allow_redirects=False) as answer,
        ):
            await answer.content.read(1_000)


async def _pass_time(market: Market) -> None:
    """As if the time were over in which a process had a purchase to itself: those that are left
    belong to the dead, for all others have answered. What nobody was to look at again stays so."""
    async with market.db.connection() as tx:
        for until_when in ("busy_until", "next_check_at"):
            await tx.execute(
                f"UPDATE purchase SET {until_when} = clock_timestamp()"
                f" WHERE {until_when} > clock_timestamp()"
            )


async def _all_ended(market: Market, plans: Mapping[str, Plan]) -> bool:
    """Goes on with what waits for its agent; everything else has to end by itself."""
    async with market.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT id, status, spend_id FROM purchase WHERE status <> ALL($1::text[])", list(ENDED)
        )
    for row in rows:
        if row["status"] == "pending":
            plan = plans[row["id"]]
            await _post(plan, f"/v1/transactions/{row['spend_id']}/approve", {}, admin=True)
            await _post(plan, f"/v1/purchases/{row['id']}/continue", {})
    return not rows


async def _ends(market: Market, ids: list[str]) -> Counter[str]:
    async with market.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT concat_ws(' ', status, failure_code, reject_code) AS ending, count(*) AS n"
            " FROM purchase WHERE id = ANY($1) GROUP BY 1 ORDER BY 1",
            ids,
        )
    return Counter({row["ending"]: row["n"] for row in rows})


async def _check(market: Market, plans: list[Plan], ids: dict[int, str], seed: str) -> None:
    async with market.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT p.id, p.status, p.amount_micros, w.address, s.status AS spend"
            " FROM purchase p JOIN wallet w USING (agent_id) LEFT JOIN spend s ON s.id = p.spend_id"
            " WHERE p.agent_id = ANY($1)",
            list({plan.agent.id for plan in plans}),
        )
        frozen = await tx.fetchval("SELECT count(*) FROM wallet WHERE is_frozen")
    assert frozen == 0, f"a wallet holds less than its books say; seed {seed}"
    assert {row["id"] for row in rows} == set(ids.values()), "a purchase was lost, or made twice"
    assert len(rows) == len(plans)
    memos = await paid_times(market.rpc, {row["address"] for row in rows})
    wrong = [
        (row["id"], row["status"], row["spend"], memos[row["address"], row["id"]])
        for row in rows
        if memos[row["address"], row["id"]] != (row["status"] == "paid")
        or (row["status"] == "paid") != (row["spend"] == "settled")
    ]
    assert wrong == [], f"(purchase, status, spend, transfers on the chain); seed {seed}"
    assert sum(memos.values()) == sum(row["status"] == "paid" for row in rows)
