"""Goal: what is kept of an agent's purchases stays within its quota, whatever becomes of them, and
what was sent is kept no longer than somebody can still use it."""

import asyncio
import secrets
from itertools import pairwise
from typing import Any

from bursar.db import Tx
from bursar.errors import present
from bursar.purchase import store
from bursar.purchase.secret_store import QUOTA_BYTES, UNCOUNTED_BYTES, Quota
from bursar.service.ports import free_port
from tests.databases import until_waited_for
from tests.purchases.market import Agent, Market, shown
from tests.purchases.test_approved import decide
from tests.purchases.test_brought import brought
from tests.sellers.stall import GOODS, Stall


async def kept(market: Market, purchase: dict[str, Any]) -> set[str]:
    async with market.db.connection() as tx:
        rows = await tx.fetch(
            "SELECT kind FROM purchase_secret WHERE purchase_id = $1", purchase["id"]
        )
    return {row["kind"] for row in rows}


async def kept_bytes(market: Market, agent: Agent) -> int:
    async with market.db.connection() as tx:
        return await tx.fetchval(
            "SELECT coalesce(sum(bytes), 0) FROM purchase_secret WHERE agent_id = $1", agent.id
        )


async def realm(tx: Tx, purchase: dict[str, Any]) -> int:
    return await tx.fetchval("SELECT realm_id FROM purchase WHERE id = $1", purchase["id"])


async def weigh(market: Market, purchase: dict[str, Any], kind: str, size: int) -> None:
    """As if so much had been kept of it."""
    async with market.db.connection() as tx:
        await tx.execute(
            "UPDATE purchase_secret SET bytes = $3 WHERE purchase_id = $1 AND kind = $2",
            purchase["id"],
            kind,
            size,
        )


async def test_the_quota_holds_when_a_purchase_begins(market: Market, stall: Stall):
    """Goal: an agent whose purchases keep no answer has the same quota. The oldest go, and what is
    needed to continue the new one stays. What others have kept is counted as well."""
    agent = await market.agent(approvalThreshold="0")
    old = await agent.buy(stall.url, paymentRequired=brought(stall))
    await weigh(market, old, "order", QUOTA_BYTES)
    body = "x" * 250_000
    for _ in range(UNCOUNTED_BYTES // len(body)):
        await agent.buy(stall.url, method="POST", body=body, paymentRequired=brought(stall))
    new = await agent.buy(stall.url, paymentRequired=brought(stall))
    assert (await kept(market, old), await kept(market, new)) == (set(), {"order"})
    assert await kept_bytes(market, agent) <= QUOTA_BYTES


async def test_an_agent_stays_within_its_quota_answer_by_answer(market: Market, stall: Stall):
    """Goal: what one process keeps is never beyond it, and to make room is no work for each."""
    agent = await market.agent()
    stall.goods, stall.status = secrets.token_bytes(1_000_000), 200
    weights: list[int] = []
    while len(weights) < 70:
        assert (await agent.buy(stall.url))["status"] == "free"
        weights.append(await kept_bytes(market, agent))
    assert QUOTA_BYTES - weights[0] < max(weights) <= QUOTA_BYTES
    trims = sum(after < before for before, after in pairwise(weights))
    assert 1 <= trims <= 4


async def test_at_the_quota_a_free_answer_reaches_its_caller(market: Market, stall: Stall):
    """Goal: what is trimmed first is not what was just asked for."""
    agent = await market.agent()
    paid = await agent.buy(stall.url)
    await weigh(market, paid, "header", QUOTA_BYTES - 5 * 1024 * 1024)
    stall.goods, stall.status = "x" * 1_000_000, 200
    for _ in range(9):
        free = await agent.buy(stall.url)
        assert (free["status"], free["response"]["body"]) == ("free", stall.goods)
        assert await kept_bytes(market, agent) <= QUOTA_BYTES


async def test_at_the_quota_what_a_person_approves_is_continued(market: Market, stall: Stall):
    """Goal: as long as what waits for a person has room by itself, everything else goes before."""
    agent = await market.agent(approvalThreshold="0")
    waiting = await agent.buy(stall.url)
    await weigh(market, waiting, "order", QUOTA_BYTES - 5 * 1024 * 1024)
    stall.goods, stall.status = "x" * 1_000_000, 200
    for _ in range(9):
        assert (await agent.buy(stall.url))["status"] == "free"
    assert await kept_bytes(market, agent) <= QUOTA_BYTES
    await decide(agent, waiting)
    stall.goods, stall.status = GOODS, 402
    assert shown(await agent.resume(waiting))["response"]["body"] == GOODS


async def test_beside_what_waits_the_newest_stay(market: Market, stall: Stall):
    """Goal: much that waits for a person takes nothing from what was just bought."""
    agent = await market.agent(approvalThreshold="1")
    stall.price_micros = 2_000_000
    waiting = await agent.buy(stall.url)
    assert waiting["status"] == "pending"
    await weigh(market, waiting, "order", QUOTA_BYTES - 7 * 1024 * 1024)
    stall.price_micros, stall.goods = 1_000, "x" * 1_000_000
    bought = [await agent.buy(stall.url) for _ in range(9)]
    assert await kept_bytes(market, agent) <= QUOTA_BYTES
    assert await kept(market, bought[0]) == {"order", "header"}
    for purchase in bought[-4:]:
        assert await kept(market, purchase) == {"order", "header", "response"}
    assert await kept(market, waiting) == {"order"}


async def test_what_is_renewed_while_others_go_stays(market: Market, stall: Stall):
    """Goal: an old answer that is just asked for again is not taken for old."""
    agent = await market.agent()
    old, new = await agent.buy(stall.url), await agent.buy(stall.url)
    async with market.db.connection() as tx, market.db.connection() as other:
        await tx.execute(
            "UPDATE purchase_secret SET bytes = $2, created_at = created_at - interval '1 hour'"
            " WHERE purchase_id = $1 AND kind = 'response'",
            old["id"],
            QUOTA_BYTES,
        )
        async with tx.transaction():
            await tx.execute(
                "UPDATE purchase_secret SET created_at = moment()"
                " WHERE purchase_id = $1 AND kind = 'response'",
                old["id"],
            )
            row = present(
                await store.get_purchase(other, await realm(other, new), new["id"]), "it is there"
            )
            holding = asyncio.create_task(Quota(market.db).hold(row))
            await until_waited_for(tx)
        await holding
    assert await kept(market, old) >= {"response"}


async def test_what_was_sent_goes_after_what_can_be_had_again(market: Market, stall: Stall):
    """Goal: an agent at its quota can still continue, and have presented again, what it paid for
    last."""
    agent = await market.agent()
    for status, freed in ((200, "response"), (402, "order")):
        stall.status = status
        old = await agent.buy(stall.url)
        await weigh(market, old, freed, QUOTA_BYTES)
        # What makes it time to count.
        stall.status, stall.goods = 200, "x" * UNCOUNTED_BYTES
        await agent.buy(stall.url)
        stall.status, stall.goods = 402, GOODS
        new = await agent.buy(stall.url)
        assert freed not in await kept(market, old)
        assert await kept(market, new) == {"order", "header", "response"}
        assert shown(await agent.retry(new))["response"]["body"] == GOODS


async def test_what_was_sent_is_forgotten_where_nothing_will_be(market: Market, stall: Stall):
    """Goal: in the commit that ends a purchase, however it ends; what came back stays."""
    agent = await market.agent()
    nobody = f"http://127.0.0.1:{free_port('127.0.0.1', 0)}/"
    failed = await agent.buy(nobody, method="POST", body="x" * 200_000)
    assert (failed["status"], await kept(market, failed)) == ("failed", set())
    stall.status = 200
    free = await agent.buy(stall.url)
    assert (free["status"], await kept(market, free)) == ("free", {"response"})
    stall.status = 402
    refused = await agent.buy(stall.url, maxAmount="0.000001")
    assert (refused["status"], await kept(market, refused)) == ("rejected", set())
    unpaid = await agent.buy(stall.url, paymentRequired=brought(stall))
    assert await kept(market, unpaid) == {"order", "header"}
    await market.pass_blocks()
    unpaid = await agent.ended(unpaid)
    assert (unpaid["status"], await kept(market, unpaid)) == ("unpaid", {"header"})


async def test_what_was_sent_is_kept_while_a_person_decides(market: Market, stall: Stall):
    agent = await market.agent(approvalThreshold="0")
    denied, other_terms, bought = [await agent.buy(stall.url) for _ in range(3)]
    assert await kept(market, denied) == {"order"}
    await decide(agent, denied, "deny")
    assert ((await agent.get(denied))["status"], await kept(market, denied)) == ("rejected", set())
    for approved in (bought, other_terms):
        await decide(agent, approved)
    assert shown(await agent.resume(bought))["status"] in ("presented", "paid")
    assert (await agent.ended(bought))["status"] == "paid"
    # It may be presented again.
    assert await kept(market, bought) == {"order", "header", "response"}
    stall.price_micros += 1
    assert shown(await agent.resume(other_terms))["failureCode"] == "terms_changed"
    assert await kept(market, other_terms) == {"response"}
