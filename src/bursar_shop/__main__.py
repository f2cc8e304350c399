"""`python -m bursar_shop`: the shop on its own, against a localnet that runs."""

import argparse
import asyncio
import sys

from bursar_shop.shop import ShopFailed, open_shop


async def _sell(rpc: str, port: int) -> None:
    async with open_shop(rpc, "127.0.0.1", port) as shop:
        print(shop.url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bursar_shop", description=__doc__)
    parser.add_argument("--rpc", default="http://127.0.0.1:8899")
    parser.add_argument("--port", type=int, default=8402, help="0 takes a free one")
    given = parser.parse_args()
    try:
        asyncio.run(_sell(given.rpc, given.port))
    except ShopFailed as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
