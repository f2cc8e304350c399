"""Money that left a wallet without Bursar: into the books, once a person has looked at it."""

from bursar.chain.message import token_account
from bursar.chain.port import Chain, Landed, Paid
from bursar.config import Mode
from bursar.db import Database, Tx
from bursar.errors import CommandFailed, present
from bursar.ledger import book, lock
from bursar.policy.cache import PolicyCache
from bursar.settlement import books_store, payment_store
from bursar.wallet import store as wallet_store
from bursar.withdrawal import store as withdrawal_store
from bursar.withdrawal import withdraw as withdrawals
from bursar.withdrawal.model import WithdrawalRow

ADOPTED = "made outside Bursar"


async def adopt(
    db: Database,
    chain: Chain,
    *,
    mode: Mode,
    mint: str,
    network: str,
    agent_id: str,
    signature: str,
) -> WithdrawalRow:
    """A finalized transaction that took money out of the wallet becomes a settled withdrawal, in
    the name of `system`. Raises CommandFailed when it is no such thing or is in the books already,
    and ApiError when so much is reserved that the rest does not cover it."""
    async with db.connection() as tx:
        found = await wallet_store.watched_wallets(tx, [agent_id])
        wallet = found[0] if found and await books_store.mode_of(tx, agent_id) == mode else None
    if wallet is None:
        raise CommandFailed(f"There is no agent {agent_id} in {mode} mode.")
    account = token_account(wallet.address, mint)
    landed = await chain.transaction(signature)
    if landed is None:
        raise CommandFailed(f"The {mode} network knows no finalized transaction {signature}.")
    taken = -landed.moved(account, mint)
    if taken <= 0:
        raise CommandFailed(f"{signature} took no USDC out of {wallet.address}.")

    async def work(tx: Tx) -> WithdrawalRow:
        await lock.lock_agents(tx, [agent_id], [wallet.realm_id])
        if await books_store.in_the_books(tx, account, [signature]):
            raise CommandFailed(f"{signature} is in the books already.")
        bought = await books_store.presented_with(tx, landed.signatures)
        if bought:
            raise CommandFailed(
                f"{signature} pays for the purchase {', '.join(bought)}. The worker settles it."
            )
        ours = await books_store.still_to_pay(tx, landed.memos)
        if ours:
            raise CommandFailed(
                f"{signature} is the payment {', '.join(ours)}. The worker finds and settles it;"
                " one that waits for approval has to be approved or denied first, and a purchase"
                " that was not signed for has to end."
            )
        receiver = _receiver(landed, mint)
        if receiver is not None:
            # No memo has to name a purchase, so what a restore forgot to have signed is known by
            # its price and payee alone. If it went on as if unsigned, it would be paid twice.
            bought = await books_store.unsigned_purchases(tx, agent_id, taken, receiver)
            if bought:
                raise CommandFailed(
                    f"{signature} may have paid for {', '.join(bought)}, of the same price and"
                    " payee, which can still be signed. Let it end first: deny it if it waits for"
                    " approval; one that was approved ends by itself"
                    " (BURSAR_PURCHASES_CONTINUE_SECONDS)."
                )
        row = await withdrawals.withdraw(
            tx,
            realm_id=wallet.realm_id,
            agent_id=agent_id,
            amount_micros=taken,
            destination=receiver or mint,
            memo=ADOPTED,
            metadata={},
            network=network,
            created_by="system",
            request_id="adopt",
        )
        await payment_store.adopt_payment(tx, row.id)
        # Money did leave: if the wallet was stopped for it, that was right.
        await wallet_store.forget_stop(tx, agent_id)
        locked = (await lock.lock_agents(tx, [agent_id], [wallet.realm_id]))[agent_id]
        await withdrawals.settle_withdrawals(
            tx,
            {agent_id: locked.wallet},
            [Paid(row.id, signature, landed.block_time, landed.fee_lamports)],
        )
        await book.save_balances(tx, PolicyCache(), [locked])
        settled = await withdrawal_store.get_withdrawal(tx, wallet.realm_id, row.id)
        return present(settled, "what was just settled is found")

    return await db.transact(work)


def _receiver(landed: Landed, mint: str) -> str | None:
    """Who got the most of it; None when it was burned."""
    got = [m for m in landed.movements if m.mint == mint and m.delta_micros > 0]
    return max(got, key=lambda m: m.delta_micros).owner if got else None
