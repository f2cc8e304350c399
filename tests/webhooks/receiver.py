"""A receiver in a process of its own. The first part of a path says how it behaves, the rest only
tells paths apart; `/_received` gives back everything that came, `/_forget` starts anew. `/_leave`
lets `leave` answer.

ok       200                    redirect  302 to /ok/redirected
fail     500, always            gone      410
flaky    of 10 requests 3 are not answered well: 500, a reset connection, a redirect
hang     never answers          reset     closes the connection without an answer
later    429 with Retry-After: 3 the first time an event comes, then 200
slow     200 after 50 ms        flood     200 with an endless body
cookie   200, and sets a cookie bomb      200 with a gzip body that unpacks to 100 MB
leave    410, or with leave/fail 500, once it is told to
"""

import asyncio
import base64
import gzip
import itertools
import sys
import time
from collections import Counter
from typing import Any

from aiohttp import web

received: list[dict[str, Any]] = []
under_way: Counter[str] = Counter()
most_at_once: Counter[str] = Counter()
_turns = itertools.count()
_seen: set[tuple[str, str]] = set()
_leaving = asyncio.Event()
_BOMB = gzip.compress(b"\0" * 100_000_000, 9)


async def receive(request: web.Request) -> web.StreamResponse:
    path = request.path
    under_way[path] += 1
    most_at_once[path] = max(most_at_once[path], under_way[path])
    try:
        body = await request.read()
        entry = {
            "path": path,
            "method": request.method,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": base64.b64encode(body).decode(),
            "at": time.time(),
            "status": None,
        }
        received.append(entry)
        answer = await _behave(request)
        entry["status"] = answer.status
        return answer
    finally:
        under_way[path] -= 1


async def _behave(request: web.Request) -> web.StreamResponse:
    kind = request.match_info["kind"]
    event_id = request.headers.get("webhook-id", "")
    if kind == "flaky":
        kind = {0: "fail", 3: "reset", 6: "redirect"}.get(next(_turns) % 10, "ok")
    if kind == "later":
        again = (request.path, event_id) in _seen
        _seen.add((request.path, event_id))
        if not again:
            return web.Response(status=429, headers={"Retry-After": "3"})
    if kind == "hang":
        await asyncio.sleep(3600)
    if kind == "slow":
        await asyncio.sleep(0.05)
    if kind == "leave":
        await _leaving.wait()
        return web.Response(status=500 if "/fail" in request.path else 410)
    if kind == "fail":
        return web.Response(status=500, text="not today\0")
    if kind == "gone":
        return web.Response(status=410)
    if kind == "redirect":
        return web.Response(status=302, headers={"Location": "/ok/redirected"})
    if kind == "reset":
        assert request.transport is not None
        request.transport.abort()
    if kind == "flood":
        return await _flood(request)
    if kind == "cookie":
        return web.Response(text="ok", headers={"Set-Cookie": "tracked=yes; Path=/"})
    if kind == "bomb":
        return web.Response(body=_BOMB, headers={"Content-Encoding": "gzip"})
    return web.Response(text="ok")


async def _flood(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse()
    await stream.prepare(request)
    while True:
        await stream.write(b"x" * 65536)


async def show(request: web.Request) -> web.Response:
    start = int(request.query.get("start", "0"))
    return web.json_response({"received": received[start:], "most_at_once": most_at_once})


async def forget(_: web.Request) -> web.Response:
    received.clear()
    most_at_once.clear()
    return web.Response()


async def leave(_: web.Request) -> web.Response:
    _leaving.set()
    return web.Response()


async def main() -> None:
    app = web.Application(client_max_size=1 << 20)
    app.router.add_get("/_received", show)
    app.router.add_post("/_forget", forget)
    app.router.add_post("/_leave", leave)
    app.router.add_route("*", "/{kind}/{rest:.*}", receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    # Ends with whoever started it.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
