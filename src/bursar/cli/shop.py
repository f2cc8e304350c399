"""`bursar demo shop`: somebody to buy from, on the local chain."""

import asyncio
import os
from contextlib import suppress
from typing import Annotated, Final

import typer

from bursar.cli.demo import app, service_installed
from bursar.cli.show import say
from bursar.config import load_config
from bursar.errors import CommandFailed
from bursar.money import format_micros

_USUAL_RPC: Final = "http://127.0.0.1:8899"


@app.command()
def shop(
    shop_port: Annotated[int, typer.Option(help="Where it sells; 0 takes a free one.")] = 8402,
    rpc: Annotated[
        str | None, typer.Option(help="The localnet to be paid on; else the data folder's.")
    ] = None,
) -> None:
    """Sell a weather report for 0.001 test USDC until Ctrl-C, to try a purchase on."""
    if not service_installed():
        raise CommandFailed('The shop needs the service: pip install "bursar-wallet[server]"')
    from bursar_localnet.whereabouts import noted_address
    from bursar_shop.shop import ShopFailed

    rpc = rpc or noted_address(load_config(os.environ).data_dir / "localnet-test") or _USUAL_RPC
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_sell(rpc, shop_port))
    except ShopFailed as problem:
        raise CommandFailed(str(problem)) from None


async def _sell(rpc: str, port: int) -> None:
    from bursar_shop.shop import open_shop

    async with open_shop(rpc, "127.0.0.1", port) as opened:
        say("The shop is open. Press Ctrl-C to close it.\n")
        say(f"  Sells  {opened.url}")
        say(f"  Price  {format_micros(opened.price.micros)} USDC, by x402")
        say(f"  Payee  {opened.price.payee}")
        await asyncio.Event().wait()
