"""The embedded chains, as children of `bursar serve`. Imports no client of a chain, because the
database's start waits for what `bursar serve` imports."""

import sys
from dataclasses import replace
from typing import Final

from bursar.chain.networks import localnet_folder, network_name
from bursar.config import LOCALNET, MODES, Config, Mode, variable
from bursar.errors import CommandFailed
from bursar.service.environment import bare_python_environment
from bursar.service.health import healthy
from bursar.service.ports import free_port
from bursar.service.supervisor import Child

_READY_SECONDS: Final = 30.0


def choose_ports(config: Config) -> Config:
    """The settings with a port for every embedded chain. Raises CommandFailed when one is taken."""
    return replace(
        config,
        localnet_port=_port(config, "test", config.localnet_port, "BURSAR_LOCALNET_PORT"),
        live_localnet_port=_port(
            config, "live", config.live_localnet_port, "BURSAR_LIVE_LOCALNET_PORT"
        ),
    )


def _port(config: Config, mode: Mode, port: int, variable: str) -> int:
    if config.network(mode) != LOCALNET:
        return port
    try:
        return free_port("127.0.0.1", port)
    except CommandFailed:
        raise CommandFailed(
            f"The {mode} localnet cannot listen on port {port} of 127.0.0.1. Stop the program that"
            f" uses it, or choose another port with {variable} (0 takes a free one)."
        ) from None


def localnet_children(config: Config) -> list[Child]:
    """One for each mode whose network is `localnet`."""
    return [_child(config, mode) for mode in MODES if config.network(mode) == LOCALNET]


def _child(config: Config, mode: Mode) -> Child:
    port = config.localnet_port if mode == "test" else config.live_localnet_port
    options = {
        "--genesis": mode,
        "--port": str(port),
        "--data-dir": str(localnet_folder(config, mode)),
    }
    if mode == "live":
        # No extra websocket port: by default the next one, 8899, is where clients look for the test
        # chain.
        options["--ws-port"] = "0"
    return Child(
        name=network_name(config, mode),
        argv=[
            *(sys.executable, "-m", "bursar.cli.main", "localnet"),
            *(part for option in options.items() for part in option),
            "--quiet",
        ],
        # The localnet needs no secret of ours; of our settings it gets only the log level.
        env={**bare_python_environment(), variable("log_level"): config.log_level},
        ready=lambda: healthy("127.0.0.1", port, "/health"),
        ready_seconds=_READY_SECONDS,
    )
