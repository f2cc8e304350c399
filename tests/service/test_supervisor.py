"""Children start in order, come back when they die, stop in reverse, and never outlive us."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import structlog

from bursar.errors import CommandFailed
from bursar.service.roster import ROSTER_FILE, Roster, marked_processes
from bursar.service.supervisor import Child, Supervisor, backoff_seconds
from tests.service.waiting import eventually, runs

# A child that writes down its process id and that of a process it starts itself, then waits.
FAMILY = """
import os, signal, subprocess, sys
name, ignore = sys.argv[1:3]
if ignore == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open(name + ".new", "w") as file:
    file.write(f"{os.getpid()} {grandchild.pid}")
os.rename(name + ".new", name)
signal.pause()
"""

# A supervisor of two such children in a process of its own, to be killed.
SUPERVISE = """
import asyncio, os, signal, sys
from pathlib import Path
from bursar.service.supervisor import Supervisor
from tests.service.test_supervisor import family

async def main(folder, *arguments):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Supervisor(folder) as supervisor:
        for name in ("first", "second"):
            await supervisor.start(family(folder / name, *arguments))
        (folder / "up").touch()
        await stop.wait()

asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
"""


def family(file: Path, ignore: str = "obeys", *, stop_seconds: float = 10) -> Child:
    async def ready() -> None:
        await eventually(file.exists)

    return Child(
        name=file.name,
        argv=[sys.executable, "-c", FAMILY, str(file), ignore],
        env=dict(os.environ),
        ready=ready,
        stop_seconds=stop_seconds,
    )


def pids(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()]


@asynccontextmanager
async def supervisor_process(
    folder: Path, *arguments: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISE, str(folder), *arguments
    )
    try:
        await eventually((folder / "up").exists)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_waits_for_what_it_needs_at_its_first_start_only(tmp_path: Path) -> None:
    """Goal: a process that has imported everything goes on when the database is ready; restarted,
    it waits for nobody, and one whose database never came is gone."""
    here, went = tmp_path / "here", tmp_path / "went"
    script = """
import pathlib, signal, sys
here, went = map(pathlib.Path, sys.argv[1:])
here.touch()
sys.stdin.read()
went.touch()
signal.pause()
"""

    async def ready() -> None:
        await eventually(went.exists)

    needs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    argv = [sys.executable, "-c", script, str(here), str(went)]
    child = Child(name="late", argv=argv, env=dict(os.environ), ready=ready, needs=needs)
    async with Supervisor(tmp_path) as supervisor:
        start = asyncio.create_task(supervisor.start(child))
        await eventually(here.exists)
        assert not went.exists()
        needs.set_result(None)
        await start
        went.unlink()
        first = supervisor.pid("late")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(went.exists)

    here.unlink()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with Supervisor(tmp_path) as supervisor:
        start = asyncio.create_task(supervisor.start(replace(child, needs=never)))
        await eventually(here.exists)
        waiting = supervisor.pid("late")
        never.set_exception(CommandFailed("the database did not start"))
        with pytest.raises(CommandFailed, match="the database did not start"):
            await start
    assert waiting is not None
    assert not runs(waiting)


async def test_starts_in_order_and_stops_in_reverse(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    script = """
import signal, sys, time
def note(what):
    with open(sys.argv[1], "a") as file:
        file.write(f"{what} {sys.argv[2]}\\n")
def stop(*_):
    note("stop")
    sys.exit()
signal.signal(signal.SIGTERM, stop)
note("start")
signal.pause()
"""

    def noting(name: str) -> Child:
        async def ready() -> None:
            await eventually(lambda: journal.exists() and f"start {name}" in journal.read_text())

        return Child(
            name=name,
            argv=[sys.executable, "-c", script, str(journal), name],
            env=dict(os.environ),
            ready=ready,
        )

    async with Supervisor(tmp_path) as supervisor:
        for name in ("a", "b", "c"):
            await supervisor.start(noting(name))
    lines = journal.read_text().splitlines()
    assert lines == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    assert not (tmp_path / ROSTER_FILE).exists()


async def test_children_know_the_data_folder(tmp_path: Path) -> None:
    file = tmp_path / "family"
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(family(file))
        pid = pids(file)[0]
        assert psutil.Process(pid).environ()["BURSAR_DATA_DIR"] == str(tmp_path)
        assert supervisor.pid("family") == pid


async def test_a_killed_child_comes_back_and_its_own_children_do_not_stay(tmp_path: Path) -> None:
    file = tmp_path / "family"
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(family(file))
        child, grandchild = pids(file)
        file.unlink()
        os.kill(child, signal.SIGKILL)
        await eventually(file.exists)
        assert supervisor.pid("family") == pids(file)[0] != child
        assert not runs(grandchild)
        await eventually(lambda: str(supervisor.pid("family")) in _roster_text(tmp_path))
    assert not any(runs(pid) for pid in pids(file))


def _roster_text(folder: Path) -> str:
    return (folder / ROSTER_FILE).read_text()


def test_backoff_doubles_from_a_tenth_of_a_second_to_ten() -> None:
    assert [backoff_seconds(deaths) for deaths in range(8)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    )
    assert backoff_seconds(10_000) == 10.0


async def test_a_child_that_cannot_live_is_tried_ever_more_slowly(tmp_path: Path) -> None:
    child = Child(name="weak", argv=[sys.executable, "-c", "raise SystemExit(3)"], env={})
    with structlog.testing.capture_logs() as logs:
        async with Supervisor(tmp_path) as supervisor:
            await supervisor.start(child)
            await eventually(lambda: len(_deaths(logs)) >= 4)
    assert [log["restart_seconds"] for log in _deaths(logs)[:4]] == [0.1, 0.2, 0.4, 0.8]
    assert {log["problem"] for log in _deaths(logs)} == {"exit code 3"}


def _deaths(logs: list[structlog.typing.EventDict]) -> list[structlog.typing.EventDict]:
    return [log for log in logs if log["event"] == "child_died"]


async def test_a_child_that_will_not_stop_is_killed_with_all_it_started(tmp_path: Path) -> None:
    file = tmp_path / "family"
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(family(file, "ignores", stop_seconds=0.2))
    assert not any(runs(pid) for pid in pids(file))


async def test_a_child_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    child = Child(
        name="weak",
        argv=[sys.executable, "-c", "import sys; sys.exit('no such luck')"],
        env={},
        ready=never,
        stderr_file=tmp_path / "stderr",
    )
    async with Supervisor(tmp_path) as supervisor:
        with pytest.raises(CommandFailed, match=r"weak did not start: .*exit code 1\nno such luck"):
            await supervisor.start(child)


async def test_a_program_that_cannot_be_run_says_so(tmp_path: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    child = Child(
        name="absent", argv=["/no/such"], env={}, ready=never, stderr_file=tmp_path / "stderr"
    )
    async with Supervisor(tmp_path) as supervisor:
        with pytest.raises(CommandFailed, match="No such file"):
            await supervisor.start(child)


async def test_a_child_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    child = Child(name="slow", argv=["/bin/sleep", "600"], env={}, ready=never, ready_seconds=0.1)
    async with Supervisor(tmp_path) as supervisor:
        with pytest.raises(CommandFailed, match=r"not ready within 0\.1 seconds"):
            await supervisor.start(child)
        assert supervisor.pid("slow") is None


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "family"
    child = family(file)
    async with Supervisor(tmp_path) as supervisor:
        start = asyncio.create_task(supervisor.start(child))
        await eventually(lambda: supervisor.pid("family") is not None)
        pid = supervisor.pid("family")
        start.cancel()
        await asyncio.wait({start})
        assert start.cancelled()
    assert pid is not None
    assert not runs(pid)


async def test_sigterm_leaves_no_process(tmp_path: Path) -> None:
    async with supervisor_process(tmp_path) as supervisor:
        family_pids = pids(tmp_path / "first") + pids(tmp_path / "second")
        assert all(runs(pid) for pid in family_pids)
        supervisor.terminate()
        assert await supervisor.wait() == 0
        assert not any(runs(pid) for pid in family_pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children at once")
async def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    async with supervisor_process(tmp_path) as supervisor:
        children = [pids(tmp_path / name)[0] for name in ("first", "second")]
        supervisor.kill()
        await eventually(lambda: not any(runs(pid) for pid in children))
    async with Supervisor(tmp_path):
        pass  # ends the two grandchildren


async def test_what_a_killed_supervisor_left_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.service.roster.LEFTOVER_STOP_SECONDS", 0.2)
    async with supervisor_process(tmp_path, "ignores") as supervisor:
        left = pids(tmp_path / "first") + pids(tmp_path / "second")
        supervisor.kill()
        await supervisor.wait()
    assert all(runs(pid) for pid in left)
    async with Supervisor(tmp_path):
        assert not any(runs(pid) for pid in left)


async def test_a_stranger_with_a_recycled_process_id_is_not_touched(tmp_path: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        started = psutil.Process(stranger.pid).create_time()
        roster = Roster(tmp_path)
        roster.open()
        roster.add("api", stranger.pid, signal.SIGTERM)
        content = json.loads(_roster_text(tmp_path))
        assert content["children"][0]["started"] == started
        content["children"][0]["started"] = started - 3600
        (tmp_path / ROSTER_FILE).write_text(json.dumps(content))
        assert await Roster(tmp_path).clear_leftovers() == []
        assert runs(stranger.pid)

        content["children"][0]["started"] = started
        (tmp_path / ROSTER_FILE).write_text(json.dumps(content))
        assert await Roster(tmp_path).clear_leftovers() == [f"api ({stranger.pid})"]
        assert await stranger.wait() == -signal.SIGTERM
    finally:
        if stranger.returncode is None:
            stranger.kill()
            await stranger.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"mark": "m"}', '{"mark":1,"children":[{}]}'])
async def test_a_damaged_roster_ends_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / ROSTER_FILE).write_text(content)
    assert await Roster(tmp_path).clear_leftovers() == []


def test_an_empty_mark_is_on_no_process() -> None:
    assert marked_processes("no-such-mark") == []
