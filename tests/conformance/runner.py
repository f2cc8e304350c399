"""Runs the list with the Python client. It takes what the API takes and shows what the API shows:
names become Python's on the way in, and the API's on the way out."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

import bursar
from bursar import AsyncBursar
from bursar.client.codec import write
from bursar.webhooks import InvalidSignature, verify

Json = dict[str, Any]
SCENARIOS: Final[list[Json]] = json.loads(Path(__file__).with_name("scenarios.json").read_text())
_SECONDS: Final = 30
_PAUSE_SECONDS: Final = 0.1
_OTHER_NAMES: Final = {"from": "from_", "type": "event_type", "continue": "continue_"}


class Mismatch(AssertionError):
    pass


async def run_scenario(scenario: Json, key: str, url: str, given: Mapping[str, Any]) -> None:
    """Raises Mismatch if anything is not as the list says."""
    async with AsyncExitStack() as stack:
        run = _Run(key, url, dict(given), stack)
        for number, step in enumerate(scenario["steps"], 1):
            try:
                await run.step(step)
            except Mismatch as problem:
                raise Mismatch(f"{scenario['name']}, step {number}: {problem}") from problem


class _Run:
    def __init__(self, key: str, url: str, given: Json, stack: AsyncExitStack) -> None:
        self._key = key
        self._url = url
        self._known = given
        self._stack = stack
        self._clients: dict[str, AsyncBursar] = {}
        self._receivers: dict[str, _Receiver] = {}

    async def step(self, step: Json) -> None:
        if "until" in step:
            await self._until(step["until"])
            return
        filled = _filled(step, self._known)
        try:
            found = await self._done(filled)
        except (bursar.RequestFailed, bursar.PurchaseError) as problem:
            if "fails" not in filled:
                raise Mismatch(f"{type(problem).__name__}: {problem}") from problem
            _check(_shown_failure(problem), filled["fails"])
            return
        if "fails" in filled:
            raise Mismatch(f"It did not fail: {found}")
        _check(found, filled.get("expect", {}))
        if "save" in filled:
            self._known[filled["save"]] = found

    async def _until(self, step: Json) -> None:
        for _ in range(int(_SECONDS / _PAUSE_SECONDS)):
            try:
                await self.step(step)
            except Mismatch:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return
        await self.step(step)

    async def _done(self, step: Json) -> Any:
        if "webhook" in step:
            receiver = await self._stack.enter_async_context(_Receiver())
            made = await self._client().webhooks.create(url=receiver.url, events=step["webhook"])
            self._receivers[step["save"]] = receiver
            return write(made)
        if "delivered" in step:
            secret = step.get("secret", self._known[step["delivered"]]["secret"])
            return await self._receivers[step["delivered"]].event(step["type"], secret)
        if "forged" in step:
            return self._receivers[step["forged"]].forge(self._known[step["forged"]]["secret"])
        client = self._client(step.get("key"))
        options = {_snake(name): value for name, value in step.get("options", {}).items()}
        if "fetch" in step:
            answer = await client.fetch(step["fetch"], agent_id=step["agent"], **options)
            return {
                "status": answer.status_code,
                "body": answer.json(),
                "purchase": write(answer.purchase),
            }
        (kind,) = {"call", "list", "page", "download"} & step.keys()
        resource, name = step[kind].split(".")
        method = getattr(getattr(client, _snake(resource)), _snake(name))
        arguments = _arguments({**step.get("body", {}), **step.get("query", {})}) | options
        asked = method(*step.get("path", ()), **arguments)
        return await _KINDS[kind](asked, step)

    def _client(self, key: str | None = None) -> AsyncBursar:
        key = key or self._key
        if key not in self._clients:
            self._clients[key] = AsyncBursar(key, self._url)
            self._stack.push_async_callback(self._clients[key].close)
        return self._clients[key]


async def _call(asked: Any, step: Json) -> Any:
    del step
    return write(await asked)


async def _list(asked: Any, step: Json) -> Any:
    del step
    return [write(row) async for row in asked]


async def _page(asked: Any, step: Json) -> Any:
    del step
    return write(await asked.page())


async def _download(asked: Any, step: Json) -> Any:
    text = b"".join([piece async for piece in asked]).decode()
    if step["contains"] not in text:
        raise Mismatch(f"{step['contains']} is not in it.")
    return text


_KINDS: Final[dict[str, Callable[[Any, Json], Awaitable[Any]]]] = {
    "call": _call,
    "list": _list,
    "page": _page,
    "download": _download,
}


class _Receiver:
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        self.url = ""
        self._got: list[tuple[bytes, str]] = []
        self._taken: set[int] = set()

    async def __aenter__(self) -> "_Receiver":
        app = web.Application()
        app.router.add_post("/", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self._got.append((await request.read(), request.headers["service-signature"]))
        return web.Response()

    async def event(self, type_: str, secret: str) -> Json:
        """The next of this type, verified. Each delivery is given once."""
        for _ in range(int(_SECONDS / _PAUSE_SECONDS)):
            for number, (body, signature) in enumerate(self._got):
                if number not in self._taken and json.loads(body)["type"] == type_:
                    self._taken.add(number)
                    return verify(body, signature, secret)
            await asyncio.sleep(_PAUSE_SECONDS)
        raise Mismatch(f"No {type_} was delivered.")

    def forge(self, secret: str) -> None:
        body, signature = self._got[-1]
        for other in ((body, signature, f"{secret}x"), (body + b" ", signature, secret)):
            try:
                verify(*other)
            except InvalidSignature:
                continue
            raise Mismatch("A forged delivery was taken for a real one.")


# Names and values ---------------------------------------------------------------------------------


def _arguments(fields: Json) -> Json:
    """The SDK takes a policy's fields as arguments of their own."""
    made: Json = {}
    for name, value in fields.items():
        if name == "policy":
            inner = {"policy_version" if n == "version" else _snake(n): v for n, v in value.items()}
            made |= inner
        else:
            made[_snake(name)] = value
    return made


def _snake(name: str) -> str:
    plain = re.sub(r"([A-Z])", lambda letter: f"_{letter[1].lower()}", name)
    return _OTHER_NAMES.get(plain, plain)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _shown_failure(problem: Exception) -> Json:
    shown = {_camel(name): value for name, value in vars(problem).items()}
    for name, value in shown.items():
        if is_dataclass(value) and not isinstance(value, type):
            shown[name] = write(value)
    return shown | {"name": type(problem).__name__}


def _filled(value: Any, known: Json) -> Any:
    """With what `$name.field` stands for."""
    if isinstance(value, dict):
        return {name: _filled(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, known) for item in value]
    if isinstance(value, str) and value.startswith("$"):
        return _at(known, value[1:])
    return value


def _check(found: Any, expected: Json) -> None:
    for path, value in expected.items():
        there = _at(found, path)
        if there is None if value == "*" else there != value:
            raise Mismatch(f"{path} is {there!r}, not {value!r}")


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if part == "length":
            value = len(value)
        elif isinstance(value, list | tuple):
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = None if value is None else value.get(part)
    return value
