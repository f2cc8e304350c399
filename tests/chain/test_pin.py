"""Goal: a mode stays on the network it began on, and the two modes never meet."""

import asyncio
import base64

import pytest

from bursar.chain import store
from bursar.chain.pin import check_network
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.chain.store import Pinned
from bursar.errors import CommandFailed
from tests.chain.conftest import NewDatabase, OpenChain, OpenProxy
from tests.chain.support import MINT, new_address
from tests.localnet.support import Rpc

OTHER = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"


async def test_the_first_start_pins_and_later_ones_agree(
    rpc: Rpc, chain: Solana, new_database: NewDatabase
):
    db = await new_database()
    genesis = await rpc("getGenesisHash")
    assert await check_network(db, chain, "test", MINT) == Pinned("test", genesis, MINT, 6)
    assert await check_network(db, chain, "test", MINT) == Pinned("test", genesis, MINT, 6)
    async with db.connection() as tx:
        assert await store.pinned(tx, "test") == Pinned("test", genesis, MINT, 6)
        assert await store.pinned(tx, "live") is None


async def test_another_network_is_refused_naming_both(
    rpc: Rpc, chain: Solana, open_proxy: OpenProxy, open_chain: OpenChain, new_database: NewDatabase
):
    db = await new_database()
    await check_network(db, chain, "test", MINT)
    proxy = await open_proxy()
    proxy.result("getGenesisHash", OTHER)
    with pytest.raises(CommandFailed) as refused:
        await check_network(db, open_chain(proxy.url), "test", MINT)
    for told in (OTHER, await rpc("getGenesisHash"), "BURSAR_TEST_NETWORK"):
        assert told in str(refused.value)


async def test_another_mint_is_refused(
    rpc: Rpc, chain: Solana, open_proxy: OpenProxy, open_chain: OpenChain, new_database: NewDatabase
):
    """Goal: a token that is not there, has other decimals, or is not the pinned one."""
    db = await new_database()
    absent = new_address()
    with pytest.raises(CommandFailed, match="no such token") as refused:
        await check_network(db, chain, "test", absent)
    assert absent in str(refused.value)
    async with db.connection() as tx:
        assert await store.pinned(tx, "test") is None
    await check_network(db, chain, "test", MINT)

    proxy = await open_proxy()
    config = {"encoding": "base64"}
    mint = await rpc("getAccountInfo", MINT, config)
    proxy.result("getAccountInfo", mint)
    other = new_address()
    with pytest.raises(CommandFailed) as refused:
        await check_network(db, open_chain(proxy.url), "test", other)
    assert other in str(refused.value)
    assert MINT in str(refused.value)


async def test_nine_decimals_are_not_usdc(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain, new_database: NewDatabase
):
    mint = await rpc("getAccountInfo", MINT, {"encoding": "base64"})
    raw = bytearray(base64.b64decode(mint["value"]["data"][0]))
    raw[44] = 9
    mint["value"]["data"][0] = base64.b64encode(raw).decode()
    proxy = await open_proxy()
    proxy.result("getAccountInfo", mint)
    with pytest.raises(CommandFailed, match="9 decimals"):
        await check_network(await new_database(), open_chain(proxy.url), "test", MINT)


async def test_test_and_live_never_share_a_network(
    rpc: Rpc, chain: Solana, new_database: NewDatabase
):
    db = await new_database()
    await check_network(db, chain, "test", MINT)
    with pytest.raises(CommandFailed, match="cannot share a network") as refused:
        await check_network(db, chain, "live", MINT)
    assert await rpc("getGenesisHash") in str(refused.value)
    async with db.connection() as tx:
        assert await store.pinned(tx, "live") is None


async def test_processes_that_start_at_once_pin_one_network(
    rpc: Rpc, chain: Solana, open_proxy: OpenProxy, open_chain: OpenChain, new_database: NewDatabase
):
    """Goal: of two different networks one is pinned and the other refused, whoever comes first."""
    db = await new_database()
    proxy = await open_proxy()
    proxy.result("getGenesisHash", OTHER)
    other = open_chain(proxy.url)
    starts = [check_network(db, each, "test", MINT) for each in (chain, other) * 3]
    results = await asyncio.gather(*starts, return_exceptions=True)
    async with db.connection() as tx:
        pinned = await store.pinned(tx, "test")
    assert pinned is not None
    for result in results:
        assert result == pinned or isinstance(result, CommandFailed)
    assert sum(isinstance(result, CommandFailed) for result in results) == 3


async def test_addresses_that_differ_are_refused(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain, new_database: NewDatabase
):
    proxy = await open_proxy()
    proxy.result("getGenesisHash", OTHER)
    with pytest.raises(CommandFailed, match="differ") as refused:
        await check_network(await new_database(), open_chain(rpc.url, proxy.url), "test", MINT)
    assert OTHER in str(refused.value)
    assert proxy.url[7:] in str(refused.value)


async def test_one_silent_address_does_not_stop_a_start(
    rpc: Rpc, open_chain: OpenChain, new_database: NewDatabase
):
    """Goal: one of two is down: start; all are down: nothing is known, so not refused either."""
    db = await new_database()
    await check_network(db, open_chain("http://127.0.0.1:1", rpc.url), "test", MINT)
    with pytest.raises(ChainOutOfReach):
        await check_network(db, open_chain("http://127.0.0.1:1"), "test", MINT)
