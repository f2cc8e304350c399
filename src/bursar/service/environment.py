"""Which variables of ours a child is given that needs none of our secrets."""

import os
from typing import Final

_KEPT: Final = ("PATH", "TMPDIR", "LD_LIBRARY_PATH")
# Where Python itself looks for its parts, when somebody runs from a source tree.
_PYTHON: Final = ("PYTHONPATH", "PYTHONHOME")


def bare_environment() -> dict[str, str]:
    """As little as a program needs. Ours may hold the master key and passwords; and PGDATA and the
    like must not lead PostgreSQL's programs astray."""
    return {**_given(_KEPT), "LC_ALL": "C", "TZ": "UTC"}


def bare_python_environment() -> dict[str, str]:
    """The same for a program of our own. Standard error is unbuffered: the last lines of a killed
    child are the ones to read."""
    return {**bare_environment(), **_given(_PYTHON), "PYTHONUNBUFFERED": "1"}


def _given(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}
