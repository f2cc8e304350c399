"""`bursar localnet`: a Solana node on this machine, and test money from it."""

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.remote import Yes, confirm
from bursar.cli.show import say
from bursar.config import load_config
from bursar.errors import CommandFailed, ConfigError
from bursar.money import format_micros, parse_micros

app = typer.Typer(help="Run a Solana node in a box until Ctrl-C: real programs, offline, durable.")

_USUAL = "http://127.0.0.1:8899"


class Genesis(StrEnum):
    TEST = "test"
    LIVE = "live"


@app.callback(invoke_without_command=True)
def localnet(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="JSON-RPC over HTTP; 0 takes a free one.")] = 8899,
    ws_port: Annotated[
        int | None,
        typer.Option(help="Another port for websockets, which --port has too; 0: none. (port + 1)"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    data_dir: Annotated[
        Path | None, typer.Option(help="The chain's folder. (.bursar/localnet-GENESIS)")
    ] = None,
    genesis: Annotated[Genesis, typer.Option(help="Which network to be.")] = Genesis.TEST,
    slot_ms: Annotated[int, typer.Option(min=1, help="Milliseconds per slot.")] = 400,
    confirmed_lag: Annotated[
        int, typer.Option(min=0, help="Slots until a transaction is confirmed; mainnet: 2.")
    ] = 0,
    finalized_lag: Annotated[
        int, typer.Option(min=0, help="Slots until it is finalized; mainnet: 32.")
    ] = 0,
    faults: Annotated[
        bool, typer.Option("--faults", help="Allow tests on this machine to inject faults.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the log.")] = False,
) -> None:
    """Starts the node, unless a command such as `faucet` was given."""
    if context.invoked_subcommand is not None:
        return
    # Imported here because a plain install does not have it, and `faucet` works without it.
    import uvloop

    from bursar.clock import SystemClock
    from bursar.logs import set_up_logs
    from bursar_localnet.errors import LocalnetFailed
    from bursar_localnet.genesis import NETWORKS
    from bursar_localnet.rpc import Settings, run
    from bursar_localnet.slots import Lag

    set_up_logs(load_config(os.environ).log_level, "localnet")
    settings = Settings(
        data_dir=data_dir or Path(".bursar") / f"localnet-{genesis}",
        network=NETWORKS[genesis],
        host=host,
        port=port,
        ws_port=ws_port,
        slot_ms=slot_ms,
        lag=Lag(confirmed_lag, max(confirmed_lag, finalized_lag)),
        faults=faults,
    )
    clock = SystemClock()
    node = run(settings, clock) if quiet else run(settings, clock, echo=say)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(node)
    except LocalnetFailed as problem:
        raise CommandFailed(str(problem)) from None


@app.command()
def faucet(
    address: Annotated[str, typer.Argument(help="The wallet to fund (not its token account).")],
    amount: Annotated[str, typer.Argument(help="USDC, e.g. 250 or 0.5.")],
    rpc: Annotated[
        str | None, typer.Option(help="The running node; else the one of the data folder.")
    ] = None,
) -> None:
    """Mint test USDC into a wallet on the running node."""
    import httpx

    from bursar_localnet.whereabouts import noted_address

    rpc = rpc or noted_address(load_config(os.environ).data_dir / "localnet-test") or _USUAL
    micros = parse_micros(amount)
    if not micros:
        raise ConfigError("AMOUNT", f"must be USDC above zero, such as 250 or 0.5, not {amount!r}")
    call = {"jsonrpc": "2.0", "id": 1, "method": "bursar_faucet", "params": [address, micros]}
    try:
        answer = httpx.post(rpc, json=call, timeout=10, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        raise CommandFailed(
            f"No localnet answers at {rpc}. Start one with: bursar localnet"
        ) from None
    if "error" in answer:
        raise CommandFailed(f"The localnet refused: {answer['error']['message']}")
    say(f"{format_micros(micros)} USDC to {address}\nsignature {answer['result']}")


@app.command()
def reset(
    data_dir: Annotated[
        Path | None, typer.Option(help="The chain's folder; else the service's own.")
    ] = None,
    genesis: Annotated[Genesis, typer.Option(help="Which network's chain.")] = Genesis.TEST,
    yes: Yes = False,
) -> None:
    """Delete a chain, so that the next start begins a new one."""
    from bursar_localnet.disk import remove_chain
    from bursar_localnet.errors import LocalnetFailed

    folder = data_dir or load_config(os.environ).data_dir / f"localnet-{genesis}"
    say(_what_is_lost(folder), err=True)
    confirm(f"Delete the chain in {folder}?", yes=yes)
    try:
        remove_chain(folder)
    except LocalnetFailed as problem:
        raise CommandFailed(str(problem)) from None
    say(f"The chain in {folder} is gone. The next start founds a new one.")


def _what_is_lost(folder: Path) -> str:
    service = folder.parent
    lost = f"With the chain in {folder} every balance and payment on it is lost for good."
    if not (service / "postgres").exists():
        return f"{lost}\nA Bursar database that was used with it does not start with another chain."
    return (
        f"{lost}\nThe database in {service} belongs to this chain: `bursar serve` does not start"
        " with another one.\nTo begin anew as a whole, move that folder away instead; agents, keys"
        " and books go with it."
    )
