"""`bursar`: the command line. Each command imports only what it needs, so that all start
quickly."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from bursar import __version__
from bursar.cli import (
    agents,
    audit,
    backup,
    budgets,
    database,
    deposits,
    doctor,
    keys,
    listen,
    localnet,
    log,
    mcp,
    policy,
    profiles,
    purchases,
    recipients,
    shop,
    spends,
    stop,
    transactions,
    wallets,
    webhooks,
)
from bursar.cli.exits import ExitCode, exit_code
from bursar.cli.printed import watch_output
from bursar.cli.show import say
from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.errors import BursarError, ConfigError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Wallets that autonomous agents cannot overspend.",
)
_AGENTS = "Agents and money"
_EVENTS = "Events"
_ACCESS = "Access"
_HELP = "First steps and trouble"
_SERVICE = "The service on this machine"


def _print_version(wanted: bool) -> None:
    if wanted:
        say(__version__)
        raise typer.Exit


@app.callback()
def bursar(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    del version  # the user has seen it


app.add_typer(shop.app, name="demo", rich_help_panel=_HELP)
app.command(rich_help_panel=_HELP)(doctor.doctor)
app.add_typer(agents.app, name="agents", rich_help_panel=_AGENTS)
app.add_typer(policy.app, name="policy", rich_help_panel=_AGENTS)
app.command(rich_help_panel=_AGENTS)(wallets.fund)
app.command(rich_help_panel=_AGENTS)(spends.spend)
app.command(rich_help_panel=_AGENTS)(spends.preview)
app.command(rich_help_panel=_AGENTS)(purchases.buy)
app.add_typer(purchases.app, name="purchases", rich_help_panel=_AGENTS)
app.add_typer(purchases.pins, name="pins", rich_help_panel=_AGENTS)
app.add_typer(spends.approvals, name="approvals", rich_help_panel=_AGENTS)
app.add_typer(transactions.app, name="transactions", rich_help_panel=_AGENTS)
app.add_typer(wallets.app, name="wallets", rich_help_panel=_AGENTS)
app.command(rich_help_panel=_AGENTS)(wallets.withdraw)
app.command(rich_help_panel=_AGENTS)(stop.stop)
app.command(rich_help_panel=_AGENTS)(stop.resume)
app.add_typer(budgets.app, name="budgets", rich_help_panel=_AGENTS)
app.add_typer(recipients.app, name="recipients", rich_help_panel=_AGENTS)
app.add_typer(webhooks.app, name="webhooks", rich_help_panel=_EVENTS)
app.add_typer(webhooks.events, name="events", rich_help_panel=_EVENTS)
app.command(rich_help_panel=_EVENTS)(listen.listen)
app.add_typer(keys.app, name="keys", rich_help_panel=_ACCESS)
app.command(rich_help_panel=_ACCESS)(profiles.login)
app.command(rich_help_panel=_ACCESS)(profiles.logout)
app.command(rich_help_panel=_ACCESS)(profiles.profiles)
app.command(rich_help_panel=_ACCESS)(profiles.whoami)
app.command(rich_help_panel=_AGENTS)(mcp.mcp)
app.command(rich_help_panel=_ACCESS)(log.log)
app.command(rich_help_panel=_SERVICE)(audit.audit)
app.command(rich_help_panel=_SERVICE)(audit.adopt)
app.add_typer(deposits.app, name="deposits", rich_help_panel=_SERVICE)
app.add_typer(backup.app, name="backup", rich_help_panel=_SERVICE)
app.command(rich_help_panel=_SERVICE)(backup.restore)
app.add_typer(database.app, name="database", rich_help_panel=_SERVICE)
app.add_typer(localnet.app, name="localnet", rich_help_panel=_SERVICE)


@app.command(rich_help_panel=_SERVICE)
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [BURSAR_HOST]")] = None,
    port: Annotated[str | None, typer.Option(help="Port, 8420. [BURSAR_PORT]")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data, .bursar. [BURSAR_DATA_DIR]")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="HTTP processes. [BURSAR_WORKERS]")] = None,
) -> None:
    """Run the whole service: database, API and all."""
    from bursar.logs import set_up_logs
    from bursar.service.serve import serve as run_service

    config = load_config(os.environ, host=host, port=port, data_dir=data_dir, workers=workers)
    set_up_logs(config.log_level, "serve")
    work = run_service(config, echo=say, on_terminal=sys.stdout.isatty())
    raise typer.Exit(run(work))


@app.command(rich_help_panel=_SERVICE)
def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [BURSAR_HOST]")] = None,
    port: Annotated[str | None, typer.Option(help="Port, 8420. [BURSAR_PORT]")] = None,
    share_port: Annotated[
        bool, typer.Option("--share-port", help="Share the port with other processes (Linux).")
    ] = False,
) -> None:
    """Run one HTTP process on the database of BURSAR_DATABASE_URL."""
    from bursar.logs import set_up_logs
    from bursar.service.api import run_api

    config = load_config(os.environ, host=host, port=port)
    if config.database_url is None:
        raise ConfigError("BURSAR_DATABASE_URL", "must be set for `bursar api`")
    set_up_logs(config.log_level, "api")
    run(run_api(config, SystemClock(), share_port=share_port))


@app.command(rich_help_panel=_SERVICE)
def worker(
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Show /metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of that port.")] = "127.0.0.1",
) -> None:
    """Run one worker process on the database of BURSAR_DATABASE_URL."""
    from bursar.logs import set_up_logs
    from bursar.metrics import show_metrics
    from bursar.service.worker import run_worker

    config = load_config(os.environ)
    if config.database_url is None:
        raise ConfigError("BURSAR_DATABASE_URL", "must be set for `bursar worker`")
    set_up_logs(config.log_level, "worker")
    if metrics_port is not None:
        show_metrics(metrics_host, metrics_port)
    run(run_worker(config))


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> None:
    watch_output()
    try:
        try:
            app(prog_name="bursar")
        finally:
            # Not left to the end of the interpreter, where nothing can be told any more.
            sys.stdout.flush()
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.startswith("bursar"):
            raise
        _complain(
            f"{problem.name} is not installed. Commands that run a service or work on its database"
            ' need: pip install "bursar-wallet[server]"'
        )
        sys.exit(ExitCode.USAGE)
    except BursarError as problem:
        _complain(str(problem))
        for fault in getattr(problem, "details", ()):
            say(f"  {fault.param}: {fault.message}", err=True)
        code = exit_code(problem)
        if code is ExitCode.UNAVAILABLE:
            say("  `bursar doctor` looks into it.", err=True)
        sys.exit(code)


def _complain(text: str) -> None:
    say(f"bursar: {text}", err=True, fg=typer.colors.RED)


if __name__ == "__main__":
    main()
