"""What the database says of payments, and what the chain says of them."""

from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import asyncpg

from bursar.chain.message import token_account
from bursar.db import OUT_OF_REACH, Database
from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import Rpc

_OPEN = (
    "SELECT (SELECT count(*) FROM spend WHERE status IN ('approved', 'pending'))"
    " + (SELECT count(*) FROM withdrawal WHERE status = 'pending')"
    " + (SELECT count(*) FROM payment WHERE state IN ('waiting', 'live'))"
)


async def nothing_open(db: Database) -> bool:
    try:
        async with db.connection() as tx:
            return await tx.fetchval(_OPEN) == 0
    except (*OUT_OF_REACH, asyncpg.PostgresError):
        return False  # the last kill may have been the database's


async def ledger_is_chain(rpc: Rpc, db: Database) -> bool:
    """To the micro-unit, with nothing reserved; of all wallets that ever had money."""
    async with db.connection() as tx:
        wallets = await tx.fetch(
            "SELECT address, debits_pending, credits_posted - debits_posted AS balance FROM wallet"
            " WHERE credits_posted > 0"
        )
    for wallet in wallets:
        account = token_account(wallet["address"], TEST_MINT)
        held = (await rpc("getTokenAccountBalance", account))["value"]["amount"]
        if wallet["debits_pending"] != 0 or int(held) != wallet["balance"]:
            return False
    return True


async def paid_times(rpc: Rpc, owners: Iterable[str]) -> Counter[tuple[str, str]]:
    """How often each owner paid each memo, according to the chain."""
    memos: Counter[tuple[str, str]] = Counter()
    for owner in owners:
        async for memo in _memos(rpc, owner):
            memos[owner, memo] += 1
    return memos


async def _memos(rpc: Rpc, owner: str) -> AsyncGenerator[str]:
    """Of every transaction that succeeded and took money out of the owner's token account."""
    account = token_account(owner, TEST_MINT)
    before: dict[str, str] = {}
    while True:
        page = await rpc("getSignaturesForAddress", account, {"limit": 1000} | before)
        for line in page:
            if line["err"] is not None or line["memo"] is None:
                continue
            config = {"encoding": "json", "maxSupportedTransactionVersion": 0}
            found = await rpc("getTransaction", line["signature"], config)
            if _held(found, account, "pre") > _held(found, account, "post"):
                yield line["memo"].partition("] ")[2]
        if len(page) < 1000:
            return
        before = {"before": page[-1]["signature"]}


def _held(found: Any, account: str, when: str) -> int:
    index = found["transaction"]["message"]["accountKeys"].index(account)
    lines = [b for b in found["meta"][f"{when}TokenBalances"] if b["accountIndex"] == index]
    return int(lines[0]["uiTokenAmount"]["amount"]) if lines else 0
