"""Where a key may be sent: past no proxy on this machine, and a live one never in the clear."""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from bursar.client.variables import BASE_URL
from bursar.errors import ConfigError

_LIVE_KEY: Final = "bur_live_"
_EVERYTHING: Final = ("all://", "http://", "https://")


def check_address(api_key: str, base_url: str) -> None:
    """Raises ConfigError where the key would be readable on the way."""
    clear = urlsplit(base_url).scheme != "https"
    if clear and api_key.startswith(_LIVE_KEY) and not is_loopback(base_url):
        raise ConfigError(
            BASE_URL, f"must begin with https:// for a live key, not {base_url!r}; or be loopback"
        )


def is_loopback(base_url: str) -> bool:
    try:
        host = urlsplit(base_url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def past_proxies(base_url: str) -> dict[str, None] | None:
    """`mounts` of an httpx client: what HTTP_PROXY and the like say counts, but not for loopback.
    A proxy elsewhere cannot reach it, and would be handed the key."""
    return dict.fromkeys(_EVERYTHING) if is_loopback(base_url) else None
