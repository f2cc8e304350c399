"""Who may call the node, and what it gives at most."""

import aiohttp
import pytest

from bursar_localnet.visitors import is_no_public_name, is_this_machine
from tests.localnet.support import Rpc, RpcFailed

_HEALTH = {"jsonrpc": "2.0", "id": 1, "method": "getHealth"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8899"}, 200),
        ({"Host": "localnet"}, 200),
        ({"Host": "192.168.1.7:8899"}, 200),
        ({"Host": "[::1]:8899"}, 200),
        ({"Host": "rebound.example.com:8899"}, 403),
        ({"Host": "[broken"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "http://app.localhost"}, 200),
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "http://localhost.example.com"}, 403),
        ({"Origin": "http://203.0.113.5"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_no_page_of_another_site_may_call(rpc: Rpc, headers: dict[str, str], status: int):
    """Goal: neither a name that was made to lead here nor a page of another origin is answered."""
    async with rpc.session.post(rpc.url, json=_HEALTH, headers=headers) as answer:
        assert answer.status == status


async def test_no_page_of_another_site_may_listen(rpc: Rpc):
    """Goal: a websocket, which a browser opens to anywhere, is refused by its origin."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await rpc.session.ws_connect(rpc.url, headers={"Origin": "https://example.com"})
    assert refused.value.status == 403
    socket = await rpc.session.ws_connect(rpc.url, headers={"Origin": "http://127.0.0.1:3000"})
    await socket.close()


@pytest.mark.parametrize("method", ["bursar_faucet", "requestAirdrop"])
@pytest.mark.parametrize("amount", [2**63, 2**64 - 1, 10**18 + 1])
async def test_a_gift_fits_the_books(rpc: Rpc, method: str, amount: int):
    """Goal: nobody is given so much that a ledger of 64 bits cannot hold it."""
    wallet = await rpc.wallet()
    with pytest.raises(RpcFailed, match="at most"):
        await rpc(method, str(wallet.pubkey()), amount)


def test_names():
    """Goal: a name that merely begins or ends like a local one is none."""
    assert not is_no_public_name("127.0.0.1.example.com")
    assert not is_no_public_name(None)
    assert not is_this_machine("notlocalhost")
    assert not is_this_machine(None)
