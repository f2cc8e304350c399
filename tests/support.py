"""What most tests need: a running service, tenants of their own, and short ways to call it."""

import itertools
from dataclasses import dataclass
from typing import Any

import httpx

from bursar.access.model import Scope
from bursar.chain.message import token_account
from bursar.config import Config, Mode
from bursar.db import Database, Tx
from bursar.event.model import EventFilter, EventRow
from bursar.ids import new_id
from bursar.ledger import book, lock
from bursar.money import parse_micros
from bursar.policy.cache import PolicyCache
from bursar.purchase import pin_store
from bursar.service.first_key import make_key
from bursar.spend import feed
from bursar.wallet import store as wallet_store

_numbers = itertools.count(1)

POLICY: dict[str, Any] = {"dailyCap": "100.00", "allowlist": ["api.example.com"]}
ADDRESS = "7EqQdEULxWcraVx3mXKFjc84LhCkMGZCkRvDpvcMwJeK"
# The address of a key that somebody could have, unlike the one above.
ON_CURVE = "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS"


@dataclass(frozen=True)
class Service:
    """A live service and the database under it."""

    url: str
    config: Config
    db: Database

    async def key(
        self,
        *,
        account: str,
        mode: Mode = "test",
        scope: str = "admin",
        agent_id: str | None = None,
    ) -> str:
        async with self.db.transaction() as tx:
            made = await make_key(
                tx,
                self.config,
                mode=mode,
                scope=Scope(scope),
                agent_id=agent_id,
                account=account,
                name="test",
                expires_in=None,
            )
        return made.secret

    def client(self, key: str | None) -> httpx.AsyncClient:
        """With None it sends no key."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # It is plain HTTP, and reading certificates for every client takes longer than most tests.
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, verify=False)

    async def admin(self, *, mode: Mode = "test", account: str | None = None) -> httpx.AsyncClient:
        """A client with an admin key; of an account of its own unless one is named."""
        return self.client(await self.key(account=account or new_account(), mode=mode))

    async def fund(self, agent_id: str, amount: str) -> None:
        """A deposit as if it had been found on the chain, where it is not."""
        micros = parse_micros(amount)
        assert micros is not None
        deposit_id = new_id("dep")

        async def work(tx: Tx) -> None:
            realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
            locked = await lock.lock_agents(tx, [agent_id], [realm_id])
            wallet = locked[agent_id].wallet
            wallet.deposit(deposit_id, micros)
            await book.save_balances(tx, PolicyCache(), list(locked.values()))
            await wallet_store.insert_deposit(
                tx,
                deposit_id=deposit_id,
                realm_id=realm_id,
                agent_id=agent_id,
                amount_micros=micros,
                token_account=token_account(wallet.address, wallet.mint),
                signature=f"not on the chain: {deposit_id}",
            )
            credited = await wallet_store.credit_deposit(
                tx,
                deposit_id,
                amount_micros=micros,
                sender=None,
                block_time=None,
                at=wallet.now,
            )
            assert credited is not None

        await self.db.transact(work)

    async def pin(self, agent_id: str, origin: str, *, offered: str | None = None) -> None:
        """A pin of the agent's account, as if the agent had bought there; and the other address
        that the origin named since."""
        async with self.db.transaction() as tx:
            realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
            await pin_store.pin(tx, realm_id, origin, ADDRESS, agent_id)
            if offered is not None:
                await pin_store.note_offer(tx, realm_id, origin, offered)


def new_account() -> str:
    return f"account-{next(_numbers)}"


async def new_agent(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Creates an agent; `policy` fields given are laid over a simple policy."""
    policy = {**POLICY, **fields.pop("policy", {})}
    answer = await client.post("/v1/agents", json={"name": "agent", "policy": policy, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


async def spend(
    client: httpx.AsyncClient, agent_id: str, amount: str, **fields: Any
) -> dict[str, Any]:
    """Authorises a spend and returns the transaction."""
    headers = fields.pop("headers", {})
    body = {"agentId": agent_id, "amount": amount, "recipient": "api.example.com", **fields}
    answer = await client.post("/v1/spend/authorise", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


async def events_of(tx: Tx, agent_id: str) -> list[EventRow]:
    """All of an agent, the oldest first; those that only its spends tell as well."""
    realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
    most = 100_000
    filters = EventFilter(realm_id=realm_id, agent_id=agent_id)
    events = await feed.list_events(tx, filters, None, most)
    assert len(events) < most
    return events[::-1]


def error_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error object, once its shape is checked."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert isinstance(error["retryable"], bool)
    assert error["requestId"] == answer.headers["x-request-id"]
    return error
