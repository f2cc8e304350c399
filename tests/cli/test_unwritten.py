"""Output that cannot be written: the command was carried out, and its exit code says so."""

import asyncio
import fcntl
import os
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from bursar.cli.exits import ExitCode
from bursar.cli.printed import watched
from tests.cli.console import COMMAND, Console
from tests.processes import Finished, until
from tests.sdk.scripted import ScriptedServer

FUND = ("fund", "ag_1", "1")
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26",'
    b'"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}\n'
)
UNBUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"])


async def run(
    console: Console,
    *words: str,
    out: str = "/dev/full",
    err: str | None = None,
    typed: bytes = b"",
    unbuffered: str = "",
) -> Finished:
    """With its output in these files; what it says on standard error is caught unless `err`."""

    def command() -> Finished:
        with Path(out).open("wb") as to, Path(err or os.devnull).open("wb") as notes:
            done = subprocess.run(
                [*COMMAND, *words],
                env=console.environment | {"PYTHONUNBUFFERED": unbuffered},
                input=typed,
                stdout=to,
                stderr=notes if err else subprocess.PIPE,
                timeout=60,
                check=False,
            )
        said = (done.stderr or b"").decode()
        assert "Traceback" not in said, said
        return Finished(done.returncode, "", said)

    return await asyncio.to_thread(command)


@UNBUFFERED
async def test_what_was_paid_is_not_paid_again(
    scripted: Console, server: ScriptedServer, unbuffered: str
):
    """Goal: a script sees that it must not simply repeat, and how to do so once."""
    server.script = ["ok"]
    done = await run(scripted, *FUND, unbuffered=unbuffered)
    assert done.code == ExitCode.UNWRITTEN
    assert "The output could not be written: No space left on device." in done.err
    advised = re.search(r"--idempotency-key\s+([0-9a-f]{32})", done.err)
    assert advised is not None, done.err
    assert advised[1] == server.requests[0].headers["idempotency-key"]


@UNBUFFERED
@pytest.mark.parametrize("words", [("version",), ("--version",), ("--help",), ("spend", "--help")])
async def test_a_full_disk_is_told_in_one_line(
    scripted: Console, words: tuple[str, ...], unbuffered: str
):
    done = await run(scripted, *words, unbuffered=unbuffered)
    assert (done.code, done.err.count("\n")) == (ExitCode.UNWRITTEN, 1)


@UNBUFFERED
async def test_where_nothing_can_be_written_the_code_is_left(
    scripted: Console, server: ScriptedServer, unbuffered: str
):
    server.script = ["ok"]
    done = await run(scripted, *FUND, err="/dev/full", unbuffered=unbuffered)
    assert done.code == ExitCode.UNWRITTEN


async def test_a_note_that_cannot_be_written_changes_nothing(
    scripted: Console, server: ScriptedServer, tmp_path: Path
):
    """Goal: who throws the notes away, or has no room for them, gets the same exit code."""
    profiles = await run(scripted, "profiles", out=str(tmp_path / "out"), err="/dev/full")
    assert profiles.code == ExitCode.DONE
    server.script = ["insufficient_funds"]
    refused = await run(scripted, *FUND, out=str(tmp_path / "out"), err="/dev/full")
    assert refused.code == ExitCode.FAILED


@UNBUFFERED
async def test_a_reader_that_is_gone(scripted: Console, unbuffered: str):
    """Goal: `bursar … | head -1` prints no traceback."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = await run(scripted, "--help", out=f"/dev/fd/{theirs}", unbuffered=unbuffered)
    finally:
        os.close(theirs)
    assert (done.code, "Broken pipe" in done.err) == (ExitCode.UNWRITTEN, True)


@pytest.mark.parametrize("words", [("log", "--csv"), ("log",), ("agents", "list", "--json")])
async def test_lists_and_downloads(console: Console, words: tuple[str, ...]):
    await console.ok("agents", "create", "x", "--daily-cap", "1")
    assert (await run(console, *words)).code == ExitCode.UNWRITTEN


async def test_tools_whose_client_is_gone(scripted: Console):
    """Goal: it writes past Python's standard output, and ends alike."""
    done = await run(scripted, "mcp", typed=HELLO)
    assert done.code == ExitCode.UNWRITTEN


async def test_a_command_without_any_output(scripted: Console):
    """Goal: `bursar … >&-` is a wish, not a fault."""
    shell = ["sh", "-c", '"$@" >&- 2>&-', "sh", *COMMAND, "profiles"]
    done = await asyncio.to_thread(subprocess.run, shell, env=scripted.environment, timeout=60)
    assert done.returncode == ExitCode.DONE


async def test_a_pipe_that_does_not_block_is_waited_for():
    """Goal: what another program made non-blocking, as Node does, takes all that is printed."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    text = "0123456789abcde\n" * 100_000

    def write() -> None:
        with os.fdopen(theirs, "w") as stream:
            print(text, end="", file=watched(stream, tells=True), flush=True)

    def read() -> bytes:
        with os.fdopen(ours, "rb") as stream:
            return stream.read()

    async def full() -> bool:
        return waiting(ours) >= 65_536

    writing = asyncio.create_task(asyncio.to_thread(write))
    await until(full, seconds=60)
    seen = await asyncio.to_thread(read)
    await writing
    assert seen == text.encode()


def waiting(descriptor: int) -> int:
    """Bytes that nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0]
