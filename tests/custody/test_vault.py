"""Keys at rest: they open only where they belong, and are seen nowhere."""

from dataclasses import replace

import pytest
from solders.keypair import Keypair

from bursar.custody.master import MasterKeys
from bursar.custody.model import SealedKey
from bursar.custody.vault import KeyUnusable, Vault
from bursar.errors import InvariantBroken

MASTER = bytes(range(32))
vault = Vault(MasterKeys([MASTER]), frozenset())


def opens(key: SealedKey, by: Vault = vault) -> bool:
    try:
        by.reseal(key)
    except KeyUnusable:
        return False
    return True


@pytest.fixture
async def sealed() -> SealedKey:
    return await vault.new_key("ag_1")


async def test_a_sealed_key_opens_in_its_own_row(sealed: SealedKey):
    """Goal: the right master key gives back the key of the wallet's address."""
    assert str(Keypair.from_seed(vault._unseal(sealed)).pubkey()) == sealed.address
    assert sealed.owner == "ag_1"


async def test_a_sealed_key_opens_in_no_other_row(sealed: SealedKey):
    """Goal: another owner, address, version or provider does not open it."""
    other = await vault.new_key("ag_2")
    assert opens(other)
    for moved in (
        replace(sealed, owner="ag_2"),
        replace(sealed, owner=""),
        replace(sealed, address=other.address),
        replace(sealed, key_version=2),
        replace(sealed, master_version=2),
        replace(sealed, provider="kms"),
        replace(sealed, sealed=other.sealed),
        replace(other, sealed=sealed.sealed),
        replace(other, sealed=sealed.sealed, address=sealed.address),
    ):
        assert not opens(moved)


async def test_a_sealed_key_opens_with_no_other_master_key(sealed: SealedKey):
    """Goal: one bit of difference is enough, even if the version were the same."""
    for at in range(32):
        master = bytearray(MASTER)
        master[at] ^= 1
        masters = MasterKeys([bytes(master)])
        assert not opens(sealed, Vault(masters, frozenset()))
        claimed = replace(sealed, master_version=masters.versions[0])
        assert not opens(claimed, Vault(masters, frozenset()))


async def test_a_changed_or_cut_seal_does_not_open(sealed: SealedKey):
    """Goal: any flipped bit and any missing byte is noticed."""
    for at in range(len(sealed.sealed)):
        changed = bytearray(sealed.sealed)
        changed[at] ^= 1
        assert not opens(replace(sealed, sealed=bytes(changed)))
        assert not opens(replace(sealed, sealed=sealed.sealed[:at]))
    assert not opens(replace(sealed, sealed=sealed.sealed + b"\0"))


async def test_no_two_seals_are_alike():
    """Goal: every wallet has its own key, and every seal its own nonce."""
    made = [await vault.new_key("ag_1") for _ in range(200)]
    assert len({key.address for key in made}) == 200
    assert len({key.sealed[:12] for key in made}) == 200


async def test_keys_are_in_no_repr(sealed: SealedKey):
    """Goal: neither the vault, its master keys nor a sealed row shows a key."""
    seed = vault._unseal(sealed)
    made = await vault._providers["embedded"].create("ag_1")
    for thing in (vault, [vault], vault._masters, sealed, made):
        for shown in (repr(thing), str(thing)):
            for secret in (MASTER, seed, made.handle):
                assert repr(secret)[2:-1] not in shown
                assert secret.hex() not in shown


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_master_key_has_32_bytes(size: int):
    """Goal: no shorter key is padded, no longer one cut."""
    with pytest.raises(InvariantBroken):
        MasterKeys([bytes(size)])
