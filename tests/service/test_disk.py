"""The embedded database's disk: what would write is refused before it is full."""

import shutil
from pathlib import Path

from bursar.clock import SystemClock
from bursar.db import Database
from bursar.service.disk import DiskRoom
from bursar.service.postgres import EmbeddedPostgres
from tests.processes import running_service
from tests.support import POLICY, Service, error_of


def test_there_is_room_while_more_than_the_reserve_is_free(tmp_path: Path):
    free_mib = shutil.disk_usage(tmp_path).free // (1024 * 1024)
    assert DiskRoom(tmp_path, 0, SystemClock())()
    assert DiskRoom(tmp_path, free_mib // 2, SystemClock())()
    assert not DiskRoom(tmp_path, free_mib * 2, SystemClock())()


async def test_what_would_write_is_refused_before_the_disk_is_full(tmp_path: Path):
    """Goal: 503 with Retry-After for every write, while reading goes on, and everything can still
    be stopped."""
    with (tmp_path / "log").open("wb") as log:
        async with running_service(tmp_path / "data", log, disk_reserve_mib="1000000000") as config:
            database = await Database.open(EmbeddedPostgres(config.data_dir).dsn, 1, 10)
            service = Service(f"http://127.0.0.1:{config.port}", config, database)
            async with await service.admin() as client:
                body = {"name": "agent", "policy": POLICY}
                for path, sent in (
                    ("/v1/agents", body),
                    ("/v1/spend/authorise", {"agentId": "x", "amount": "1", "recipient": "a.bc"}),
                ):
                    refused = await client.post(path, json=sent)
                    error = error_of(refused, 503, "unavailable")
                    assert "disk" in error["message"]
                    assert int(refused.headers["retry-after"]) >= 1
                assert (await client.get("/v1/agents")).json()["data"] == []
                assert (await client.get("/v1/transactions/export")).status_code == 200
                stopped = await client.post("/v1/stop", json={"reason": "no room"})
                assert stopped.is_success, stopped.text
                assert (await client.get("/v1/me")).json()["data"]["stop"]["reason"] == "no room"
            await database.close()
