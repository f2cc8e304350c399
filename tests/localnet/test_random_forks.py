"""Goal: after any mix of payments, failures, forks and time, disk and memory hold the same chain.

The seed is printed; the money in all token accounts is always what was minted.
"""

import contextlib
import random
from pathlib import Path

from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from bursar_localnet.chain import Chain, Refused, open_chain
from bursar_localnet.genesis import TEST
from bursar_localnet.slots import Lag
from bursar_localnet.tokens import read_mint, read_token_account
from bursar_localnet.wire import parse_transaction
from tests.localnet.support import MINT, payment
from tests.localnet.test_slots import ManualClock

STEPS = 600
LEVELS = ("processed", "confirmed", "finalized")


async def test_random_forks(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    clock = ManualClock()
    chain = open_chain(tmp_path, TEST, clock, 400, Lag(2, 32))
    wallets = [Keypair() for _ in range(6)]
    for wallet in wallets:
        chain.airdrop(wallet.pubkey(), 10_000_000_000)
        chain.mint_to(wallet.pubkey(), 1_000)
    clock.pass_ms(400 * 40)
    sent: list[bytes] = []
    for step in range(STEPS):
        action = chance.random()
        if action < 0.8:
            payer, to = chance.sample(wallets, 2)
            blockhash = Hash(chain.slots.blockhash(chain.slots.processed))
            # Often more than there is: some fail, some land failed, some need an earlier one.
            amount = chance.randrange(1, 900)
            signed = payment(payer, to.pubkey(), amount, blockhash, f"step {step}")
            with contextlib.suppress(Refused):
                sent.append(
                    chain.submit(
                        parse_transaction(bytes(signed)), chance.choice([None, "processed"])
                    )
                )
        elif action < 0.9 and sent:
            lost = chance.choice(sent[-20:])
            try:
                for gone in chain.fork_away(lost):
                    assert chain.find(gone) is None
            except KeyError:
                found = chain.find(lost)
                assert found is None or chain.level_of(found.slot) == "finalized"
        else:
            clock.pass_ms(chance.randrange(2_000))
        check_supply(chain, wallets)
        if chance.random() < 0.1:
            await chain.durable()
    await chain.durable()
    before = state(chain, wallets)
    chain.close()
    again = open_chain(tmp_path, TEST, clock, 400, Lag(2, 32))
    assert state(again, wallets) == before
    again.close()


def check_supply(chain: Chain, wallets: list[Keypair]) -> None:
    for level in LEVELS:
        mint = chain.account(MINT, level)
        assert mint is not None
        known = read_mint(mint)
        assert known is not None
        held = [chain.account(account_of(wallet), level) for wallet in wallets]
        tokens = [read_token_account(account) for account in held if account is not None]
        assert sum(token.amount for token in tokens if token) == known.supply == 6_000


def state(chain: Chain, wallets: list[Keypair]) -> list[object]:
    addresses = [MINT, *(w.pubkey() for w in wallets), *map(account_of, wallets)]
    history = [
        landed.signature
        for landed in chain.mentioning(MINT, "processed", before=None, until=None, limit=1_000)
    ]
    return [*(chain.account(address, "processed") for address in addresses), history]


def account_of(wallet: Keypair) -> Pubkey:
    return get_associated_token_address(wallet.pubkey(), MINT)
