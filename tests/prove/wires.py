"""A TCP connection that can be cut, slowed, silenced or torn in the middle of an answer.

Every pair of parts talks through a wire of its own, so that each can be broken alone.
"""

import asyncio
from contextlib import suppress
from typing import Literal

Trouble = Literal["cut", "silent", "slow", "torn"]
# Each piece of what is said waits so long, in both directions.
SLOW_SECONDS = 0.05
_PIECE = 1 << 16


class Wire:
    """Listens on `port` and passes everything on to `target`.

    cut     connections break, and new ones are refused
    silent  nothing arrives, nobody is told; what was said arrives when it is mended
    slow    everything arrives late
    torn    the next answer breaks off half-way, and its connection with it
    """

    def __init__(self, ends: str, target: int) -> None:
        self.ends = ends
        self.port = 0
        self._target = target
        self._trouble: Trouble | None = None
        self._passing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._passing.set()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._passing.set()
        self._break_all()

    async def trouble(self, kind: Trouble) -> None:
        self._trouble = kind
        if kind == "cut":
            await self.stop()
        elif kind == "silent":
            self._passing.clear()

    async def mend(self) -> None:
        kind, self._trouble = self._trouble, None
        if kind == "cut":
            await self.start()
        self._passing.set()

    def _break_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passing.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(
                self._pass(reader, back, answers=False), self._pass(there, writer, answers=True)
            )
        finally:
            self._open -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE):
                if self._trouble is not None:
                    await self._passing.wait()
                    if self._trouble == "slow":
                        await asyncio.sleep(SLOW_SECONDS)
                    elif self._trouble == "torn" and answers:
                        self._trouble = None
                        writer.write(data[: len(data) // 2])
                        await writer.drain()
                        break
                writer.write(data)
                await writer.drain()
        # One end hung up: so does the other, when all is said.
        with suppress(OSError, RuntimeError):
            writer.close()
