"""Connects to the chains of the two modes, and sees that the fee payer has SOL on each."""

from collections.abc import Sequence
from typing import Final

import structlog

from bursar.chain.networks import localnet_folder, usdc_mint
from bursar.chain.pin import check_network
from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.config import LOCALNET, MODES, Config, Mode
from bursar.cost import store as cost_store
from bursar.db import Database
from bursar.metrics import FEE_PAYER_LAMPORTS, NetworkCost
from bursar_localnet.whereabouts import noted_address

# SOL that the fee payer of a localnet is given at a time: 100, enough for ten million payments.
_GIFT_LAMPORTS: Final = 100_000_000_000
# Accounts with a metric of their own; more would be a metric for each tenant.
_ACCOUNTS_SHOWN: Final = 20

_log = structlog.get_logger()


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
