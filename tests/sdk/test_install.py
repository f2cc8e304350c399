"""`pip install bursar-wallet` alone: small, quick to import, enough for SDK and operator."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from tests.support import Service, new_account
from tests.test_tidy import ROOT

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
IMPORT_SECONDS: Final = 0.3
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ELSEWHERE = re.compile(r"extra ==|platform|python_version <")


def _name(requirement: str) -> str:
    match = _NAME.match(requirement)
    assert match is not None
    return match[0].lower().replace("_", "-")


def _closure(names: list[str]) -> dict[str, Distribution]:
    """What pip would bring for these names, out of what is installed here."""
    found: dict[str, Distribution] = {}
    while names:
        name = _name(names.pop())
        if name not in found:
            found[name] = distribution(name)
            # Not what only an extra, an older Python or another system needs.
            required = found[name].requires or []
            names += [line for line in required if not _ELSEWHERE.search(line)]
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with Bursar's wheel and what it requires, nothing more."""
    folder = tmp_path_factory.mktemp("plain")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    offline = ["--no-index", "--no-deps"]
    build = ["wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    made = folder / "env/bin/python"
    (wheel,) = folder.glob("bursar_wallet-*.whl")
    subprocess.run([*pip, "--python", str(made), "install", *offline, str(wheel)], check=True)
    (packages,) = (folder / "env/lib").glob("python*/site-packages")
    for found in _closure(list(PROJECT["dependencies"])).values():
        for file in found.files or []:
            if ".." not in file.parts:
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
    return made


def _started(
    python: Path, *words: str, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "BURSAR_"))}
    return subprocess.run(
        [python, *words],
        env=environment | {"HOME": str(python.parent), "XDG_CONFIG_HOME": ""} | dict(variables),
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _run(python: Path, *words: str, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    done = _started(python, *words, variables=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_server_package_is_there(python: Path):
    """Goal: the plain install holds nothing that only the service needs."""
    listed = _run(
        python,
        "-c",
        "from importlib.metadata import distributions\n"
        "print(*(d.metadata['Name'] for d in distributions()))",
    )
    here = {_name(name) for name in listed.split()}
    assert {"bursar-wallet", "httpx", "rich", "typer"} <= here
    shared = _closure(list(PROJECT["dependencies"]))
    server = {_name(line) for line in PROJECT["optional-dependencies"]["server"]}
    # idna is httpx's own need as well.
    assert here & server == set(shared) & server == {"idna"}
    assert len(here) < 20


def test_the_sdk_is_quick_to_import(python: Path):
    """Goal: under 300 ms above bare Python, and no module of the service loaded.

    Counted in time of the processor, for a busy machine is no failure; it is nearly all of it.
    """
    timed = (
        "import time, sys; start = time.process_time()\n"
        "from bursar import Bursar, AsyncBursar\n"
        "print(time.process_time() - start)\n"
        "print(*sys.modules)"
    )
    runs = [_run(python, "-c", timed).splitlines() for _ in range(7)]
    assert min(float(run[0]) for run in runs) < IMPORT_SECONDS
    ours = {name for name in runs[0][1].split() if name.startswith("bursar.")}
    assert {"bursar.client.client", "bursar.errors"} <= ours
    allowed = ("bursar.client", "bursar.errors", "bursar.clock")
    assert [name for name in ours if not name.startswith(allowed)] == []


def test_receivers_need_nothing_else(python: Path):
    """Goal: verifying a webhook runs on the standard library."""
    loaded = _run(python, "-c", "import bursar.webhooks, sys; print('httpx' in sys.modules)")
    assert loaded == "False\n"


def test_the_service_is_named_where_it_is_missing(python: Path):
    """Goal: what needs the service's packages says how to get them."""
    assert _run(python, "-m", "bursar.cli.main", "version").strip()
    for words in (("serve",), ("demo",), ("keys", "create", "--mode", "test"), ("audit",)):
        done = _started(python, "-m", "bursar.cli.main", *words)
        assert done.returncode == 2, done
        assert "bursar-wallet[server]" in done.stderr
        assert "Traceback" not in done.stderr


async def test_the_operator_needs_no_more(python: Path, served: Service):
    """Goal: the commands that call a service run on the plain install."""
    key = await served.key(account=new_account())
    connection = {"BURSAR_API_KEY": key, "BURSAR_BASE_URL": served.url}

    async def run(*words: str) -> str:
        command = ("-m", "bursar.cli.main", *words)
        return await asyncio.to_thread(_run, python, *command, variables=connection)

    agent = (await run("agents", "create", "a", "--daily-cap", "9", "--allow", "*")).strip()
    assert "credited" in await run("fund", agent, "5")
    assert "status\tsettled" in await run("spend", agent, "1", "api.example.com")
    assert agent in await run("transactions", "list", "--csv")
    assert "[]" in await run("approvals", "list", "--json")
    assert "All is well" in await run("doctor")
    assert "20.000000 paid" in await run("demo")
