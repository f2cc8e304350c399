"""`bursar` as an operator runs it: a process, a service, and sometimes a terminal."""

import asyncio
import fcntl
import json
import multiprocessing
import os
import pty
import struct
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bursar.cli.main import main
from tests.processes import Finished, clean_environment

COMMAND = (sys.executable, "-m", "bursar.cli.main")
# To start Python and read the package takes longer than most commands. So each is a process of its
# own that is forked from one that has done both.
_PREPARED = multiprocessing.get_context("forkserver")
_PREPARED.set_forkserver_preload(["bursar.cli.main", "bursar.client.client"])


def _run(
    words: Sequence[str], environment: dict[str, str], home: Path, streams: Sequence[Path]
) -> None:
    """In the process of the command: what the shell and the start of Python do before it."""
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(home)
    sys.argv = ["bursar", *words]
    main()


@dataclass
class Console:
    """Runs commands with one environment, and remembers which commands were run."""

    variables: dict[str, str]
    home: Path
    ran: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])

    @property
    def environment(self) -> dict[str, str]:
        here = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config")}
        return clean_environment() | here | self.variables

    async def __call__(self, *words: str, typed: str = "", **more: str) -> Finished:
        self.ran |= {words[:1], words[:2]}
        with TemporaryDirectory() as name:
            streams = [Path(name) / stream for stream in ("in", "out", "err")]
            for stream in streams:
                stream.touch()
            streams[0].write_text(typed)
            process = _PREPARED.Process(
                target=_run, args=(words, self.environment | more, self.home, streams)
            )
            process.start()
            await asyncio.to_thread(process.join, 120)
            process.kill()
            _, out, err = (stream.read_text() for stream in streams)
            assert process.exitcode is not None, (words, out, err)
        assert "Traceback" not in err, err
        return Finished(process.exitcode, out, err)

    async def ok(self, *words: str) -> str:
        done = await self(*words)
        assert done.code == 0, (words, done)
        return done.out.removesuffix("\n")

    async def json(self, *words: str, code: int = 0) -> Any:
        done = await self(*words, "--json")
        assert done.code == code, (words, done)
        return json.loads(done.out)

    async def on_terminal(
        self, *words: str, question: str = "", typed: str = "", **more: str
    ) -> Finished:
        """The same on a terminal of 120 columns, where `typed` answers the question once it is
        asked; both streams come out of it together."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            env=self.environment | {"TERM": "xterm-256color"} | more,
            cwd=self.home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        # A question that nobody answers ends the test, not the run.
        patience = asyncio.get_running_loop().call_later(60, process.kill)
        seen = b""
        # Reading a terminal that nobody holds open any more is an error, not an end.
        with suppress(OSError):
            while piece := await asyncio.to_thread(os.read, ours, 4096):
                seen += piece
                if typed and question.encode() in seen:
                    os.write(ours, typed.encode())
                    typed = ""
        os.close(ours)
        code = await asyncio.wait_for(process.wait(), 60)
        patience.cancel()
        return Finished(code, seen.decode(), "")
