"""`bursar` as an operator runs it: a process, a service, and sometimes a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import Finished, clean_environment

COMMAND = (sys.executable, "-m", "bursar.cli.main")


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
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            env=self.environment | more,
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(typed.encode()), 120)
        assert process.returncode is not None
        assert "Traceback" not in err.decode(), err.decode()
        return Finished(process.returncode, out.decode(), err.decode())

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
