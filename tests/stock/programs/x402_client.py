"""The client of the Python package `x402` buys once, and prints what it got."""

import asyncio
import json

from serving import GIVEN
from solders.keypair import Keypair
from x402 import x402Client
from x402.http.clients.httpx import x402HttpxClient
from x402.mechanisms.svm import KeypairSigner
from x402.mechanisms.svm.exact import register_exact_svm_client


async def main() -> None:
    client = x402Client()
    signer = KeypairSigner(Keypair.from_base58_string(GIVEN["secret"]))
    register_exact_svm_client(client, signer, GIVEN["network"], rpc_url=GIVEN["rpc"])
    async with x402HttpxClient(client, timeout=60) as http:
        answer = await http.get(GIVEN["url"])
    print(json.dumps({"status": answer.status_code, "body": answer.text}))


asyncio.run(main())
