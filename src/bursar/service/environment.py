"""The environment of a child that needs none of our secrets."""

import os
from typing import Final

_KEPT: Final = ("PATH", "TMPDIR", "LD_LIBRARY_PATH")
# Where Python finds its modules when it runs from a source tree.
_PYTHON: Final = ("PYTHONPATH", "PYTHONHOME")


def bare_environment() -> dict[str, str]:
    """The few variables that any program needs. Ours may hold the master key and passwords, and
    PGDATA and the like would mislead PostgreSQL's programs."""
    return {**_given(_KEPT), "LC_ALL": "C", "TZ": "UTC"}


def bare_python_environment() -> dict[str, str]:
    """The same for one of our own programs. Standard error is unbuffered, because the last lines of
    a killed child matter most."""
    return {**bare_environment(), **_given(_PYTHON), "PYTHONUNBUFFERED": "1"}


def _given(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}
