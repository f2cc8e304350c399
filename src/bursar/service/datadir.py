"""The data folder: private to its owner, used by one `bursar serve` at a time."""

import errno
import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bursar.errors import CommandFailed
from bursar.settings_file import FILE_NAME

LOCK_FILE: Final = "serve.lock"
_PRIVATE: Final = 0o700
# Others may pass through the folder but not list it; used only when PostgreSQL runs as another
# user.
PASSABLE: Final = 0o711


def open_data_dir(path: Path) -> None:
    """Make the folder (mode 0700), or check that it belongs to us and is private. Raises
    CommandFailed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=_PRIVATE)
        except FileExistsError:
            _check_existing(path)
    except OSError as error:
        raise _unusable(path, error) from error


@contextmanager
def locked_data_dir(path: Path) -> Generator[None]:
    """Lock the folder until the end of the block, or of the process, however it ends.

    Raises CommandFailed naming the process that owns it already.
    """
    open_data_dir(path)
    lock = path / LOCK_FILE
    try:
        # Python opens it close-on-exec, so a child that outlives us does not keep the lock.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            raise CommandFailed(
                f"Another bursar serve (process {owner or 'unknown'}) already uses the data folder"
                f" {path}. Stop it first, or choose another folder with --data-dir."
            ) from error
        except OSError as error:
            raise _unusable(path, error) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # The file stays: removing it would let two processes lock two files of the same name.
        os.close(descriptor)


def let_others_pass(path: Path) -> None:
    """Let a less privileged user reach its own folder inside `path`, without listing `path`."""
    path.chmod(PASSABLE)


def _check_existing(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise CommandFailed(f"The data folder {path} is a file. Choose another with --data-dir.")
    if os.geteuid() not in (0, status.st_uid):
        raise CommandFailed(
            f"The data folder {path} belongs to another user (id {status.st_uid})."
            " Run as that user, or choose another folder with --data-dir."
        )
    # The settings may have been written before the first start.
    ours = (path / LOCK_FILE).exists() or all(file.name == FILE_NAME for file in path.iterdir())
    if ours and status.st_uid == os.geteuid():
        if stat.S_IMODE(status.st_mode) not in (_PRIVATE, PASSABLE):
            path.chmod(_PRIVATE)
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # A folder in use for something else (a mistyped --data-dir, even /tmp): changing its mode
        # would surprise its users, and anybody who may write there could replace our files.
        raise CommandFailed(
            f"The data folder {path} may be written by other users and is not empty."
            f" Make it private (chmod 700 {path}), or choose another with --data-dir."
        )


def _unusable(path: Path, error: OSError) -> CommandFailed:
    reasons = {
        errno.EROFS: "its file system is read-only",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EEXIST: "a part of its path is a file",
        errno.ENOTDIR: "a part of its path is a file",
        errno.ENOLCK: "its file system cannot lock files",
        errno.ENOTSUP: "its file system cannot lock files",
    }
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return CommandFailed(
        f"Cannot use the data folder {path}: {reason}. Choose another with --data-dir."
    )
