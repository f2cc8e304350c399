"""Processor time that one spend costs, without HTTP: what stays comparable on a busy machine.

`python -m bench.cpu` drives the authoriser as 64 connections would, and prints for each kind of
statement how often a batch sends it and what it costs PostgreSQL.
"""

import asyncio
import itertools
import os
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import asyncpg
import uvloop

from bench.service import make_tenants
from bursar.access.model import IdempotencyKey
from bursar.config import load_config
from bursar.db import Database
from bursar.migrations.migrate import migrate
from bursar.policy.cache import PolicyCache
from bursar.recipient.resolve import Directory
from bursar.service.postgres import EmbeddedPostgres, running_postgres
from bursar.spend.authorise import Authoriser, SpendRequest
from bursar.spend.model import bounds_of

CONNECTIONS: Final = int(os.environ.get("CONNECTIONS", "64"))
AGENTS: Final = int(os.environ.get("AGENTS", "1000"))
SPENDS: Final = int(os.environ.get("SPENDS", "12000"))
ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
FOLDER: Final = Path(__file__).parents[1] / "build/cpu"


@dataclass(slots=True)
class Sent:
    times: int = 0
    server_ns: int = 0


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure())
    shutil.rmtree(FOLDER)


async def _measure() -> None:
    async with running_postgres(FOLDER / "data") as server:
        await migrate(server.dsn)
        config = replace(load_config({}, data_dir=FOLDER / "data"), database_url=server.dsn)
        db = await Database.open(server.dsn, 8, 60)
        tenants = await make_tenants(db, config, AGENTS, 0)
        authoriser = Authoriser(
            db,
            PolicyCache(),
            Directory(),
            bounds_of(config),
            approval_seconds=86_400,
        )
        numbers = itertools.count()

        async def client(left: Iterator[int]) -> None:
            for _ in left:
                number = next(numbers)
                agent_id = random.choice(tenants.agent_ids)
                await authoriser.authorise(_request(tenants.realm_id, agent_id, number))

        async def run(spends: int) -> None:
            left = iter(range(spends))
            await asyncio.gather(*(client(left) for _ in range(CONNECTIONS)))

        await run(SPENDS // 2)
        for _ in range(ROUNDS):
            before, python, wall = _server_ns(server), time.process_time(), time.perf_counter()
            await run(SPENDS)
            wall = time.perf_counter() - wall
            python = (time.process_time() - python) / SPENDS * 1e6
            postgres = (_server_ns(server) - before) / SPENDS / 1e3
            print(
                f"python {python:6.1f} us, postgres {postgres:6.1f} us, both"
                f" {python + postgres:6.1f} us a spend; {SPENDS / wall:,.0f} spends/s",
                flush=True,
            )
        if "--statements" in sys.argv:
            with _counted() as sent:
                await run(SPENDS)
            batches = max(entry.times for entry in sent.values())
            print(f"\n{SPENDS / batches:.1f} spends a batch")
            for text, entry in sorted(sent.items(), key=lambda item: -item[1].server_ns):
                print(
                    f"{entry.times / batches:5.2f} x {entry.server_ns / entry.times / 1e3:7.1f} us"
                    f" = {entry.server_ns / SPENDS / 1e3:6.2f} us a spend   {text}"
                )
        if "--profile" in sys.argv:
            import cProfile
            import pstats

            profile = cProfile.Profile()
            profile.enable()
            await run(SPENDS)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        await db.close()


def _request(realm_id: int, agent_id: str, number: int) -> SpendRequest:
    key = IdempotencyKey(realm_id, "POST /v1/spend/authorise", agent_id, f"key {number}", bytes(32))
    return SpendRequest(
        realm_id=realm_id,
        mode="test",
        agent_id=agent_id,
        amount_micros=10_000,
        recipient=f"api{number % 20}.example.com",
        memo=f"order {number}",
        metadata={},
        created_by="key_01k9zz0000000000000000bench",
        network="localnet",
        key=key,
    )


def _server_ns(server: EmbeddedPostgres) -> int:
    return sum(_process_ns(process.pid) for process in server.processes())


def _process_ns(pid: int) -> int:
    """Nanoseconds on a processor; the usual counters only know hundredths of a second."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


@contextmanager
def _counted() -> Generator[dict[str, Sent]]:
    """Every statement of the block, with what it costs the server process behind it."""
    sent: dict[str, Sent] = defaultdict(Sent)
    names = ("execute", "fetch", "fetchrow", "fetchval", "copy_records_to_table")
    kept = {name: getattr(asyncpg.Connection, name) for name in names}

    def counting(name: str) -> Callable[..., Awaitable[Any]]:
        async def call(self: Any, text: str, *args: Any, **kwargs: Any) -> Any:
            pid = self.get_server_pid()
            before = _process_ns(pid)
            try:
                return await kept[name](self, text, *args, **kwargs)
            finally:
                entry = sent[text[:70] if name != "copy_records_to_table" else f"COPY {text}"]
                entry.times += 1
                entry.server_ns += _process_ns(pid) - before

        return call

    for name in names:
        setattr(asyncpg.Connection, name, counting(name))
    try:
        yield sent
    finally:
        for name, original in kept.items():
            setattr(asyncpg.Connection, name, original)


if __name__ == "__main__":
    main()
