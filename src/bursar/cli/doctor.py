"""`bursar doctor`: what is wrong, and how to put it right."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bursar import __version__
from bursar.cli.connection import load_profiles, profiles_path
from bursar.cli.demo import service_installed
from bursar.cli.exits import ExitCode
from bursar.cli.finding import Finding
from bursar.cli.live import look_at_live
from bursar.cli.remote import Remote, remote
from bursar.cli.show import plain
from bursar.clock import SystemClock
from bursar.config import MODES, Given, gather, load_config, variable
from bursar.errors import BursarError

if TYPE_CHECKING:
    import httpx

    from bursar.db import Database

_PYTHON: Final = (3, 11)
_TIMEOUT_SECONDS: Final = 5.0
# Receivers of webhooks tolerate five minutes; warning at a tenth of that leaves time to act.
_SKEW: Final = timedelta(seconds=30)
_EXPIRES_SOON: Final = timedelta(days=7)
_FREE_BYTES: Final = 1_000_000_000
_WEBHOOKS_LOOKED_AT: Final = 100
_WALLETS_NAMED: Final = 10


@remote
def doctor(
    to: Remote,
    live: Annotated[
        bool,
        typer.Option("--live", help="Check the live network instead, before real money goes in."),
    ] = False,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")
    ] = None,
) -> None:
    """Look at everything between this terminal and a paid spend, and say what to fix.

    Exit code 1: something is wrong.
    """
    findings: list[Finding] = []
    for finding in (
        look_at_live(load_config(os.environ, data_dir=data_dir)) if live else _look(to, data_dir)
    ):
        findings.append(finding)
        _print(to, finding)
    if to.out.as_json:
        to.out.rows(findings, {})
    elif all(finding.state == "ok" for finding in findings):
        to.out.done("All is well.")
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _look(to: Remote, data_dir: str | None) -> Iterator[Finding]:
    for check in (_install, _profiles, _service, _key, _webhooks):
        yield from check(to)
    yield from _folder(data_dir)
    yield from _books(data_dir)


def _print(to: Remote, finding: Finding) -> None:
    if to.out.as_json:
        return
    from rich.text import Text

    colours = {"ok": "green", "warning": "yellow", "wrong": "red"}
    line = Text(f"{finding.state:8}", style=colours[finding.state])
    line.append(plain(f"{finding.what}: {finding.found}"), style="default")
    to.out.console.print(line, soft_wrap=True)
    if finding.fix:
        to.out.console.print(plain(f"          {finding.fix}"), markup=False, soft_wrap=True)


# The checks --------------------------------------------------------------------------------------


def _install(to: Remote) -> Iterator[Finding]:
    del to
    version = platform.python_version()
    yield Finding(
        what="bursar",
        state="ok" if sys.version_info >= _PYTHON else "wrong",
        found=f"{__version__} on Python {version}, {platform.system()} {platform.machine()}",
    )
    here = "installed" if service_installed() else "not installed"
    yield Finding(what='packages of the service ("bursar-wallet[server]")', state="ok", found=here)


def _profiles(to: Remote) -> Iterator[Finding]:
    known = load_profiles()
    names = ", ".join(sorted(known.connections)) or "none"
    used = f"; using {to.connection.profile}" if to.connection.profile else ""
    yield Finding(what=f"profiles in {profiles_path()}", state="ok", found=f"{names}{used}")


def _service(to: Remote) -> Iterator[Finding]:
    import httpx

    from bursar.client.address import past_proxies

    url = to.connection.base_url
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, mounts=past_proxies(url)) as http:
            alive = http.get("/healthz")
            ready = http.get("/readyz") if alive.status_code == 200 else None
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        yield Finding(
            what=f"service at {url}",
            state="wrong",
            found=f"no answer ({type(problem).__name__})",
            fix="Start it with `bursar serve`, or say where it is: --base-url, BURSAR_BASE_URL.",
        )
        return
    if ready is None:
        yield Finding(
            what=f"service at {url}",
            state="wrong",
            found=f"something answers {alive.status_code}, but it is not Bursar",
            fix="Check --base-url, BURSAR_BASE_URL and the proxy in front of the service.",
        )
        return
    yield Finding(what=f"service at {url}", state="ok", found="answers")
    yield from _readiness(ready)
    yield from _skew(alive)


_FIXES: Final = {
    "database": "See that PostgreSQL runs and BURSAR_DATABASE_URL is right; `bursar serve` brings"
    " its tables up to date.",
    "rate limits": "See that Redis runs and BURSAR_REDIS_URL is right.",
    "test network": "See that BURSAR_TEST_NETWORK answers; spends wait until it does.",
    "live network": "See that BURSAR_LIVE_NETWORK answers; spends wait until it does.",
}


def _readiness(ready: "httpx.Response") -> Iterator[Finding]:
    try:
        answer: dict[str, dict[str, str]] = ready.json()
        checks, workers = answer["checks"], answer.get("workers", {})
    except (ValueError, KeyError, TypeError):
        checks, workers = {}, {}
    for name, found in checks.items():
        good = found == "ok"
        yield Finding(
            what=name,
            state="ok" if good else "wrong",
            found=found,
            fix="" if good else _FIXES.get(name, "See the log of the service."),
        )
    for part, found in workers.items():
        good = found == "ok"
        yield Finding(
            what="worker" if part == "all" else f"{part} worker",
            state="ok" if good else "warning" if found.startswith("starting") else "wrong",
            found=found,
            fix="" if good else _worker_fix(found),
        )


def _worker_fix(found: str) -> str:
    if found.startswith(("starting", "silent")):
        return (
            "Nothing is settled, credited or delivered: see that `bursar serve`, or `bursar worker`"
            " beside `bursar api`, runs on this database."
        )
    if "set aside" in found:
        return (
            "Settling, expiring or crediting fails for these wallets; the others go on. In the log,"
            " wallet_set_aside names the wallet and has the traceback. They are tried again every"
            " few minutes."
        )
    return "See duty_failed and duty_put_off in the log of the worker."


def _skew(answer: "httpx.Response") -> Iterator[Finding]:
    """Compares the service's clock with this machine's, as exactly as a header of whole seconds
    allows."""
    try:
        theirs = parsedate_to_datetime(answer.headers["date"])
    except (KeyError, ValueError):
        return
    off = abs(SystemClock().now() - theirs.astimezone(UTC))
    good = off < _SKEW
    yield Finding(
        what="clocks",
        state="ok" if good else "warning",
        found="agree" if good else f"this machine and the service differ by {off}",
        fix="" if good else "Set both by NTP; receivers refuse webhooks more than 5 minutes off.",
    )


def _key(to: Remote) -> Iterator[Finding]:
    from bursar.client.errors import ConnectionFailed

    try:
        me = to.client.keys.me()
    except ConnectionFailed:
        return  # reported by another check
    except BursarError as problem:
        fix = (
            "Make one with `bursar keys create --mode test` on the machine of the service, then"
            " `bursar login`."
        )
        yield Finding(what="API key", state="wrong", found=str(problem), fix=fix)
        return
    soon = me.expires_at is not None and me.expires_at - SystemClock().now() < _EXPIRES_SOON
    found = f"{me.id}: {me.mode}, scope {me.scope}, account {me.account}"
    yield Finding(
        what="API key",
        state="warning" if soon else "ok",
        found=f"{found}, ends {me.expires_at:%Y-%m-%d %H:%M} UTC" if soon else found,
        fix="Make the next one: bursar keys create" if soon else "",
    )


def _webhooks(to: Remote) -> Iterator[Finding]:
    try:
        webhooks = list(islice(to.client.webhooks.list(), _WEBHOOKS_LOOKED_AT))
    except BursarError:
        # No key (reported by another check), or a key that may not see webhooks.
        return
    for webhook in webhooks:
        if webhook.status == "disabled":
            yield Finding(
                what=f"webhook {webhook.id}",
                state="warning",
                found=f"disabled ({webhook.disabled_reason}): {webhook.url}",
                fix="Repair the receiver, then:"
                f" bursar webhooks update {webhook.id} --status enabled",
            )
    if webhooks and all(webhook.status == "enabled" for webhook in webhooks):
        yield Finding(what="webhooks", state="ok", found=f"{len(webhooks)}, all enabled")


def _folder(data_dir: str | None) -> Iterator[Finding]:
    """Checks the data folder, if this machine has one."""
    config = load_config(os.environ, data_dir=data_dir)
    folder = config.data_dir
    if not folder.is_dir():
        return
    yield _settings(gather(os.environ, data_dir=data_dir))
    if config.in_the_open:
        yield Finding(
            what=f"listening on {config.host}",
            state="warning",
            found="keys cross the network as plain text",
            fix="Put a proxy that ends TLS in front and set BURSAR_TLS_IN_FRONT=on, or listen on"
            " 127.0.0.1.",
        )
    # Imported here because it needs POSIX, as the service does; other commands do not.
    from bursar.service.datadir import PASSABLE

    yield _permissions(folder, 0o700, PASSABLE)
    key = folder / "master.key"
    if key.exists():
        yield _permissions(key, 0o600)
    free = shutil.disk_usage(folder).free
    good = free > _FREE_BYTES
    yield Finding(
        what=f"disk of {folder}",
        state="ok" if good else "wrong",
        found=f"{free / 1e9:.1f} GB free",
        fix="" if good else "Make room: a full disk stops the database.",
    )


def _settings(given: Given) -> Finding:
    """Says where each setting came from, by name: values may be secrets."""
    places = {
        "options": given.flags,
        "environment": given.environment,
        str(given.path): given.file,
    }
    found = [f"{where}: {', '.join(sorted(names))}" for where, names in places.items() if names]
    overruled = ", ".join(map(variable, sorted(given.overruled)))
    return Finding(
        what="settings",
        state="warning" if overruled else "ok",
        found="; ".join(found) or "all as they come",
        fix=f"The environment overrules the file: unset {overruled}, or change the file."
        if overruled
        else "",
    )


def _books(data_dir: str | None) -> Iterator[Finding]:
    """Checks for what waits for a person, if the service's database can be reached from here."""
    config = load_config(os.environ, data_dir=data_dir)
    if not service_installed() or not (config.database_url or config.data_dir.is_dir()):
        return
    from bursar.cli.database import on_database
    from bursar.purchase.outflow_store import problems
    from bursar.wallet.store import count_unread

    async def look(db: "Database") -> tuple[int, list[tuple[str, str]]]:
        async with db.connection() as tx:
            unread = sum([await count_unread(tx, mode) for mode in MODES])
            return unread, await problems(tx, _WALLETS_NAMED)

    try:
        unread, waiting = on_database(config, look)
    except BursarError:
        return  # on another machine, or reported by another check
    if unread:
        yield Finding(
            what="deposits",
            state="warning",
            found=f"{unread} transactions that may be deposits could not be read",
            fix="List them with `bursar deposits unread`.",
        )
    for agent_id, problem in waiting:
        yield Finding(
            what=f"purchases of {agent_id}",
            state="warning",
            found=f"none is signed after a failover or restore: {problem}",
            fix="It goes on by itself once all that left the wallet is in the books; see"
            " docs/settlement.md.",
        )


def _permissions(path: Path, wanted: int, *accepted: int) -> Finding:
    mode = path.stat().st_mode & 0o777
    good = any(mode & ~most == 0 for most in (wanted, *accepted))
    return Finding(
        what=str(path),
        state="ok" if good else "wrong",
        found=f"mode {mode:04o}",
        fix="" if good else f"It holds secrets; run: chmod {wanted:o} {path}",
    )
