"""Master keys: found, made once, replaced whole, and never quoted."""

import asyncio
import base64
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bursar.config import load_config
from bursar.custody.master import (
    MasterKeyFile,
    load_master_keys,
    read_keys,
    version_of,
    write_keys,
)
from bursar.errors import CommandFailed, ConfigError
from tests.processes import clean_environment

OLD, NEW = bytes(range(32)), bytes(range(1, 33))


def test_a_master_key_is_made_once_for_its_owner_only(tmp_path: Path):
    """Goal: mode 0600 whatever the umask, the same key at every start, nothing left over."""
    config = load_config({}, data_dir=tmp_path)
    before = os.umask(0)
    try:
        made = load_master_keys(config)
    finally:
        os.umask(before)
    path = tmp_path / "master.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_master_keys(config).versions == made.versions
    assert [version_of(base64.b64decode(path.read_text()))] == list(made.versions)
    assert os.listdir(tmp_path) == ["master.key"]  # noqa: PTH208


def test_a_configured_master_key_is_not_written(tmp_path: Path):
    """Goal: a key that comes from the environment stays there, with the one before it."""
    config = replace(load_config({}, data_dir=tmp_path), master_key=NEW, master_key_previous=OLD)
    assert load_master_keys(config).versions == (version_of(NEW), version_of(OLD))
    assert list(tmp_path.iterdir()) == []


def test_a_previous_key_alone_is_a_mistake(tmp_path: Path):
    """Goal: a forgotten BURSAR_MASTER_KEY does not quietly make a new key."""
    config = replace(load_config({}, data_dir=tmp_path), master_key_previous=OLD)
    with pytest.raises(ConfigError, match="BURSAR_MASTER_KEY_PREVIOUS"):
        load_master_keys(config)


@pytest.mark.parametrize(
    "content", ["", "hunter2", "aHVudGVyMg==", "ünï", "aHVudGVy" * 20, ("A" * 43 + "=\n") * 9]
)
def test_a_broken_master_key_file_is_told_without_its_content(tmp_path: Path, content: str):
    """Goal: the message names the file and what to do, and quotes nothing of it."""
    (tmp_path / "master.key").write_text(content)
    with pytest.raises(CommandFailed) as problem:
        load_master_keys(load_config({}, data_dir=tmp_path))
    assert str(tmp_path / "master.key") in str(problem.value)
    assert "BURSAR_MASTER_KEY" in str(problem.value)
    assert content == "" or content not in str(problem.value)


def test_a_replaced_file_is_noticed(tmp_path: Path):
    """Goal: a process seals with the new key at once, and opens with both."""
    path = tmp_path / "master.key"
    write_keys(path, [OLD])
    running = MasterKeyFile(path)
    assert running.newest()[0] == version_of(OLD)
    write_keys(path, [NEW, OLD])
    assert running.newest()[0] == version_of(NEW)
    assert running.of(version_of(OLD)) is not None
    write_keys(path, [NEW])
    assert running.newest()[0] == version_of(NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_unknown_version_makes_it_look_again(tmp_path: Path):
    """Goal: a process that never seals still finds the key of a row sealed anew."""
    path = tmp_path / "master.key"
    write_keys(path, [OLD])
    running = MasterKeyFile(path)
    write_keys(path, [NEW, OLD])
    assert running.of(version_of(NEW)) is not None
    assert running.of(12345) is None


def test_a_lost_file_does_not_stop_a_running_process(tmp_path: Path):
    """Goal: what is in memory goes on working while the operator restores the file."""
    path = tmp_path / "master.key"
    write_keys(path, [OLD])
    running = MasterKeyFile(path)
    for damage in (path.unlink, lambda: path.write_text("garbage")):
        damage()
        assert running.newest()[0] == version_of(OLD)
        assert running.of(version_of(NEW)) is None
        assert running.of(version_of(OLD)) is not None


async def test_processes_that_start_at_once_share_one_key(tmp_path: Path):
    """Goal: one makes the key, all others use it, nothing is left beside it."""
    program = (
        "import sys; from pathlib import Path; from bursar.custody.master import MasterKeyFile;"
        " print(MasterKeyFile(Path(sys.argv[1])).versions)"
    )
    path = tmp_path / "master.key"
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, str(path)),
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(4)
    ]
    told = {(await process.communicate())[0] for process in processes}
    assert len(told) == 1
    assert len(read_keys(path)) == 1
    assert os.listdir(tmp_path) == ["master.key"]  # noqa: PTH208
