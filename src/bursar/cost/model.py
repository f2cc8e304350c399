"""What payments cost in SOL: a fee each, and the rent of a token account for a payee without one.

The fee payer is everybody's, so each agent and each account has a budget a UTC day. A spend holds
what it may cost from its decision on; when it ends, what it did cost takes the place of that.
"""

from datetime import date
from math import inf
from typing import Final, NamedTuple

from bursar.chain.message import EMPTY_ACCOUNT_LAMPORTS, fee_lamports

# How often an account pays for opening the token account of one payee, ever. Whoever closes it
# again keeps the rent; after that many times he has to open it himself.
MOST_OPENINGS: Final = 3


class Attempt(NamedTuple):
    """An attempt to pay that is about to be stored, and what it costs at most."""

    payment_id: str
    realm_id: int
    address: str
    opens_account: bool
    lamports: int


class Runway(NamedTuple):
    """What the fee payer of a mode holds, and what all accounts cost on an average day of late."""

    lamports: int
    daily_lamports: int

    @property
    def payments(self) -> int:
        """To payees that have a token account, without a priority fee."""
        return max(self.lamports - EMPTY_ACCOUNT_LAMPORTS, 0) // fee_lamports(0, 1)

    @property
    def days(self) -> float:
        return self.lamports / self.daily_lamports if self.daily_lamports else inf


class Charge(NamedTuple):
    """What an account is charged for a payment, on the day it was signed. May be negative."""

    realm_id: int
    day: date
    lamports: int
