"""kill -9 of any part of a real `bursar serve`, under load: it comes back by itself, nothing that
was acknowledged is lost, nothing is done twice, and the books are right each time."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psutil
import pytest

from bursar.config import Config, load_config
from bursar.db import Database
from bursar.service.ports import free_port
from bursar.service.postgres import EmbeddedPostgres
from bursar.spend.store import spend_of
from bursar.spend.view import show_spend
from tests.processes import bursar, clean_environment, until
from tests.simulation.wire import Connection, Cut
from tests.simulation.world import HOST, LONG, make_agent, seeded
from tests.support import Service

CLIENTS = 16
AGENTS = 4
VICTIMS = ("api", "postgres", "backend", "api and postgres", "worker", "everything", "supervisor")
KILLS = 100 if LONG else 5
# What never changes once a spend is answered.
FIXED = ("id", "agentId", "amount", "recipient", "payTo", "policyVersion", "createdAt", "decision")


class Serve:
    """A real `bursar serve` on a folder of its own, and its children."""

    def __init__(self, folder: Path, *, workers: int = 1, rate_limits: bool = False) -> None:
        self._workers = workers
        self._rate_limits = rate_limits
        self.port = free_port("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.port}"
        self.localnet_port = free_port("127.0.0.1", 0)
        self.data_dir = folder / "data"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Config:
        return load_config(
            {},
            data_dir=self.data_dir,
            port=self.port,
            localnet_port=self.localnet_port,
            workers=self._workers,
            rate_limits="on" if self._rate_limits else "off",
            log_level="error",
        )

    @property
    def pid(self) -> int:
        return self._supervisor.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bursar.cli.main", "serve"],
                env=clean_environment() | self.config.child_environment(),
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        connection = Connection(self.url, "none")

        async def answers() -> bool:
            assert self._supervisor.poll() is None, self.log.read_text()
            with suppress(Cut):
                return (await connection.request("GET", "/readyz")).status == 200
            return False

        await until(answers, seconds=60)
        connection.close()

    async def stop(self) -> None:
        self._supervisor.terminate()
        assert await asyncio.to_thread(self._supervisor.wait, 60) == 0

    async def kill(self, victim: str, chance: Random) -> None:
        """As the kernel's out-of-memory killer would, say."""
        children = psutil.Process(self._supervisor.pid).children()
        server = next(p for p in children if p.name() == "postgres")
        named = {p.cmdline()[-1]: p for p in children if p.name() != "postgres"}
        match victim:
            case "postgres":
                condemned = [server]
            case "backend":
                condemned = [chance.choice(server.children())]
            case "api and postgres":
                condemned = [named["api"], server]
            case "everything":
                condemned = [*children, psutil.Process(self._supervisor.pid)]
            case "supervisor":
                condemned = [psutil.Process(self._supervisor.pid)]
            case _:
                condemned = [named[victim]]
        for process in condemned:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        if victim in ("supervisor", "everything"):
            await asyncio.to_thread(self._supervisor.wait, 10)
            self.start()

    @property
    def _supervisor(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def last_words(self) -> str:
        logs = [self.log, *(self.data_dir / "postgres/log").glob("*.log")]
        return "\n".join(f"{log.name}:\n{log.read_text()[-3_000:]}" for log in logs)

    def end(self) -> None:
        """Whatever became of the test."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@dataclass
class Load:
    """Clients that ask with a key until they are answered, and remember what they were told."""

    url: str
    key: str
    seed: str
    agents: list[str]
    acknowledged: dict[str, dict[str, Any]] = field(default_factory=dict)
    tries: int = 0
    going: asyncio.Event = field(default_factory=asyncio.Event)
    busy: int = 0
    clients: list["asyncio.Task[None]"] = field(default_factory=list)

    def start(self) -> None:
        self.clients = [asyncio.create_task(self.client(number)) for number in range(CLIENTS)]

    async def stop(self) -> None:
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    def _check(self) -> None:
        """Fails with what a client failed with."""
        for client in self.clients:
            if client.done():
                client.result()

    async def client(self, number: int) -> None:
        chance = Random(f"{self.seed}/{number}")
        connection = Connection(self.url, self.key)
        asked = 0
        try:
            while True:
                await self.going.wait()
                self.busy += 1
                asked += 1
                name = f"{number}-{asked}"
                body = {
                    "agentId": chance.choice(self.agents),
                    "amount": f"{chance.randrange(3)}.{chance.randrange(1, 10**6):06}",
                    "recipient": HOST,
                }
                self.acknowledged[name] = await self._ask(connection, name, body)
                self.busy -= 1
        finally:
            connection.close()

    async def _ask(self, connection: Connection, name: str, body: Any) -> dict[str, Any]:
        """As the docs tell every client to: the same request again, with the same key."""
        while True:
            self.tries += 1
            try:
                answer = await connection.request("POST", "/v1/spend/authorise", body, key=name)
            except Cut:
                await asyncio.sleep(0.02)
                continue
            if answer.status == 201:
                return answer.data
            assert answer.status == 503, answer.body
            assert answer.error["code"] == "unavailable"
            assert int(answer.headers["retry-after"]) >= 1
            # Sooner than told, to be in the way of the recovery.
            await asyncio.sleep(0.02)

    async def pause(self) -> None:
        """Returns when every request was answered: the service is back for everyone."""
        self.going.clear()

        async def answered() -> bool:
            self._check()
            return self.busy == 0

        await until(answered, seconds=90, every=0.005)

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count

        async def enough() -> bool:
            self._check()
            return len(self.acknowledged) >= wanted

        await until(enough, seconds=60, every=0.005)


@pytest.mark.timeout(7200 if LONG else 900)
async def test_kills_under_load(tmp_path: Path):
    """Goal: after each kill the service answers everyone again, every acknowledged spend is there
    as it was told, there is exactly one for each key, and `bursar audit` finds nothing."""
    seed, chance = seeded("kills")
    serve = Serve(tmp_path)
    serve.start()
    try:
        await serve.ready()
        load, db = await prepare(serve, seed)
        load.start()
        order = list(VICTIMS)
        chance.shuffle(order)
        try:
            for kill in range(KILLS):
                victim = order[kill % len(order)]
                load.going.set()
                await load.more(chance.randrange(1, 200))
                await serve.kill(victim, chance)
                await load.more(CLIENTS)
                await load.pause()
                await serve.ready()
                await verify(db, load.agents, load.acknowledged, victim)
                code, out = await audited(serve)
                assert code == 0, (seed, victim, out)
                print(f"{kill + 1}: {victim}, {len(load.acknowledged)} spends, {load.tries} tries")
        finally:
            await load.stop()
            await db.close()
        await serve.stop()
    except BaseException:
        print(serve.last_words())
        raise
    finally:
        serve.end()


async def prepare(serve: Serve, seed: str) -> tuple[Load, Database]:
    database = EmbeddedPostgres(serve.data_dir)
    db = await Database.open(database.dsn, 2, 10)
    service = Service(serve.url, serve.config, db)
    key = await service.key(account="simulation")
    connection = Connection(serve.url, key)
    agents = [(await make_agent(connection, dailyCap="200.00"))["id"] for _ in range(AGENTS)]
    for agent_id in agents:
        path = f"/v1/test/wallets/{agent_id}/fund"
        funded = (await connection.request("POST", path, {"amount": "150"})).data
        assert funded["status"] == "credited"
    connection.close()
    return Load(serve.url, key, seed, agents), db


async def verify(
    db: Database, agents: Sequence[str], acknowledged: Mapping[str, dict[str, Any]], victim: str
) -> None:
    """What the spends' keys were told is what the database has, no more and no less."""
    async with db.connection() as tx:
        rows = await tx.fetch("SELECT * FROM spend WHERE agent_id = ANY($1)", agents)
    there = {row["id"]: msgspec.to_builtins(show_spend(spend_of(row))) for row in rows}
    told = {spend["id"]: spend for spend in acknowledged.values()}
    assert len(told) == len(acknowledged), "two keys were told of one spend"
    lost = told.keys() - there.keys()
    assert not lost, f"lost by the kill of {victim}: {lost}"
    assert not there.keys() - told.keys(), f"done twice around the kill of {victim}"
    for spend_id, spend in told.items():
        assert {name: there[spend_id][name] for name in FIXED} == {n: spend[n] for n in FIXED}


async def audited(serve: Serve) -> tuple[int, str]:
    settings = {"data_dir": str(serve.data_dir), "localnet_port": str(serve.localnet_port)}
    done = await bursar("audit", **settings)
    return done.code, done.out + done.err
