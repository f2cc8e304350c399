"""However a request ends, its socket is closed, and nothing is left to complain of."""

import asyncio
import ssl

import pytest

from bursar.outbound.failure import NoAnswer
from tests.http_server.raw import Loop, run, until
from tests.outbound.stranger import (
    OK,
    Behaviour,
    Caller,
    answers,
    ask,
    asking,
    complaints,
    inside,
    open_files,
    says,
    stranger,
)

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\nabc"


async def says_nothing(caller: Caller) -> None:
    await caller.request()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nX", HALF], ids=["0", "head", "body"])
@pytest.mark.parametrize("is_tls", [False, True])
def test_whoever_is_cancelled_hangs_up(
    loop: Loop, certificate: ssl.SSLContext, said: bytes, is_tls: bool
):
    async def scenario() -> None:
        heard = complaints()
        async with (
            stranger(says(said), certificate if is_tls else None) as asked,
            asking(inside) as asker,
        ):
            before = open_files()
            for number in range(1, 4):
                target = asked.target(is_tls=is_tls, host="inside.test")
                waiting = asyncio.create_task(ask(asker, target))
                await until(lambda number=number: asked.heard == number)
                await asyncio.sleep(0.02)  # until what it said is here, most of the time
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await until(lambda: asked.open == 0)
            await until(lambda: open_files() <= before)
        assert heard == []

    run(loop, scenario())


@pytest.mark.parametrize("said", [OK, b"nonsense"])
def test_whoever_is_cancelled_with_the_answer_at_hand_hangs_up(loop: Loop, said: bytes):
    """Goal: what arrives in the same moment neither keeps the socket open nor is complained of."""

    async def scenario() -> None:
        heard = complaints()
        async with stranger(says(OK)) as asked, asking() as asker:
            await ask(asker, asked.target())
            [[line]] = asker._free.values()
            waiting = asyncio.create_task(ask(asker, asked.target()))
            await asyncio.sleep(0)
            line.data_received(said)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: asked.open == 0)
        assert heard == []

    run(loop, scenario())


@pytest.mark.parametrize("is_tls", [False, True])
def test_cancelled_at_any_moment(loop: Loop, certificate: ssl.SSLContext, is_tls: bool):
    """Goal: after any number of turns of the loop, while it connects or later."""

    async def scenario() -> None:
        heard = complaints()
        async with (
            stranger(answers, certificate if is_tls else None) as asked,
            asking(inside) as asker,
        ):
            before = open_files()
            target = asked.target(is_tls=is_tls, host="inside.test")
            for turns in range(40):
                asker._is_closed = turns % 2 > 0
                waiting = asyncio.create_task(ask(asker, target))
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    assert waiting.result().body == b"ok"
            asker.close()
            await until(lambda: asked.open == 0)
            await until(lambda: open_files() <= before)
        assert heard == []

    run(loop, scenario())


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nX: y\r\n", b"HTTP/1.1 100 C\r\n\r\n"])
@pytest.mark.parametrize("is_tls", [False, True])
def test_too_late_for_an_answer(loop: Loop, certificate: ssl.SSLContext, said: bytes, is_tls: bool):
    async def scenario() -> None:
        context = certificate if is_tls else None
        async with stranger(says(said), context) as asked, asking(inside) as asker:
            with pytest.raises(TimeoutError):
                await ask(asker, asked.target(is_tls=is_tls, host="inside.test"), seconds=0.3)
            await until(lambda: asked.open == 0)

    run(loop, scenario())


@pytest.mark.parametrize("said", [HALF, UNTIL_THE_END])
@pytest.mark.parametrize("is_tls", [False, True])
def test_too_late_for_the_whole_body(
    loop: Loop, certificate: ssl.SSLContext, said: bytes, is_tls: bool
):
    async def scenario() -> None:
        context = certificate if is_tls else None
        async with stranger(says(said), context) as asked, asking(inside) as asker:
            target = asked.target(is_tls=is_tls, host="inside.test")
            answer = await ask(asker, target, seconds=1)
            assert (answer.status, answer.body, answer.truncated) == (200, b"abc", True)
            await until(lambda: asked.open == 0)

    run(loop, scenario())


def test_a_handshake_that_never_ends(loop: Loop):
    async def scenario() -> None:
        heard = complaints()
        async with stranger(says_nothing) as asked, asking(inside) as asker:
            before = open_files()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await ask(asker, asked.target(is_tls=True, host="inside.test"), seconds=0.1)
            await until(lambda: asked.open == 0)
            await until(lambda: open_files() <= before)
        assert heard == []

    run(loop, scenario())


async def breaks_off(caller: Caller) -> None:
    await caller.reader.readexactly(1)
    caller.break_off()


async def hangs_up(caller: Caller) -> None:
    caller.hang_up()


async def speaks_no_tls(caller: Caller) -> None:
    await caller.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    caller.hang_up()


@pytest.mark.parametrize("behave", [breaks_off, hangs_up, speaks_no_tls])
def test_a_handshake_that_fails(loop: Loop, behave: Behaviour):
    async def scenario() -> None:
        heard = complaints()
        async with stranger(behave) as asked, asking(inside) as asker:
            before = open_files()
            for _ in range(10):
                with pytest.raises(NoAnswer) as problem:
                    await ask(asker, asked.target(is_tls=True, host="inside.test"))
                assert "127.0.0.1" not in str(problem.value)
            await until(lambda: asked.open == 0)
            await until(lambda: open_files() <= before)
        assert heard == []

    run(loop, scenario())


def test_a_certificate_that_is_not_believed(loop: Loop, certificate: ssl.SSLContext):
    async def scenario() -> None:
        heard = complaints()
        async with stranger(answers, certificate) as asked, asking(inside) as asker:
            before = open_files()
            for _ in range(3):
                with pytest.raises(NoAnswer, match="Certificate not accepted"):
                    await ask(asker, asked.target(is_tls=True))
            await until(lambda: open_files() <= before)
        # The stranger's own end of it may be told of.
        assert all("SSL" in str(one) for one in heard)

    run(loop, scenario())


@pytest.mark.parametrize("said", [OK, HALF, UNTIL_THE_END, b""])
def test_right_after_the_handshake(loop: Loop, certificate: ssl.SSLContext, said: bytes):
    """Goal: who speaks first, or leaves at once, gives no answer, and nothing else is raised."""

    async def scenario() -> None:
        heard = complaints()

        async def behave(caller: Caller) -> None:
            if said:
                await caller.say(said)
            caller.hang_up()

        async with stranger(behave, certificate) as asked:
            for _ in range(10):
                async with asking(inside) as asker:
                    try:
                        answer = await ask(asker, asked.target(is_tls=True, host="inside.test"))
                    except NoAnswer:
                        continue
                    assert answer.status == 200
        assert heard == []

    run(loop, scenario())


@pytest.mark.parametrize("how", [Caller.hang_up, Caller.break_off])
@pytest.mark.parametrize("said", [OK, HALF, UNTIL_THE_END, b"HTTP/1.1 200 OK\r\nX", b""])
@pytest.mark.parametrize("is_tls", [False, True])
def test_the_stranger_ends_it(
    loop: Loop, certificate: ssl.SSLContext, how: Behaviour, said: bytes, is_tls: bool
):
    async def scenario() -> None:
        async def behave(caller: Caller) -> None:
            await caller.request()
            await caller.say(said)
            how(caller)

        context = certificate if is_tls else None
        async with stranger(behave, context) as asked, asking(inside) as asker:
            target = asked.target(is_tls=is_tls, host="inside.test")
            for number in range(1, 4):
                if b"\r\n\r\n" not in said:
                    with pytest.raises(NoAnswer):
                        await ask(asker, target)
                    continue
                answer = await ask(asker, target)
                assert (answer.status, answer.body) == (200, said.split(b"\r\n\r\n")[1])
                if said == HALF:
                    assert answer.truncated
                assert len(asked.callers) == number
                for line in [line for lines in asker._free.values() for line in lines]:
                    await until(lambda line=line: not line.is_free)

    run(loop, scenario())


def test_a_kept_tls_connection_that_was_closed_is_not_asked(
    loop: Loop, certificate: ssl.SSLContext
):
    async def scenario() -> None:
        async with stranger(answers, certificate) as asked, asking(inside) as asker:
            target = asked.target(is_tls=True, host="inside.test")
            for number in range(1, 4):
                for _ in range(3):
                    assert (await ask(asker, target)).body == b"ok"
                assert len(asked.callers) == number
                [[line]] = asker._free.values()
                asked.callers[-1].hang_up()
                await until(lambda line=line: not line.is_free)

    run(loop, scenario())
