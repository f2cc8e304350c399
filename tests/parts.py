"""Parts that only tests need. Where one is missing, its tests are left out and say what to install;
`.ci/run` installs them all, so CI leaves out none."""

import os
import shutil
from pathlib import Path
from typing import Final, NoReturn

import pytest

# Debian's libfaketime: a process that sees another time of day than the machine.
FAKETIME: Final = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

# The first takes a third of the processor that the others take, and draws the same pages.
BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def program(package: str, *names: str) -> str:
    """Where the first of these programs is that is here; `package` is Debian's name for it."""
    return next(filter(None, map(shutil.which, names)), None) or missing(package)


def chromium() -> str:
    return program(BROWSERS[0], *BROWSERS)


def redis_program() -> str:
    return program("redis-server", "redis-server", "valkey-server")


def faketime() -> Path:
    return FAKETIME or missing("libfaketime")


def missing(package: str) -> NoReturn:
    words = f"needs {package}: apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)
