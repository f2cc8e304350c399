"""Sellers as tests see them, and what the chain says they were paid."""

from dataclasses import dataclass
from typing import Any

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from tests.localnet.support import MINT, Rpc


@dataclass(frozen=True, slots=True)
class Seller:
    """`url` is what is sold, for `price_micros` to `payee`, by `protocol`."""

    url: str
    price_micros: int
    payee: str
    protocol: str


async def new_payee(chain: Rpc) -> str:
    """An address that has a token account: nobody can open one inside a purchase."""
    payee = str(Keypair().pubkey())
    await chain("bursar_faucet", payee, 1)
    return payee


async def transfers(chain: Rpc, buyer: Pubkey, payee: str) -> list[int]:
    """What left the buyer's token account for the payee's, the oldest first, by the chain alone."""
    source = str(get_associated_token_address(buyer, MINT))
    target = str(get_associated_token_address(Pubkey.from_string(payee), MINT))
    history = await chain("getSignaturesForAddress", source)
    options = {"encoding": "jsonParsed", "maxSupportedTransactionVersion": 0}
    landed = [await chain("getTransaction", row["signature"], options) for row in history]
    moved = [_moved(transaction, target) for transaction in reversed(landed)]
    return [micros for micros in moved if micros]


def _moved(transaction: dict[str, Any], target: str) -> int:
    keys = [key["pubkey"] for key in transaction["transaction"]["message"]["accountKeys"]]

    def held(when: str) -> int:
        balances = transaction["meta"][when]
        return sum(
            int(balance["uiTokenAmount"]["amount"])
            for balance in balances
            if keys[balance["accountIndex"]] == target
        )

    return held("postTokenBalances") - held("preTokenBalances")
