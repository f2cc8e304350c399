"""The files in deploy/ fit the code: what no engine here can run is at least read."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from bursar import metrics
from bursar.api.routes import ROUTES
from bursar.cli.main import app
from bursar.config import load_defaults, variable
from tests.parts import program

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "deploy"
UNITS: Final = sorted(DEPLOY.glob("systemd/*.service"))
OPERATIONS: Final = (ROOT / "docs/operations.md").read_text("utf-8")
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text("utf-8"))
_ALERTS: Final[dict[str, Any]] = yaml.safe_load(
    (DEPLOY / "prometheus/alerts.yml").read_text("utf-8")
)
ALERTS: Final[list[dict[str, Any]]] = [
    rule for group in _ALERTS["groups"] for rule in group["rules"]
]
DASHBOARD: Final[dict[str, Any]] = json.loads((DEPLOY / "grafana/bursar.json").read_text("utf-8"))

# Queries of alerts and panels --------------------------------------------------------------------


def known_series() -> dict[str, set[str]]:
    """Every series that /metrics can show, with its labels."""
    found: dict[str, set[str]] = {}
    assert metrics.REQUESTS in REGISTRY._collector_to_names
    for collector in REGISTRY._collector_to_names:
        if not isinstance(collector, MetricWrapperBase):
            continue
        labels = set(collector._labelnames)
        name = collector._name
        match collector._type:
            case "counter":
                found[f"{name}_total"] = labels
            case "histogram":
                found |= {f"{name}_{end}": labels | {"le"} for end in ("bucket", "sum", "count")}
            case _:
                found[name] = labels
    return found


QUERIES: Final = [
    *((rule["alert"], rule["expr"]) for rule in ALERTS),
    *((panel["title"], t["expr"]) for panel in DASHBOARD["panels"] for t in panel["targets"]),
]


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_queries_use_series_and_labels_that_exist(place: str, query: str):
    """Goal: an alert never stays silent because of a name that nobody counts under."""
    series = known_series()
    assert query.count("(") == query.count(")")
    names = re.findall(r"\bbursar_\w+", query)
    if not names:
        assert place == "BursarDown", "`up` is Prometheus's own"
        return
    assert [name for name in names if name not in series] == []
    known = set[str]().union(*(series[name] for name in names))
    used = set(re.findall(r"(\w+)\s*=~?\s*\"", query))
    for group in re.findall(r"\bby\s*\(([^)]*)\)", query):
        used |= {label.strip() for label in group.split(",")}
    assert used <= known
    routes = {f"{route.method} {route.path}" for route in ROUTES}
    assert set(re.findall(r"route=\"([^\"]+)\"", query)) <= routes


def test_every_series_is_on_the_dashboard():
    """Goal: what is worth counting is worth seeing."""
    shown = {name for _, query in QUERIES for name in re.findall(r"\bbursar_\w+", query)}
    ends = ("_sum", "_count", "_created")
    hidden = {name for name in known_series() if name.startswith("bursar_")} - shown
    assert {name for name in hidden if not name.endswith(ends)} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_is_explained(rule: dict[str, Any]):
    """Goal: whoever is woken by it finds what it means and what to do."""
    text = OPERATIONS.partition(f"### {rule['alert']}\n")[2].partition("\n#")[0]
    assert len(text.split()) > 20, f"docs/operations.md has no ### {rule['alert']}"
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]


def test_no_alert_is_made_up():
    """Goal: the page explains the alerts that exist."""
    headings = re.findall(r"^### (Bursar\w+)$", OPERATIONS, re.MULTILINE)
    assert headings == [rule["alert"] for rule in ALERTS]


# Commands and settings ---------------------------------------------------------------------------


def check_command(arguments: list[str]) -> None:
    """Whether `bursar` takes these arguments, without running it."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("bursar", list(arguments), resilient_parsing=True)
    while hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, arguments)
        arguments = list(rest)
        if not hasattr(command, "resolve_command"):
            break
    command.make_context(command.name, arguments)


def settings_of(text: str) -> set[str]:
    return set(re.findall(r"\bBURSAR_[A-Z_]+", text))


KNOWN: Final = {variable(name) for name in load_defaults()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units(unit: Path, tmp_path: Path):
    """Goal: systemd accepts them, they run a command that exists, with settings that exist, and as
    nobody special."""
    text = unit.read_text("utf-8")
    assert settings_of(text) <= KNOWN
    assert re.search(r"^User=bursar$", text, re.MULTILINE)
    (start,) = re.findall(r"^ExecStart=/opt/bursar/bin/bursar (.+)$", text, re.MULTILINE)
    check_command(shlex.split(start.replace("%i", "9421")))
    drain = int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0])
    assert drain > int(load_defaults()["drain_seconds"])
    verify = program("systemd", "systemd-analyze")
    copy = tmp_path / unit.name.replace("@", "@9421")
    copy.write_text(
        text.replace("/opt/bursar/bin/bursar", "/bin/true").replace("User=bursar\n", "")
    )
    done = subprocess.run([verify, "verify", "--man=no", str(copy)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]
    assert complaints == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_hardened(unit: Path):
    """Goal: what breaks into a process of ours reaches little beyond it, by systemd's own scale
    from 0 (locked up) to 10; the page says the figure."""
    analyze = program("systemd", "systemd-analyze")
    said = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
    ).stdout
    (figure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)
    (promised,) = re.findall(r"`systemd-analyze security` says ([\d.]+)", OPERATIONS)
    assert float(figure) <= float(promised) <= 2.0


def test_worker_metrics_stay_on_the_machine():
    """Goal: a page without a key is shown to others only by who decides so."""
    worker = (DEPLOY / "systemd/bursar-worker@.service").read_text("utf-8")
    assert not re.search(r"^ExecStart=.*--metrics-host", worker, re.MULTILINE)
    assert "ports" not in COMPOSE["services"]["worker"]


def test_images_are_exact_and_can_be_pinned(tmp_path: Path):
    """Goal: no image is "whatever is newest", and one command fixes them by digest; again, too."""
    folder = tmp_path / "docker"
    shutil.copytree(DEPLOY / "docker", folder)
    before = {name: (folder / name).read_text("utf-8") for name in ("Dockerfile", "compose.yaml")}
    tagged = re.findall(r"(?:FROM|image:) (\w+:\S+)", "".join(before.values()))
    assert {image.partition(":")[0] for image in tagged} == {"python", "postgres", "redis"}
    assert all(re.search(r":\d+\.\d+(\.\d+)?(-|$)", image) for image in tagged)
    # There is no registry here: what the docker client would say, by a program of its name.
    docker = tmp_path / "docker-client" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && [ "$5" = --format ] || exit 1\n'
        'printf \'sha256:%s\\n\' "$(printf %s "$4" | sha256sum | cut -c1-64)"\n'
    )
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{docker.parent}:{os.environ['PATH']}"}
    after = ""
    for _ in range(2):
        subprocess.run([sys.executable, folder / "pin.py"], env=environment, check=True)
        after = "".join((folder / name).read_text("utf-8") for name in before)
        for image in tagged:
            fixed = f"{image}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"
            assert fixed in after
        assert re.sub(r"@sha256:[0-9a-f]{64}", "", after) == "".join(before.values())
    docker.write_text("#!/bin/sh\necho no such image >&2\nexit 1\n")
    failed = subprocess.run(
        [sys.executable, folder / "pin.py"], env=environment, capture_output=True, text=True
    )
    assert failed.returncode == 1
    assert "no such image" in failed.stderr
    assert "".join((folder / name).read_text("utf-8") for name in before) == after


def test_compose_file():
    """Goal: every service is built or pulled, waits for one that exists, runs a command that exists
    and sets settings that exist."""
    services: dict[str, dict[str, Any]] = COMPOSE["services"]
    for name, service in services.items():
        assert "image" in service, name
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        if service["image"] == "bursar":
            assert set(service["environment"]) <= KNOWN
            check_command(service["command"])
            folder = DEPLOY / "docker" / service["build"]["context"]
            assert (folder / service["build"]["dockerfile"]).is_file()
    assert {"api", "worker", "migrate", "postgres", "redis"} == set(services)


def test_dockerfile():
    """Goal: what it copies is there, it installs from the lock, and it does not run as root."""
    text = (DEPLOY / "docker/Dockerfile").read_text("utf-8").replace("\\\n", " ")
    steps = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# "]
    allowed = {"FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT"}
    assert {step for step, _ in steps} <= allowed | {"CMD"}
    for step, rest in steps:
        if step == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources)
        if step == "FROM":
            assert re.match(r"[a-z]+:[\w.-]+\d", rest), "a version, not whatever is newest"
    users = [rest for step, rest in steps if step == "USER"]
    assert users[-1] not in ("root", "0")
    assert "--require-hashes" in text
    assert settings_of(text) <= KNOWN
    entry = json.loads(dict(steps)["ENTRYPOINT"])
    assert entry == ["bursar"]
    check_command(json.loads(dict(steps)["CMD"]))
