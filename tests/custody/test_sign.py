"""Goal: the vault signs payments that fit its keys and networks, and nothing else."""

from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from bursar.chain.message import Payment, build
from bursar.chain.sponsored import Sponsored, build_sponsored
from bursar.custody.master import MasterKeys
from bursar.custody.model import SealedKey
from bursar.custody.provider import EmbeddedKeys, KeyProvider, NewKey
from bursar.custody.setup import load_providers
from bursar.custody.vault import KeyUnusable, Vault
from bursar.errors import ConfigError, InvariantBroken

MINT = str(Keypair().pubkey())
MASTERS = MasterKeys([bytes(range(32))])
VAULT = Vault(MASTERS, frozenset({MINT}))
Keys = tuple[SealedKey, SealedKey]


@pytest.fixture
async def keys() -> Keys:
    return await VAULT.new_key("ag_1"), await VAULT.new_key("fee_payer:test")


def payment_of(keys: Keys, **change: Any) -> Payment:
    wallet, fee_payer = keys
    payment = Payment(
        id="txn_1",
        attempt=1,
        amount_micros=5,
        source=wallet.address,
        destination=str(Keypair().pubkey()),
        mint=MINT,
        decimals=6,
        blockhash=str(Hash.new_unique()),
        fee_payer=fee_payer.address,
        priority_fee=0,
    )
    return replace(payment, **change)


async def test_it_signs_the_message_it_built(keys: Keys):
    """Goal: both signatures hold for the bytes of `message.py`, the fee payer's first."""
    wallet, fee_payer = keys
    payment = payment_of(keys)
    signed = await VAULT.sign(payment, wallet, fee_payer)
    transaction = VersionedTransaction.from_bytes(signed.raw)
    content = to_bytes_versioned(build(payment))
    assert to_bytes_versioned(transaction.message) == content
    first, second = transaction.signatures
    assert first.verify(Pubkey.from_string(fee_payer.address), content)
    assert second.verify(Pubkey.from_string(wallet.address), content)
    assert signed.signature == str(first)
    assert (await VAULT.sign(payment, wallet, fee_payer)) == signed, "the same bytes again"


async def test_attempts_have_signatures_of_their_own(keys: Keys):
    payment = payment_of(keys)
    made = [await VAULT.sign(replace(payment, attempt=n), *keys) for n in range(1, 6)]
    assert len({signed.signature for signed in made}) == 5


async def test_it_refuses_what_does_not_fit(keys: Keys):
    """Goal: another token, another wallet's money, another fee payer, no amount."""
    wallet, fee_payer = keys
    other = await VAULT.new_key("ag_2")
    for payment in (
        payment_of(keys, mint=str(Keypair().pubkey())),
        payment_of(keys, source=other.address),
        payment_of(keys, fee_payer=other.address),
        payment_of(keys, amount_micros=0),
        payment_of(keys, amount_micros=-5),
    ):
        with pytest.raises(InvariantBroken):
            await VAULT.sign(payment, wallet, fee_payer)


async def test_a_key_in_the_wrong_row_signs_nothing(keys: Keys):
    """Goal: an attacker who writes to the database cannot make one wallet pay for another."""
    wallet, fee_payer = keys
    victim = await VAULT.new_key("ag_2")
    for forged in (
        replace(wallet, sealed=victim.sealed),
        replace(victim, owner=wallet.owner),
        replace(victim, address=wallet.address),
    ):
        payment = payment_of((forged, fee_payer))
        with pytest.raises(KeyUnusable) as problem:
            await VAULT.sign(payment, forged, fee_payer)
        assert forged.owner in str(problem.value)


class Elsewhere:
    """A provider whose keys never come to Bursar; it can be told to misbehave."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Keypair] = {}
        self.signed: list[bytes] = []
        self.wrong: bytes | None = None

    async def create(self, owner: str) -> NewKey:
        name = f"keys/{owner}".encode()
        self.keys[name] = Keypair()
        return NewKey(str(self.keys[name].pubkey()), name)

    async def sign(self, handle: bytes, message: bytes) -> bytes:
        self.signed.append(message)
        return self.wrong or bytes(self.keys[handle].sign_message(message))


async def test_a_key_that_lives_elsewhere(keys: Keys):
    """Goal: it signs there, its name is stored sealed, and old keys stay with the embedded one."""
    elsewhere = Elsewhere()
    providers: dict[str, KeyProvider] = {"embedded": EmbeddedKeys(), "kms": elsewhere}
    vault = Vault(MASTERS, frozenset({MINT}), providers, "kms")
    wallet, fee_payer = await vault.new_key("ag_1"), keys[1]
    assert wallet.provider == "kms"
    assert b"keys/ag_1" not in wallet.sealed
    payment = payment_of((wallet, fee_payer))
    signed = await vault.sign(payment, wallet, fee_payer)
    assert elsewhere.signed == [to_bytes_versioned(build(payment))]
    VersionedTransaction.from_bytes(signed.raw).verify_and_hash_message()
    # Resealing does not need it.
    assert vault.reseal(wallet).address == wallet.address


@pytest.mark.parametrize("wrong", [b"x", bytes(64), bytes(65)])
async def test_a_wrong_signature_from_elsewhere_is_not_used(keys: Keys, wrong: bytes):
    elsewhere = Elsewhere()
    vault = Vault(MASTERS, frozenset({MINT}), {"kms": elsewhere, "embedded": EmbeddedKeys()}, "kms")
    wallet = await vault.new_key("ag_1")
    elsewhere.wrong = wrong
    with pytest.raises(KeyUnusable, match="kms signed wrongly for ag_1"):
        await vault.sign(payment_of((wallet, keys[1])), wallet, keys[1])


async def test_a_provider_that_is_not_installed(keys: Keys):
    wallet = replace(keys[0], provider="kms")
    with pytest.raises(KeyUnusable, match="provider kms"):
        await VAULT.sign(payment_of((wallet, keys[1])), wallet, keys[1])
    with pytest.raises(ConfigError, match="BURSAR_KEY_PROVIDER"):
        load_providers("kms")
    assert set(load_providers("embedded")) == {"embedded"}


async def test_a_package_brings_a_provider(monkeypatch: pytest.MonkeyPatch):
    """Goal: an entry point is all it takes."""
    entry = EntryPoint("kms", f"{__name__}:Elsewhere", "bursar.key_providers")
    monkeypatch.setattr("bursar.custody.setup.entry_points", lambda group: [entry])
    assert isinstance(load_providers("kms")["kms"], Elsewhere)


def purchase_of(keys: Keys, **change: Any) -> Sponsored:
    purchase = Sponsored(
        amount_micros=5,
        source=keys[0].address,
        destination=str(Keypair().pubkey()),
        mint=MINT,
        decimals=6,
        blockhash=str(Hash.new_unique()),
        fee_payer=str(Keypair().pubkey()),
        memo=None,
        variation=0,
    )
    return replace(purchase, **change)


async def test_a_purchase_is_signed_by_the_wallet_alone(keys: Keys):
    """Goal: the facilitator's place is left empty, and the signature that is told is our own."""
    wallet, _ = keys
    purchase = purchase_of(keys)
    signed = await VAULT.sign_sponsored(purchase, wallet)
    transaction = VersionedTransaction.from_bytes(signed.raw)
    content = to_bytes_versioned(build_sponsored(purchase))
    assert to_bytes_versioned(transaction.message) == content
    theirs, ours = transaction.signatures
    assert theirs == Signature.default()
    assert ours.verify(Pubkey.from_string(wallet.address), content)
    assert signed.signature == str(ours)
    assert await VAULT.sign_sponsored(purchase, wallet) == signed, "the same bytes again"


async def test_two_purchases_of_one_moment_have_signatures_of_their_own(keys: Keys):
    purchase = purchase_of(keys)
    made = [await VAULT.sign_sponsored(replace(purchase, variation=n), keys[0]) for n in range(5)]
    assert len({signed.signature for signed in made}) == 5


async def test_a_purchase_that_does_not_fit_is_not_signed(keys: Keys):
    """Goal: another token, another wallet's money, no amount, a fee payer that is the wallet."""
    other = await VAULT.new_key("ag_2")
    for purchase in (
        purchase_of(keys, mint=str(Keypair().pubkey())),
        purchase_of(keys, source=other.address),
        purchase_of(keys, amount_micros=0),
        purchase_of(keys, fee_payer=keys[0].address),
    ):
        with pytest.raises(InvariantBroken):
            await VAULT.sign_sponsored(purchase, keys[0])
