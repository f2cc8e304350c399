"""Purchases on the stage: made of the same parts that a request to buy uses, without a seller."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.transaction import VersionedTransaction

from bursar.custody import store as custody_store
from bursar.db import Database
from bursar.ids import new_id
from bursar.policy.cache import PolicyCache
from bursar.purchase import secret_store, store
from bursar.purchase.buy import MOST
from bursar.purchase.choose import Choice, pinned_network, read_ground
from bursar.purchase.decide import Judge, Priced
from bursar.purchase.follow import Follower
from bursar.purchase.model import PurchaseRow
from bursar.purchase.offer import Offer
from bursar.purchase.order import Order
from bursar.purchase.seller import SellerAnswer
from bursar.purchase.sign import Signer
from bursar.recipient.resolve import Directory
from bursar.spend.model import bounds_of
from bursar_localnet.genesis import TEST_MINT
from tests.settlement.support import Stage


def an_order() -> Order:
    """To a seller of its own: the first payee of an origin is the only one."""
    return Order(f"https://{secrets.token_hex(8)}.example/weather", "GET", (), b"")


@dataclass
class Bought:
    """A presented purchase, and what a facilitator needs to settle it."""

    stage: Stage
    row: PurchaseRow
    raw: bytes
    facilitator: Keypair

    async def settle(self, **options: Any) -> str:
        """As a facilitator does: signs as the payer of the fee, and submits."""
        signed = countersigned(self.raw, self.facilitator)
        return await self.stage.rpc.send(signed, **options)

    async def answer(self, claimed: str) -> None:
        """As the seller does: with the goods, and what it says that the payment became."""
        order = Order(self.row.url, self.row.method, (), b"")
        answer = SellerAnswer(200, (), b"goods", False, order)
        response = secret_store.as_response(answer)
        kept = secret_store.seal_response(self.stage.vault, self.row.id, response)
        async with self.stage.db.transaction() as tx:
            await store.answered(tx, self.row.id, kept, claimed)

    async def now(self) -> PurchaseRow:
        async with self.stage.db.connection() as tx:
            (row,) = await store.get_purchases(tx, [self.row.id])
        return row

    async def spend(self) -> Any:
        async with self.stage.db.connection() as tx:
            return await tx.fetchrow("SELECT * FROM spend WHERE purchase_id = $1", self.row.id)


def countersigned(raw: bytes, facilitator: Keypair) -> VersionedTransaction:
    given = VersionedTransaction.from_bytes(raw)
    theirs = facilitator.sign_message(to_bytes_versioned(given.message))
    return VersionedTransaction.populate(given.message, [theirs, *given.signatures[1:]])


async def open_purchase(
    db: Database, agent_id: str, order: Order | None = None, max_micros: int | None = None
) -> PurchaseRow:
    """Stored, and the seller not asked yet."""
    order = order or an_order()
    async with db.transaction() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
        new = store.NewPurchase(
            id=new_id("pur"),
            realm_id=realm_id,
            agent_id=agent_id,
            mode="test",
            url=order.url,
            method=order.method,
            host=order.host,
            origin=order.origin,
            max_micros=max_micros,
            memo=None,
            metadata={},
            brought=False,
            digest=secrets.token_bytes(32),
            idempotency_key=None,
            fingerprint=None,
            created_by="key_test",
            created_at=await tx.fetchval("SELECT moment()"),
            reject_code=None,
            refusal=None,
        )
        begun = await store.begin(tx, new, MOST, busy_seconds=60)
    assert begun is not None
    return begun.purchase


async def price(stage: Stage, purchase: PurchaseRow, offer: Offer) -> PurchaseRow:
    """Decided; it stays open where it was approved."""
    config = stage.config
    judge = Judge(PolicyCache(), Directory(), bounds_of(config), approval_seconds=600)

    async def work(tx: Any) -> Priced | None:
        return await judge.price_under_locks(
            tx, purchase, lambda _: Choice(offer, True), "solana:localnet", takes_turn=True
        )

    priced = await stage.db.transact(work)
    assert priced is not None
    return priced.purchase


def offered(micros: int, facilitator: Keypair, payee: str) -> Offer:
    return Offer(
        protocol="x402",
        scheme="exact",
        network="solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1",
        asset=TEST_MINT,
        amount=str(micros),
        pay_to=payee,
        fee_payer=str(facilitator.pubkey()),
        memo=None,
        echo={},
    )


async def new_payee(stage: Stage) -> str:
    """An address that has a token account."""
    payee = str(Keypair().pubkey())
    await stage.rpc("bursar_faucet", payee, 1)
    return payee


async def buy(
    stage: Stage,
    agent: dict[str, Any],
    micros: int = 1_500,
    payee: str | None = None,
    nodes: Sequence[str] = (),
) -> Bought:
    """Asked, approved, signed and stored; what the seller does with it is up to the test. `nodes`
    are asked before it is signed; none means the localnet."""
    await note_history(stage)
    facilitator = await stage.rpc.wallet()
    offer = offered(micros, facilitator, payee or await new_payee(stage))
    priced = await price(stage, await open_purchase(stage.db, agent["id"]), offer)
    return await sign(stage, agent, priced, offer, facilitator, nodes)


async def sign(
    stage: Stage,
    agent: dict[str, Any],
    priced: PurchaseRow,
    offer: Offer,
    facilitator: Keypair,
    nodes: Sequence[str] = (),
) -> Bought:
    chain = await stage.chain(*nodes)
    async with stage.db.connection() as tx:
        network = await pinned_network(tx, "test")
        keys = await custody_store.wallet_keys(tx, [agent["id"]])
    ground = await read_ground(chain, network, [offer.pay_to])
    signer = Signer(stage.db, stage.vault, secret_store.Quota(stage.db))
    order = Order(priced.url, priced.method, (), b"")
    signed = await signer.sign(priced, offer, order, ground, keys[agent["id"]])
    assert signed is not None
    async with stage.db.connection() as tx:
        raw = await tx.fetchval("SELECT raw FROM purchase WHERE id = $1", priced.id)
    return Bought(stage, signed[0], raw, facilitator)


async def note_history(stage: Stage) -> None:
    """As the worker does when it starts."""
    await (await stage.settler()).note_history()


async def follower(stage: Stage, *addresses: str) -> Follower:
    return Follower(stage.db, await stage.chain(*addresses), PolicyCache(), "test")


async def follow(stage: Stage, worker: Follower, times: int = 1) -> None:
    """Rounds with everything due, as if the pauses and leases had passed."""
    for _ in range(times):
        async with stage.db.connection() as tx:
            await tx.execute(
                "UPDATE purchase SET next_check_at = clock_timestamp() WHERE status = 'presented'"
            )
        await worker.follow()
