"""Which chain a mode runs on, and which token counts as USDC there."""

from pathlib import Path
from typing import Final

from bursar.config import LOCALNET, Config, Mode
from bursar.errors import unavailable
from bursar_localnet.disk import chain_mint
from bursar_localnet.genesis import NETWORKS

CURRENCY: Final = "USDC"
MAINNET_GENESIS: Final = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
MAINNET_USDC: Final = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
DEVNET_USDC: Final = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"

_MINTS: Final[dict[Mode, str]] = {"test": DEVNET_USDC, "live": MAINNET_USDC}


def network_name(config: Config, mode: Mode) -> str:
    """The network's name in transactions. The RPC address is not shown: it may hold an access
    token."""
    if config.network(mode) == LOCALNET:
        return LOCALNET if mode == "test" else f"{LOCALNET}-live"
    return "solana-devnet" if mode == "test" else "solana-mainnet"


def localnet_folder(config: Config, mode: Mode) -> Path:
    return config.data_dir / f"localnet-{mode}"


def usdc_mint(config: Config, mode: Mode) -> str:
    """A localnet's own folder says what its token is: it may be that of a former version."""
    network = config.network(mode)
    if network is None:
        # The mode has keys from the time when its network was configured.
        raise unavailable(
            f"This service has no {mode} network now. Its operator has to set"
            f" BURSAR_{mode.upper()}_NETWORK; nothing was changed.",
            retry_after_seconds=60,
        )
    if network == LOCALNET:
        return chain_mint(localnet_folder(config, mode), NETWORKS[mode])
    return _MINTS[mode]
