"""A stage for settlement: a real node that can be faulty, a database, the service, workers."""

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from aiohttp import web
from solders.keypair import Keypair
from solders.signature import Signature

from bursar.chain.message import Payment, token_account
from bursar.chain.pin import check_network
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.config import Config
from bursar.custody import store as custody_store
from bursar.custody.setup import ensure_fee_payer, open_vault
from bursar.custody.vault import Vault
from bursar.db import Database
from bursar.policy.cache import PolicyCache
from bursar.service.networks import ensure_fee_payer_funded
from bursar.settlement.deposits import DepositWatcher
from bursar.settlement.reconcile import Reconciler
from bursar.settlement.worker import Settler
from bursar.spend.model import bounds_of
from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import Rpc
from tests.processes import until
from tests.support import Service, new_agent

DECIMALS = 6
FEE_CAP_LAMPORTS = 100_000


class Crash(BaseException):
    """As kill -9 at this very place: nothing here may catch it."""


@dataclass
class Stage:
    """One database, one service and one chain; workers are made as needed."""

    config: Config
    db: Database
    rpc: Rpc
    service: Service
    client: httpx.AsyncClient
    vault: Vault
    chains: list[Solana] = field(default_factory=list)

    # Workers -------------------------------------------------------------------------------------

    async def chain(self, *addresses: str) -> Solana:
        """A way to the node, or to the addresses given."""
        chain = Solana.open(addresses or (self.rpc.url,), 2, FEE_CAP_LAMPORTS)
        chain.expect(await self.rpc("getGenesisHash"))
        self.chains.append(chain)
        return chain

    async def settler(self, *addresses: str) -> Settler:
        chain = await self.chain(*addresses)
        bounds = bounds_of(self.config)
        return Settler(self.db, chain, self.vault, PolicyCache(), "test", DECIMALS, bounds)

    async def reconciler(self, *addresses: str, cold_seconds: float = 600) -> Reconciler:
        chain = await self.chain(*addresses)
        watcher = DepositWatcher(self.db, chain, PolicyCache(), "test", TEST_MINT, cold_seconds)
        return Reconciler(self.db, watcher)

    async def round(self, settler: Settler, times: int = 1) -> None:
        """A round with everything due, as if the pauses and leases had passed."""
        for _ in range(times):
            await self.due()
            await settler.sign()
            await self.due()
            await settler.follow()

    async def due(self) -> None:
        async with self.db.connection() as tx:
            await tx.execute("UPDATE submission SET next_check_at = now() WHERE state = 'live'")
            await tx.execute("UPDATE payment SET leased_until = now() WHERE state = 'waiting'")

    # Money ---------------------------------------------------------------------------------------

    async def agent(self, amount: str = "100") -> dict[str, Any]:
        made = await new_agent(self.client, policy={"dailyCap": "100000.00", "allowlist": ["*"]})
        answer = await self.client.post(
            f"/v1/test/wallets/{made['id']}/fund", json={"amount": amount}
        )
        assert answer.status_code == 201, answer.text
        assert answer.json()["data"]["status"] == "credited"
        return made

    async def ask(self, agent: dict[str, Any], amount: str = "1.5") -> httpx.Response:
        """To pay somebody new."""
        body = {
            "agentId": agent["id"],
            "amount": amount,
            "recipient": str(Keypair().pubkey()),
        }
        return await self.client.post("/v1/spend/authorise", json=body)

    async def spend(self, agent: dict[str, Any], amount: str = "1.5") -> str:
        answer = await self.ask(agent, amount)
        assert answer.status_code == 201, answer.text
        assert answer.json()["data"]["status"] == "approved", answer.text
        return answer.json()["data"]["id"]

    async def withdraw(self, agent: dict[str, Any], amount: str = "1.5") -> str:
        answer = await self.client.post(
            f"/v1/wallets/{agent['id']}/withdraw",
            json={"amount": amount, "destination": str(Keypair().pubkey())},
        )
        assert answer.status_code == 201, answer.text
        return answer.json()["data"]["id"]

    async def status(self, payment_id: str) -> str:
        kind = "withdrawals" if payment_id.startswith("wdr_") else "transactions"
        return (await self.client.get(f"/v1/{kind}/{payment_id}")).json()["data"]["status"]

    async def balance(self, agent: dict[str, Any]) -> dict[str, str]:
        return (await self.client.get(f"/v1/wallets/{agent['id']}/balance")).json()["data"]

    async def frozen(self, agent: dict[str, Any]) -> bool:
        async with self.db.connection() as tx:
            return await tx.fetchval(
                "SELECT is_frozen FROM wallet WHERE agent_id = $1", agent["id"]
            )

    async def take_behind_our_back(
        self,
        agent: dict[str, Any],
        micros: int,
        *,
        memo: str = "somebody",
        destination: str | None = None,
    ) -> None:
        """Moves money with the wallet's own key, unknown to the ledger."""
        chain = await self.chain()
        async with self.db.connection() as tx:
            keys = await custody_store.wallet_keys(tx, [agent["id"]])
            fee_payer = await custody_store.fee_payer_key(tx, "test")
        assert fee_payer is not None
        payment = Payment(
            id=memo,
            attempt=1,
            amount_micros=micros,
            source=keys[agent["id"]].address,
            destination=destination or str(Keypair().pubkey()),
            mint=TEST_MINT,
            decimals=DECIMALS,
            blockhash=(await chain.latest_blockhash()).hash,
            fee_payer=fee_payer.address,
            priority_fee=0,
        )
        signed = await self.vault.sign(payment, keys[agent["id"]], fee_payer)
        assert "Sent" in repr(await chain.send(signed.raw))

    # The chain -----------------------------------------------------------------------------------

    async def faults(self, *rules: dict[str, Any], **switches: Any) -> None:
        await self.rpc("bursar_faults", {"rules": list(rules), **switches})

    async def pass_blocks(self) -> None:
        """302 blocks: past the life of a blockhash and the room to spare."""
        await self.rpc("bursar_expireBlockhashes")
        await self.rpc("bursar_expireBlockhashes")

    async def next_block(self) -> None:
        """Until there is another blockhash, so that other bytes have another signature."""
        old = await self.rpc.blockhash("confirmed")

        async def changed() -> bool:
            return await self.rpc.blockhash("confirmed") != old

        await until(changed, seconds=60)

    async def made(self, agent: dict[str, Any], payment_id: str) -> int:
        """How often the chain shows this payment: from this wallet, with this memo, this amount."""
        async with self.db.connection() as tx:
            micros = await tx.fetchval(
                "SELECT amount_micros FROM spend WHERE id = $1 UNION ALL"
                " SELECT amount_micros FROM withdrawal WHERE id = $1",
                payment_id,
            )
            owner = await tx.fetchval("SELECT address FROM wallet WHERE agent_id = $1", agent["id"])
        return await times_made(self.rpc, owner, payment_id, micros)

    # The database --------------------------------------------------------------------------------

    async def attempts(self, payment_id: str) -> list[Any]:
        async with self.db.connection() as tx:
            return await tx.fetch(
                "SELECT * FROM submission WHERE payment_id = $1 ORDER BY attempt", payment_id
            )

    async def forget_attempts(self, payment_id: str) -> None:
        """What a restore of an older database, or a failover to a standby that lagged, forgets."""
        async with self.db.transaction() as tx:
            await tx.execute("ALTER TABLE submission DISABLE TRIGGER submission_stays")
            await tx.execute("DELETE FROM submission WHERE payment_id = $1", payment_id)
            await tx.execute("ALTER TABLE submission ENABLE TRIGGER submission_stays")
            await tx.execute(
                "UPDATE payment SET state = 'waiting', attempts = 0, leased_until = now()"
                " WHERE id = $1",
                payment_id,
            )

    async def fail_over(self) -> None:
        """The database goes on in another history than the one the settlement knows."""
        async with self.db.connection() as tx:
            changed = await tx.execute("UPDATE settlement_watch SET timeline = 'another'")
        assert changed == "UPDATE 1", "the settlement had not noted any history yet"


async def times_made(
    rpc: Rpc, owner: str, payment_id: str, micros: int, mint: str = TEST_MINT
) -> int:
    account = token_account(owner, mint)
    count = 0
    before: str | None = None
    while True:
        page = await rpc(
            "getSignaturesForAddress",
            account,
            {"limit": 1000} | ({"before": before} if before else {}),
        )
        for line in page:
            if line["err"] is None and payment_id in (line["memo"] or ""):
                count += await _lost(rpc, line["signature"], account) == micros
        if len(page) < 1000:
            return count
        before = page[-1]["signature"]


async def _lost(rpc: Rpc, signature: str, account: str) -> int:
    """Micro-units that left the token account in a transaction."""
    found = await rpc(
        "getTransaction", signature, {"encoding": "json", "maxSupportedTransactionVersion": 0}
    )
    index = found["transaction"]["message"]["accountKeys"].index(account)

    def held(when: str) -> int:
        lines = [b for b in found["meta"][when] if b["accountIndex"] == index]
        return int(lines[0]["uiTokenAmount"]["amount"]) if lines else 0

    return held("preTokenBalances") - held("postTokenBalances")


@asynccontextmanager
async def staged(config: Config, service: Service, rpc: Rpc) -> AsyncGenerator[Stage]:
    """Everything ready for payments; `config` names a database and the node of `rpc`."""
    vault = await open_vault(service.db, config)
    client = await service.admin()
    stage = Stage(config, service.db, rpc, service, client, vault)
    chain = await stage.chain()
    await check_network(service.db, chain, "test", TEST_MINT)
    fee_payer = await ensure_fee_payer(service.db, vault, "test")
    assert await ensure_fee_payer_funded(config, chain, "test", fee_payer.address)
    try:
        yield stage
    finally:
        await rpc("bursar_faults", {})
        await client.aclose()
        for opened in stage.chains:
            await opened.close()


# A node that lies while another does not -------------------------------------------------------

Lie = Callable[[str, Any], Any]


@asynccontextmanager
async def in_front_of(rpc: Rpc, *lies: Lie, keeps: bool = False) -> AsyncGenerator[str]:
    """A second address for the same chain; `lie(method, result)` says what it answers. Of several
    the n-th is at the path /n. `keeps`: what it is sent it says to have taken, and no more."""

    async def handle(request: web.Request) -> web.Response:
        lie = lies[int(request.path[1:] or 0)]
        body = await request.json()
        several = isinstance(body, list)
        requests = body if several else [body]
        if keeps and all(each["method"] == "sendTransaction" for each in requests):
            taken = [_taken(each) for each in requests]
            return web.json_response(taken if several else taken[0])
        answer = await rpc.post(body)
        answers = answer if several else [answer]
        methods = {each["id"]: each["method"] for each in requests}
        for each in answers:
            if "result" in each:
                try:
                    each["result"] = lie(methods[each["id"]], each["result"])
                except ChainOutOfReach:
                    return web.Response(status=503)
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/{which:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _taken(sending: dict[str, Any]) -> dict[str, Any]:
    raw = base64.b64decode(sending["params"][0])
    return {
        "jsonrpc": "2.0",
        "id": sending["id"],
        "result": str(Signature.from_bytes(raw[1:65])),
    }


def the_truth(method: str, result: Any) -> Any:
    del method
    return result


def nothing_there(method: str, result: Any) -> Any:
    """As a node does that has lost its accounts: no error, and null for each."""
    if method == "getMultipleAccounts":
        return {**result, "value": [None for _ in result["value"]]}
    return result


def deny_everything(method: str, result: Any) -> Any:
    """As if no transaction had ever happened."""
    match method:
        case "getSignatureStatuses":
            return {**result, "value": [None for _ in result["value"]]}
        case "getSignaturesForAddress":
            return []
        case "getTransaction":
            return None
        case _:
            return result
