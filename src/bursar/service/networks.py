"""The chains of the two modes: starts embedded ones as children of `bursar serve`, connects to all
of them, and sees that the fee payer has SOL on each."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import aiohttp
import structlog

from bursar.chain.networks import localnet_folder, network_name, usdc_mint
from bursar.chain.node import Node
from bursar.chain.pin import check_network
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.config import LOCALNET, MODES, Config, Mode, variable
from bursar.cost import store as cost_store
from bursar.db import Database
from bursar.errors import CommandFailed
from bursar.metrics import FEE_PAYER_LAMPORTS, NetworkCost
from bursar.service.environment import bare_python_environment
from bursar.service.ports import free_port
from bursar.service.supervisor import Child
from bursar_localnet.whereabouts import noted_address

# SOL that the fee payer of a localnet is given at a time: 100, enough for ten million payments.
_GIFT_LAMPORTS: Final = 100_000_000_000
_READY_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_HEALTH_SECONDS: Final = 2.0
# Accounts with a metric of their own; more would be a metric for each tenant.
_ACCOUNTS_SHOWN: Final = 20

_log = structlog.get_logger()


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
    (address,) = config.rpc_addresses(mode)
    options = {
        "--genesis": mode,
        "--port": address.rpartition(":")[2],
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
        ready=lambda: _healthy(address),
        ready_seconds=_READY_SECONDS,
    )


async def _healthy(address: str) -> None:
    """Returns once the node says that it is healthy; the caller bounds the wait."""
    async with aiohttp.ClientSession() as session:
        node = Node(session, address, _HEALTH_SECONDS)
        while True:
            try:
                if await node.call("getHealth") == "ok":
                    return
            except ChainOutOfReach:
                pass  # not listening yet
            await asyncio.sleep(_POLL_SECONDS)


def open_chain(config: Config, mode: Mode) -> Solana:
    """The caller closes it, and calls `chain.pin.check_network` before anything is signed."""
    return _open(config, config.rpc_addresses(mode))


def find_chain(config: Config, mode: Mode) -> Solana:
    """`open_chain` for a command that runs beside the service. The address of a localnet is read
    from its folder, because the service may have started it on another port than this command's
    settings say."""
    noted = None
    if config.network(mode) == LOCALNET:
        noted = noted_address(localnet_folder(config, mode))
    return _open(config, config.rpc_addresses(mode) if noted is None else (noted,))


def _open(config: Config, addresses: Sequence[str]) -> Solana:
    return Solana.open(addresses, config.chain_timeout_seconds, config.priority_fee_max_lamports)


async def refuse_wrong_networks(config: Config, db: Database) -> None:
    """Raises CommandFailed when a mode's network is not the one it began on. The worker checks a
    network that does not answer now before it signs anything."""
    for mode in MODES:
        if config.network(mode) is not None:
            chain = open_chain(config, mode)
            try:
                await check_network(db, chain, mode, usdc_mint(config, mode))
            except ChainOutOfReach as problem:
                _log.warning("network_out_of_reach", mode=mode, problem=str(problem))
            finally:
                await chain.close()


async def report_network_cost(db: Database, chain: Solana, mode: Mode, address: str) -> None:
    """The fee payer's runway and the costliest accounts, as metrics and for the console."""
    account = (await chain.accounts([address]))[address]
    async with db.connection() as tx:
        await cost_store.put_fee_payer(tx, mode, 0 if account is None else account.lamports)
        runway = await cost_store.runway(tx, mode)
        costliest = await cost_store.costliest_today(tx, mode, _ACCOUNTS_SHOWN)
    if runway is not None:
        NetworkCost.runway(mode, runway.payments, runway.days)
    NetworkCost.accounts(mode, dict(costliest))


async def ensure_fee_payer_funded(config: Config, chain: Solana, mode: Mode, address: str) -> bool:
    """Whether the fee payer has at least `fee_payer_low_lamports`. On a localnet it then gets more
    automatically; elsewhere the operator has to send SOL, and the log says where to.

    Call it about once a minute. Raises ChainOutOfReach.
    """
    account = (await chain.accounts([address]))[address]
    lamports = 0 if account is None else account.lamports
    if lamports < config.fee_payer_low_lamports and config.network(mode) == LOCALNET:
        await chain.airdrop(address, _GIFT_LAMPORTS)
        lamports += _GIFT_LAMPORTS
    FEE_PAYER_LAMPORTS.labels(mode).set(lamports)
    if lamports >= config.fee_payer_low_lamports:
        return True
    _log.warning(
        "fee_payer_low",
        mode=mode,
        address=address,
        lamports=lamports,
        wanted=config.fee_payer_low_lamports,
        advice="send SOL to this address: payments wait when it has none",
    )
    return False
