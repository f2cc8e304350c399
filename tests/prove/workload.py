"""Tenants and their clients: what they do is left to seeded chance, what they were told is kept.

Each client does one thing after the other. It asks until it is answered, another node each time,
with the same idempotency key, as the docs tell every client to.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import aiohttp
from solders.keypair import Keypair

from bursar.money import format_micros, parse_micros
from tests.localnet.support import RpcFailed
from tests.prove.journal import Journal, Rules, Told
from tests.prove.stage import Stage
from tests.simulation.wire import Answer, Connection, Cut

SHOP: Final = "api.example.com"
# On the allowlist at times.
GUEST: Final = "guest.example.com"
AGENTS_OF_A_TENANT: Final = ("open", "open", "tight", "poor")
CLIENTS_OF_A_TENANT: Final = 6
# A whole fault and what it takes to recover from it; nobody waits longer for an answer.
MOST_SECONDS: Final = 150.0
_ONE_TRY_SECONDS: Final = 8.0
# As behind a load balancer that knows its clients. The rest make the nodes meet at every wallet.
_AT_HOME: Final = 0.9
_PAUSE_SECONDS: Final = 0.05
# Nodes remember keys for less than this.
_REVOKED_SECONDS: Final = 1.0
# What a part that is gone makes of a request: nothing, and the client asks again.
_AGAIN: Final = {429, 503}
# Of a thousand.
_MIX: Final = (
    ("spend", 915), ("decide", 42), ("replay", 8), ("read", 12), ("change", 6), ("stop", 4),
    ("withdraw", 7), ("deposit", 4), ("key", 2),
)  # fmt: skip
MIX: Final = tuple(name for name, share in _MIX for _ in range(share))


class Unanswered(Exception):
    """Nothing came back for so long that something is stuck."""


@dataclass
class Agent:
    id: str
    address: str
    kind: str
    # The version that every spend asked for from now on must at least be decided by.
    version: int = 1
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class Tenant:
    name: str
    keys: list[str]
    approver: str
    agents: list[Agent]
    hooked: bool
    pending: deque[str] = field(default_factory=deque)


@dataclass
class Load:
    """All clients together. They work while `going` is set."""

    stage: Stage
    journal: Journal
    tenants: Sequence[Tenant]
    seed: int
    rate: float
    going: asyncio.Event = field(default_factory=asyncio.Event)
    busy: int = 0
    # Since the last strike: when it was, and when the first spend that was asked for after it was
    # acknowledged.
    struck_at: float = 0.0
    resumed_at: float | None = None
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    def start(self) -> None:
        clients = [
            Client(self, tenant, number, home)
            for home, tenant in enumerate(self.tenants)
            for number in range(CLIENTS_OF_A_TENANT)
        ]
        self._tasks = [
            asyncio.create_task(client.run(self.rate / len(clients))) for client in clients
        ]

    def check(self) -> None:
        """Fails with what a client failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def pause(self) -> None:
        """Returns when everybody was answered."""
        self.going.clear()
        while self.busy:
            self.check()
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def strike(self) -> None:
        self.struck_at, self.resumed_at = time.monotonic(), None

    def acknowledged(self, asked_at: float) -> None:
        if asked_at > self.struck_at and self.resumed_at is None:
            self.resumed_at = time.monotonic()

    async def resumed(self) -> float:
        """How long after the strike the first spend that was asked for later was acknowledged."""
        while self.resumed_at is None:
            self.check()
            if time.monotonic() - self.struck_at > MOST_SECONDS:
                raise Unanswered(f"no spend was acknowledged for {MOST_SECONDS} s")
            await asyncio.sleep(0.01)
        return self.resumed_at - self.struck_at


class Client:
    def __init__(self, load: Load, tenant: Tenant, number: int, home: int) -> None:
        self._load = load
        self._journal = load.journal
        self._tenant = tenant
        self._name = f"{load.seed}-{tenant.name}-{number}"
        self._chance = Random(self._name)
        self._connections = [Connection(url, tenant.keys[number]) for url in load.stage.urls]
        self._approvals = [Connection(url, tenant.approver) for url in load.stage.urls]
        self._home = home
        self._asked = 0
        # Of spends that were acknowledged: to be asked for again, and to be read elsewhere.
        self._before: deque[tuple[str, dict[str, Any], str]] = deque(maxlen=50)
        self._verbs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "spend": self._spend_any,
            "decide": self._decide,
            "replay": self._replay,
            "read": self._read,
            "change": self._change,
            "stop": self._stop,
            "withdraw": self._withdraw,
            "deposit": self._deposit,
            "key": self._key_for_a_while,
        }

    async def run(self, rate: float) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time() + self._chance.uniform(0, 1 / rate)
        while True:
            await self._load.going.wait()
            await asyncio.sleep(max(0.0, next_at - loop.time()))
            # Who was kept waiting makes up for a little of it.
            next_at = max(next_at + 1 / rate, loop.time() - 1)
            if not self._load.going.is_set():
                continue
            self._load.busy += 1
            try:
                await self._verbs[self._chance.choice(MIX)]()
            finally:
                self._load.busy -= 1

    # Asking -----------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        approver: bool = False,
    ) -> Answer:
        """The first answer that is one. Most ask the node next door first; then all in turn."""
        until = time.monotonic() + MOST_SECONDS
        turn = self._home if self._chance.random() < _AT_HOME else self._chance.randrange(3)
        while time.monotonic() < until:
            connection = (self._approvals if approver else self._connections)[turn % 3]
            turn += 1
            answer = await self._try(connection, method, path, body, key)
            if answer is not None:
                return answer
            await asyncio.sleep(_PAUSE_SECONDS)
        raise Unanswered(f"{method} {path} {key} was not answered for {MOST_SECONDS} s")

    async def _try(
        self, connection: Connection, method: str, path: str, body: Any, key: str | None
    ) -> Answer | None:
        try:
            answer = await connection.request(method, path, body, key=key, seconds=_ONE_TRY_SECONDS)
        except Cut:
            self._journal.retries["cut"] += 1
            return None
        except TimeoutError:
            self._journal.retries["no answer"] += 1
            return None
        again = answer.status in _AGAIN or b"idempotency_in_progress" in answer.body
        if again:
            self._journal.retries[str(answer.status)] += 1
            return None
        if answer.status >= 500:
            self._journal.accuse("answer", f"{method} {path}: {answer.status} {answer.body!r}")
        return answer

    def _new_key(self) -> str:
        self._asked += 1
        return f"{self._name}-{self._asked}"

    # What a client does -----------------------------------------------------------------------

    async def _spend_any(self) -> None:
        agent = self._chance.choice(self._tenant.agents)
        await self._spend(agent, *self._wish(agent))

    def _wish(self, agent: Agent) -> tuple[int, str]:
        """An amount and a recipient. Most are refused: a refusal is decided and kept like any
        other, and does not burden the chain."""
        chance = self._chance
        if agent.kind == "tight":
            return chance.randrange(1, 90_000), SHOP
        if agent.kind == "poor":
            return chance.randrange(50_000_000, 90_000_000), SHOP
        match chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                inner = next(a for a in self._tenant.agents if a.kind == "poor").address
                return chance.randrange(1, 2_000), chance.choice([SHOP, SHOP, GUEST, inner])
            case 5:
                return chance.randrange(500_001, 900_000), SHOP
            case 6 | 7 | 8 | 9:
                return chance.randrange(10_000_000, 20_000_000), SHOP
            case other:
                return chance.randrange(1, 2_000), f"n{other}.stranger.example"

    async def _spend(self, agent: Agent, micros: int, recipient: str) -> Told:
        body = {
            "agentId": agent.id,
            "amount": format_micros(micros),
            "recipient": recipient,
        }
        key, version, started = self._new_key(), agent.version, time.monotonic()
        answer = await self._ask("POST", "/v1/spend/authorise", body, key=key)
        told = self._told(answer, key)
        self._load.acknowledged(started)
        self._journal.spends[key] = told
        self._journal.operations["spend"] += 1
        self._before.append((key, body, told.spend_id))
        if told.status == "pending":
            self._tenant.pending.append(told.spend_id)
        same = (told.agent_id, told.micros, told.recipient) == (agent.id, micros, recipient)
        if not same:
            self._journal.accuse("answer", f"asked for {body}, told of {told}")
        if told.policy_version < version:
            self._journal.accuse("old policy", f"{told} was asked for at version {version}")
        return told

    def _told(self, answer: Answer, key: str) -> Told:
        assert answer.status == 201, (key, answer.status, answer.body)
        data = answer.data
        micros = parse_micros(data["amount"])
        assert micros is not None
        return Told(
            data["id"], data["agentId"], micros, data["recipient"], data["status"],
            data["policyVersion"], data["createdAt"],
        )  # fmt: skip

    async def _decide(self) -> None:
        if not self._tenant.pending:
            return
        spend_id = self._tenant.pending.popleft()
        verb = self._chance.choice(["approve", "deny"])
        answer = await self._say(verb, spend_id)
        if answer.status == 409 and verb == "approve":
            # The policy is another by now, and does not allow it any more.
            verb = "deny"
            answer = await self._say(verb, spend_id)
        if answer.status != 200:
            self._journal.accuse("answer", f"{verb} {spend_id}: {answer.body!r}")
            return
        self._journal.decided[spend_id] = "approved" if verb == "approve" else "rejected"
        self._journal.operations[verb] += 1

    async def _say(self, verb: str, spend_id: str) -> Answer:
        path = f"/v1/transactions/{spend_id}/{verb}"
        return await self._ask("POST", path, {}, key=self._new_key(), approver=True)

    async def _replay(self) -> None:
        """The same request again: the same spend."""
        if not self._before:
            return
        key, body, spend_id = self._chance.choice(self._before)
        answer = await self._ask("POST", "/v1/spend/authorise", body, key=key)
        if answer.status != 201 or answer.data["id"] != spend_id:
            self._journal.accuse("double", f"{key} was {spend_id}, is now {answer.body!r}")
        self._journal.operations["replay"] += 1

    async def _read(self) -> None:
        """What was acknowledged is there for every node at once; a wallet's sums fit."""
        if self._before:
            _, _, spend_id = self._chance.choice(self._before)
            answer = await self._ask("GET", f"/v1/transactions/{spend_id}")
            if answer.status != 200:
                self._journal.accuse("lost", f"{spend_id}: {answer.status} {answer.body!r}")
        agent = self._chance.choice(self._tenant.agents)
        wallet = (await self._ask("GET", f"/v1/wallets/{agent.id}")).data
        balance, reserved, available = (
            parse_micros(wallet[name]) for name in ("balance", "reserved", "available")
        )
        assert balance is not None
        assert reserved is not None
        if balance - reserved != available:
            self._journal.accuse("ledger", f"{wallet}")
        self._journal.operations["read"] += 1

    async def _change(self) -> None:
        """Another policy, in force for everyone from its answer on."""
        agent = self._chance.choice([a for a in self._tenant.agents if a.kind == "open"])
        async with agent.changing:
            hosts = [SHOP, *(a.address for a in self._tenant.agents if a is not agent)]
            guests = self._chance.choice([[], [GUEST]])
            most = self._chance.randrange(1, 9)
            await self._patch(
                agent, {"allowlist": [*hosts, *guests], "perTransactionCap": f"{most}.00"}
            )

    async def _stop(self) -> None:
        """Frozen or paused: from the answer on nothing passes, until it is undone."""
        agent = self._chance.choice([a for a in self._tenant.agents if a.kind == "open"])
        async with agent.changing:
            frozen = self._chance.random() < 0.5
            if frozen:
                await self._patch(agent, {"frozen": True})
            else:
                await self._ask("PATCH", f"/v1/agents/{agent.id}", {"status": "paused"})
            told = await self._spend(agent, 1, SHOP)
            if told.status != "rejected":
                self._journal.accuse("old policy", f"stopped agent was let pass: {told}")
            if frozen:
                await self._patch(agent, {"frozen": False})
            else:
                await self._ask("PATCH", f"/v1/agents/{agent.id}", {"status": "active"})
                self._journal.operations["change"] += 1

    async def _patch(self, agent: Agent, policy: dict[str, Any]) -> None:
        answer = await self._ask("PATCH", f"/v1/agents/{agent.id}", {"policy": policy})
        keep_rules(self._journal, agent.id, answer.data["policy"])
        agent.version = answer.data["policy"]["version"]
        self._journal.operations["change"] += 1

    async def _withdraw(self) -> None:
        agent = self._chance.choice(self._tenant.agents)
        destination = Keypair.from_seed(self._chance.randbytes(32)).pubkey()
        answer = await self._ask(
            "POST",
            f"/v1/wallets/{agent.id}/withdraw",
            {"amount": f"0.{self._chance.randrange(1, 5000):06}", "destination": str(destination)},
            key=self._new_key(),
        )
        if answer.status == 409:
            return  # nothing left
        self._journal.withdrawals[answer.data["id"]] = agent.id
        self._journal.operations["withdrawal"] += 1

    async def _deposit(self) -> None:
        agent = self._chance.choice(self._tenant.agents)
        micros = self._chance.randrange(1, 1_000_000)
        if self._chance.random() < 0.5:
            path = f"/v1/test/wallets/{agent.id}/fund"
            body = {"amount": format_micros(micros)}
            answer = await self._ask("POST", path, body, key=self._new_key())
            assert answer.status == 201, answer.body
            signature = answer.data["signature"]
        else:
            try:
                signature = await self._load.stage.rpc("bursar_faucet", agent.address, micros)
            except (aiohttp.ClientError, TimeoutError, RpcFailed):
                return  # the chain is away; whatever became of it shows in the balance
        self._journal.deposits[signature] = agent.id
        self._journal.operations["deposit"] += 1

    async def _key_for_a_while(self) -> None:
        """A key is made, used and revoked: a second after that answer no node takes it."""
        agent = self._chance.choice(self._tenant.agents)
        body = {"name": "for a while", "scope": "agent", "agentId": agent.id}
        made = (await self._ask("POST", "/v1/keys", body, key=self._new_key())).data
        secret = made["key"]
        if secret is not None:  # it is told once, and that answer may have been lost
            for url in self._load.stage.urls:
                await self._me(url, secret)
        await self._ask("DELETE", f"/v1/keys/{made['id']}")
        if secret is not None:
            await asyncio.sleep(_REVOKED_SECONDS)
            for url in self._load.stage.urls:
                answer = await self._me(url, secret)
                if answer is not None and answer.status != 401:
                    self._journal.accuse("revoked key", f"{made['id']}: {answer.status}")
        self._journal.operations["key"] += 1

    async def _me(self, url: str, secret: str) -> Answer | None:
        connection = Connection(url, secret)
        try:
            return await self._try(connection, "GET", "/v1/me", None, None)
        finally:
            connection.close()


def keep_rules(journal: Journal, agent_id: str, policy: dict[str, Any]) -> None:
    cap = parse_micros(policy["dailyCap"])
    assert cap is not None
    most = policy["perTransactionCap"]
    journal.rules[agent_id, policy["version"]] = Rules(
        cap, None if most is None else parse_micros(most), frozenset(policy["allowlist"]),
        policy["frozen"],
    )  # fmt: skip
