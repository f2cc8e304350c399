"""The client of `solana-pay-kit` buys once by one protocol, and prints what it got."""

import asyncio
import json

from serving import GIVEN
from solana.rpc.async_api import AsyncClient
from solana_pay_kit import Signer
from solana_pay_kit.client import PayKitClient


async def main() -> None:
    builder = PayKitClient.builder().signer(Signer.base58(GIVEN["secret"]))
    builder = builder.rpc(AsyncClient(GIVEN["rpc"])).network("devnet").accept([GIVEN["protocol"]])
    async with builder.permissions(False).httpx_options(timeout=60).build() as http:
        answer = await http.get(GIVEN["url"])
    print(json.dumps({"status": answer.status_code, "body": answer.text}))


asyncio.run(main())
