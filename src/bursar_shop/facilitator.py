"""Settles payments of x402's scheme `exact`: checks that one is what the seller asked for, signs it
as the payer of its fee, submits it, and waits until it is confirmed.

The fee payer's signature is worth money, so a payment has to be exactly this and nothing more:

    SetComputeUnitLimit, SetComputeUnitPrice
    TransferChecked: this amount of this token, to this payee's token account
    memo, or none; the one that was asked for, if one was
"""

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import Final

from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from solders.transaction import VersionedTransaction

from bursar_shop.rpc import Node, NodeRefused

MEMO: Final = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
_TRANSFER_CHECKED: Final = b"\x0c"
_SET_LIMIT: Final = (2, 5)
_SET_PRICE: Final = (3, 9)
_DECIMALS: Final = b"\x06"
_MOST_PRICE_MICRO_LAMPORTS: Final = 5_000_000
_CONFIRM_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Price:
    """What is to be paid, and to whom. `memo` is what the payment has to say, if anything."""

    mint: str
    payee: str
    micros: int
    memo: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """`problem` is None when the payment is on the chain, as `signature`."""

    signature: str
    payer: str
    problem: str | None = None


class Unacceptable(ValueError):
    """The payment is not what was asked for; the message says in what."""


class Facilitator:
    def __init__(self, node: Node, key: Keypair) -> None:
        self.address = str(key.pubkey())
        self._node = node
        self._key = key

    async def settle(self, price: Price, payment: str) -> Settled:
        """Raises Unacceptable before anything was signed. The same payment again gives the same
        answer, and moves nothing twice: its signature is the same."""
        transaction = self.check(price, payment)
        signed = self.sign(transaction)
        signature, payer = str(signed.signatures[0]), str(signed.message.account_keys[1])
        try:
            await self._node.send(bytes(signed))
        except NodeRefused as refusal:
            # One that landed may be refused as too old, too.
            if refusal.reason != "AlreadyProcessed" and await self._node.status(signature) is None:
                return Settled(signature, payer, "transaction_failed")
        return Settled(signature, payer, await self._outcome(signature))

    def check(self, price: Price, payment: str) -> VersionedTransaction:
        """The transaction in a payment, if it is what the price asks for. Raises Unacceptable."""
        try:
            transaction = VersionedTransaction.from_bytes(base64.b64decode(payment, validate=True))
        except (binascii.Error, ValueError):
            raise Unacceptable("it is no transaction") from None
        message = transaction.message
        if not isinstance(message, MessageV0) or message.address_table_lookups:
            raise Unacceptable("it is no plain transaction of version 0")
        keys = message.account_keys
        if message.header.num_required_signatures != 2 or keys[0] != self._key.pubkey():
            raise Unacceptable("the payer and this facilitator sign it, and nobody else")
        if not transaction.signatures[1].verify(keys[1], to_bytes_versioned(message)):
            raise Unacceptable("the payer did not sign it")
        _check_instructions(message, keys, price)
        return transaction

    def sign(self, transaction: VersionedTransaction) -> VersionedTransaction:
        """The same with the fee payer's signature in its place."""
        message = transaction.message
        ours = self._key.sign_message(to_bytes_versioned(message))
        return VersionedTransaction.populate(message, [ours, *transaction.signatures[1:]])

    async def _outcome(self, signature: str) -> str | None:
        """None once it is confirmed; else why not. What is still open may land later."""
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS):
                while True:
                    status = await self._node.status(signature)
                    if status is not None and status["confirmationStatus"] != "processed":
                        return None if status["err"] is None else "transaction_failed"
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return "settlement_pending"


def _check_instructions(message: MessageV0, keys: list[Pubkey], price: Price) -> None:
    calls = message.instructions
    if len(calls) not in (3, 4):
        raise Unacceptable("it has other instructions than a payment has")
    programs = [keys[call.program_id_index] for call in calls]
    if programs != [COMPUTE_BUDGET, COMPUTE_BUDGET, TOKEN, MEMO][: len(calls)]:
        raise Unacceptable("it has other instructions than a payment has")
    if any(0 in call.accounts for call in calls):
        raise Unacceptable("the payer of the fee pays nothing else")
    limit, fee, transfer = (bytes(call.data) for call in calls[:3])
    if (limit[:1], len(limit)) != (bytes(_SET_LIMIT[:1]), _SET_LIMIT[1]):
        raise Unacceptable("the compute limit comes first")
    if (fee[:1], len(fee)) != (bytes(_SET_PRICE[:1]), _SET_PRICE[1]):
        raise Unacceptable("the compute price comes second")
    if int.from_bytes(fee[1:], "little") > _MOST_PRICE_MICRO_LAMPORTS:
        raise Unacceptable("the compute price is too high")
    payee, mint = Pubkey.from_string(price.payee), Pubkey.from_string(price.mint)
    asked = _TRANSFER_CHECKED + price.micros.to_bytes(8, "little") + _DECIMALS
    accounts = [keys[at] for at in calls[2].accounts]
    source, target = (get_associated_token_address(owner, mint) for owner in (keys[1], payee))
    if transfer != asked or accounts != [source, mint, target, keys[1]]:
        raise Unacceptable("it pays another amount, token or payee")
    memo = bytes(calls[3].data).decode(errors="replace") if len(calls) == 4 else None
    if price.memo is not None and memo != price.memo:
        raise Unacceptable("it has another memo")
