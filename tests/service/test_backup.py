"""docs/backup.md, followed to the letter: a machine is lost, another one takes over."""

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiohttp
import psutil
import pytest

from bursar.config import MODES, load_config
from bursar.db import Database
from bursar.errors import CommandFailed
from bursar.service.backup import Base, chain_file, histories, name_base
from bursar.service.datadir import LOCK_FILE
from bursar.service.ports import free_port
from bursar.service.postgres import EmbeddedPostgres
from bursar.service.restore import choose, restore, verify
from tests.documents.blocks import Block, blocks, running
from tests.documents.pages import ROOT
from tests.localnet.support import Rpc
from tests.processes import clean_environment, until
from tests.settlement.books import ledger_is_chain, nothing_open, paid_times
from tests.simulation.wire import Connection
from tests.simulation.world import HOST, make_agent

PAGE: Final = (ROOT / "docs/backup.md").read_text("utf-8")
MOST_SECONDS: Final = 300


def section(heading: str) -> list[Block]:
    found = re.search(rf"^## {heading}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return blocks(found[1])


@asynccontextmanager
async def following(
    page: list[Block], folder: Path, ports: Mapping[str, int], moment: str = ""
) -> AsyncGenerator[None]:
    """The blocks in order, in folders of the test's own; what they start runs on meanwhile."""

    def rewrite(text: str) -> str:
        for place in ("/backup/bursar", "/var/lib/bursar", "/srv/bursar", "/safe/"):
            text = re.sub(rf"(?<=[ =]){place}", f"{folder}{place}", text)
        return text.replace("8420", str(ports["PORT"])).replace("2026-11-15T09:30:00Z", moment)

    environment = clean_environment() | {
        f"BURSAR_{name}": str(port) for name, port in ports.items()
    }
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        "BURSAR_LOG_LEVEL": "error",
        "BURSAR_SWEEP_SECONDS": "1",
    }
    page_runs = running(page, folder, environment, rewrite)
    await asyncio.to_thread(page_runs.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(page_runs.__exit__, None, None, None)


@asynccontextmanager
async def database(data_dir: Path) -> AsyncGenerator[Database]:
    db = await Database.open(EmbeddedPostgres(data_dir).dsn, 2, 10)
    try:
        yield db
    finally:
        await db.close()


@pytest.mark.timeout(1_800)
async def test_a_lost_machine_is_back_by_the_page(tmp_path: Path):
    """Goal: with the backup folder and the master key alone, at the chosen second, in less than
    five minutes; a payment that was approved before it and made after it is not made again."""
    for name in ("backup", "var/lib", "srv", "safe"):
        (tmp_path / name).mkdir(parents=True, mode=0o700)
    ports = {name: free_port("127.0.0.1", 0) for name in ("PORT", "LOCALNET_PORT")}
    old, new = tmp_path / "var/lib/bursar", tmp_path / "srv/bursar"
    async with following(section("Take it"), tmp_path, ports):
        connection = Connection(f"http://127.0.0.1:{ports['PORT']}", await _key(old, ports))
        agent = (await make_agent(connection))["id"]
        funded = await connection.request(
            "POST", f"/v1/test/wallets/{agent}/fund", {"amount": "100"}
        )
        assert funded.status == 201

        async def spend(amount: str) -> str:
            body = {"agentId": agent, "amount": amount, "recipient": HOST}
            answer = await connection.request("POST", "/v1/spend/authorise", body)
            assert answer.data["status"] == "approved"
            return answer.data["id"]

        paid = [await spend("1")]
        async with database(old) as db:
            await until(lambda: nothing_open(db), seconds=60)
            with _asleep("worker", old):
                paid.append(await spend("2"))
                moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
                await until(_past(moment), seconds=60)
            await until(lambda: nothing_open(db), seconds=60)
            settled_at = datetime.now(UTC)
        connection.close()

        async def all_saved() -> bool:
            saved = histories(tmp_path / "backup/bursar")[-1].until
            return saved is not None and saved > settled_at

        await until(all_saved, seconds=60)
    await asyncio.to_thread(shutil.rmtree, old)
    _no_file_has(tmp_path / "backup", (tmp_path / "safe/bursar-master.key").read_bytes().strip())

    started = asyncio.get_running_loop().time()
    *back, audit = section("Restore it")
    second = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    async with (
        following(back, tmp_path, ports, second),
        database(new) as db,
        aiohttp.ClientSession() as session,
    ):
        async with db.connection() as tx:
            rows = await tx.fetch("SELECT id, status FROM spend ORDER BY id")
            owner = await tx.fetchval("SELECT address FROM wallet")
        assert [tuple(row) for row in rows] == [(paid[0], "settled"), (paid[1], "approved")]
        await until(lambda: nothing_open(db), seconds=180, every=0.5)
        async with following([audit], tmp_path, ports):
            pass
        assert asyncio.get_running_loop().time() - started < MOST_SECONDS
        rpc = Rpc(ports["LOCALNET_PORT"], session)
        times = await paid_times(rpc, [owner])
        assert {memo: count for (_, memo), count in times.items()} == dict.fromkeys(paid, 1)
        assert await ledger_is_chain(rpc, db)

    # The log from before goes no further than it did, and a new one has begun.
    assert len(histories(tmp_path / "backup/bursar")) == 2
    with pytest.raises(CommandFailed, match="cannot be restored"):
        choose(tmp_path / "backup/bursar", moment + timedelta(days=1))
    await _damage_is_found(tmp_path / "backup/bursar")


async def _damage_is_found(folder: Path) -> None:
    victim = next(histories(folder)[0].bases[0].folder.glob("base/*/1259"))
    raw = bytearray(await asyncio.to_thread(victim.read_bytes))
    raw[5_000] ^= 1
    await asyncio.to_thread(victim.write_bytes, raw)
    with pytest.raises(CommandFailed, match="not as it was written"):
        await verify(folder)


def test_two_base_backups_of_one_second_have_two_names(tmp_path: Path):
    """Goal: the service's own backup and a person's that end at the same moment are both kept."""
    second = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
    found: list[Base] = []
    for number in range(2):
        made = tmp_path / f"unfinished-{number}"
        made.mkdir()
        (made / "backup_label").write_text(str(number), "ascii")
        found.append(name_base(made, tmp_path, second))
    assert [base.since - second for base in found] == [timedelta(0), timedelta(seconds=1)]
    assert [(b.folder / "backup_label").read_text("ascii") for b in found] == ["0", "1"]


@pytest.mark.parametrize("taken", ["postgres", "localnet-test", "localnet-live"])
async def test_what_is_in_the_way_is_found_first(tmp_path: Path, taken: str):
    """Goal: a folder that holds a database or a chain is left as it was."""
    source, data = tmp_path / "backup", tmp_path / "data"
    history = source / "20261115t093000"
    for folder in (history / "wal", history / "base-2026-11-15T09:31:02Z", data / taken):
        folder.mkdir(parents=True, mode=0o700)
    (history / "until").write_text("2026-11-15T09:32:00+00:00")
    for mode in MODES:
        chain_file(source, mode).touch()
    (data / "master.key").touch()
    before = set(data.rglob("*"))
    with pytest.raises(CommandFailed, match=f"{data / taken} exists already"):
        await restore(load_config({}, data_dir=data), source, None)
    assert set(data.rglob("*")) - before == {data / LOCK_FILE}


async def _key(data_dir: Path, ports: Mapping[str, int]) -> str:
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bursar.cli.main", "keys", "create"),
        *("--mode", "test", "--scope", "admin", "--data-dir", str(data_dir)),
        env=clean_environment() | {"BURSAR_PORT": str(ports["PORT"])},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await made.communicate()
    found = re.search(rb"bur_test_\w+", out)
    assert found is not None
    return found[0].decode()


class _asleep:  # noqa: N801 - read as a word in `with`
    """One process of the service does nothing for a while."""

    def __init__(self, name: str, data_dir: Path) -> None:
        wanted = ["bursar.service.process", name]
        (self._process,) = [
            process
            # What cannot be asked, such as a process that has just ended, has no command line.
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [])[-2:] == wanted
            and process.environ().get("BURSAR_DATA_DIR") == str(data_dir)
        ]

    def __enter__(self) -> None:
        self._process.suspend()

    def __exit__(self, *_: object) -> None:
        self._process.resume()


def _past(moment: datetime):
    async def past() -> bool:
        return datetime.now(UTC) > moment

    return past


def _no_file_has(folder: Path, secret: bytes) -> None:
    assert len(secret) == 44
    for path in folder.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes(), path
