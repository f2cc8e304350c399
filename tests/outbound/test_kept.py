"""Which connections are asked again, and which never."""

import asyncio
from contextlib import suppress

import pytest

from bursar.outbound import ask as module
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
    says,
    stranger,
)

CLOSING = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def test_a_connection_is_asked_again(loop: Loop):
    async def scenario() -> None:
        async with stranger(answers) as one, stranger(answers) as other, asking() as asker:
            for _ in range(5):
                for asked in (one, other):
                    assert (await ask(asker, asked.target())).body == b"ok"
            assert (len(one.callers), len(other.callers)) == (1, 1)
            # At once, none waits for another.
            await asyncio.gather(*(ask(asker, one.target()) for _ in range(5)))
            assert len(one.callers) == 5
            await asyncio.gather(*(ask(asker, one.target()) for _ in range(5)))
            assert len(one.callers) == 5

    run(loop, scenario())


@pytest.mark.parametrize(
    "said",
    [
        CLOSING, OK + OK, OK + b"H", OK + b"nonsense", b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1_001,
    ],
    ids=["asks to", "two answers", "a part of one", "more", "HTTP/1.0", "cut"],
)  # fmt: skip
def test_after_such_an_answer_it_is_not(loop: Loop, said: bytes):
    async def scenario() -> None:
        async def behave(caller: Caller) -> None:
            await caller.request()
            await caller.say(said)
            if b"Length" not in said:
                caller.hang_up()

        async with stranger(behave) as asked, asking() as asker:
            for number in range(1, 4):
                assert (await ask(asker, asked.target())).status == 200
                assert len(asked.callers) == number
            await until(lambda: asked.open == 0)

    run(loop, scenario())


def test_after_words_that_nobody_asked_for_it_is_closed(loop: Loop):
    """Goal: they are never taken for the answer to what is asked next."""

    async def scenario() -> None:
        async with stranger(says(OK)) as asked, asking() as asker:
            for _ in range(3):
                assert (await ask(asker, asked.target())).body == b"ok"
                await asked.callers[-1].say(OK.replace(b"ok", b"no"))
                await until(lambda: asked.open == 0)
            assert len(asked.callers) == 3

    run(loop, scenario())


@pytest.mark.parametrize("how", [Caller.hang_up, Caller.break_off, lambda c: c.writer.write_eof()])
def test_what_was_closed_while_idle_is_not_asked(loop: Loop, how: Behaviour):
    async def scenario() -> None:
        async with stranger(answers) as asked, asking() as asker:
            for number in range(1, 4):
                await ask(asker, asked.target())
                assert len(asked.callers) == number
                how(asked.callers[-1])
                [[line]] = asker._free.values()
                await until(lambda line=line: not line.is_free)

    run(loop, scenario())


def test_a_half_closed_line_is_not_free(loop: Loop):
    """Goal: nothing is asked between the stranger's end and our own."""

    async def scenario() -> None:
        async with stranger(answers) as asked, asking() as asker:
            await ask(asker, asked.target())
            [[line]] = asker._free.values()
            line.eof_received()
            assert not line.is_free

    run(loop, scenario())


def test_a_line_that_ended_before_it_was_asked_gives_no_answer(loop: Loop):
    """Goal: such as of a stranger that speaks first, or leaves, while a handshake ends."""

    async def scenario() -> None:
        async with stranger(answers) as asked, asking() as asker:
            await ask(asker, asked.target())
            [[line]] = asker._free.values()
            line.data_received(b"SSH-2.0-x\r\n")
            deadline = asyncio.get_running_loop().time() + 5
            with pytest.raises(NoAnswer):
                await line.ask(b"x", wants_body=True, most_bytes=1, deadline=deadline)

    run(loop, scenario())


@pytest.mark.parametrize("first", [b"SSH-2.0-OpenSSH_9.9\r\n", OK])
def test_a_stranger_that_speaks_first_is_not_heard(loop: Loop, first: bytes):
    """Goal: or there is no answer; and nothing else is raised, whatever comes first."""

    async def scenario() -> None:
        async def behave(caller: Caller) -> None:
            await caller.say(first)

        async with stranger(behave) as asked:
            for _ in range(20):
                async with asking() as asker:
                    with suppress(NoAnswer):
                        assert (await ask(asker, asked.target())).status == 200
            await until(lambda: asked.open == 0)

    run(loop, scenario())


def test_what_is_kept_is_closed_in_the_end(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.1)

    async def scenario() -> None:
        async with stranger(answers) as asked, asking() as asker:
            await asyncio.gather(*(ask(asker, asked.target()) for _ in range(5)))
            assert asked.open == 5
            await until(lambda: asked.open == 0)
            assert (asker._free, asker._sweep) == ({}, None)
            # And once more, from the beginning.
            await ask(asker, asked.target())
            assert asked.open == 1
            await until(lambda: asked.open == 0)

    run(loop, scenario())


def test_what_is_in_use_is_kept(loop: Loop, monkeypatch: pytest.MonkeyPatch):
    """Goal: the sweep takes the others."""
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.3)

    async def scenario() -> None:
        async with stranger(answers) as asked, asking() as asker:
            await asyncio.gather(*(ask(asker, asked.target()) for _ in range(3)))

            async def swept() -> None:
                await until(lambda: asked.open < 3)

            waiting = asyncio.create_task(swept())
            while not waiting.done():
                await ask(asker, asked.target())
                await asyncio.sleep(0.01)
            await until(lambda: asked.open == 1)
            assert len(asked.callers) == 3

    run(loop, scenario())


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_closed_asker_keeps_nothing(loop: Loop, is_asked: bool):
    """Goal: not even the connection of a request that ends after it."""

    async def scenario() -> None:
        go_on = asyncio.Event()

        async def behave(caller: Caller) -> None:
            await caller.request()
            if is_asked:
                await go_on.wait()
            await caller.say(OK)

        async with stranger(behave) as asked, asking() as asker:
            asking_it = asyncio.create_task(ask(asker, asked.target()))
            await until(lambda: len(asked.callers) == 1)
            if not is_asked:
                await asking_it
            asker.close()
            go_on.set()
            assert (await asking_it).body == b"ok"
            assert asker._free == {}
            await until(lambda: asked.open == 0)

    run(loop, scenario())


@pytest.mark.parametrize(
    ("method", "said", "connections"),
    [
        ("GET", b"", 2),
        ("GET", b"HTTP/1.1 200 OK\r\nX", 1),
        ("GET", b"nonsense", 1),
        ("POST", b"", 1),
    ],
    ids=["nothing", "a part", "nonsense", "what may not be repeated"],
)
def test_only_a_kept_connection_that_ended_without_a_word_is_replaced(
    loop: Loop, method: str, said: bytes, connections: int
):
    """Goal: once. Whoever said anything has heard the request, and is not asked again; nor is what
    may do twice what it should do once."""

    async def scenario() -> None:
        async def behave(caller: Caller) -> None:
            if len(asked.callers) == 1:
                await caller.request()
                await caller.say(OK)
            await caller.request()
            await caller.say(said)
            caller.hang_up()

        async with stranger(behave) as asked, asking() as asker:
            assert (await ask(asker, asked.target())).body == b"ok"
            with pytest.raises(NoAnswer):
                await ask(asker, asked.target(), method)
            assert len(asked.callers) == connections
            await until(lambda: asked.open == 0)

    run(loop, scenario())


def test_many_at_once_hear_their_own_answers(loop: Loop):
    """Goal: each hears what it asked for, though connections are handed on all the time."""

    async def scenario() -> None:
        heard = complaints()
        number = 0

        async def behave(caller: Caller) -> None:
            nonlocal number
            while True:
                word = (await caller.request()).split(b" ")[0].lower()
                number += 1
                await asyncio.sleep(number % 7 / 1_000)
                head = CLOSING if number % 5 == 0 else OK
                await caller.say(head.replace(b": 2", b": %d" % len(word))[: -len(b"ok")] + word)
                if head is CLOSING:
                    caller.hang_up()
                    return

        words = [f"M{'x' * length}" for length in range(10)]
        async with stranger(behave) as asked, asking(reuses=words) as asker:

            async def asks(word: str) -> None:
                for _ in range(20):
                    answer = await ask(asker, asked.target(), word)
                    assert answer.body.decode() == word.lower()

            await asyncio.gather(*map(asks, words))
            assert len(asked.callers) < 100
        assert heard == []

    run(loop, scenario())
