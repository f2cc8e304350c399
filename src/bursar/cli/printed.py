"""Standard output that says so when it cannot be written: a full disk, a reader that is gone.

A command that did its work and could not tell must not look like one that failed: a script would
repeat it, and pay again. And an OSError like any other could not be told from one of a file or a
connection.
"""

import io
import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from bursar.errors import BursarError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(BursarError):
    def __init__(self, problem: OSError) -> None:
        super().__init__(
            f"The output could not be written: {problem.strerror}. The command itself was carried"
            " out, or may have been: look before you repeat it."
        )


def watch_output() -> None:
    """From here on the first output that cannot be written raises OutputLost. Notes on standard
    error that cannot be written are dropped: they do not change how a command ends."""
    sys.stdout = watched(sys.stdout, tells=True)
    sys.stderr = watched(sys.stderr, tells=False)


def watched(stream: TextIO | None, *, tells: bool) -> TextIO:
    if stream is None:
        # Whoever started the command closed it, and wants nothing of it.
        stream = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream = cast("io.TextIOWrapper[Any]", stream)
    return io.TextIOWrapper(
        io.BufferedWriter(_Watched(stream, tells=tells)),
        encoding=stream.encoding,
        errors=stream.errors,
        # PYTHONUNBUFFERED asks for the latter.
        line_buffering=stream.line_buffering or stream.write_through,
    )


class _Watched(io.FileIO):
    def __init__(self, stream: TextIO, *, tells: bool) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream  # kept, because its end may close the descriptor
        self._tells = tells

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            while (written := super().write(data)) is None:
                # A pipe that does not block, and is full.
                select.select([], [self], [])
        except OSError as problem:
            if self._tells:
                # Once: what is still in the buffer is written at the end, or dropped.
                self._tells = False
                raise OutputLost(problem) from None
            return memoryview(data).nbytes
        return written
