"""Of a request that is over nothing stays: not what it brought, not its socket.

The service's garbage collector runs seldom, so nothing here may wait for it: without it, what is
over must be gone.
"""

import asyncio
import gc
import ssl
from collections.abc import Awaitable, Callable, Generator

import pytest
import uvloop

from bursar.outbound.ask import Asker
from bursar.outbound.failure import NoAnswer
from bursar.outbound.gate import Lookup
from bursar.outbound.line import Answer, Line, _Reading
from bursar.outbound.target import Target, TargetRefused
from tests.http_server.raw import Loop, run, until
from tests.outbound.stranger import (
    OK,
    Caller,
    Stranger,
    answers,
    ask,
    asking,
    inside,
    left,
    open_files,
    says,
    stranger,
)

TIMES = 20
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"


@pytest.fixture
def no_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def succeeds(asker: Asker, asked: Stranger, target: Target) -> None:
    for _ in range(TIMES):
        await ask(asker, target)


async def fails(asker: Asker, asked: Stranger, target: Target) -> None:
    for _ in range(TIMES):
        try:
            await ask(asker, target)
        except NoAnswer:
            continue
        raise AssertionError


async def is_late(asker: Asker, asked: Stranger, target: Target) -> None:
    async def one() -> None:
        try:
            await ask(asker, target, seconds=1)
        except TimeoutError:
            return
        raise AssertionError

    await asyncio.gather(*(one() for _ in range(TIMES)))


async def is_cut(asker: Asker, asked: Stranger, target: Target) -> None:
    answers = await asyncio.gather(*(ask(asker, target, seconds=1) for _ in range(TIMES)))
    assert all(answer.truncated for answer in answers)


async def is_cancelled(asker: Asker, asked: Stranger, target: Target) -> None:
    for number in range(1, TIMES + 1):
        waiting = asyncio.create_task(ask(asker, target))
        # A handshake is over then: what asyncio's own loop raises in one knows itself.
        await until(lambda number=number: asked.heard == number)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()


async def breaks_off(caller: Caller) -> None:
    await caller.request()
    caller.break_off()


Way = Callable[[Asker, Stranger, Target], Awaitable[None]]


@pytest.mark.parametrize(
    ("behave", "way"),
    [
        (answers, succeeds), (says(OK + OK), succeeds), (breaks_off, fails),
        (says(b"nonsense"), fails), (says(b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n"), fails),
        (says(b""), is_late), (says(CUT), is_cut), (says(b""), is_cancelled),
        (says(CUT), is_cancelled),
    ],
    ids=["kept", "not kept", "broken off", "not HTTP", "a bad header", "late", "late body",
         "cancelled", "cancelled in the body"],
)  # fmt: skip
@pytest.mark.parametrize("is_tls", [False, True])
def test_of_a_request_that_is_over_nothing_stays(
    loop: Loop,
    no_collector: None,
    certificate: ssl.SSLContext,
    behave: Callable[[Caller], Awaitable[None]],
    way: Way,
    is_tls: bool,
):
    async def scenario() -> None:
        async with stranger(behave, certificate if is_tls else None) as asked:
            async with asking(inside) as asker:
                await way(asker, asked, asked.target(is_tls=is_tls, host="inside.test"))
                await until(lambda: asked.open <= 1)
                await until(lambda: left(Line) <= 1)
                await asyncio.sleep(0.01)  # what woke this up may hold the last of it
                assert left(_Reading) <= 1
                assert left(Answer) <= 1
                assert left(NoAnswer, TimeoutError, asyncio.CancelledError) <= 1
            await until(lambda: left(Line) == 0)

    run(loop, scenario())


async def _nowhere(_host: str, _port: int) -> list[str]:
    raise OSError("no such name")


async def _elsewhere(_host: str, _port: int) -> list[str]:
    return ["10.0.0.1"]


@pytest.mark.parametrize(
    ("lookup", "host"),
    [
        (inside, "inside.test"), (_nowhere, "inside.test"), (_elsewhere, "other.test"),
    ],
    ids=["refused", "no such name", "inside"],
)  # fmt: skip
def test_of_a_connection_that_was_not_made_nothing_stays(
    loop: Loop, no_collector: None, lookup: Lookup, host: str
):
    async def scenario() -> None:
        async with stranger(answers) as asked:
            pass
        async with asking(lookup) as asker:
            before = open_files()
            for _ in range(TIMES):
                try:
                    await ask(asker, asked.target(host=host))
                except (NoAnswer, TargetRefused):
                    continue
                raise AssertionError
            await asyncio.sleep(0)
            assert left(NoAnswer, TargetRefused, OSError) == 0
            assert open_files() <= before

    run(loop, scenario())


async def hangs_up(caller: Caller) -> None:
    caller.hang_up()


def test_of_a_handshake_that_failed_nothing_stays(no_collector: None):
    """On uvloop: what asyncio's own loop raises knows itself."""

    async def scenario() -> None:
        async with stranger(hangs_up) as asked, asking(inside) as asker:
            await fails(asker, asked, asked.target(is_tls=True, host="inside.test"))
            await asyncio.sleep(0.01)
            assert left(Line, NoAnswer, OSError) == 0

    run(uvloop.new_event_loop, scenario())
