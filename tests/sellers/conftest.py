"""One localnet for every seller here."""

from collections.abc import AsyncGenerator

import aiohttp
import pytest
from solders.keypair import Keypair

from bursar.clock import SystemClock
from bursar_localnet.rpc import Settings, serve
from tests.localnet.support import Rpc
from tests.sellers.buyer import Buyer


@pytest.fixture(scope="module")
async def chain(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Rpc]:
    settings = Settings(tmp_path_factory.mktemp("chain"), port=0)
    async with serve(settings, SystemClock()) as node, aiohttp.ClientSession() as session:
        yield Rpc(node.port, session)


@pytest.fixture
async def buyer(chain: Rpc) -> Buyer:
    """With 0.01 USDC and no SOL."""
    wallet = Keypair()
    await chain("bursar_faucet", str(wallet.pubkey()), 10_000)
    return Buyer(chain, wallet)
