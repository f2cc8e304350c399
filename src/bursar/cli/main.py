"""`bursar`: the command line. Each command imports what it needs, so that none waits for others."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from bursar import __version__
from bursar.cli import audit, database, keys, listen, localnet, mcp
from bursar.clock import SystemClock
from bursar.config import load_config
from bursar.errors import BursarError, ConfigError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Wallets that autonomous agents cannot overspend.",
)
app.add_typer(keys.app, name="keys")
app.add_typer(database.app, name="database")
app.add_typer(localnet.app, name="localnet")
app.command()(audit.audit)
app.command()(audit.adopt)
app.command()(listen.listen)
app.command()(mcp.mcp)


@app.command()
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
    from bursar.service.first_key import make_first_key
    from bursar.service.serve import serve as run_service

    config = load_config(os.environ, host=host, port=port, data_dir=data_dir, workers=workers)
    set_up_logs(config.log_level, "serve")
    raise typer.Exit(run(run_service(config, echo=typer.echo, first_key=make_first_key)))


@app.command()
def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [BURSAR_HOST]")] = None,
    port: Annotated[str | None, typer.Option(help="Port, 8420. [BURSAR_PORT]")] = None,
    share_port: Annotated[
        bool, typer.Option("--share-port", help="Let others listen on the port too (Linux).")
    ] = False,
    limits_socket: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run one HTTP process on the database of BURSAR_DATABASE_URL."""
    from bursar.logs import set_up_logs
    from bursar.service.api import run_api

    config = load_config(os.environ, host=host, port=port)
    if config.database_url is None:
        raise ConfigError("BURSAR_DATABASE_URL", "must be set for `bursar api`")
    set_up_logs(config.log_level, "api")
    run(run_api(config, SystemClock(), share_port=share_port, limits_socket=limits_socket))


@app.command()
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
    typer.echo(__version__)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> None:
    try:
        app()
    except ConfigError as problem:
        typer.echo(f"bursar: {problem}", err=True)
        sys.exit(2)
    except BursarError as problem:
        typer.echo(f"bursar: {problem}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
