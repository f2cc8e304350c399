"""How answers are written, and what becomes of them when something breaks."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bursar.api.call import Stream
from bursar.clock import SystemClock
from bursar.http import answer, server
from bursar.http.exchange import Exchange
from bursar.http.request import Request
from tests.http_server.raw import Loop, gone, run, serving, until

GET = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n"
OLD = b"GET %b HTTP/1.0\r\n\r\n"


def test_answers_without_a_body(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" + GET % b"/empty")
            answer = await caller.answer(head=True)
            assert int(answer.headers["content-length"]) > 0
            answer = await caller.answer()
            assert answer.status == 204
            assert "content-length" not in answer.headers
            await caller.send(b"HEAD /streams HTTP/1.1\r\nHost: h\r\n\r\n" + GET % b"/a")
            await caller.answer(head=True)
            assert (await caller.answer()).told["path"] == "/a"

    run(loop, scenario())


def test_headers_alone_of_an_application_that_breaks(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(b"HEAD /crashes HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await caller.answer(head=True)).status == 500
            assert await caller.is_closed()

    run(loop, scenario())


@pytest.mark.parametrize("path", [b"/crashes", b"/says%20nothing", b"/two%20lines"])
def test_an_application_that_breaks(loop: Loop, path: bytes):
    """Goal: an answer all the same, never two headers out of one, and others are served on."""

    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET % path)
            answer = await caller.answer()
            assert (answer.status, answer.error) == (500, "internal_error")
            assert "x-b" not in answer.headers
            assert await caller.is_closed()
            assert (await world.ask(GET % b"/a")).status == 200

    run(loop, scenario())


def test_a_long_answer(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET % b"/streams" + GET % b"/a")
            assert (await caller.answer()).body == b"0,1,2,"
            assert (await caller.answer()).told["path"] == "/a"
            caller = await world.call(OLD % b"/streams")
            answer = await caller.answer()
            assert answer.body == b"0,1,2,"
            assert "transfer-encoding" not in answer.headers

    run(loop, scenario())


def test_half_an_answer_is_not_taken_for_all_of_it(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            for form in (GET, OLD):
                caller = await world.call(form % b"/breaks%20off")
                assert await gone(caller.answer())

    run(loop, scenario())


@pytest.mark.parametrize("how", ["takes nothing", "makes room", "the service stops"])
def test_half_an_answer_to_an_old_caller(loop: Loop, monkeypatch: pytest.MonkeyPatch, how: str):
    """Goal: where only the end of the connection ends a body, half of one ends otherwise."""

    async def scenario() -> None:
        async with serving(most=1) as world:
            caller = await world.call(OLD % b"/streams%20on", room=1_000)
            await until(lambda: bool(world.server._stalled))
            match how:
                case "takes nothing":
                    monkeypatch.setattr(server, "_STALL_SECONDS", -1)
                    world.server.end_late_ones()
                case "makes room":
                    await world.call()
                case _:
                    world.server.stop()
                    assert not await world.server.drained(0.05)
                    await world.server.close(3)
            assert await gone(caller.reader.read(-1))

    run(loop, scenario())


def test_a_long_answer_that_is_reset_elsewhere(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    """Goal: only the caller's own hanging up goes without a word."""
    broken: list[str] = []
    monkeypatch.setattr(answer.HttpMetrics, "broken", broken.append)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionResetError("the database is gone")

    async def scenario() -> None:
        async with serving() as world:
            answers = answer.Answers(SystemClock(), logs=False)

            async def app(exchange: Exchange) -> None:
                stream = Stream("text/csv", "a.csv", pieces())
                await answers.stream(Request(exchange), stream, [], 0)

            world.server.app = app
            assert await gone((await world.call(GET % b"/a")).answer())
            assert broken == ["unknown"]

    run(loop, scenario())


def test_a_caller_that_hangs_up_early(loop: Loop):
    """Goal: what was begun is done to its end, since it may be a payment. A long answer ends."""

    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET % b"/waits")
            await until(lambda: world.app.begun == ["/waits"])
            caller.writer.transport.abort()
            await asyncio.sleep(0.05)
            world.app.go_on.set()
            await until(lambda: world.app.ended == ["/waits"])

            caller = await world.call(GET % b"/streams%20on")
            await caller.reader.readexactly(1)
            caller.writer.transport.abort()
            await until(lambda: "/streams on" in world.app.ended)

    run(loop, scenario())


def test_a_caller_that_says_it_is_done_gets_its_answers(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET % b"/waits" + GET % b"/a")
            caller.writer.write_eof()
            await asyncio.sleep(0.05)
            world.app.go_on.set()
            assert [(await caller.answer()).told["path"] for _ in range(2)] == ["/waits", "/a"]
            assert await caller.is_closed()

    run(loop, scenario())


@pytest.mark.parametrize("cut", [b"GET", b"POST /p HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe"])
def test_a_caller_that_is_done_too_early(loop: Loop, cut: bytes):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(cut)
            caller.writer.write_eof()
            if cut.startswith(b"POST"):
                assert (await caller.answer()).status == 400
            assert await caller.is_closed()

    run(loop, scenario())


def test_a_caller_that_does_not_read_is_asked_no_more(loop: Loop):
    """Goal: one answer too many at most is in memory; once it reads, it gets all of them."""

    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET % b"/large" * 5, room=1_000)
            await until(lambda: bool(world.app.ended))
            await asyncio.sleep(0.1)
            assert world.app.begun == ["/large"]
            for _ in range(5):
                assert len((await caller.answer()).body) == 8_000_000
            assert len(world.app.begun) == 5

    run(loop, scenario())


def test_the_last_answer_arrives_though_more_was_sent(loop: Loop):
    """Goal: closing on what was not read would reset the connection, and lose the answer."""

    async def scenario() -> None:
        async with serving() as world:
            close = b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            caller = await world.call(close)
            for _ in range(50):
                await caller.send(b"x" * 50_000)
                await asyncio.sleep(0)
            assert (await caller.answer()).told["path"] == "/a"

    run(loop, scenario())
