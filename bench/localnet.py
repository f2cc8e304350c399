"""How fast the localnet takes payments, how soon it is ready, and what it weighs.

`python -m bench.localnet` prints the rows; `rows()` hands them to whoever draws them.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import aiohttp
from solders.keypair import Keypair
from tests.localnet.support import NodeProcess, Rpc, encode, payment, start_node
from tests.localnet.test_startup import fill_with_token_accounts

Row = tuple[str, float, str]

PAYMENTS = 1_000


async def rows() -> list[Row]:
    return [*await _payments(), *await _large_chain()]


async def _payments() -> list[Row]:
    """The same transfer that Bursar settles with, to existing token accounts, signed beforehand."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        # Long slots, so that no prepared transaction outlives its blockhash.
        node = await start_node(Path(folder), "--slot-ms", "5000")
        async with aiohttp.ClientSession() as session:
            rpc = Rpc(node.port, session)
            payers = [await rpc.wallet(sol=100, micros=1_000_000_000) for _ in range(64)]
            for in_flight in (1, 16, 64):
                rate = await payments_per_second(
                    rpc, payers[:in_flight], PAYMENTS // (4 if in_flight == 1 else 1)
                )
                found.append((f"localnet payments, {in_flight} in flight", rate, "/s"))
        found.append(("localnet memory after the payments (PSS)", _pss_mb(node), "MB"))
        await node.stop()
    return found


async def payments_per_second(rpc: Rpc, payers: list[Keypair], count: int) -> float:
    """Each payer has one in flight, to the next payer's token account."""
    blockhash = await rpc.blockhash()
    targets = [*payers[1:], payers[0]]
    prepared = [
        [
            encode(payment(payer, to.pubkey(), 1, blockhash, f"{len(payers)} {number}"))
            for number in range(count // len(payers))
        ]
        for payer, to in zip(payers, targets, strict=True)
    ]

    async def send_all(transactions: list[str]) -> None:
        for text in transactions:
            await rpc("sendTransaction", text, {"encoding": "base64"})

    begin = time.perf_counter()
    await asyncio.gather(*map(send_all, prepared))
    return sum(map(len, prepared)) / (time.perf_counter() - begin)


async def _large_chain() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        await (await start_node(Path(folder))).stop()
        fill_with_token_accounts(Path(folder), Keypair().pubkey())
        begin = time.perf_counter()
        node = await start_node(Path(folder))
        ready = time.perf_counter() - begin
        memory = _pss_mb(node)
        await node.stop()
    return [
        ("localnet ready with 100,000 accounts", ready, "s"),
        ("localnet memory with 100,000 accounts (PSS)", memory, "MB"),
    ]


def _pss_mb(node: NodeProcess) -> float:
    pid = node.process.pid
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError("the kernel tells no PSS")


def main() -> None:
    for name, value, unit in asyncio.run(rows()):
        print(f"{name:<50} {value:>10.1f} {unit}")


if __name__ == "__main__":
    main()
