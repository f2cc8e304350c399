"""What payments cost in SOL: a fee each, and the rent of a token account for a payee without one.

All accounts share one fee payer, so each agent and each account has a budget per UTC day. A spend
reserves the most it may cost when it is decided; when it ends, its real cost replaces that.
"""

from datetime import date
from math import inf
from typing import Final, NamedTuple

from bursar.chain.message import EMPTY_ACCOUNT_LAMPORTS, fee_lamports

# How often an account pays for opening the same payee's token account. A payee that closes it keeps
# the rent, so after this many times the payee has to open it.
MOST_OPENINGS: Final = 3


class Attempt(NamedTuple):
    """An attempt to pay that is about to be stored, and what it costs at most."""

    payment_id: str
    realm_id: int
    address: str
    opens_account: bool
    lamports: int


class Runway(NamedTuple):
    """What the fee payer of a mode holds, and what all payments cost on an average recent day."""

    lamports: int
    daily_lamports: int

    @property
    def payments(self) -> int:
        """How many payments the balance is enough for: without priority fee, to payees with a token
        account."""
        return max(self.lamports - EMPTY_ACCOUNT_LAMPORTS, 0) // fee_lamports(0, 1)

    @property
    def days(self) -> float:
        return self.lamports / self.daily_lamports if self.daily_lamports else inf


class Charge(NamedTuple):
    """What an account is charged for a payment, on the day it was signed. May be negative."""

    realm_id: int
    day: date
    lamports: int
