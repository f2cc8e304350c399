"""The only code that meets keys in clear. It signs payments and purchases that it builds itself,
nothing else."""

import os
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from bursar.chain.message import Payment, build
from bursar.chain.sponsored import Sponsored, build_sponsored
from bursar.custody.master import MasterKeys
from bursar.custody.model import EMBEDDED, SealedKey, SealedSecret, SignedPayment, SignedPurchase
from bursar.custody.provider import EMBEDDED_PROVIDERS, KeyProvider
from bursar.errors import BursarError, check

FIRST_KEY_VERSION: Final = 1
_NONCE_BYTES: Final = 12
_SIGNATURE_BYTES: Final = 64


class KeyUnusable(BursarError):
    """A key cannot be unsealed or its provider did not sign. Nothing was signed; names the owner
    and never the key."""


class Vault:
    """`mints` are the tokens of the configured networks: no other is ever signed away."""

    def __init__(
        self,
        masters: MasterKeys,
        mints: frozenset[str],
        providers: Mapping[str, KeyProvider] = EMBEDDED_PROVIDERS,
        makes_keys: str = EMBEDDED,
    ) -> None:
        check(makes_keys in providers, "new keys are made by a provider that exists")
        self._masters = masters
        self._mints = mints
        self._providers = providers
        self._makes_keys = makes_keys

    def __repr__(self) -> str:
        return "Vault(…)"

    async def new_key(self, owner: str) -> SealedKey:
        made = await self._providers[self._makes_keys].create(owner)
        return self._seal(owner, made.address, FIRST_KEY_VERSION, made.handle, self._makes_keys)

    async def sign(
        self, payment: Payment, wallet_key: SealedKey, fee_payer: SealedKey
    ) -> SignedPayment:
        """The transaction of this payment, signed by the wallet and the fee payer.

        Raises InvariantBroken when the payment does not fit the keys or the network, KeyUnusable
        when a key cannot be used now.
        """
        check(payment.mint in self._mints, "only the token of a configured network is paid")
        check(payment.source == wallet_key.address, "a wallet's key signs for its own address")
        check(payment.fee_payer == fee_payer.address, "the fee payer's key signs for its address")
        message = build(payment)
        # In the order of the accounts in the message: the fee payer comes first.
        signatures = [
            await self._signature(fee_payer, message),
            await self._signature(wallet_key, message),
        ]
        transaction = VersionedTransaction.populate(message, signatures)
        return SignedPayment(bytes(transaction), str(signatures[0]))

    async def sign_sponsored(self, purchase: Sponsored, wallet_key: SealedKey) -> SignedPurchase:
        """The transaction of this purchase, signed by the wallet: it is complete, and has an id on
        the chain, only when the seller's facilitator signs it too.

        Raises InvariantBroken when the purchase does not fit the key or the network, KeyUnusable
        when the key cannot be used now.
        """
        check(purchase.mint in self._mints, "only the token of a configured network is paid")
        check(purchase.source == wallet_key.address, "a wallet's key signs for its own address")
        message = build_sponsored(purchase)
        ours = await self._signature(wallet_key, message)
        # In the order of the accounts in the message: the facilitator comes first.
        transaction = VersionedTransaction.populate(message, [Signature.default(), ours])
        return SignedPurchase(bytes(transaction), str(ours))

    def reseal(self, key: SealedKey) -> SealedKey:
        """The same key under the newest master key."""
        return self._seal(key.owner, key.address, key.key_version, self._unseal(key), key.provider)

    def seal_secret(self, owner: str, secret: bytes) -> SealedSecret:
        master_version, cipher = self._masters.newest()
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + cipher.encrypt(nonce, secret, _named(owner, master_version))
        return SealedSecret(owner, master_version, sealed)

    def open_secret(self, secret: SealedSecret) -> bytes:
        """Raises KeyUnusable when it was changed or its master key is not here."""
        bound = _named(secret.owner, secret.master_version)
        return self._open(secret.owner, secret.master_version, secret.sealed, bound)

    def reseal_secret(self, secret: SealedSecret) -> SealedSecret:
        return self.seal_secret(secret.owner, self.open_secret(secret))

    async def _signature(self, key: SealedKey, message: MessageV0) -> Signature:
        provider = self._providers.get(key.provider)
        if provider is None:
            raise KeyUnusable(f"the key of {key.owner} needs the provider {key.provider}")
        content = to_bytes_versioned(message)
        handle = self._unseal(key)
        try:
            raw = await provider.sign(handle, content)
        except Exception as problem:  # noqa: BLE001  the provider is foreign code
            raise KeyUnusable(
                f"{key.provider} could not sign for {key.owner} ({type(problem).__name__})"
            ) from None
        if key.provider != EMBEDDED and not _signed_by(key.address, raw, content):
            raise KeyUnusable(f"{key.provider} signed wrongly for {key.owner}")
        return Signature.from_bytes(raw)

    def _seal(
        self, owner: str, address: str, key_version: int, handle: bytes, provider: str
    ) -> SealedKey:
        master_version, cipher = self._masters.newest()
        nonce = os.urandom(_NONCE_BYTES)
        bound = _associated(owner, address, key_version, master_version, provider)
        return SealedKey(
            owner=owner,
            address=address,
            key_version=key_version,
            master_version=master_version,
            sealed=nonce + cipher.encrypt(nonce, handle, bound),
            provider=provider,
        )

    def _unseal(self, key: SealedKey) -> bytes:
        bound = _associated(
            key.owner, key.address, key.key_version, key.master_version, key.provider
        )
        return self._open(key.owner, key.master_version, key.sealed, bound)

    def _open(self, owner: str, master_version: int, sealed: bytes, bound: bytes) -> bytes:
        cipher = self._masters.of(master_version)
        if cipher is None:
            raise KeyUnusable(
                f"the key of {owner} is sealed with a master key that is not here"
                f" (version {master_version})"
            )
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, ciphertext, bound)
        except (InvalidTag, ValueError):  # ValueError: cut too short to be a sealed key at all
            raise KeyUnusable(f"the sealed key of {owner} was changed") from None


def _signed_by(address: str, signature: bytes, content: bytes) -> bool:
    """Asked of other people's providers: a wrong signature would be refused by every node, after
    the attempt was stored. An embedded key was bound to its address when it was sealed, and
    verifying costs more than signing."""
    return len(signature) == _SIGNATURE_BYTES and Signature.from_bytes(signature).verify(
        Pubkey.from_string(address), content
    )


def _associated(
    owner: str, address: str, key_version: int, master_version: int, provider: str
) -> bytes:
    """A sealed key moved to another row, or given another address or version, does not open."""
    return f"{provider}|{owner}|{address}|{key_version}|{master_version}".encode()


def _named(owner: str, master_version: int) -> bytes:
    """The same for a secret. Fewer parts than a key has: neither can stand in for the other."""
    return f"secret|{owner}|{master_version}".encode()
