"""Payments for the chain's tests, signed by a vault as the worker will."""

from dataclasses import dataclass, replace

from solders.keypair import Keypair

from bursar.chain.message import Payment
from bursar.chain.solana import Solana
from bursar.custody.master import MasterKeys
from bursar.custody.model import SealedKey, SignedPayment
from bursar.custody.vault import Vault
from bursar_localnet.genesis import TEST_MINT
from tests.localnet.support import LAMPORTS_PER_SOL, Rpc

MINT = TEST_MINT
VAULT = Vault(MasterKeys([bytes(range(32))]), frozenset({MINT}))


@dataclass(frozen=True)
class Payer:
    """A funded wallet and a fee payer."""

    wallet: SealedKey
    fee_payer: SealedKey

    async def payment(self, chain: Solana, to: str, micros: int = 1_000_000) -> Payment:
        latest = await chain.latest_blockhash()
        return Payment(
            id=f"txn_{Keypair().pubkey()}"[:30],
            attempt=1,
            amount_micros=micros,
            source=self.wallet.address,
            destination=to,
            mint=MINT,
            decimals=6,
            blockhash=latest.hash,
            fee_payer=self.fee_payer.address,
            priority_fee=1_000,
        )

    async def sign(self, payment: Payment) -> SignedPayment:
        return await VAULT.sign(payment, self.wallet, self.fee_payer)

    async def pay(self, chain: Solana, to: str, micros: int = 1_000_000) -> SignedPayment:
        """Signed, not yet sent."""
        return await self.sign(await self.payment(chain, to, micros))

    def without_fees(self, other: SealedKey) -> "Payer":
        return replace(self, fee_payer=other)


async def new_payer(rpc: Rpc, micros: int = 10_000_000, sol: int = 10) -> Payer:
    payer = Payer(await VAULT.new_key("ag_1"), await VAULT.new_key("fee_payer:test"))
    if sol:
        await rpc("requestAirdrop", payer.fee_payer.address, sol * LAMPORTS_PER_SOL)
    if micros:
        await rpc("bursar_faucet", payer.wallet.address, micros)
    return payer


def new_address() -> str:
    return str(Keypair().pubkey())
