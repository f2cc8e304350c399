"""Sellers, facilitators and clients as they are published, each in a process and an environment of
its own, all of them on one localnet that they take for devnet. `make test-stock` installs them."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from solders.keypair import Keypair

from tests.localnet.support import Rpc, start_node
from tests.purchase.support import DEVNET
from tests.sellers.chain import Seller, new_payee
from tests.stock.market import STOCK, TYPESCRIPT, Market, needs_stock, open_market, run

PROGRAMS: Final = Path(__file__).parent / "programs"
NODE: Final = Path(__file__).parent / "node"
PRICE_MICROS: Final = 1_000
_START_SECONDS: Final = 60
_BUY_SECONDS: Final = 240


def command(program: str) -> list[str]:
    """How a program of `programs/` or `node/` is started; the argument comes after it."""
    needs_stock()
    if program.endswith(".mjs"):
        return [str(STOCK / "x402/bin/node"), str(NODE / program)]
    environment = "pay-kit" if program.startswith("pay_kit") else "x402"
    return [str(STOCK / environment / "bin/python"), str(PROGRAMS / program)]


@asynccontextmanager
async def _process(program: str, given: dict[str, Any]) -> AsyncGenerator[Any]:
    process = await asyncio.create_subprocess_exec(
        *command(program),
        json.dumps(given),
        stdout=asyncio.subprocess.PIPE,
        # Of this machine's proxies and keys it needs none, and it is to reach loopback only.
        env={
            "PATH": os.environ["PATH"],
            "NO_PROXY": "*",
            # Theirs, about what they use of each other.
            "PYTHONWARNINGS": "ignore::FutureWarning",
        },
        # Node is started by a small program that would leave it behind.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@asynccontextmanager
async def server(program: str, **given: Any) -> AsyncGenerator[str]:
    """A program that serves; yields its address."""
    async with _process(program, given) as process:
        line = await asyncio.wait_for(process.stdout.readline(), _START_SECONDS)
        assert line, f"{program} did not start"
        yield line.decode().strip()


async def once(program: str, **given: Any) -> Any:
    """A program that does one thing; returns what it says of it."""
    async with _process(program, given) as process:
        said, _ = await asyncio.wait_for(process.communicate(), _BUY_SECONDS)
        assert process.returncode == 0, f"{program} failed"
        return json.loads(said)


@pytest.fixture(scope="session")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Rpc]:
    """A localnet as users run it."""
    node = await start_node(tmp_path_factory.mktemp("chain"))
    async with aiohttp.ClientSession() as session:
        yield Rpc(node.port, session)
    await node.stop()


OpenSeller = Callable[[str], Awaitable[Seller]]


@asynccontextmanager
async def sellers_on(chain: Rpc) -> AsyncGenerator[OpenSeller]:
    """`await open_seller("express")` starts that shop the first time, with its own facilitator."""
    running: dict[str, Seller] = {}
    async with AsyncExitStack() as stack:

        async def facilitator(program: str) -> str:
            payer = await chain.wallet()
            return await stack.enter_async_context(
                server(program, secret=str(payer), rpc=chain.url, network=DEVNET)
            )

        async def start(name: str) -> Seller:
            payee = await new_payee(chain)
            given: dict[str, Any] = {"payee": payee, "price": "$0.001", "network": DEVNET}
            if name == "fastapi":
                given["facilitator"] = await facilitator("x402_facilitator.py")
                program, protocol = "x402_seller.py", "x402"
            elif name == "express":
                given["facilitator"] = await facilitator("facilitator.mjs")
                program, protocol = "seller.mjs", "x402"
            else:
                protocol = name.removeprefix("pay-kit ")
                given |= {"rpc": chain.url, "accept": [protocol]}
                given["secret"] = str(await chain.wallet())
                program = "pay_kit_seller.py"
            url = await stack.enter_async_context(server(program, **given))
            return Seller(f"{url}/weather", PRICE_MICROS, payee, protocol)

        async def open_(name: str) -> Seller:
            if name not in running:
                running[name] = await start(name)
            return running[name]

        yield open_


@pytest.fixture(scope="session")
async def open_seller(chain: Rpc) -> AsyncGenerator[OpenSeller]:
    async with sellers_on(chain) as open_:
        yield open_


@pytest.fixture(scope="session")
async def open_seller_at_market(market: Market) -> AsyncGenerator[OpenSeller]:
    """The same on the chain of the service."""
    port = market.service.config.localnet_port
    async with aiohttp.ClientSession() as session, sellers_on(Rpc(port, session)) as open_:
        yield open_


@pytest.fixture
async def buyer(chain: Rpc) -> Keypair:
    """A wallet with 0.01 USDC and no SOL: whoever sells to it has the fee paid."""
    wallet = Keypair()
    await chain("bursar_faucet", str(wallet.pubkey()), 10 * PRICE_MICROS)
    return wallet


@pytest.fixture(scope="session")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Market]:
    needs_stock()
    async with open_market(tmp_path_factory.mktemp("market")) as opened:
        yield opened


@pytest.fixture(scope="session")
async def typescript(market: Market) -> Path:
    """The folder of the TypeScript client, built from its source as it is now, tests included."""
    environment = await market.environment()
    for project in (".", "tests"):
        tsc = ("node", "node_modules/typescript/bin/tsc", "-p", project)
        await run(*tsc, cwd=TYPESCRIPT, environment=environment)
    return TYPESCRIPT


@pytest.fixture(scope="session")
async def packed(
    market: Market, typescript: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The TypeScript client as it would be published."""
    folder = tmp_path_factory.mktemp("packed")
    pack = ("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", folder)
    name = await run(*pack, cwd=typescript, environment=await market.environment())
    return folder / name.split()[-1]
