"""What is in the middle of something when a process stops, and what a killed one left behind."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bursar.backtest import follow
from bursar.config import load_config
from bursar.service import backup
from bursar.service.backup import Base, History, histories
from bursar.webhook import store
from bursar.webhook.deliver import Deliverer
from bursar.webhook.store import Result

NONE: Any = None


class NoDatabase:
    """Runs what is asked of it, on nothing."""

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[None]:
        yield None

    async def transact(self, work: Any) -> Any:
        return await work(None)


DATABASE: Any = NoDatabase()


async def test_a_stop_in_the_middle_of_a_round_loses_no_result(monkeypatch: pytest.MonkeyPatch):
    """Goal: what was delivered is recorded although the worker is stopped while it records it."""
    begun, go_on, recorded = asyncio.Event(), asyncio.Event(), list[str]()

    async def exchange(tx: Any, results: list[Result], *, most: int, **_: Any) -> list[Any]:
        if most:
            begun.set()
            await go_on.wait()
        recorded.extend(result.claim.id for result in results)
        return []

    async def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(store, "exchange", exchange)
    monkeypatch.setattr(store, "release", nothing)
    deliverer = Deliverer(
        DATABASE, NONE, NONE, NONE, retry_seconds=[5], timeout_seconds=15, drain_seconds=1
    )
    claim: Any = SimpleNamespace(id="dlv_1", webhook_id="wh_1", url="https://a.example")
    deliverer._results = [Result(claim, "delivered", 0, NONE, False)]
    working = asyncio.create_task(deliverer.work())
    await begun.wait()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    go_on.set()
    await deliverer.drain()
    assert recorded == ["dlv_1"]


async def test_notes_go_on_while_a_base_backup_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Goal: what can be restored is seconds old, also during the hour that a base backup takes."""
    noted = asyncio.Event()

    @asynccontextmanager
    async def connected(*_: Any) -> AsyncGenerator[None]:
        yield None

    async def begin(*_: Any) -> History:
        return History(tmp_path / "backups/x")

    async def for_ever(*_: Any) -> None:
        await asyncio.Event().wait()

    async def note(*_: Any) -> None:
        noted.set()

    monkeypatch.setattr(backup, "_connected", connected)
    monkeypatch.setattr(backup, "_begin", begin)
    monkeypatch.setattr(backup, "take_base", for_ever)
    monkeypatch.setattr(backup, "_note", note)
    monkeypatch.setattr(backup, "launch_argv", lambda *_, **__: ["sleep", "60"])
    config = load_config({}, data_dir=tmp_path / "data", backup_dir=tmp_path / "backups")
    keeping = asyncio.create_task(backup.run_backups(config))
    try:
        async with asyncio.timeout(20):
            await noted.wait()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_a_backup_by_hand_removes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Goal: how many stay is the service's setting, not that of the shell a person types in."""
    folder = tmp_path / "backups/20261001t000000"
    (folder / "wal").mkdir(parents=True)
    days = [datetime(2026, 10, day, tzinfo=UTC) for day in range(1, 12)]

    def made(day: datetime) -> Base:
        path = folder / f"base-{day:%Y-%m-%dT%H:%M:%SZ}"
        path.mkdir()
        start = "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n"
        (path / "backup_label").write_text(start)
        return Base(path, day)

    for day in days[:-1]:
        made(day)

    @asynccontextmanager
    async def connected(*_: Any) -> AsyncGenerator[NoDatabase]:
        yield DATABASE

    async def slot(_: Any) -> str:
        return "bursar_backup_20261001t000000"

    async def take(*_: Any) -> Base:
        (folder / "until").write_text(days[-1].isoformat())
        return made(days[-1])

    monkeypatch.setattr(backup, "_connected", connected)
    monkeypatch.setattr(backup.store, "slot", slot)
    monkeypatch.setattr(backup, "take_base", take)
    config = load_config({}, data_dir=tmp_path / "data", backup_dir=folder.parent)
    await backup.backup_now(config)
    assert [base.since for base in histories(folder.parent)[0].bases] == days


def test_what_a_killed_base_backup_left_is_removed(tmp_path: Path):
    (tmp_path / "x/wal").mkdir(parents=True)
    old, young = tmp_path / "x/unfinished-a", tmp_path / "x/unfinished-b"
    old.mkdir()
    (old / "file").touch()
    young.mkdir()
    os.utime(old, (0, 0))
    backup._prune(tmp_path, 7)
    assert (old.exists(), young.exists()) == (False, True)


async def test_a_draft_that_takes_too_long_stops_no_other(monkeypatch: pytest.MonkeyPatch):
    """Goal: the history of one account is too long for a statement; the others' go on."""
    rows = [SimpleNamespace(id=name, agent_id=f"ag_{name}") for name in ("huge", "small")]
    followed: list[str] = []

    async def drafts(_: Any) -> list[Any]:
        return rows

    async def one(self: Any, row: Any) -> tuple[int, bool]:
        if row.id == "huge":
            raise TimeoutError
        followed.append(row.id)
        return 0, False

    monkeypatch.setattr(follow.draft_store, "list_drafts", drafts)
    monkeypatch.setattr(follow.DraftFollower, "_follow", one)
    assert await follow.DraftFollower(DATABASE, NONE).follow() == 0
    assert followed == ["small"]
