"""What the localnet's tests and bench share: a client, payments, and the node as a process."""

import asyncio
import os
import re
import signal
import sys
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.token.associated import get_associated_token_address
from solders.transaction import VersionedTransaction

from bursar_localnet import programs
from bursar_localnet.genesis import TEST_MINT

MINT = Pubkey.from_string(TEST_MINT)
SOURCE = Path(__file__).parents[2] / "src"
LAMPORTS_PER_SOL = 1_000_000_000


class RpcFailed(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Rpc:
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.port = port
        self.session = session

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __call__(self, method: str, *params: Any) -> Any:
        answer = await self.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if "error" in answer:
            raise RpcFailed(answer["error"])
        return answer["result"]

    async def post(self, body: Any) -> Any:
        async with self.session.post(self.url, json=body) as response:
            return await response.json()

    async def send(self, raw: VersionedTransaction, **options: Any) -> str:
        return await self("sendTransaction", encode(raw), {"encoding": "base64"} | options)

    async def blockhash(self, commitment: str = "finalized") -> Hash:
        latest = await self("getLatestBlockhash", {"commitment": commitment})
        return Hash.from_string(latest["value"]["blockhash"])

    async def wallet(self, sol: int = 10, micros: int = 0) -> Keypair:
        """A new one with money."""
        wallet = Keypair()
        await self("requestAirdrop", str(wallet.pubkey()), sol * LAMPORTS_PER_SOL)
        if micros:
            await self("bursar_faucet", str(wallet.pubkey()), micros)
        return wallet

    async def tokens(self, owner: Pubkey, commitment: str = "finalized") -> int:
        account = str(get_associated_token_address(owner, MINT))
        answer = await self("getTokenAccountBalance", account, {"commitment": commitment})
        return int(answer["value"]["amount"])


def encode(transaction: VersionedTransaction) -> str:
    return b64encode(bytes(transaction)).decode()


def sol_transfer(
    payer: Keypair, to: Pubkey, lamports: int, blockhash: Hash, *more: Instruction
) -> VersionedTransaction:
    move = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))
    return sign([move, *more], payer, blockhash)


def payment(
    payer: Keypair, to: Pubkey, micros: int, blockhash: Hash, memo: str
) -> VersionedTransaction:
    """The shape that Bursar itself settles with."""
    source = get_associated_token_address(payer.pubkey(), MINT)
    target = get_associated_token_address(to, MINT)
    move = Instruction(
        programs.TOKEN,
        b"\x0c" + micros.to_bytes(8, "little") + b"\x06",
        [
            AccountMeta(source, is_signer=False, is_writable=True),
            AccountMeta(MINT, is_signer=False, is_writable=False),
            AccountMeta(target, is_signer=False, is_writable=True),
            AccountMeta(payer.pubkey(), is_signer=True, is_writable=False),
        ],
    )
    instructions = [
        set_compute_unit_limit(60_000),
        set_compute_unit_price(1_000),
        programs.create_token_account(payer.pubkey(), to, MINT),
        move,
        programs.memo(memo),
    ]
    return sign(instructions, payer, blockhash)


def sign(instructions: list[Instruction], payer: Keypair, blockhash: Hash) -> VersionedTransaction:
    message = MessageV0.try_compile(payer.pubkey(), instructions, [], blockhash)
    return VersionedTransaction(message, [payer])


@dataclass
class NodeProcess:
    """The node as users run it. Its log is read until it is ready, then drained."""

    process: asyncio.subprocess.Process
    port: int
    said: bytes
    drain: "asyncio.Task[bytes]"

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self.drain

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), 5)
        await self.drain
        return self.process.returncode or 0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bursar.cli.main", "localnet", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(SOURCE)}


async def start_node(folder: Path, *arguments: str) -> NodeProcess:
    process = await asyncio.create_subprocess_exec(
        *command("--port", "0", "--data-dir", str(folder), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(),
    )
    assert process.stdout is not None
    said = b""
    while not (ready := re.search(rb'"url":"http://127\.0\.0\.1:(\d+)"', said)):
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        assert line, f"the node ended before it was ready: {said.decode()}"
        said += line
    drain = asyncio.create_task(process.stdout.read())
    return NodeProcess(process, int(ready[1]), said, drain)
