"""Goal: what stock clients wait for arrives over the websocket, at the level they asked for."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from solders.keypair import Keypair

from bursar_localnet.slots import Lag
from tests.localnet.conftest import OpenNode
from tests.localnet.support import Rpc, sol_transfer


async def subscribe(socket: aiohttp.ClientWebSocketResponse, method: str, *params: Any) -> Any:
    await socket.send_json({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    answer = await socket.receive_json(timeout=60)
    assert answer["id"] == 7
    return answer.get("result", answer.get("error"))


async def notice(socket: aiohttp.ClientWebSocketResponse, method: str) -> Any:
    message = await socket.receive_json(timeout=60)
    assert message["method"] == method
    return message["params"]


async def test_slots_arrive_in_order(open_node: OpenNode) -> None:
    rpc: Rpc = await open_node(slot_ms=20, lag=Lag(1, 3))
    async with rpc.session.ws_connect(rpc.url) as socket:
        subscription = await subscribe(socket, "slotSubscribe")
        seen = [await notice(socket, "slotNotification") for _ in range(5)]
    assert {item["subscription"] for item in seen} == {subscription}
    slots = [item["result"]["slot"] for item in seen]
    assert slots == sorted(set(slots))
    for item in seen:
        result = item["result"]
        assert result["parent"] == result["slot"] - 1
        assert result["root"] == result["slot"] - 3


async def test_a_signature_is_told_once_at_its_level(open_node: OpenNode) -> None:
    rpc: Rpc = await open_node(slot_ms=50, lag=Lag(2, 6))
    signature = await rpc("requestAirdrop", str(Keypair().pubkey()), 1_000_000)
    async with rpc.session.ws_connect(rpc.url) as socket:
        final = await subscribe(socket, "signatureSubscribe", signature)
        early = await subscribe(
            socket, "signatureSubscribe", signature, {"commitment": "confirmed"}
        )
        first = await notice(socket, "signatureNotification")
        second = await notice(socket, "signatureNotification")
        assert [first["subscription"], second["subscription"]] == [early, final]
        assert first["result"]["value"] == {"err": None}
        landed_in = (await rpc("getSignatureStatuses", [signature]))["value"][0]["slot"]
        assert await rpc("getSlot", {"commitment": "finalized"}) >= landed_in


async def test_a_signature_subscribed_before_it_is_sent(rpc: Rpc) -> None:
    payer = await rpc.wallet()
    signed = sol_transfer(payer, Keypair().pubkey(), 1_000_000, await rpc.blockhash())
    async with rpc.session.ws_connect(rpc.url) as socket:
        await subscribe(socket, "signatureSubscribe", str(signed.signatures[0]))
        await rpc.send(signed)
        assert (await notice(socket, "signatureNotification"))["result"]["value"] == {"err": None}


async def test_accounts_and_logs(rpc: Rpc) -> None:
    wallet = str(Keypair().pubkey())
    async with (
        rpc.session.ws_connect(rpc.url) as account,
        rpc.session.ws_connect(rpc.url) as logs,
    ):
        await subscribe(account, "accountSubscribe", wallet, {"encoding": "base64"})
        await subscribe(logs, "logsSubscribe", {"mentions": [wallet]})
        signature = await rpc("requestAirdrop", wallet, 1_234_567)
        change = await notice(account, "accountNotification")
        assert change["result"]["value"]["lamports"] == 1_234_567
        told = (await notice(logs, "logsNotification"))["result"]["value"]
        assert (told["signature"], told["err"]) == (signature, None)
        assert told["logs"]


async def test_unsubscribe_and_mistakes(rpc: Rpc) -> None:
    async with rpc.session.ws_connect(rpc.url) as socket:
        identifier = await subscribe(socket, "accountSubscribe", str(Keypair().pubkey()))
        assert await subscribe(socket, "accountUnsubscribe", identifier) is True
        again = await subscribe(socket, "accountUnsubscribe", identifier)
        assert again == {"code": -32602, "message": "Invalid subscription id."}
        unknown = await subscribe(socket, "voteSubscribe")
        assert unknown == {"code": -32601, "message": "Method not found"}
        wrong = await subscribe(socket, "accountSubscribe", "nonsense")
        assert wrong["code"] == -32602
        await socket.send_str("{")
        assert (await socket.receive_json())["error"]["code"] == -32700
        # A keep-alive ping without an id gets no answer.
        await socket.send_json({"jsonrpc": "2.0", "method": "ping"})
        assert isinstance(await subscribe(socket, "rootSubscribe"), int)


async def test_the_websocket_is_also_where_nodes_have_it(
    open_node: OpenNode, tmp_path: Path
) -> None:
    for number in range(10):  # somebody else may have the next port of one node, hardly of all
        rpc: Rpc = await open_node(data_dir=tmp_path / f"chain-{number}")
        try:
            async with rpc.session.ws_connect(f"ws://127.0.0.1:{rpc.port + 1}") as socket:
                assert isinstance(await subscribe(socket, "slotSubscribe"), int)
                return
        except (aiohttp.ClientConnectorError, aiohttp.WSServerHandshakeError):
            continue
    pytest.fail("no node has its websocket at the next port")
