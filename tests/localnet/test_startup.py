"""Goal: a large chain is ready in under three seconds, and all of it is there."""

import time
from pathlib import Path

import aiohttp
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from bursar_localnet.disk import Disk
from bursar_localnet.programs import TOKEN
from tests.localnet.support import MINT, NodeProcess, Rpc, start_node

ACCOUNTS = 100_000


async def test_100_000_accounts(tmp_path: Path) -> None:
    await (await start_node(tmp_path)).stop()
    owner = Keypair().pubkey()
    fill_with_token_accounts(tmp_path, owner)
    node, seconds = await timed_start(tmp_path)
    try:
        for _ in range(4):
            if seconds >= 3:
                # Again: the machine may have been busy with something else.
                await node.stop()
                node, seconds = await timed_start(tmp_path)
        assert seconds < 3
        async with aiohttp.ClientSession() as session:
            rpc = Rpc(node.port, session)
            assert await rpc.tokens(owner) == 7
            lookups: list[float] = []
            for _ in range(5):
                begin = time.perf_counter()
                held = await rpc(
                    "getTokenAccountsByOwner",
                    str(owner),
                    {"mint": str(MINT)},
                    {"encoding": "base64"},
                )
                lookups.append(time.perf_counter() - begin)
                assert len(held["value"]) == 1
            # By index: a scan of all accounts alone takes longer.
            assert min(lookups) < 0.05
    finally:
        await node.stop()


async def timed_start(folder: Path) -> tuple[NodeProcess, float]:
    begin = time.perf_counter()
    node = await start_node(folder)
    return node, time.perf_counter() - begin


def fill_with_token_accounts(folder: Path, owner: Pubkey) -> None:
    def token_account(holder: Pubkey) -> Account:
        amount = (7).to_bytes(8, "little")
        body = bytes(MINT) + bytes(holder) + amount + bytes(36) + b"\1" + bytes(56)
        return Account(2_039_280, body, TOKEN)

    accounts = {
        bytes(Pubkey.new_unique()): token_account(Pubkey.new_unique()) for _ in range(ACCOUNTS)
    }
    accounts[bytes(get_associated_token_address(owner, MINT))] = token_account(owner)
    disk = Disk(folder)
    disk.rewrite([], accounts, [])
    disk.close()
