"""Goal: the commands do what `docs/localnet.md` says, as a user runs them."""

import asyncio
from pathlib import Path

import aiohttp
from solders.keypair import Keypair

from bursar_localnet.disk import CHAIN_FILE
from tests.localnet.support import Rpc, command, environment, start_node


async def cli(*arguments: str, **variables: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command(*arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment() | variables,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, said.decode()


async def test_run_fund_and_stop(tmp_path: Path) -> None:
    node = await start_node(tmp_path, "--slot-ms", "100")
    url = f"http://127.0.0.1:{node.port}"
    wallet = Keypair().pubkey()
    code, said = await cli("faucet", str(wallet), "12.5", "--rpc", url)
    assert (code, said.splitlines()[0]) == (0, f"12.500000 USDC to {wallet}")
    async with aiohttp.ClientSession() as session:
        rpc = Rpc(node.port, session)
        assert await rpc.tokens(wallet) == 12_500_000
        history = await rpc("getSignaturesForAddress", str(wallet))
        assert said.splitlines()[1] == f"signature {history[0]['signature']}"
    code, said = await cli("--port", "0", "--data-dir", str(tmp_path))
    assert code == 1
    assert "Another localnet is running" in said
    code, said = await cli("--port", str(node.port), "--data-dir", str(tmp_path / "other"))
    assert code == 1
    assert "Cannot listen" in said
    code, said = await cli("faucet", "nonsense", "1", "--rpc", url)
    assert code == 1
    assert "The localnet refused" in said
    # An open websocket must not hold the node up.
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "slotSubscribe"})
        await socket.receive_json()
        assert await node.stop() == 0


async def test_a_node_on_any_port_is_found(tmp_path: Path) -> None:
    """Goal: a command beside it needs the data folder, and not the port that nobody chose."""
    node = await start_node(tmp_path / "localnet-test", "--slot-ms", "100")
    wallet = Keypair().pubkey()
    code, said = await cli("faucet", str(wallet), "2", BURSAR_DATA_DIR=str(tmp_path))
    assert code == 0, said
    async with aiohttp.ClientSession() as session:
        assert await Rpc(node.port, session).tokens(wallet) == 2_000_000
    assert await node.stop() == 0


async def test_faucet_without_a_node_or_an_amount() -> None:
    code, said = await cli("faucet", str(Keypair().pubkey()), "1", "--rpc", "http://127.0.0.1:1")
    assert code == 1
    assert "Start one with: bursar localnet" in said
    for wrong in ("0", "1e3", "0.0000001", "ten"):
        code, _ = await cli("faucet", str(Keypair().pubkey()), wrong)
        assert code == 2


async def test_reset(tmp_path: Path) -> None:
    """Goal: whoever wants a new chain gets one, knows what is lost, and never by accident."""
    chain, service = tmp_path / "localnet-test", tmp_path / "postgres"
    node = await start_node(chain)
    running = await cli("reset", "--yes", "--data-dir", str(chain))
    assert await node.stop() == 0
    assert running[0] == 1
    assert "Another localnet is running" in running[1]
    # Nobody can be asked here.
    code, said = await cli("reset", "--data-dir", str(chain))
    assert code == 2
    assert "--yes" in said
    assert (chain / CHAIN_FILE).exists()
    assert "every balance" in said
    assert "move that folder away" not in said
    service.mkdir()
    code, said = await cli("reset", "--yes", BURSAR_DATA_DIR=str(tmp_path))
    assert code == 0
    assert f"The database in {tmp_path} belongs to this chain" in said
    assert not (chain / CHAIN_FILE).exists()
    again = await start_node(chain)
    assert await again.stop() == 0
    (tmp_path / "else").mkdir()
    code, said = await cli("reset", "--yes", "--data-dir", str(tmp_path / "else"))
    assert code == 1
    assert "holds no chain" in said
