"""Goal: a new chain has devnet's USDC, so that stock programs take it for devnet; a chain
that was founded before keeps the token it has, and says so."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from solders.keypair import Keypair

from bursar.chain.networks import DEVNET_USDC, usdc_mint
from bursar.clock import SystemClock
from bursar.config import load_config
from bursar_localnet.chain import open_chain
from bursar_localnet.disk import CHAIN_FILE
from bursar_localnet.genesis import FORMER_TEST_MINT, LIVE, LIVE_MINT, TEST, TEST_MINT, Network
from bursar_localnet.rpc import Settings, banner, serve
from bursar_localnet.slots import Lag
from tests.localnet.support import Rpc, start_node


def found_before(folder: Path) -> None:
    """A chain as the version before founded it: with the token of then, and no note of it."""
    former = replace(TEST, mint=FORMER_TEST_MINT)
    open_chain(folder, former, SystemClock(), 400, Lag()).close()
    with sqlite3.connect(folder / CHAIN_FILE) as db:
        db.execute("DELETE FROM setting WHERE name = 'mint'")
    db.close()


def test_the_test_token_is_devnets_usdc():
    assert TEST_MINT == DEVNET_USDC


async def test_a_former_chain_keeps_its_token_and_says_so(tmp_path: Path):
    found_before(tmp_path)
    settings = Settings(tmp_path, port=0)
    async with serve(settings, SystemClock()) as node, aiohttp.ClientSession() as session:
        rpc = Rpc(node.port, session)
        wallet = str(Keypair().pubkey())
        await rpc("bursar_faucet", wallet, 5)
        held = await rpc(
            "getTokenAccountsByOwner", wallet, {"mint": FORMER_TEST_MINT}, {"encoding": "base64"}
        )
        assert len(held["value"]) == 1
        assert (await rpc("getAccountInfo", TEST_MINT))["value"] is None
        said = banner(settings, node)
        assert f"{FORMER_TEST_MINT} (test, of a former version)" in said
        assert "bursar localnet reset" in said


async def test_its_log_says_so_too(tmp_path: Path):
    """Goal: under `bursar serve` there is no banner, only the log."""
    found_before(tmp_path)
    node = await start_node(tmp_path, "--quiet")
    said = node.said.decode()
    assert await node.stop() == 0
    assert "former_token" in said
    assert "bursar localnet reset" in said


def test_the_service_pays_the_token_that_its_chain_has(tmp_path: Path):
    """Goal: a service goes on with an old folder, and begins on devnet's token in a new one."""
    config = load_config({}, data_dir=tmp_path, live_network="localnet")
    assert usdc_mint(config, "test") == TEST_MINT
    assert usdc_mint(config, "live") == LIVE_MINT
    found_before(tmp_path / "localnet-test")
    open_chain(tmp_path / "localnet-live", LIVE, SystemClock(), 400, Lag()).close()
    assert usdc_mint(config, "test") == FORMER_TEST_MINT
    assert usdc_mint(config, "live") == LIVE_MINT


def test_what_is_no_chain_yet_will_have_the_new_token(tmp_path: Path):
    """Goal: a node that died before it founded its chain founds it with today's token."""
    folder = tmp_path / "localnet-test"
    folder.mkdir()
    (folder / CHAIN_FILE).touch()
    assert usdc_mint(load_config({}, data_dir=tmp_path), "test") == TEST_MINT


@pytest.mark.parametrize("network", [TEST, LIVE])
def test_the_token_of_a_new_chain_stays_what_it_is(tmp_path: Path, network: Network):
    for _ in range(2):
        chain = open_chain(tmp_path, network, SystemClock(), 400, Lag())
        assert str(chain.mint) == network.mint
        chain.close()
