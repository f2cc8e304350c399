"""The client of the Python package `x402` buys so often, or until it is served, for each of the
buyers, a few of them side by side; prints what each got every time and the seconds it took. A try
that fails is made again from the start: this client offers nothing else to those who use it."""

import asyncio
import json
import time
from typing import Any

from serving import GIVEN
from solders.keypair import Keypair
from x402 import x402Client
from x402.http.clients.httpx import x402HttpxClient
from x402.mechanisms.svm import KeypairSigner
from x402.mechanisms.svm.exact import register_exact_svm_client

AT_ONCE = asyncio.Semaphore(4)


async def buy(url: str, secret: str) -> list[dict[str, Any]]:
    client = x402Client()
    signer = KeypairSigner(Keypair.from_base58_string(secret))
    register_exact_svm_client(client, signer, GIVEN["network"], rpc_url=GIVEN["rpc"])
    tries: list[dict[str, Any]] = []
    async with AT_ONCE, x402HttpxClient(client, timeout=GIVEN["timeout"]) as http:
        while len(tries) < GIVEN["times"]:
            began = time.perf_counter()
            try:
                status = (await http.get(url)).status_code
            except Exception as problem:  # noqa: BLE001
                status = type(problem).__name__
            tries.append({"status": status, "seconds": time.perf_counter() - began})
            if GIVEN["until_served"] and status == 200:
                break
    return tries


async def main() -> None:
    print(json.dumps(await asyncio.gather(*(buy(**buyer) for buyer in GIVEN["buyers"]))))


asyncio.run(main())
