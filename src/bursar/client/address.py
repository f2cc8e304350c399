"""Where a key may be sent: a live key never unencrypted, and no key through a proxy to this machine
itself."""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from bursar.client.variables import BASE_URL
from bursar.errors import ConfigError

_LIVE_KEY: Final = "bur_live_"
_EVERYTHING: Final = ("all://", "http://", "https://")


def check_address(api_key: str, base_url: str) -> None:
    """Raises ConfigError if the key could be read on its way."""
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
    """`mounts` for an httpx client: proxies from the environment are used, but not for loopback
    addresses. A proxy elsewhere could not reach them, and would be sent the key."""
    return dict.fromkeys(_EVERYTHING) if is_loopback(base_url) else None
