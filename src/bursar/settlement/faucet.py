"""The test faucet: mints test USDC on the chain, and waits until it is noticed like any other."""

import asyncio
import contextlib
import hashlib
from datetime import timedelta
from typing import Final, Protocol

import msgspec
from solders.pubkey import Pubkey

from bursar.access.model import IdempotencyKey
from bursar.chain.message import token_account
from bursar.chain.port import ChainOutOfReach
from bursar.db import Database
from bursar.ids import new_id
from bursar.wallet import store
from bursar.wallet.model import DepositRow, WalletRow

MOST_MICROS: Final = 1_000_000 * 1_000_000
WAIT_SECONDS: Final = 10
_PAUSE: Final = timedelta(milliseconds=100)


class TestFunds(Protocol):
    async def mint(self, owner: str, amount_micros: int, reference: str | None) -> str:
        """Mints test USDC to an owner's token account, by the same reference once; returns the
        signature."""
        ...

    async def look_at(self, agent_id: str) -> None:
        """Credits what came into the wallet."""
        ...


async def fund(
    db: Database,
    funds: TestFunds,
    realm_id: int,
    wallet: WalletRow,
    micros: int,
    key: IdempotencyKey | None,
) -> DepositRow:
    """The deposit, credited; or as it stands after ten seconds. With the same key it is the same
    deposit, whichever process was asked and whatever became of it: the chain remembers."""
    reference = None if key is None else _reference(key, wallet)
    signature = await funds.mint(wallet.address, micros, reference)
    async with db.connection() as tx:
        row = await store.insert_deposit(
            tx,
            deposit_id=new_id("dep"),
            realm_id=realm_id,
            agent_id=wallet.agent_id,
            amount_micros=micros,
            token_account=token_account(wallet.address, wallet.mint),
            signature=signature,
        )
    ends = asyncio.get_running_loop().time() + WAIT_SECONDS
    while row.status == "pending" and asyncio.get_running_loop().time() < ends:
        # The money is minted: a chain that goes away now must not look as if it were not.
        with contextlib.suppress(ChainOutOfReach):
            await funds.look_at(wallet.agent_id)
        async with db.connection() as tx:
            row = await store.get_deposit(tx, realm_id, row.id) or row
        if row.status == "pending":
            await asyncio.sleep(_PAUSE.total_seconds())
    return row


def _reference(key: IdempotencyKey, wallet: WalletRow) -> str:
    """The address that stands for this request on the chain, and for nothing else. The wallet's own
    is in it because a chain may outlive a database, whose accounts are numbered from 1."""
    told = msgspec.json.encode([*key.place, key.fingerprint.hex(), wallet.address])
    return str(Pubkey(hashlib.sha256(told).digest()))
