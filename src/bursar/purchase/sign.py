"""Signs a purchase: once, ever. What was signed is committed before it leaves."""

import secrets
from contextlib import suppress
from functools import partial
from typing import Final

import asyncpg
import msgspec

from bursar.chain.sponsored import MOST_VARIATIONS, Sponsored
from bursar.custody.model import EMBEDDED, SealedKey
from bursar.custody.vault import KeyUnusable, Vault
from bursar.db import Database, Tx
from bursar.errors import BursarError, present
from bursar.purchase import mpp, pin_store, secret_store, sign_store, store, x402
from bursar.purchase.choose import Ground
from bursar.purchase.model import PurchaseRow, Signed
from bursar.purchase.offer import Offer
from bursar.purchase.order import Order
from bursar.purchase.secret_store import Kept, Quota, Sent
from bursar.purchase.view import PaymentHeader
from bursar.spend.store import Presenting

# How often another variation is tried when one is taken: by a purchase of the same moment, with the
# same terms, to the same seller.
_TRIES: Final = 5


class MayNotSign(BursarError):
    """Nothing was signed for this purchase, and the message says why."""


class PayeeChanged(MayNotSign):
    """The origin was pinned to another payee while a person had to approve."""


class OutflowsUnknown(MayNotSign):
    """After a failover or restore nobody knows yet what has left the wallet."""


class Beforehand:
    """Signs a purchase before its decision is written, to be committed with it: if it is not, what
    was signed is forgotten."""

    def __init__(
        self, signer: "Signer", purchase: PurchaseRow, ground: Ground, wallet_key: SealedKey
    ) -> None:
        self._signer = signer
        self._purchase = purchase
        self._ground = ground
        self._wallet_key = wallet_key
        # What was signed last.
        self._made: tuple[Signed, PaymentHeader, Kept] | None = None

    async def __call__(self, offer: Offer) -> Presenting | None:
        """None where the key cannot be used now."""
        with suppress(KeyUnusable):
            self._made = await self._signer.signed(
                self._purchase, offer, self._ground, self._wallet_key
            )
            signed, _, kept = self._made
            return Presenting(
                realm_id=self._purchase.realm_id,
                unanswered_millis=sign_store.UNANSWERED_MILLIS,
                **msgspec.structs.asdict(signed),
                **msgspec.structs.asdict(kept),
            )
        return None

    def committed(self) -> PaymentHeader:
        """The header that pays, once what was signed last is committed."""
        _, header, kept = present(self._made, "what was committed was signed")
        self._signer.quota.add(self._purchase.agent_id, kept)
        return header


class Signer:
    def __init__(self, db: Database, vault: Vault, quota: Quota) -> None:
        self._db = db
        self._vault = vault
        self.quota = quota

    def beforehand(
        self, purchase: PurchaseRow, order: Order, ground: Ground, wallet_key: SealedKey
    ) -> Beforehand | None:
        """None where there is more to be written with what is signed, and where others sign: that
        may take long, and the connection that writes would wait for them."""
        if _is_led(order, purchase) or wallet_key.provider != EMBEDDED:
            return None
        return Beforehand(self, purchase, ground, wallet_key)

    async def sign(
        self,
        purchase: PurchaseRow,
        offer: Offer,
        order: Order,
        ground: Ground,
        wallet_key: SealedKey,
        *,
        pins: bool = False,
    ) -> tuple[PurchaseRow, PaymentHeader] | None:
        """open | pending -> presented; None when the purchase ended meanwhile. `order` is what the
        seller was asked last, where redirects of its own led: there it is presented.

        `pins`: its payee is the first one that its origin named, and not pinned yet. Raises
        MayNotSign, upon which it is as it was, and KeyUnusable.
        """
        sent = None
        if _is_led(order, purchase):
            sent = secret_store.seal_order(
                self._vault, purchase.id, Sent(order=order, brought=None)
            )
        # Most often it is one statement; not where there is more to write with it.
        run = self._db.transact if pins or sent is not None else self._db.alone
        for attempt in range(_TRIES):
            signed, header, kept = await self.signed(purchase, offer, ground, wallet_key)
            try:
                stored = await run(
                    partial(
                        self._store,
                        purchase=purchase,
                        signed=signed,
                        header=header,
                        kept=kept,
                        sent=sent,
                        pins=pins,
                    )
                )
                if stored is not None:
                    self.quota.add(purchase.agent_id, kept)
                return stored
            except asyncpg.UniqueViolationError as problem:
                if problem.constraint_name != store.SIGNATURE_CONSTRAINT or attempt == _TRIES - 1:
                    raise
        return None

    async def signed(
        self, purchase: PurchaseRow, offer: Offer, ground: Ground, wallet_key: SealedKey
    ) -> tuple[Signed, PaymentHeader, Kept]:
        """What pays by this offer, and its header, sealed too. Nothing of it may leave before it is
        committed. Raises KeyUnusable."""
        fee_payer = present(offer.fee_payer, "a usable offer names who pays the fee")
        # By the memo a payment can be found on the chain after a restore. MPP takes none of ours.
        memo = offer.memo or (purchase.id if offer.protocol == "x402" else None)
        made = await self._vault.sign_sponsored(
            Sponsored(
                amount_micros=offer.amount_micros,
                source=wallet_key.address,
                destination=offer.pay_to,
                mint=ground.network.mint,
                decimals=ground.network.decimals,
                blockhash=ground.blockhash.hash,
                fee_payer=fee_payer,
                memo=memo,
                variation=secrets.randbelow(MOST_VARIATIONS),
            ),
            wallet_key,
        )
        signed = Signed(
            raw=made.raw,
            signature=made.signature,
            fee_payer=fee_payer,
            blockhash=ground.blockhash.hash,
            last_valid_height=ground.blockhash.last_valid_height,
            signed_slot=ground.blockhash.slot,
        )
        header = x402.signature_header if offer.protocol == "x402" else mpp.credential_header
        name, value = header(offer, made.raw)
        paying = PaymentHeader(name=name, value=value)
        return signed, paying, secret_store.seal_header(self._vault, purchase.id, paying)

    async def _store(
        self,
        tx: Tx,
        purchase: PurchaseRow,
        signed: Signed,
        header: PaymentHeader,
        kept: Kept,
        sent: Kept | None,
        pins: bool,
    ) -> tuple[PurchaseRow, PaymentHeader] | None:
        """Under the wallet's lock everything is checked again that could have changed."""
        if pins:
            await store.take_turns(tx, purchase.realm_id)
        standing, stored = await sign_store.present_purchase(tx, purchase, signed, kept)
        if standing.is_stopped:
            raise MayNotSign("The account was stopped before the payment was signed.")
        if not standing.is_approved:
            return None
        if standing.is_frozen:
            raise MayNotSign("The wallet is frozen: the chain holds less than the books say.")
        if not standing.outflows_are_known:
            raise OutflowsUnknown(
                "After a restore of the database this wallet's history is being compared with the"
                " chain. Try again in a minute; to the operator, `bursar doctor` says what it waits"
                " for."
            )
        if stored is None:
            return None
        if pins:
            await self._pin(tx, purchase)
        if sent is not None:
            await secret_store.keep(tx, stored, sent)
        return stored, header

    async def _pin(self, tx: Tx, purchase: PurchaseRow) -> None:
        pay_to = present(purchase.pay_to, "what was approved has a payee")
        pin = await pin_store.get_pin(tx, purchase.realm_id, purchase.origin)
        if pin is None:
            await pin_store.pin(tx, purchase.realm_id, purchase.origin, pay_to, purchase.created_by)
        elif pin.address != pay_to:
            raise PayeeChanged("The seller is paid at another address by now.")


def _is_led(order: Order, purchase: PurchaseRow) -> bool:
    """Whether the seller's own redirects led to something else than what was asked for."""
    return (order.url, order.method) != (purchase.url, purchase.method)
