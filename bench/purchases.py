"""How long a purchase takes, beside the bare client of a seller's protocol on the same seller: on a
chain that takes as long as Solana to confirm what the seller settles, on one that takes no time,
and from a seller that settles nothing.

The reference is the published Python client of x402 where `make test-stock` has installed it, and a
client of our own that does the same and no more where it has not. `python -m bench.purchases`
prints the rows; `rows()` hands them to whoever draws them.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import uvloop
from solders.keypair import Keypair
from tests.localnet.support import Rpc
from tests.purchase.support import DEVNET
from tests.purchases.market import Agent, Market, open_market
from tests.sellers.buyer import Buyer
from tests.sellers.stall import Stall, open_stall
from tests.stock.conftest import STOCK, once

from bench.rows import Row, below, table
from bursar.migrations.migrate import migrate
from bursar.service.postgres import running_postgres

# In turns, because a machine is not equally busy all the time.
ROUNDS = 3
LAPS = 15
_TARGET = 2.0
# Solana's slots. A payment is confirmed two of them later, or at once.
_SLOT_MS = 400
_LAGS = {"as Solana": 2, "at once": 0}


async def rows() -> list[Row]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        market = await stack.enter_async_context(_market(folder))
        stall = await stack.enter_async_context(open_stall(market.rpc))
        found: list[Row] = []
        for how, slots in _LAGS.items():
            await market.rpc("bursar_faults", {"lag": {"confirmed": slots, "finalized": slots}})
            # It takes half a second, and needs no more to be known well.
            laps = LAPS if slots == 0 else LAPS // 3
            found.append(await _row(market, stall, f"purchase, settled {how}", laps))
        stall.settles = False
        found.append(await _row(market, stall, "purchase, not settled", LAPS))
        return found


@asynccontextmanager
async def _market(folder: Path) -> AsyncGenerator[Market]:
    """A durable database, an HTTP process and a worker, as users have them."""
    (folder / "market").mkdir()
    async with running_postgres(folder / "data", max_connections=60) as postgres:
        await migrate(postgres.dsn)
        async with open_market(
            folder / "market", postgres.dsn, slot_ms=_SLOT_MS, log_level="error"
        ) as market:
            yield market


async def _row(market: Market, stall: Stall, name: str, laps: int) -> Row:
    agent = await market.agent("100")
    wallet = Keypair()
    await market.rpc("bursar_faucet", str(wallet.pubkey()), 100_000_000)
    bare, ours = list[float](), list[float]()
    # The first of each connects, and reads what it then remembers.
    await _ours(agent, stall, 5)
    for _ in range(ROUNDS):
        bare += await _bare(market.rpc, wallet, stall, laps)
        ours += await _ours(agent, stall, laps)
    reference = "published client" if (STOCK / ".ready").exists() else "bare client"
    return below(
        f"{name} (reference: {reference})",
        statistics.median(ours) * 1_000,
        "ms",
        statistics.median(bare) * 1_000,
        _TARGET,
    )


async def _ours(agent: Agent, stall: Stall, laps: int) -> list[float]:
    """One after the other, each until the seller's answer is there."""
    found: list[float] = []
    for _ in range(laps):
        began = time.perf_counter()
        purchase = await agent.buy(stall.url)
        found.append(time.perf_counter() - began)
        assert purchase["status"] in ("presented", "paid"), purchase
    return found


async def _bare(rpc: Rpc, wallet: Keypair, stall: Stall, laps: int) -> list[float]:
    if (STOCK / ".ready").exists():
        (tries,) = await once(
            "x402_often.py",
            buyers=[{"url": stall.url, "secret": str(wallet)}],
            rpc=rpc.url,
            network=DEVNET,
            times=laps + 1,
            timeout=60,
            until_served=False,
        )
        # The first one connects.
        return [lap["seconds"] for lap in tries[1:]]
    found: list[float] = []
    async with aiohttp.ClientSession() as session:
        buyer = Buyer(Rpc(rpc.port, session), wallet)
        for variation in range(laps):
            began = time.perf_counter()
            (offer,) = (await buyer.offered(stall.url)).offers
            await buyer.present(stall.url, await buyer.sign(offer, variation))
            found.append(time.perf_counter() - began)
    return found


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(table(runner.run(rows())))


if __name__ == "__main__":
    main()
