"""The client of the Python package `x402`, unchanged but for the scheme that pays: through Bursar.
Buys several things, and prints what each got."""

import asyncio
import json
import sys
from typing import Any

import httpx
from serving import GIVEN

sys.path.insert(0, GIVEN["source"])

from x402 import x402Client, x402ClientSync
from x402.http import x402HTTPClient, x402HTTPClientSync
from x402.http.clients.httpx import x402HttpxClient

from bursar import AsyncBursar, Bursar
from bursar.x402 import BursarScheme


async def at_once() -> list[Any]:
    async with AsyncBursar(GIVEN["key"], GIVEN["bursar"]) as bursar:
        scheme = BursarScheme(bursar)
        client = x402Client()
        client.register("solana:*", scheme)
        if GIVEN["how"] == "own url":
            client = x402HTTPClient(client)
            client.on_payment_required(scheme.on_payment_required)
        async with x402HttpxClient(client, timeout=60) as http:
            answers = await asyncio.gather(*map(http.get, GIVEN["urls"]), return_exceptions=True)
    return [
        str(answer) if isinstance(answer, BaseException) else [answer.status_code, answer.text]
        for answer in answers
    ]


def one_by_one() -> list[Any]:
    with Bursar(GIVEN["key"], GIVEN["bursar"]) as bursar, httpx.Client(timeout=60) as http:
        client = x402ClientSync()
        client.register("solana:*", BursarScheme(bursar))
        paying = x402HTTPClientSync(client)
        bought: list[Any] = []
        for url in GIVEN["urls"]:
            asked = http.get(url)
            headers, _ = paying.handle_402_response(dict(asked.headers), asked.content, url)
            answer = http.get(url, headers=headers)
            bought.append([answer.status_code, answer.text])
        return bought


print(json.dumps(one_by_one() if GIVEN["how"] == "sync" else asyncio.run(at_once())))
