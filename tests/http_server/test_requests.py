"""What of the bytes that a caller sends is a request, and what it is answered."""

import asyncio

import pytest

from bursar.form.strict_json import MAX_BODY_BYTES
from bursar.http.connection import MAX_HEAD_BYTES
from tests.http_server.raw import Answer, Caller, Loop, World, run, serving, until

GET = b"GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: t\r\n\r\n"
)
UPGRADE = (
    b"Host: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
)


def test_what_is_told_of_a_request(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(
                b"PATCH /v1/a%20%c3%bc?x=%20y HTTP/1.1\r\nHost: h\r\nX-One:  1 \t\r\n"
                b"X-one: 2\r\nCookie: a=1\r\nCookie: b=2\r\nContent-Length: 2\r\n\r\n{}"
            )
            answer = await caller.answer()
            assert answer.told == {
                "method": "PATCH",
                "path": "/v1/a ü",
                "query": "x=%20y",
                "headers": {"host": "h", "x-one": "2", "cookie": "a=1; b=2", "content-length": "2"},
                "body": "{}",
            }
            assert "connection" not in answer.headers

    run(loop, scenario())


@pytest.mark.parametrize(
    ("address", "path"),
    [
        (b"http://h:1/v1/x?y", "/v1/x"),
        (b"HTTPS://h", "/"),
        (b"http://h?x=/v1/x", "/"),
        (b"/a/%ff", "/a/\ufffd"),
        (b"//h/x", "//h/x"),
        (b"/a%2fb", "/a/b"),
    ],
)
def test_the_path_of_an_address(loop: Loop, address: bytes, path: str):
    async def scenario() -> None:
        async with serving() as world:
            answer = await world.ask(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % address)
            assert answer.told["path"] == path

    run(loop, scenario())


@pytest.mark.parametrize("request_", [GET, POST, CHUNKED], ids=["get", "post", "chunked"])
def test_cut_anywhere_it_is_the_same_request(loop: Loop, request_: bytes):
    """Goal: however the bytes are parted, the answer is the same, and so is the one after it."""

    async def parted(world: World, at: int) -> None:
        caller = await world.call(request_[:at])
        await asyncio.sleep(0)
        await caller.send(request_[at:] + GET)
        first = await caller.answer()
        assert first.told["body"] == ("" if request_ == GET else "hello")
        assert (await caller.answer()).told["path"] == "/a"
        await caller.close()

    async def scenario() -> None:
        async with serving() as world:
            for at in range(1, len(request_)):
                await parted(world, at)
            caller = await world.call()
            for byte in request_:
                await caller.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await caller.answer()).status == 200

    run(loop, scenario())


def test_requests_sent_ahead_are_answered_in_their_order(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            sent = b"".join(
                b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx" % number
                for number in range(12)
            )
            for at in range(0, len(sent), 7):
                caller = await world.call(sent[:at])
                await asyncio.sleep(0)
                await caller.send(sent[at:])
                paths = [(await caller.answer()).told["path"] for _ in range(12)]
                assert paths == [f"/{number}" for number in range(12)]
                await caller.close()

    run(loop, scenario())


def test_one_after_the_other(loop: Loop):
    """Goal: no request begins before the one ahead of it is answered."""

    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(b"GET /waits HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
            await until(lambda: world.app.begun == ["/waits"])
            await caller.send(GET)
            await asyncio.sleep(0.05)
            assert world.app.begun == ["/waits"]
            world.app.go_on.set()
            assert [(await caller.answer()).told["path"] for _ in range(3)] == [
                "/waits",
                "/a",
                "/a",
            ]

    run(loop, scenario())


def test_too_many_sent_ahead(loop: Loop):
    """Goal: as many as allowed are answered, the rest is refused, and nothing is skipped."""

    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(GET * 5_000)
            answers: list[Answer] = []
            while (answer := await caller.answer()).status == 200:
                answers.append(answer)
            assert 16 <= len(answers) <= 18
            assert answer.error == "validation_error"
            assert answer.headers["connection"] == "close"
            assert await caller.is_closed()
            assert world.app.begun == ["/a"] * len(answers)

    run(loop, scenario())


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the hello of TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/3.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\nHost: h\n\n",
        b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\nx",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nx",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http(loop: Loop, sent: bytes):
    """Goal: refused in the form of every error, and nobody takes the rest for a request."""

    async def scenario() -> None:
        async with serving() as world:
            for before in (b"", GET):
                caller = await world.call(before + sent + GET)
                if before:
                    assert (await caller.answer()).told["path"] == "/a"
                answer = await caller.answer()
                assert answer.status == 400
                assert answer.error == "validation_error"
                assert answer.headers["connection"] == "close"
                assert await caller.is_closed()
            assert world.app.begun == ["/a"]

    run(loop, scenario())


@pytest.mark.parametrize(
    "broken", [b"x\r\n", b"2\r\nhey\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"2\nhe\r\n0\r\n\r\n"]
)
def test_a_body_that_breaks(loop: Loop, broken: bytes):
    """Goal: whoever reads it is told, answers, and what follows is no request."""

    async def scenario() -> None:
        async with serving() as world:
            head = b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            caller = await world.call(head)
            await until(lambda: world.app.begun == ["/p"])
            await caller.send(broken + GET)
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert await caller.is_closed()
            assert world.app.begun == ["/p"]

    run(loop, scenario())


def test_a_body_in_an_unknown_form(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            unknown = b"POST /p HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"
            caller = await world.call(unknown + GET)
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert await caller.is_closed()
            assert world.app.begun == ["/p"]

    run(loop, scenario())


@pytest.mark.parametrize("step", [1_000, 65_536, 1_000_000])
@pytest.mark.parametrize(
    ("start", "filling"),
    [
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\nX: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
        (b"GET / HTTP/1.1\r\n", b"Cookie: a\r\n"),
        (b"GET / HTTP/1.1\r\n", b"a"),
    ],
)
def test_a_head_without_end(loop: Loop, step: int, start: bytes, filling: bytes):
    """Goal: bounded, whether it comes in one piece or in many."""

    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(start)
            rest = filling * (4_000_000 // len(filling))
            sending = asyncio.create_task(_send_slowly(caller, rest, step))
            answer = await caller.answer()
            assert answer.error == "payload_too_large"
            sending.cancel()
            assert world.app.begun == []

    run(loop, scenario())


async def _send_slowly(caller: Caller, rest: bytes, step: int) -> None:
    for at in range(0, len(rest), step):
        await caller.send(rest[at : at + step])
        await asyncio.sleep(0)


def test_a_head_as_large_as_allowed(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            for size, status in ((MAX_HEAD_BYTES - 50, 200), (MAX_HEAD_BYTES, 413)):
                answer = await world.ask(b"GET / HTTP/1.1\r\nX: %b\r\n\r\n" % (b"a" * size))
                assert answer.status == status
            # Those that come twice count, though only the last one does.
            assert (
                await world.ask(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 2_000 + b"\r\n")
            ).status == 413

    run(loop, scenario())


@pytest.mark.parametrize("end", [b"0\r\nX: ", b"0\r\nX: y\r\n", b"2;"])
def test_what_follows_a_body_is_bounded_too(loop: Loop, end: bytes):
    """Goal: trailers and extensions of chunks, which nobody reads, take no memory without end."""

    async def scenario() -> None:
        async with serving() as world:
            head = b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n"
            caller = await world.call(head + end)
            filling = b"X: y\r\n" if end.endswith(b"y\r\n") else b"a"
            sending = asyncio.create_task(
                _send_slowly(caller, filling * (4_000_000 // len(filling)), 1_000)
            )
            assert (await caller.answer()).status == 413
            sending.cancel()

    run(loop, scenario())


def test_a_body_that_is_too_large(loop: Loop):
    """Goal: refused, and the caller that is still sending gets to know."""

    async def scenario() -> None:
        async with serving() as world:
            body = b"x" * (MAX_BODY_BYTES + 1)
            for framed in (
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
                b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            ):
                caller = await world.call(b"POST /p HTTP/1.1\r\nHost: h\r\n" + framed)
                assert (await caller.answer()).status == 413
                await caller.send(GET)
                assert (await caller.answer()).status == 200
            largest = body[:-1]
            answer = await world.ask(
                b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
                % (len(largest), largest)
            )
            assert answer.told["body"] == largest.decode()

    run(loop, scenario())


def test_a_refused_body_is_read_or_the_connection_ends(loop: Loop):
    """Goal: what was not read is never taken for the next request."""

    async def scenario() -> None:
        async with serving() as world:
            head = b"POST /refuses HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\n\r\n"
            caller = await world.call(head)
            await until(lambda: world.app.begun == ["/refuses"])
            await caller.send(b"GET /inside HTTP/1.1\r\nHost: h\r\n\r\n       " + GET)
            assert (await caller.answer()).status == 401
            assert (await caller.answer()).told["path"] == "/a"

            at_once = head.replace(b"/refuses", b"/refuses%20at%20once")
            caller = await world.call(at_once)
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            await caller.send(b"GET /inside HTTP/1.1\r\nHost: h\r\n\r\n       " + GET)
            assert await caller.is_closed()
            assert "/inside" not in world.app.begun

    run(loop, scenario())


def test_a_caller_that_waits_to_be_asked_for_its_body(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            head = (
                b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n"
            )
            caller = await world.call(head % b"/p")
            assert (await caller.answer()).status == 100
            await caller.send(b"hello")
            assert (await caller.answer()).told["body"] == "hello"

            caller = await world.call(head % b"/refuses")
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (401, "close")
            assert await caller.is_closed()

            # Nor does an old caller know what it means to be asked.
            caller = await world.call((head % b"/p").replace(b"HTTP/1.1", b"HTTP/1.0"))
            await until(lambda: world.app.begun.count("/p") == 2)
            await caller.send(b"hello")
            assert (await caller.answer()).told["body"] == "hello"

            # It is not asked for what is here already.
            caller = await world.call(head % b"/p" + b"hello")
            assert (await caller.answer()).told["body"] == "hello"

    run(loop, scenario())


@pytest.mark.parametrize(
    ("start", "body"),
    [
        (b"GET /u HTTP/1.1\r\n" + UPGRADE + b"\r\n", ""),
        (b"POST /u HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 5\r\n\r\nhello", "hello"),
        (b"POST /u HTTP/1.1\r\nContent-Length: 0\r\n" + UPGRADE + b"\r\n", ""),
        (
            b"POST /u HTTP/1.1\r\n"
            + UPGRADE
            + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "hello",
        ),
    ],
)
def test_an_offer_of_another_protocol_is_ignored(loop: Loop, start: bytes, body: str):
    async def scenario() -> None:
        async with serving() as world:
            for at in range(1, len(start) + 1):
                caller = await world.call(start[:at])
                await asyncio.sleep(0)
                await caller.send(start[at:] + start + GET)
                for _ in range(2):
                    told = (await caller.answer()).told
                    assert (told["path"], told["body"]) == ("/u", body)
                assert (await caller.answer()).told["path"] == "/a"
                await caller.close()

    run(loop, scenario())


def test_a_method_that_nobody_registered(loop: Loop):
    """Goal: the application answers it, as any that a path does not take; only the first of a
    connection's requests may be one, and what cannot be a method is none."""

    async def scenario() -> None:
        async with serving() as world:
            brew = b"BREW /pot HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"
            caller = await world.call(brew + GET)
            told = (await caller.answer()).told
            assert (told["method"], told["path"], told["body"]) == ("BREW", "/pot", "hi")
            assert (await caller.answer()).told["method"] == "GET"
            await caller.send(brew + brew)
            assert (await caller.answer()).told["method"] == "BREW"
            assert (await caller.answer()).error == "validation_error"
            assert await caller.is_closed()
            for sent in (b"BREW", b"BREW\t/ HTTP/1.1\r\n\r\n", b"BR{W / HTTP/1.1\r\n\r\n"):
                caller = await world.call(sent)
                assert (await caller.answer()).error == "validation_error"

    run(loop, scenario())


def test_a_tunnel_is_not_opened(loop: Loop):
    async def scenario() -> None:
        async with serving() as world:
            caller = await world.call(b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
            answer = await caller.answer()
            assert (answer.told["path"], answer.headers["connection"]) == ("h:443", "close")
            assert await caller.is_closed()
            assert world.app.begun == ["h:443"]

    run(loop, scenario())


def test_old_callers_and_those_that_say_close(loop: Loop):
    """Goal: what comes after it is not begun."""

    async def scenario() -> None:
        async with serving() as world:
            for sent in (
                b"GET /b HTTP/1.0\r\n\r\n",
                b"GET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
                b"GET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            ):
                caller = await world.call(sent + GET)
                answer = await caller.answer()
                assert (answer.told["path"], answer.headers["connection"]) == ("/b", "close")
                assert await caller.is_closed()
            assert world.app.begun == ["/b"] * 3

    run(loop, scenario())
