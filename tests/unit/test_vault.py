"""Wallet keys at rest: they open only where they belong, and are seen nowhere."""

import base64
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from solders.keypair import Keypair

from bursar.custody.vault import MASTER_KEY_BYTES, SealedKey, Vault, load_master_key
from bursar.errors import CommandFailed, InvariantBroken

MASTER = bytes(range(32))


@pytest.fixture
def sealed() -> SealedKey:
    return Vault(MASTER).new_wallet_key("ag_1")


def test_a_sealed_key_opens_in_its_own_row(sealed: SealedKey):
    """Goal: the right master key gives back the key of the wallet's address."""
    assert Vault(MASTER).opens(sealed)
    assert sealed.agent_id == "ag_1"


def test_a_sealed_key_opens_in_no_other_row(sealed: SealedKey):
    """Goal: another agent, address, key version or master version does not open it."""
    vault = Vault(MASTER)
    other = vault.new_wallet_key("ag_2")
    for moved in (
        replace(sealed, agent_id="ag_2"),
        replace(sealed, agent_id=""),
        replace(sealed, address=other.address),
        replace(sealed, key_version=2),
        replace(sealed, master_version=2),
        replace(sealed, sealed=other.sealed),
        replace(other, sealed=sealed.sealed),
        replace(other, sealed=sealed.sealed, address=sealed.address),
    ):
        assert not vault.opens(moved)


def test_a_sealed_key_opens_with_no_other_master_key(sealed: SealedKey):
    """Goal: one bit of difference is enough."""
    for at in range(32):
        master = bytearray(MASTER)
        master[at] ^= 1
        assert not Vault(bytes(master)).opens(sealed)


def test_a_changed_or_cut_seal_does_not_open(sealed: SealedKey):
    """Goal: any flipped bit and any missing byte is noticed, without an exception."""
    vault = Vault(MASTER)
    for at in range(len(sealed.sealed)):
        changed = bytearray(sealed.sealed)
        changed[at] ^= 1
        assert not vault.opens(replace(sealed, sealed=bytes(changed)))
        assert not vault.opens(replace(sealed, sealed=sealed.sealed[:at]))
    assert not vault.opens(replace(sealed, sealed=sealed.sealed + b"\0"))


def test_no_two_seals_are_alike():
    """Goal: every wallet has its own key, and every seal its own nonce."""
    vault = Vault(MASTER)
    made = [vault.new_wallet_key("ag_1") for _ in range(200)]
    assert len({key.address for key in made}) == 200
    assert len({key.sealed[:12] for key in made}) == 200


def test_keys_are_in_no_repr(sealed: SealedKey):
    """Goal: neither the vault nor a sealed row shows the master key or a seed."""
    vault = Vault(MASTER)
    seed = bytes(vault._open(sealed))[:32]
    assert str(Keypair.from_seed(seed).pubkey()) == sealed.address
    for thing in (vault, [vault], {"vault": vault}, sealed):
        for shown in (repr(thing), str(thing)):
            for secret in (MASTER, seed):
                assert repr(secret)[2:-1] not in shown
                assert secret.hex() not in shown


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_master_key_has_32_bytes(size: int):
    """Goal: no shorter key is padded, no longer one cut."""
    with pytest.raises(InvariantBroken):
        Vault(bytes(size))


def test_a_master_key_is_made_once_for_its_owner_only(tmp_path: Path):
    """Goal: mode 0600 whatever the umask, the same key at every start, nothing left over."""
    before = os.umask(0)
    try:
        made = load_master_key(None, tmp_path)
    finally:
        os.umask(before)
    path = tmp_path / "master.key"
    assert len(made) == MASTER_KEY_BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_master_key(None, tmp_path) == made
    assert base64.b64decode(path.read_text()) == made
    assert list(tmp_path.iterdir()) == [path]


def test_a_configured_master_key_is_not_written(tmp_path: Path):
    """Goal: a key that comes from the environment stays there."""
    assert load_master_key(MASTER, tmp_path) == MASTER
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "hunter2", "aHVudGVyMg==", "ünï", "aHVudGVy" * 20])
def test_a_broken_master_key_file_is_told_without_its_content(tmp_path: Path, content: str):
    """Goal: the message names the file and what to do, and quotes nothing of it."""
    (tmp_path / "master.key").write_text(content)
    with pytest.raises(CommandFailed) as problem:
        load_master_key(None, tmp_path)
    assert str(tmp_path / "master.key") in str(problem.value)
    assert "BURSAR_MASTER_KEY" in str(problem.value)
    assert content == "" or content not in str(problem.value)
