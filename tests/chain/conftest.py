"""One localnet process with fault switches for the tests here; proxies that twist its answers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest

from bursar.chain.solana import Solana
from bursar.db import Database
from bursar.service.postgres import EmbeddedPostgres
from tests.chain.proxy import Proxy, running_proxy
from tests.databases import own_database
from tests.localnet.support import NodeProcess, Rpc, start_node

FEE_MAX_LAMPORTS = 100_000
OpenChain = Callable[..., Solana]
OpenProxy = Callable[[], Awaitable[Proxy]]
NewDatabase = Callable[[], Awaitable[Database]]


@pytest.fixture(scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[NodeProcess]:
    running = await start_node(tmp_path_factory.mktemp("localnet"), "--faults", "--ws-port", "0")
    yield running
    await running.kill()


@pytest.fixture
async def rpc(node: NodeProcess) -> AsyncGenerator[Rpc]:
    """A plain client of the node, to arrange what the adapter is then asked about."""
    async with aiohttp.ClientSession() as session:
        client = Rpc(node.port, session)
        yield client
        await client("bursar_faults", {})


@pytest.fixture
async def open_chain() -> AsyncGenerator[OpenChain]:
    async with AsyncExitStack() as stack:

        def start(*addresses: str, timeout: float = 2.0) -> Solana:
            chain = Solana.open(addresses, timeout, FEE_MAX_LAMPORTS)
            stack.push_async_callback(chain.close)
            return chain

        yield start


@pytest.fixture
async def chain(rpc: Rpc, open_chain: OpenChain) -> Solana:
    return open_chain(rpc.url)


@pytest.fixture
async def open_proxy(rpc: Rpc) -> AsyncGenerator[OpenProxy]:
    """`await open_proxy()` is one more address of the node, with troubles of its own."""
    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(running_proxy(rpc.url))


@pytest.fixture
async def new_database(postgres: EmbeddedPostgres) -> AsyncGenerator[NewDatabase]:
    async with AsyncExitStack() as stack:

        async def create() -> Database:
            _, database = await stack.enter_async_context(own_database(postgres))
            return database

        yield create
