"""Where a request comes from: the peer's address, or the one that a trusted proxy reports."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network


class Proxies:
    """The trusted proxies in front of the service."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._trusted = [ip_network(entry) for entry in trusted]

    def is_one(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

    def origin(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """The nearest address that is not a trusted proxy's; empty when it is not an address.
        Addresses further to the left in X-Forwarded-For are ignored: a client can write anything
        there."""
        hops = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
        nearest = peer
        while hops and self.is_one(nearest):
            nearest = hops.pop().strip()
        try:
            return str(ip_address(nearest))
        except ValueError:
            return ""
