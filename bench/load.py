"""The two load generators: pgbench for the database alone, wrk for the service over HTTP."""

import re
import resource
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.service.postgres import ADMIN_ROLE, EmbeddedPostgres
from bursar.service.programs import binary

WRK_MISSING: Final = "wrk is not installed (Debian, Ubuntu: apt-get install wrk)"
DATABASE: Final = "pgbench"
# Enough branches that clients seldom meet on one, and mostly in memory.
SCALE: Final = 20
_SCRIPT: Final = Path(__file__).parent / "spend.lua"
# A host that takes the disk away for seconds makes a round slow, and no request wrong.
_TIMEOUT: Final = "30s"


@dataclass(frozen=True, slots=True)
class Result:
    count: int
    rate: float
    # Processor time of the load generator itself.
    cpu_seconds: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0


class Pgbench:
    """TPC-B as pgbench brings it, on the server that Bursar runs on, by the superuser."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server

    def prepare(self) -> None:
        psql = [str(binary("psql")), self._server.admin_dsn, "-qc", f"CREATE DATABASE {DATABASE}"]
        subprocess.run(psql, check=True)
        self._run("--initialize", "--quiet", f"--scale={SCALE}")

    def run(self, clients: int, seconds: int) -> Result:
        before = _children_seconds()
        words = self._run(*_load(clients, seconds))
        rate = re.search(r"tps = ([0-9.]+)", words)
        count = re.search(r"transactions actually processed: (\d+)", words)
        assert rate is not None, words
        assert count is not None, words
        return Result(int(count[1]), float(rate[1]), _children_seconds() - before)

    def p50_ms(self, seconds: int) -> float:
        """At one client, from the log of every transaction: pgbench prints only the mean."""
        with tempfile.TemporaryDirectory() as folder:
            self._run(*_load(1, seconds), "--log", f"--log-prefix={folder}/log")
            times = [
                int(line.split()[2])
                for file in Path(folder).iterdir()
                for line in file.read_text().splitlines()
            ]
        return statistics.median(times) / 1000

    def _run(self, *arguments: str) -> str:
        dsn = self._server.dsn_for(DATABASE, ADMIN_ROLE)
        done = subprocess.run(
            [str(binary("pgbench")), *arguments, dsn], check=True, capture_output=True, text=True
        )
        return done.stdout


def _load(clients: int, seconds: int) -> list[str]:
    # Prepared statements are its fastest way; a vacuum before each run would only take time.
    return [
        f"--client={clients}",
        f"--jobs={min(clients, 2)}",
        f"--time={seconds}",
        "--protocol=prepared",
        "--no-vacuum",
    ]


class Wrk:
    def __init__(self, url: str, folder: Path, name: str = "run") -> None:
        """`name` keeps the idempotency keys of two on one database apart."""
        self._url = url
        self._folder = folder
        self._name = name
        self._runs = 0

    @staticmethod
    def installed() -> bool:
        return shutil.which("wrk") is not None

    def spend(self, keys: Sequence[tuple[str, str]], connections: int, seconds: int) -> Result:
        """Spends as fast as they are answered. Anything but 201 is a broken run."""
        self._runs += 1
        lines = self._folder / "keys"
        lines.touch(mode=0o600)
        lines.write_text("".join(f"{key} {agent}\n" for key, agent in keys))
        arguments = [
            *("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", _TIMEOUT),
            *("-s", str(_SCRIPT), self._url),
            *("--", str(lines), f"{self._name}-{self._runs}", str(self._runs)),
        ]
        before = _children_seconds()
        done = subprocess.run(arguments, check=True, capture_output=True, text=True)
        used = _children_seconds() - before
        found = re.search(
            r"RESULT requests=(\d+) seconds=([0-9.]+) errors=(\d+)"
            r" p50_us=(\d+) p99_us=(\d+) p999_us=(\d+)",
            done.stdout,
        )
        assert found is not None, done.stdout + done.stderr
        assert int(found[3]) == 0, f"some requests failed:\n{done.stdout}"
        count = int(found[1])
        times = [int(micros) / 1000 for micros in found.groups()[3:]]
        return Result(count, count / float(found[2]), used, *times)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
