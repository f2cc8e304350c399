"""How many connections there are, how long each may take, and how all of them end."""

import asyncio
import socket
import struct

import pytest

from bursar.http import server as module
from bursar.http import unfinished as unfinished_module
from bursar.http.exchange import Exchange
from tests.http_server.raw import Caller, Loop, World, gone, run, serving, until

GET = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n"
SILENT = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"


def test_idle_ones_make_room(loop: Loop):
    """Goal: the one that waits longest goes, who is being answered stays, and when nobody can go a
    newcomer is told to come again."""

    async def scenario() -> None:
        async with serving(most=3) as world:
            running = await world.call(GET % b"/waits")
            await until(lambda: bool(world.app.begun))
            oldest, second = await world.call(GET % b"/a"), await world.call(GET % b"/a")
            for caller in (oldest, second):
                await caller.answer()
            third = await world.call(GET % b"/waits")
            assert await gone(oldest.reader.readexactly(1))
            await second.send(GET % b"/waits")
            await until(lambda: world.app.begun.count("/waits") == 3)
            refused = await world.call()
            answer = await refused.answer()
            assert (answer.status, answer.error) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert await refused.is_closed()
            world.app.go_on.set()
            for caller in (running, second, third):
                assert (await caller.answer()).status == 200
            assert (await world.ask(GET % b"/a")).status == 200

    run(loop, scenario())


@pytest.mark.parametrize("sent", [b"GET", SILENT, GET % b"/large"])
def test_whoever_is_silent_makes_room_for_who_speaks(loop: Loop, sent: bytes):
    """Goal: thousands that send half a request, or take no answer, keep nobody out."""

    async def scenario() -> None:
        async with serving(most=5) as world:
            for _ in range(20):
                await world.call(sent, room=1_000)
                await asyncio.sleep(0.01)
            for _ in range(3):
                assert (await world.ask(GET % b"/a")).status == 200

    run(loop, scenario())


def test_an_answer_on_its_way_is_not_cut_for_a_silent_body(loop: Loop):
    async def scenario() -> None:
        async with serving(most=2) as world:
            close = b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
            last = await world.call(close, room=1_000)
            await until(lambda: bool(world.server._ended))
            await world.call(SILENT)
            await until(lambda: "/p" in world.app.begun)
            assert (await world.ask(GET % b"/a")).status == 200
            assert len((await last.answer()).body) == 8_000_000

    run(loop, scenario())


async def _is_ended(world: World, caller: Caller) -> bool:
    world.server.end_late_ones()
    return await gone(caller.reader.readexactly(1))


def test_what_takes_too_long_ends(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    """Goal: the idle, the head that does not come to its end, also behind a request, and the one
    that does not hang up after the last answer."""

    async def scenario() -> None:
        async with serving() as world:
            idle, half = await world.call(GET % b"/a"), await world.call(b"GET /")
            await idle.answer()
            behind = await world.call(GET % b"/a" + b"GET /")
            await behind.answer()
            world.server.end_late_ones()
            await idle.send(GET % b"/a")
            assert (await idle.answer()).status == 200
            monkeypatch.setattr(module, "_HEAD_SECONDS", -1)
            assert await _is_ended(world, half)
            assert await _is_ended(world, behind)
            await idle.send(GET % b"/a")
            assert (await idle.answer()).status == 200
            monkeypatch.setattr(module, "_IDLE_SECONDS", -1)
            assert await _is_ended(world, idle)
            monkeypatch.setattr(module, "LINGER_SECONDS", -1)
            world.server.end_late_ones()
            await until(lambda: not world.server._all)

    run(loop, scenario())


def _reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def test_one_that_is_gone_is_no_trouble(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    """Goal: ending what has just been reset, and asking where it came from."""

    async def scenario() -> None:
        async with serving() as world:
            peers: list[str] = []

            async def app(exchange: Exchange) -> None:
                await asyncio.sleep(0.05)
                peers.append(exchange.peer)

            monkeypatch.setattr(module, "_IDLE_SECONDS", -1)
            one = socket.create_connection(("127.0.0.1", world.port))
            await until(lambda: bool(world.server._idle))
            _reset(one)
            world.server.end_late_ones()
            await until(lambda: not world.server._all)
            world.server.app = app
            one = socket.create_connection(("127.0.0.1", world.port))
            one.sendall(GET % b"/a")
            _reset(one)
            await until(lambda: bool(peers))
            # Of one that was reset before it was accepted the system knows no address.
            assert peers in (["127.0.0.1"], [""])

    run(loop, scenario())


@pytest.mark.parametrize("path", [b"/large", b"/streams%20on"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_who_takes_nothing_of_an_answer_is_cut(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, path: bytes, close: bytes
):
    async def scenario() -> None:
        async with serving() as world:
            sent = b"GET %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (path, close)
            await world.call(sent, room=1_000)
            await until(lambda: any(one.unsent_bytes for one in world.server._all))
            await asyncio.sleep(0.1)
            world.server.end_late_ones()
            assert world.server._all
            monkeypatch.setattr(module, "_STALL_SECONDS", -1)
            world.server.end_late_ones()
            await until(lambda: not world.server._all)
            await until(lambda: len(world.app.ended) == 1)

    run(loop, scenario())


def test_a_body_that_comes_too_late(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(SILENT + b"he")
            await until(lambda: bool(world.app.begun))
            world.server.end_late_ones()
            monkeypatch.setattr(unfinished_module, "_BODY_SECONDS", -1)
            world.server.end_late_ones()
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert await caller.is_closed()

    run(loop, scenario())


def test_stopping_loses_no_answer(loop: Loop):
    """Goal: idle connections close at once, what was asked is answered, also what was sent ahead
    of that, and the last answer says that it is the last."""

    async def scenario() -> None:
        async with serving() as world:
            idle = await world.call(GET % b"/a")
            await idle.answer()
            running = await world.call(GET % b"/waits")
            ahead = await world.call(GET % b"/waits" + GET % b"/a")
            await until(lambda: world.app.begun.count("/waits") == 2)
            world.server.stop()
            assert await idle.is_closed()
            assert not await world.server.drained(0.05)
            world.app.go_on.set()
            assert await world.server.drained(5)
            closing = asyncio.create_task(world.server.close(5))
            assert (await running.answer()).headers["connection"] == "close"
            assert "connection" not in (await ahead.answer()).headers
            assert (await ahead.answer()).headers["connection"] == "close"
            for caller in (running, ahead):
                assert await caller.is_closed()
            await closing
            with pytest.raises(OSError):
                await world.call()

    run(loop, scenario())


def test_stopping_answers_what_waits_behind_a_slow_answer(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET % b"/large" + GET % b"/a", room=1_000)
            await until(lambda: bool(world.app.ended))
            world.server.stop()
            assert not await world.server.drained(0.05)
            assert len((await caller.answer()).body) == 8_000_000
            assert (await caller.answer()).told["path"] == "/a"
            assert await world.server.drained(5)

    run(loop, scenario())


def test_stopping_waits_for_who_reads_and_not_for_who_does_not(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            reads, does_not = [await world.call(GET % b"/large", room=1_000) for _ in range(2)]
            await until(lambda: len(world.app.ended) == 2)
            world.server.stop()
            assert await world.server.drained(1)
            closing = asyncio.create_task(world.server.close(1))
            assert len((await reads.answer()).body) == 8_000_000
            await closing
            await until(lambda: not world.server._all)
            assert await gone(does_not.answer())

    run(loop, scenario())
