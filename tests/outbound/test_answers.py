"""What is made of an answer does not depend on how it is cut on its way."""

import asyncio
from typing import Any

import pytest

from bursar.outbound.failure import NoAnswer
from bursar.outbound.line import MOST_HEADER_BYTES, Answer, Line
from tests.outbound.stranger import MOST_BYTES, OK


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", b""))


CHUNKED = head(b"Transfer-Encoding: chunked")
SOME = b"Content-Length: 2"


async def heard(*parts: bytes, method: str = "GET") -> tuple[Answer | str, bool]:
    """The answer, or why there is none; and whether the connection is kept. After the parts the
    stranger hangs up."""
    line, wire = Line(), Wire()
    line.connection_made(wire)
    loop = asyncio.get_running_loop()
    asked = loop.create_task(
        line.ask(b"", wants_body=method != "HEAD", most_bytes=MOST_BYTES, deadline=loop.time() + 10)
    )
    await asyncio.sleep(0)
    for part in parts:
        if not wire.is_aborted and not asked.done():
            line.data_received(part)
    is_kept = line.is_free
    assert is_kept or wire.is_aborted or not asked.done()
    line.connection_lost(None)
    try:
        return await asked, is_kept
    except NoAnswer as problem:
        return str(problem), is_kept


def whole(status: int, body: bytes = b"") -> tuple[int, bytes, bool]:
    return status, body, False


KEPT = [
    (OK, whole(200, b"ok")),
    (head(SOME, status=b"200") + b"ok", whole(200, b"ok")),
    (head(b"X-Empty:", SOME, b"Y: ") + b"ok", whole(200, b"ok")),
    (head(b"X: folded\r\n more", SOME) + b"ok", whole(200, b"ok")),
    (head(b"Upgrade: h2c", b"Connection: Upgrade, Keep-Alive", SOME) + b"ok", whole(200, b"ok")),
    (OK.replace(b"\r\n", b"\n"), whole(200, b"ok")),
    (b"\r\n" + OK, whole(200, b"ok")),
    (head(status=b"204 No Content"), whole(204)),
    (head(b"Content-Length: 9", status=b"204 No Content"), whole(204)),
    (head(b"Content-Length: 9", status=b"304 Not Modified"), whole(304)),
    (head(b"Transfer-Encoding: chunked", status=b"304 Not Modified"), whole(304)),
    (head(status=b"100 Continue") + head(b"Link: x", status=b"103 E") + OK, whole(200, b"ok")),
    (head(b"Content-Length: 9", status=b"103 Early Hints") + OK, whole(200, b"ok")),
    (CHUNKED + b"1\r\no\r\n1;a=b\r\nk\r\n0\r\n\r\n", whole(200, b"ok")),
    (CHUNKED + b"2  \r\nok\r\n0\r\nX: y\r\nZ:\r\n\r\n", whole(200, b"ok")),
    (head(b"Content-Length: %d" % MOST_BYTES) + b"x" * MOST_BYTES, whole(200, b"x" * MOST_BYTES)),
]  # fmt: skip
NOT_KEPT = [
    (head() + b"until the end", whole(200, b"until the end")),
    (head(SOME, b"Connection: close") + b"ok", whole(200, b"ok")),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", whole(200, b"ok")),
    (head(b"Content-Length: 3") + b"ok", (200, b"ok", True)),
    (head(b"Content-Length : 3") + b"ok", (200, b"ok", True)),
    (CHUNKED + b"2\r\nok\r\n", (200, b"ok", True)),
    (CHUNKED + b"2\r\nok\r\n0\r\nX: y\r\n", (200, b"ok", True)),
    (head(b"Content-Length: 2000") + b"x" * 2_000, (200, b"x" * MOST_BYTES, True)),
    (head() + b"x" * (MOST_BYTES + 1), (200, b"x" * MOST_BYTES, True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "means", "is_kept"),
    [(*case, True) for case in KEPT] + [(*case, False) for case in NOT_KEPT],
    ids=lambda value: repr(value[-40:]) if isinstance(value, bytes) else "",
)
async def test_an_answer_is_the_same_however_it_is_cut(
    said: bytes, means: tuple[int, bytes, bool], is_kept: bool
):
    """Goal: at once, a byte at a time, and in two parts at every place."""
    expected = await heard(said)
    answer = expected[0]
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body, answer.truncated) == means
    assert expected[1] == is_kept
    assert await heard(*(said[i : i + 1] for i in range(len(said)))) == expected
    for place in range(1, min(len(said), 200)):
        assert await heard(said[:place], said[place:]) == expected


@pytest.mark.parametrize(
    "said",
    [
        b"", b"HTTP/1.1 200 OK\r\nX", b"nonsense", head(SOME, b"Content-Length: 3") + b"ok",
        head(SOME, b"Transfer-Encoding: chunked") + b"ok", head(b"Content-Length: -2") + b"ok",
        head(b"Content-Length: +2") + b"ok", head(b"Content-Length: 2, 2") + b"ok",
        head(b"Content-Length: 99999999999999999999999") + b"ok", CHUNKED + b"zz\r\n",
        head(b"Upgrade: x", b"Connection: upgrade", status=b"101 Switching") + b"x",
        head(status=b"101 Switching") + OK, head(status=b"2000 OK"), head(b"X: a\x00b", SOME),
        head(b"Transfer-Encoding: chunked", status=b"100 C") + b"2\r\nok\r\n0\r\n\r\n" + OK,
        head(SOME, status=b"099 No") + b"no" + OK,
        head(b"Content-Length: 2000", status=b"099 No") + b"x" * 2_000,
    ],
    ids=lambda said: repr(said[:60]),
)  # fmt: skip
async def test_what_is_no_answer_is_none_however_it_is_cut(said: bytes):
    for parts in ((said,), tuple(said[i : i + 1] for i in range(len(said)))):
        answer, is_kept = await heard(*parts)
        assert isinstance(answer, str), answer
        assert not is_kept


@pytest.mark.parametrize("said", [head(b"Content-Length: 9"), CHUNKED, head()])
async def test_to_head_there_is_no_body(said: bytes):
    """Goal: it does not wait for one. What came instead cannot be told, so the line is closed."""
    for rest in (b"", OK, b"zz\r\n"):
        answer, is_kept = await heard(said + rest, method="HEAD")
        assert isinstance(answer, Answer)
        assert (answer.body, answer.truncated, is_kept) == (b"", False, False)


@pytest.mark.parametrize("length", range(1, len(OK) + 1))
async def test_after_a_beginning_of_another_answer_a_line_is_not_kept(length: int):
    assert await heard(OK + OK[:length]) == ((await heard(OK))[0], False)


async def test_a_length_in_an_answer_in_between_is_not_the_lasts():
    answer, _ = await heard(head(b"Content-Length: 9", status=b"103 E") + head() + b"all")
    assert isinstance(answer, Answer)
    assert (answer.body, answer.headers, answer.truncated) == (b"all", (), False)


@pytest.mark.parametrize("begun", [b"X: ", b"X", b""], ids=["value", "name", "many"])
async def test_trailers_are_bounded(begun: bytes):
    """Goal: what comes behind the body weighs no more than what comes before it."""
    sent = 0

    async def pour(line: Line) -> None:
        nonlocal sent
        line.data_received(CHUNKED + b"2\r\nok\r\n0\r\n" + begun)
        while line._is_open and sent < 100 * MOST_HEADER_BYTES:
            part = b"x" * MOST_HEADER_BYTES if begun else b"X: y\r\n" * 5_000
            line.data_received(part)
            sent += len(part)

    line = Line()
    line.connection_made(Wire())
    loop = asyncio.get_running_loop()
    asked = loop.create_task(
        line.ask(b"", wants_body=True, most_bytes=MOST_BYTES, deadline=loop.time() + 10)
    )
    await asyncio.sleep(0)
    await pour(line)
    line.connection_lost(None)
    answer = await asked
    assert (answer.body, answer.truncated) == (b"ok", True)
    assert sent < 10 * MOST_HEADER_BYTES
