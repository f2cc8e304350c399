"""When a call is sent again: to the letter, by a clock that the test holds."""

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Literal

import pytest

import bursar
from bursar import AsyncBursar, Bursar
from bursar.client.errors import (
    ConnectionFailed,
    NotSent,
    RateLimitExceeded,
    TimedOut,
    Unavailable,
)
from bursar.client.transport import Call, Retries
from bursar.errors import ErrorCode
from tests.sdk.scripted import ScriptedServer

KEY = "bur_test_00000000000000000000000000000000000000"
DEFAULT = Retries(most=3, honour_retry_after=False, broken_connections=False)
FUND = Call(
    method="POST", path="/v1/test/wallets/ag_1/fund", query={}, headers={}, content=b"{}",
    idempotency_key="k", patience_seconds=0,
)  # fmt: skip
Colour = Literal["sync", "async"]


@pytest.fixture
async def server() -> AsyncGenerator[ScriptedServer]:
    async with ScriptedServer.running() as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return request.param


class FakeClock:
    """Remembers the pauses instead of pausing."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def async_sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def _fund(colour: Colour, server: ScriptedServer, clock: FakeClock, **options: Any) -> Any:
    """One POST through a client whose pauses are the clock's."""
    if colour == "sync":
        with Bursar(KEY, server.url, **options) as client:
            client._transport._sleep = clock.sleep
            return await asyncio.to_thread(client.wallets.fund, "ag_1", amount="1")
    async with AsyncBursar(KEY, server.url, **options) as client:
        client._transport._sleep = clock.async_sleep
        return await client.wallets.fund("ag_1", amount="1")


async def test_a_429_is_tried_again_three_times(server: ScriptedServer, colour: Colour):
    """Goal: pauses of 500 ms times 2^n plus up to 200 ms, then the error, under one key."""
    server.script = ["429"] * 9
    clock = FakeClock()
    with pytest.raises(RateLimitExceeded) as caught:
        await _fund(colour, server, clock)
    assert len(server.requests) == 4
    assert len(clock.pauses) == 3
    for number, pause in enumerate(clock.pauses):
        least = 0.5 * 2**number
        assert least <= pause <= least + 0.2
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert keys == {caught.value.idempotency_key}
    assert len({request.body for request in server.requests}) == 1
    assert caught.value.retry_after == 7


async def test_it_ends_with_the_first_success(server: ScriptedServer, colour: Colour):
    server.script = ["429", "429", "ok"]
    clock = FakeClock()
    assert (await _fund(colour, server, clock)).id == "dep_1"
    assert len(clock.pauses) == 2


@pytest.mark.parametrize("code", [code for code in ErrorCode if code.status != 429])
async def test_any_other_error_is_raised_at_once(
    server: ScriptedServer, colour: Colour, code: ErrorCode
):
    """Goal: also one that the service calls retryable; the caller decides, with the key."""
    server.script = [code.value, "ok"]
    clock = FakeClock()
    with pytest.raises(bursar.ServiceError) as caught:
        await _fund(colour, server, clock, honour_retry_after=True, retry_connections=True)
    assert (caught.value.code, caught.value.status) == (code.value, code.status)
    assert caught.value.idempotency_key == server.requests[0].headers["idempotency-key"]
    assert len(server.requests) == 1
    assert clock.pauses == []


async def test_no_retries_if_told_so(server: ScriptedServer, colour: Colour):
    server.script = ["429", "ok"]
    clock = FakeClock()
    with pytest.raises(RateLimitExceeded):
        await _fund(colour, server, clock, max_retries=0)
    assert len(server.requests) == 1


async def test_a_longer_retry_after_is_an_option(server: ScriptedServer, colour: Colour):
    """Goal: the server's 7 s are waited for where the client was told to, each time."""
    server.script = ["429", "429", "429", "ok"]
    clock = FakeClock()
    await _fund(colour, server, clock, honour_retry_after=True)
    assert clock.pauses == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("broken", ["reset", "cut", "silence"])
async def test_a_broken_connection_is_raised_with_the_key(
    server: ScriptedServer, colour: Colour, broken: str
):
    """Goal: without the option nothing is sent twice; the key lets the caller do it."""
    server.script = [broken, "ok"]
    clock = FakeClock()
    kind = TimedOut if broken == "silence" else ConnectionFailed
    with pytest.raises(kind) as caught:
        await _fund(colour, server, clock, timeout=0.3)
    assert caught.value.idempotency_key == server.requests[0].headers["idempotency-key"]
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1
    assert clock.pauses == []


@pytest.mark.parametrize("broken", ["reset", "cut", "silence"])
async def test_a_broken_connection_is_tried_again_as_an_option(
    server: ScriptedServer, colour: Colour, broken: str
):
    """Goal: the same key and body each time, with the same pauses and the same bound."""
    server.script = [broken, broken, "ok"]
    clock = FakeClock()
    options: dict[str, Any] = {"timeout": 0.3, "retry_connections": True}
    assert (await _fund(colour, server, clock, **options)).id == "dep_1"
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    assert [round(pause, 1) >= 0.5 * 2**n for n, pause in enumerate(clock.pauses)] == [True, True]
    server.requests.clear()
    server.script = [broken] * 9
    with pytest.raises(ConnectionFailed):
        await _fund(colour, server, clock, **options)
    assert len(server.requests) == 4


@pytest.mark.parametrize(("method", "again"), [("GET", True), ("POST", True), ("PATCH", False),
    ("PUT", False), ("DELETE", False)])  # fmt: skip
def test_only_what_happens_once_is_sent_again(method: str, again: bool):
    """Goal: what has no idempotency key may have been done, and something else since."""
    call = replace(FUND, method=method, idempotency_key="k" if method == "POST" else None)
    daring = replace(DEFAULT, broken_connections=True)
    assert (daring.pause(0, call, ConnectionFailed("no"), 0.0) is not None) == again
    assert daring.pause(0, call, RateLimitExceeded("no", status=429), 0.0) == 0.5


async def test_a_change_is_sent_once(server: ScriptedServer):
    server.script = ["reset", "ok"]
    async with AsyncBursar(KEY, server.url, retry_connections=True) as client:
        with pytest.raises(ConnectionFailed):
            await client.agents.terminate("ag_1")
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", ["page", "nonsense", "redirect"])
async def test_an_answer_of_somebody_else(server: ScriptedServer, colour: Colour, answer: str):
    """Goal: a proxy's page, JSON that is no deposit, a redirect: named, and with the key."""
    server.script = [answer]
    with pytest.raises(bursar.UnexpectedAnswer) as caught:
        await _fund(colour, server, FakeClock())
    assert caught.value.idempotency_key == server.requests[0].headers["idempotency-key"]
    assert len(server.requests) == 1


async def test_nobody_there(colour: Colour):
    """Goal: nothing was sent, and it says so; after a try that was sent, it does not."""
    server = ScriptedServer("http://127.0.0.1:1")
    with pytest.raises(NotSent, match="nothing was sent") as caught:
        await _fund(colour, server, FakeClock())
    assert caught.value.idempotency_key
    with pytest.raises(ConnectionFailed) as caught:
        await _fund(colour, server, FakeClock(), retry_connections=True)
    assert not isinstance(caught.value, NotSent | TimedOut)


def test_pauses_are_bounded_and_spread():
    """Goal: the random part reaches both ends; a service that asks for an hour is not obeyed."""
    too_many = RateLimitExceeded("no", status=429, retry_after=3600)
    assert DEFAULT.pause(0, FUND, too_many, 0.0) == 0.5
    assert DEFAULT.pause(2, FUND, too_many, 1.0) == 2.2
    assert DEFAULT.pause(3, FUND, too_many, 0.5) is None
    obedient = Retries(most=3, honour_retry_after=True, broken_connections=False)
    assert obedient.pause(0, FUND, too_many, 0.0) is None
    assert obedient.pause(0, FUND, RateLimitExceeded("no", status=429), 0.0) == 0.5
    asked = RateLimitExceeded("no", status=429, retry_after=1)
    assert obedient.pause(0, FUND, asked, 0.0) == 1
    assert DEFAULT.pause(0, FUND, Unavailable("no", status=503, retry_after=1), 0.0) is None
    assert DEFAULT.pause(0, FUND, ConnectionFailed("no"), 0.0) is None
    chances = [DEFAULT.pause(0, FUND, too_many, random.random()) or 0 for _ in range(200)]
    assert max(chances) - min(chances) > 0.1


async def test_a_wait_is_waited_for(server: ScriptedServer):
    """Goal: `wait` asks the service to hold the answer, and lengthens the timeout by as much."""
    server.script = ["late"]
    async with AsyncBursar(KEY, server.url, timeout=0.2) as client:
        with pytest.raises(bursar.UnexpectedAnswer):  # a deposit is no transaction
            await client.spend.authorise(amount="1", recipient="a.example.com", wait=5)
    assert server.requests[0].headers["prefer"] == "wait=5"
