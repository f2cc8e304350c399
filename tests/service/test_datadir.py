"""The data folder is private, has one owner at a time, and says clearly what is wrong with it."""

import os
import pwd
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bursar.errors import CommandFailed
from bursar.service.datadir import locked_data_dir, open_data_dir

HOLD_LOCK = """
import sys
from pathlib import Path
from bursar.service.datadir import locked_data_dir
with locked_data_dir(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    open_data_dir(folder)
    assert mode(folder) == 0o700


def test_an_empty_or_used_folder_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    (folder / "bursar.toml").touch()
    open_data_dir(folder)
    assert mode(folder) == 0o700
    with locked_data_dir(folder):
        pass
    folder.chmod(0o755)
    open_data_dir(folder)
    assert mode(folder) == 0o700


def test_a_folder_with_other_things_in_it_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    (folder / "letters.txt").touch()
    open_data_dir(folder)
    assert mode(folder) == 0o755


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    tmp_path.chmod(0o777)
    with pytest.raises(CommandFailed, match="written by other users"):
        open_data_dir(tmp_path)
    assert mode(tmp_path) == 0o777


def test_a_second_owner_is_refused_by_name_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder, holder.stdin:
        assert holder.stdout.readline() == b"locked\n"
        with (
            pytest.raises(CommandFailed, match=rf"process {holder.pid}\).*--data-dir"),
            locked_data_dir(tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        with locked_data_dir(tmp_path):
            pass


def test_the_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    with locked_data_dir(tmp_path):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with locked_data_dir(tmp_path):
            pass
    finally:
        child.kill()
        child.wait(10)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(CommandFailed, match="is a file"):
        open_data_dir(path)
    with pytest.raises(CommandFailed, match="a part of its path is a file"):
        open_data_dir(path / "below")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_place_where_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(CommandFailed, match="Cannot use the data folder /proc/bursar"):
        open_data_dir(Path("/proc/bursar"))


@contextmanager
def nobody_special() -> Generator[None]:
    """Root may write everywhere, so it is somebody else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_without_write_permission_is_refused() -> None:
    with TemporaryDirectory() as name:  # where everybody may pass, unlike pytest's own folders
        folder = Path(name)
        folder.chmod(0o555)
        with nobody_special(), pytest.raises(CommandFailed, match="permission denied"):
            open_data_dir(folder / "data")
        folder.chmod(0o700)
