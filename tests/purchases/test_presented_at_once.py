"""Goal: what is signed before its decision is written is committed with it or with nothing, and
leaves the books as the steps by themselves would."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import asyncpg
import pytest
from solders.keypair import Keypair

from bursar.custody.vault import Vault
from bursar.purchase import secret_store
from bursar.purchase.choose import Ground
from bursar.purchase.decide import Priced
from bursar.purchase.offer import Offer
from bursar.purchase.order import Order
from bursar.purchase.sign import Signer
from bursar.spend.store import Presenting
from tests.databases import until_waited_for
from tests.purchases.market import Market, shown
from tests.purchases.test_prices import NETWORK, OTHER, Desk, desk


class Signing:
    """Signs for a purchase as often as it is asked to."""

    def __init__(self, found: Desk, signature: str | None = None) -> None:
        self.found = found
        # Of the newest master key.
        self.master = 0
        self.signature = signature or f"signed-{secrets.token_hex(8)}"
        self.offers: list[Offer] = []

    async def __call__(self, offer: Offer) -> Presenting:
        self.offers.append(offer)
        purchase = self.found.purchase
        return Presenting(
            realm_id=purchase.realm_id,
            raw=b"signed bytes",
            signature=self.signature,
            fee_payer=str(Keypair().pubkey()),
            blockhash="blockhash",
            last_valid_height=200,
            signed_slot=50,
            unanswered_millis=500,
            owner=f"{purchase.id}:header",
            kind="header",
            master_version=self.master,
            sealed=b"sealed",
            bytes=6,
            days=1,
        )

    async def at_once(self) -> Priced | None:
        found = self.found
        await self._ready()
        return await found.judge.price_at_once(
            found.market.db, found.purchase, found.read, found.choose, NETWORK, self
        )

    async def priced(self) -> Priced | None:
        found = self.found
        await self._ready()
        return await found.judge.price(
            found.market.db, found.purchase, found.read, found.choose, NETWORK, self
        )

    async def _ready(self) -> None:
        async with self.found.market.db.connection() as tx:
            self.master = await tx.fetchval("SELECT min(version) FROM master_key")


async def _row(found: Desk) -> asyncpg.Record:
    async with found.market.db.connection() as tx:
        row = await tx.fetchrow("SELECT * FROM purchase WHERE id = $1", found.purchase.id)
    assert row is not None
    return row


async def _headers(found: Desk) -> int:
    async with found.market.db.connection() as tx:
        return await tx.fetchval(
            "SELECT count(*) FROM purchase_secret WHERE purchase_id = $1 AND kind = 'header'",
            found.purchase.id,
        )


async def test_it_is_presented_with_its_price(market: Market):
    """Goal: one commit has the spend, the price, what was signed and its header; what the process
    goes on with is what was written. Nothing of it is settlement's to pay."""
    found = await desk(market)
    signing = Signing(found)
    priced = await signing.at_once()
    assert priced is not None
    assert signing.offers == [found.choice.offer]
    row, told = await _row(found), priced.purchase
    names = ("status", "reject_code", "protocol", "amount_micros", "pay_to", "spend_id",
             "signature", "fee_payer", "last_valid_height", "signed_slot", "signed_at",
             "updated_at", "busy_until", "problem")  # fmt: skip
    assert {name: row[name] for name in names} == {name: getattr(told, name) for name in names}
    assert (told.status, told.signature, row["raw"]) == (
        "presented", signing.signature, b"signed bytes")  # fmt: skip
    assert row["next_check_at"] > row["signed_at"]
    assert (await found.spends(), await _headers(found)) == (1, 1)
    async with market.db.connection() as tx:
        assert not await tx.fetchval(
            "SELECT EXISTS (SELECT FROM payment WHERE id = $1)", told.spend_id
        )
    assert (await found.agent.balance())["available"] == "1.600000"


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ({"policy": {"approvalThreshold": "0.2"}}, "pending"),
        ({"policy": {"dailyCap": "0.39"}}, "rejected"),
        ({"funds": "0.3"}, "rejected"),
        ({"has_account": False}, "rejected"),
    ],
    ids=str,
)
async def test_what_is_not_approved_is_not_signed(
    market: Market, case: dict[str, Any], status: str
):
    found = await desk(market, **case)
    signing = Signing(found)
    priced = await signing.priced()
    assert priced is not None
    assert (priced.purchase.status, signing.offers) == (status, [])
    row = await _row(found)
    assert (row["status"], row["signature"], await _headers(found)) == (status, None, 0)


async def _freeze_wallet(found: Desk) -> None:
    await found.run("UPDATE wallet SET is_frozen = true WHERE agent_id = $1", found.agent.id)


async def _restored(found: Desk) -> None:
    """As after a failover: what left this wallet is not known yet."""
    await found.run(
        "UPDATE settlement_watch SET timeline = timeline || 'x' WHERE mode = 'test' AND $1 <> ''",
        found.agent.id,
    )


async def _known_again(found: Desk) -> None:
    await found.run("UPDATE settlement_watch SET timeline = history() WHERE mode = 'test'")


async def _accept_another_payee(found: Desk) -> None:
    await found.run(
        f"UPDATE pin SET address = '{OTHER}' WHERE realm_id = $1", found.purchase.realm_id
    )


async def _stop(found: Desk) -> None:
    body = {"reason": "a test", "alsoUnsigned": True}
    shown(await found.agent.admin.post("/v1/stop", json=body))


async def _pause(found: Desk) -> None:
    agent = found.agent
    shown(await agent.admin.patch(f"/v1/agents/{agent.id}", json={"status": "paused"}))


@pytest.mark.parametrize(
    ("change", "raises", "status"),
    [
        (_freeze_wallet, True, "open"),
        (_accept_another_payee, True, "rejected"),
        (_stop, False, "rejected"),
        (_pause, False, "rejected"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_what_changed_since_keeps_what_was_signed_back(
    market: Market, change: Callable[[Desk], Awaitable[None]], raises: bool, status: str
):
    """Goal: nothing is written with it, no spend and no signature. Then the steps by themselves
    say what holds: one that is still approved is open, and its signer is told why not."""
    found = await desk(market)
    await change(found)
    signing = Signing(found)
    if raises:
        with pytest.raises(asyncpg.SerializationError):
            await signing.at_once()
    else:
        assert await signing.at_once() is None
    assert (await found.spends(), await _headers(found)) == (0, 0)
    priced = await signing.priced()
    assert priced is not None
    assert priced.purchase.status == status
    assert (await _row(found))["signature"] is None


async def test_after_a_failover_nothing_is_presented_before_outflows_are_known(market: Market):
    found = await desk(market)
    await _restored(found)
    try:
        with pytest.raises(asyncpg.SerializationError):
            await Signing(found).at_once()
        assert await found.spends() == 0
    finally:
        await _known_again(found)


async def test_a_signature_that_is_taken_is_not_used_again(market: Market):
    """Goal: of two purchases whose bytes are the same, the second gets its price and no signature:
    its signer tries another."""
    first, second = await desk(market), await desk(market)
    priced = await Signing(first, "the same").priced()
    assert priced is not None
    assert priced.purchase.status == "presented"
    priced = await Signing(second, "the same").priced()
    assert priced is not None
    assert (priced.purchase.status, (await _row(second))["signature"]) == ("open", None)
    assert (await second.spends(), await _headers(second)) == (1, 0)


async def test_where_the_database_does_not_know_how_the_steps_do(
    market: Market, monkeypatch: pytest.MonkeyPatch
):
    """Goal: migration 0007 may come after the deploy; it is used without a restart, but not looked
    for each time."""
    found, later, last = await desk(market), await desk(market), await desk(market)
    later.judge = last.judge = found.judge
    rename = "ALTER FUNCTION {} RENAME TO {}"
    await found.run(rename.format("present_purchase", "not_yet"))
    try:
        priced = await Signing(found).priced()
    finally:
        await found.run(rename.format("not_yet", "present_purchase"))
    assert priced is not None
    assert (priced.purchase.status, priced.spend.verdict) == ("open", "approved")
    assert await found.spends() == 1
    signing = Signing(later)
    assert await signing.priced() is not None
    assert signing.offers == []
    monkeypatch.setattr(found.judge, "_presents_at_once_from", 0.0)
    priced = await Signing(last).priced()
    assert priced is not None
    assert priced.purchase.status == "presented"


async def test_a_stop_in_between_comes_first(market: Market):
    """Goal: whoever is about to stop the account has its row; what is signed meanwhile waits for
    it, and is not presented."""
    found = await desk(market)
    signing = Signing(found)
    async with market.db.transaction() as tx:
        await tx.execute(
            "UPDATE realm SET stopped_at = moment(), stopped_by = 'key_1', stop_reason = 'a test',"
            " stop_holds_unsigned = true WHERE id = $1",
            found.purchase.realm_id,
        )
        pricing = asyncio.create_task(signing.at_once())
        await until_waited_for(tx)
    priced = await pricing
    assert priced is None
    assert (await found.spends(), await _headers(found)) == (0, 0)


async def test_what_was_presented_is_not_priced_again(market: Market):
    """Goal: were it tried, the database would refuse."""
    found = await desk(market)
    signing = Signing(found)
    assert await signing.priced() is not None
    with pytest.raises(asyncpg.UniqueViolationError):
        await signing.priced()
    assert await found.spends() == 1


async def test_what_others_sign_holds_no_connection(market: Market):
    """Goal: a provider of keys that takes long keeps nobody from the database: it is asked between
    two commits."""
    found = await desk(market)
    signer = Signer(market.db, cast("Vault", None), secret_store.Quota(market.db))
    order = Order(found.purchase.url, "GET", (), b"")
    ground = cast("Ground", None)
    ours = found.read.wallet_key
    theirs = replace(ours, provider="my-kms")
    assert signer.beforehand(found.purchase, order, ground, ours) is not None
    assert signer.beforehand(found.purchase, order, ground, theirs) is None
