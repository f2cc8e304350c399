"""Which chain a mode runs on, and which token counts as USDC there."""

from typing import Final

from bursar.config import LOCALNET, Config, Mode
from bursar.errors import unavailable
from bursar_localnet.genesis import LIVE_MINT, TEST_MINT

CURRENCY: Final = "USDC"
MAINNET_USDC: Final = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
DEVNET_USDC: Final = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"

_MINTS: Final[dict[tuple[Mode, bool], str]] = {
    ("test", True): TEST_MINT,
    ("live", True): LIVE_MINT,
    ("test", False): DEVNET_USDC,
    ("live", False): MAINNET_USDC,
}


def network_name(config: Config, mode: Mode) -> str:
    """The network's name in transactions. The RPC address is not shown: it may hold an access
    token."""
    if config.network(mode) == LOCALNET:
        return LOCALNET if mode == "test" else f"{LOCALNET}-live"
    return "solana-devnet" if mode == "test" else "solana-mainnet"


def usdc_mint(config: Config, mode: Mode) -> str:
    network = config.network(mode)
    if network is None:
        # The mode has keys from the time when its network was configured.
        raise unavailable(
            f"This service has no {mode} network now. Its operator has to set"
            f" BURSAR_{mode.upper()}_NETWORK; nothing was changed.",
            retry_after_seconds=60,
        )
    return _MINTS[mode, network == LOCALNET]
