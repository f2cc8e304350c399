"""Runs for some milliseconds between the supervisor and a child, then becomes that child.

    python -I -S launch.py PARENT_PID DEATH_SIGNAL IDENTITY COMMAND...
    python -I -S launch.py PARENT_PID DEATH_SIGNAL IDENTITY --can-use FOLDER PROGRAM

It does what must happen between fork and exec. Doing that in a `preexec_fn` instead would run
Python code in the fork of a process that has threads, which can deadlock. It is run as a file,
so it imports nothing of Bursar.

IDENTITY is the user that the child runs as:
  self        the current user
  namespace   an unprivileged user in a user namespace of its own: to the kernel still the owner of
              our files, but without root's powers and with a user id that is not 0
  UID:GID     that user, without any other group
"""

import ctypes
import os
import pwd
import sys
from typing import Final, NoReturn

CAN_USE: Final = "--can-use"
FAILED: Final = 126  # what shells answer for "found, but cannot be run"

_CLONE_NEWUSER: Final = 0x10000000
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> NoReturn:
    parent, death_signal, identity, *command = arguments
    try:
        _become(identity)
        # After `_become`, because the kernel clears the death signal when the user changes.
        _die_with_parent(int(death_signal), int(parent))
        if command[0] == CAN_USE:
            folder, program = command[1:]
            _stop(_why_unusable(folder, program))
        os.execv(command[0], command)  # noqa: S606 - becoming the command is the point
    except OSError as error:
        _stop(f"{identity}: {error}")


def _become(identity: str) -> None:
    if identity == "namespace":
        _call_libc("unshare", _CLONE_NEWUSER)
    elif identity != "self":
        uid, gid = identity.split(":")
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))


def _die_with_parent(death_signal: int, parent: int) -> None:
    # Only Linux has this call. Elsewhere the next start ends what is left.
    if sys.platform == "linux":
        _call_libc("prctl", _PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    # A parent that died before the call above will never send the signal. (A user namespace does
    # not change process ids.)
    if os.getppid() != parent:
        _stop("the supervisor is gone")


def _call_libc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _why_unusable(folder: str, program: str) -> str | None:
    """Why PostgreSQL could not run `program` on `folder` as the current user; None if it could."""
    if os.geteuid() == 0:
        return "still root"
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return f"user id {os.geteuid()} has no name on this machine"
    if not os.access(program, os.X_OK):
        return f"may not run {program}"
    # Tries it instead of reading permission bits, because parent folders and mounts count too.
    try:
        os.stat(os.path.join(folder, "."))  # noqa: PTH116, PTH118 - pathlib would drop the dot
        os.rmdir(_made(os.path.join(folder, "probe")))  # noqa: PTH106, PTH118
    except OSError as error:
        return f"cannot use {folder}: {os.strerror(error.errno or 0)}"
    return None


def _made(folder: str) -> str:
    os.mkdir(folder)  # noqa: PTH102 - pathlib alone would double this script's start-up time
    return folder


def _stop(problem: str | None) -> NoReturn:
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
        sys.stderr.flush()
    # Not sys.exit: nothing here needs cleaning up.
    os._exit(0 if problem is None else FAILED)


if __name__ == "__main__":
    main(sys.argv[1:])
