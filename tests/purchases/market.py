"""A whole service that buys, in processes of their own that a test can kill, on a chain that it can
hurry: and short ways to buy by its API alone."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from solders.pubkey import Pubkey

from bursar.config import MODES, Config, load_config
from bursar.db import Database
from bursar.service import serve
from bursar.service.localnets import choose_ports, localnet_children
from bursar.service.ports import free_port
from bursar.service.supervisor import Child, Supervisor
from tests.localnet.support import Rpc
from tests.processes import Finished, bursar, clean_environment, until
from tests.sellers.chain import transfers
from tests.sellers.served import until_signing
from tests.support import Service, new_account, new_agent

# Where nothing follows a purchase any more.
ENDED = ("free", "failed", "rejected", "paid", "unpaid")
# Long enough for a busy machine; every wait ends with its condition.
PATIENCE_SECONDS = 240.0
POLICY = {"dailyCap": "100.00", "allowlist": ["127.0.0.1"]}


@dataclass(frozen=True)
class Agent:
    """An agent with money, and what buys for it: a key of scope `agent` and nothing else."""

    id: str
    wallet: Pubkey
    client: httpx.AsyncClient
    admin: httpx.AsyncClient
    account: str

    async def post(self, url: str, **fields: Any) -> httpx.Response:
        """The answer of `POST /v1/purchases`, whatever it is."""
        headers = fields.pop("headers_of_the_call", {})
        return await self.client.post("/v1/purchases", json={"url": url, **fields}, headers=headers)

    async def buy(self, url: str, **fields: Any) -> dict[str, Any]:
        return made(await self.post(url, **fields))

    async def get(self, purchase: dict[str, Any]) -> dict[str, Any]:
        return shown(await self.client.get(f"/v1/purchases/{purchase['id']}"))

    async def retry(self, purchase: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.client.post(f"/v1/purchases/{purchase['id']}/retry", headers=headers)

    async def resume(self, purchase: dict[str, Any], **fields: Any) -> httpx.Response:
        """`POST /v1/purchases/:id/continue`."""
        return await self.client.post(f"/v1/purchases/{purchase['id']}/continue", json=fields)

    async def ended(self, purchase: dict[str, Any]) -> dict[str, Any]:
        """As it is once nothing follows it any more."""
        now = purchase

        async def over() -> bool:
            nonlocal now
            now = await self.get(purchase)
            return now["status"] in ENDED

        await until(over, seconds=PATIENCE_SECONDS, every=0.1)
        return now

    async def balance(self) -> dict[str, str]:
        """What the wallet has, and what of it is free."""
        return shown(await self.admin.get(f"/v1/wallets/{self.id}/balance"))


@dataclass(frozen=True)
class Market:
    config: Config
    supervisor: Supervisor
    db: Database
    rpc: Rpc
    log: Path
    # Closes what agents call with.
    stack: AsyncExitStack

    @property
    def service(self) -> Service:
        return Service(f"http://127.0.0.1:{self.config.port}", self.config, self.db)

    async def agent(
        self, amount: str = "10", *, account: str | None = None, **policy: Any
    ) -> Agent:
        """Of an account of its own unless one is named."""
        account = account or new_account()
        admin = await self.client(account=account)
        agent = await new_agent(admin, policy={**POLICY, **policy})
        answer = await admin.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": amount})
        assert answer.status_code == 201, answer.text
        assert answer.json()["data"]["status"] == "credited"
        client = await self.client(account=account, scope="agent", agent_id=agent["id"])
        wallet = Pubkey.from_string(agent["wallet"]["address"])
        return Agent(agent["id"], wallet, client, admin, account)

    async def client(self, **key: Any) -> httpx.AsyncClient:
        """With a new key; an admin's unless told otherwise."""
        made = self.service.client(await self.service.key(**key))
        # Longer than any wait that a call can ask for.
        made.timeout = httpx.Timeout(60)
        return await self.stack.enter_async_context(made)

    async def paid(self, agent: Agent, *payees: str) -> list[int]:
        """Every transfer from the agent's wallet to these, by the chain alone."""
        found = [await transfers(self.rpc, agent.wallet, payee) for payee in payees]
        return [micros for some in found for micros in some]

    async def pass_blocks(self) -> None:
        """So many that nothing signed until now can land, and that this is proven."""
        for _ in range(3):
            await self.rpc("bursar_expireBlockhashes")

    def kill(self, name: str) -> bool:
        """kill -9; the supervisor starts it again. False while that is still under way."""
        pid = self.supervisor.pid(name)
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    async def answers(self) -> None:
        """Returns once the API does."""

        async def healthy() -> bool:
            try:
                async with self.service.client(None) as client:
                    return (await client.get("/healthz")).status_code == 200
            except httpx.TransportError:
                return False

        await until(healthy, seconds=PATIENCE_SECONDS)

    async def audit(self) -> Finished:
        """`bursar audit` as an operator runs it."""
        assert self.config.database_url is not None
        return await bursar(
            "audit",
            data_dir=str(self.config.data_dir),
            database_url=self.config.database_url,
            localnet_port=str(self.config.localnet_port),
            live_network="localnet",
            live_localnet_port=str(self.config.live_localnet_port),
        )


@asynccontextmanager
async def open_market(
    folder: Path,
    dsn: str,
    *,
    slot_ms: int = 100,
    processes: int = 1,
    chain: Rpc | None = None,
    **settings: Any,
) -> AsyncGenerator[Market]:
    """Chains of both modes, unless there is one for test mode; `worker-1`, `api-1` and so on; on an
    empty database. What the processes say is in `log`, all of it."""
    given = {
        "live_network": "localnet",
        "localnet_port": 0,
        "live_localnet_port": 0,
        "rate_limits": "off",
        "log_level": "debug",
        "sweep_seconds": 1,
        "purchases_allow": "127.0.0.0/8,localhost",
        "purchases_timeout_seconds": 20,
    }
    config = load_config({}, data_dir=folder, port=free_port("127.0.0.1", 0), **(given | settings))
    config = replace(choose_ports(config), database_url=dsn)
    if chain is not None:
        config = replace(config, localnet_port=chain.port)
    environment = clean_environment() | config.child_environment()
    log = folder / "log"

    def logged(child: Child) -> Child:
        # The processes write to standard output; a shell is the least that adds to a file.
        said = ("/bin/sh", "-c", 'exec "$@" >> "$0" 2>&1', str(log))
        return replace(child, argv=[*said, *child.argv], env=environment)

    async with Supervisor(folder) as supervisor:
        fast = ["--faults", "--slot-ms", str(slot_ms), "--ws-port", "0"]
        for child in localnet_children(config)[0 if chain is None else 1 :]:
            await supervisor.start(replace(child, argv=[*child.argv, *fast]))
        for number in range(1, processes + 1):
            worker = Child(
                name=f"worker-{number}", argv=[*serve.PROCESS, "worker"], env=environment
            )
            await supervisor.start(logged(worker))
            api = serve._api(config, f"api-{number}", ["--share-port"])
            await supervisor.start(logged(api))
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session, AsyncExitStack() as stack:
            db = await Database.open(dsn, 4, 10)
            stack.push_async_callback(db.close)
            await until_signing(db, *MODES)
            rpc = Rpc(config.localnet_port, session)
            yield Market(config, supervisor, db, rpc, log, stack)


def made(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


def shown(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]
