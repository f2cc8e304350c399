"""Backtests and drafts run here, without a worker process."""

import time
from typing import Any

import httpx

from bursar.backtest.follow import DraftFollower
from bursar.backtest.job import Backtester
from bursar.clock import SystemClock
from bursar.config import Config
from bursar.db import Database, Tx
from bursar.ledger.lock import lock_agents
from bursar.policy.engine import RejectCode
from bursar.settlement import payment_store
from bursar.spend.close import reject_spends
from bursar.spend.model import bounds_of
from tests.support import Service


async def run_backtests(db: Database, config: Config) -> None:
    """All that wait, of whomever."""
    backtester = Backtester(db, bounds_of(config), SystemClock())
    while await backtester.work():
        pass


def follower(service: Service) -> DraftFollower:
    return DraftFollower(service.db, bounds_of(service.config))


async def backtest(service: Service, client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Asked for, run, and read."""
    asked = await client.post("/v1/backtests", json=body)
    assert asked.status_code == 202, asked.text
    await run_backtests(service.db, service.config)
    found = (await client.get(f"/v1/backtests/{asked.json()['data']['id']}")).json()["data"]
    assert found["status"] == "done", found
    assert found["reproduced"]["same"] == found["reproduced"]["of"]
    return found


async def fail(db: Database, spend_id: str, agent_id: str) -> None:
    """What settlement does when the payment of an approved spend failed for good."""

    async def work(tx: Tx) -> None:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
        locked = await lock_agents(tx, [agent_id], [realm_id])
        await payment_store.fail_payment(tx, spend_id, "failed for good", "waiting")
        await reject_spends(
            tx,
            locked[agent_id].wallet,
            [spend_id],
            expected="approved",
            code=RejectCode.SETTLEMENT_FAILED,
            decided_by=None,
            reason=None,
        )

    await db.transact(work)


async def reproduce(service: Service, key: str, requests: int) -> float:
    """Replays all that an account's agents have requested, under the cap that they all have;
    returns how many seconds that took."""
    async with service.client(key) as client:
        labels = {"metadata": {"fleet": "all"}}
        changed = await client.patch("/v1/agents?status=active", json=labels)
        assert changed.status_code == 200, changed.text
        began = time.monotonic()
        found = await backtest(service, client, **labels, policy={"dailyCap": "1000.00"})
        took = time.monotonic() - began
    print(f"{found['reproduced']['of']} requests replayed in {took:.1f} s")
    assert found["reproduced"] == {"of": requests, "same": requests}
    assert found["changedCount"] == 0
    return took
