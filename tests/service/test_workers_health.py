"""What `/readyz` and `bursar doctor` know of the workers, and that modes do not share a fate."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bursar.chain import store as chain_store
from bursar.chain.networks import usdc_mint
from bursar.chain.store import Pinned
from bursar.config import Config
from bursar.service.postgres import EmbeddedPostgres
from tests.databases import own_database
from tests.processes import bursar, running_api, until
from tests.support import ON_CURVE, Service, new_agent, spend
from tests.webhooks.conftest import running_worker


@pytest.fixture
async def own(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
) -> AsyncGenerator[Service]:
    """An API process on a database of its own; no worker has ever run there."""
    async with own_database(postgres) as (dsn, db):
        alone = replace(config, database_url=dsn, data_dir=tmp_path)
        async with running_api(alone) as url:
            yield Service(url, alone, db)


async def _ready(service: Service) -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient(verify=False) as client:
        answer = await client.get(f"{service.url}/readyz")
    return answer.status_code, answer.json()


async def _told(service: Service, part: str, told: str) -> None:
    async def so() -> bool:
        # Whoever is too slow to ask the database tells of no worker.
        return (await _ready(service))[1]["workers"].get(part, "").startswith(told)

    await until(so, seconds=30, every=0.1)


async def test_readyz_tells_of_the_workers(own: Service):
    """Goal: before the first worker, while it runs and when it is gone; none of it is a reason for
    a load balancer to take the node out."""
    status, body = await _ready(own)
    assert status == 200
    assert body["workers"] == {"test": "starting", "live": "starting", "all": "starting"}
    async with running_worker(own.config):
        for part in ("test", "live", "all"):
            await _told(own, part, "ok")
    async with own.db.connection() as tx:
        await tx.execute("UPDATE heartbeat SET beat_at = beat_at - interval '1 minute'")
    status, body = await _ready(own)
    assert status == 200
    assert body["status"] == "ok"
    assert all(told.startswith("silent for ") for told in body["workers"].values())
    doctor = await bursar("doctor", base_url=own.url, data_dir=str(own.config.data_dir))
    assert doctor.code == 1
    assert "wrong   live worker: silent for " in doctor.out
    assert "bursar worker" in doctor.out


async def test_a_mode_on_the_wrong_network_stops_no_other(own: Service):
    """Goal: the worker gives that mode up, says so, and settles the other mode's spends."""
    async with own.db.transaction() as tx:
        mint = usdc_mint(own.config, "live")
        await chain_store.pin(tx, Pinned("live", "another genesis", mint, 6))
    async with running_worker(own.config) as worker, await own.admin() as client:
        await _told(own, "test", "ok")
        agent = await new_agent(client, policy={"allowlist": ["*"]})
        await client.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "10"})
        made = await spend(client, agent["id"], "1", recipient=ON_CURVE)

        async def settled() -> bool:
            answer = await client.get(f"/v1/transactions/{made['id']}")
            return answer.json()["data"]["status"] == "settled"

        await until(settled, seconds=30)
        assert worker.returncode is None
        await _told(own, "live", "starting (CommandFailed)")


async def test_a_worker_that_is_stopped_gives_its_backtest_back(own: Service):
    """Goal: however often workers are deployed while it runs, no stop of one counts as a try."""
    async with await own.admin() as client:
        agent = await new_agent(client)
        body = {"agentId": agent["id"], "policy": {"dailyCap": "1.00"}}
        asked = (await client.post("/v1/backtests", json=body)).json()["data"]["id"]

    async def state() -> str:
        async with own.db.connection() as tx:
            return await tx.fetchval(
                "SELECT status || ' ' || tries FROM backtest WHERE id = $1", asked
            )

    async def runs() -> bool:
        return await state() == "running 1"

    async with own.db.transaction() as tx:
        # It waits until everything until then can be read.
        await tx.execute("UPDATE backtest SET ends_at = ends_at + interval '1 hour'")
    for _ in range(2):
        async with running_worker(own.config):
            await until(runs, seconds=30)
        assert await state() == "queued 0"


@pytest.mark.parametrize("table", ["seal", "idempotency"])
async def test_a_duty_that_raises_stops_no_other(own: Service, table: str):
    """Goal: with the seal or the retention broken, spends still settle, and it shows."""
    async with own.db.transaction() as tx:
        await tx.execute(f"ALTER TABLE {table} RENAME TO hidden")
    async with running_worker(own.config) as worker:
        await _told(own, "test", "ok")

        async def broken() -> bool:
            async with own.db.connection() as tx:
                return await tx.fetchval(
                    "SELECT EXISTS (SELECT FROM heartbeat WHERE problem = 'UndefinedTableError')"
                )

        await until(broken, seconds=30, every=0.1)
        await _told(own, "test", "ok")
        assert worker.returncode is None
