"""Whatever the network does, trying again by the key that the exception carries pays once."""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal

from bursar import AsyncBursar
from tests.processes import clean_environment
from tests.sdk.scripted import reset
from tests.support import Service, new_account

# Purchases of each process. The last one lets the client try again, which pauses in between.
PURCHASES = (40, 40, 10)


async def test_three_processes_on_a_bad_network_buy_each_thing_once(served: Service):
    """Goal: resets before, during and after the service did its work; every purchase is made
    exactly once, and the books say so too."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    key = await served.key(account=new_account())
    async with AsyncBursar(key, served.url) as client, _bad_network(served.url, seed) as network:
        agent = await client.agents.create("a", daily_cap="1000", allowlist=["api.example.com"])
        await client.wallets.fund(agent.id, amount="1000")
        buyers = [
            await _buyer(network.url, key, agent.id, number, count)
            for number, count in enumerate(PURCHASES)
        ]
        answers = [
            json.loads(line) for out in await asyncio.gather(*map(_ends, buyers)) for line in out
        ]
        made = [row async for row in client.transactions.list(agent_id=agent.id, limit=200)]
        budget = await client.agents.budget(agent.id)
    assert network.resets > 20, "the network was not bad at all"
    bought = Counter(row.memo for row in made)
    wanted = {f"purchase {p} of {n}" for n, count in enumerate(PURCHASES) for p in range(count)}
    assert bought == Counter(wanted)
    assert {answer["memo"]: answer["id"] for answer in answers} == {r.memo: r.id for r in made}
    assert all(row.status in ("approved", "settled") for row in made)
    assert budget.spent_today == Decimal(sum(PURCHASES))


async def _buyer(
    url: str, key: str, agent_id: str, number: int, count: int
) -> asyncio.subprocess.Process:
    how = "carried" if number < len(PURCHASES) - 1 else "option"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.sdk.buyer", agent_id, str(number), str(count), how),
        env=clean_environment() | {"BURSAR_API_KEY": key, "BURSAR_BASE_URL": url},
        stdout=asyncio.subprocess.PIPE,
    )


async def _ends(buyer: asyncio.subprocess.Process) -> list[bytes]:
    out, _ = await asyncio.wait_for(buyer.communicate(), 120)
    assert buyer.returncode == 0
    return out.splitlines()


class _Network:
    """A TCP proxy that resets some connections: at once, once the request has passed, or within the
    answer."""

    def __init__(self, target: str, seed: int) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self.resets = 0
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                fate = self._random.choice(["fine", "fine", "fine", "early", "late", "within"])
                request = await _message(reader)
                if not request:
                    break
                if fate != "early":
                    # A connection for each request: the service's answer ends where it is closed.
                    server_reader, server_writer = await asyncio.open_connection(*self._target)
                    server_writer.write(request)
                    answer = await _message(server_reader)
                    server_writer.close()
                    if fate == "fine":
                        writer.write(answer)
                        await writer.drain()
                        continue
                    if fate == "within":
                        writer.write(answer[: self._random.randrange(1, len(answer))])
                        await writer.drain()
                self.resets += 1
                reset(writer)
                return
        writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP message with a body of known length."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    lengths = [
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return head + await reader.readexactly(lengths[0] if lengths else 0)


@asynccontextmanager
async def _bad_network(target: str, seed: int) -> AsyncGenerator[_Network]:
    network = _Network(target, seed)
    server = await asyncio.start_server(network.connected, "127.0.0.1", 0)
    network.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield network
    finally:
        server.close()
