"""Where a URL of a tenant may lead: never into the network that Bursar itself runs in.

The text of a URL is checked when it is given. The address that its host resolves to is checked at
every connection: `outbound/gate.py` connects only to addresses that pass here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from bursar.hostnames import RecipientError, canonical_hostname

MAX_URL: Final = 2_048
Address = IPv4Address | IPv6Address

# Address ranges that no public receiver can have. Python's own `is_global` lets several of these
# through (multicast, 6to4, NAT64, the metadata address of one cloud), so they are written out.
_NOT_PUBLIC_V4: Final[tuple[tuple[IPv4Network, str], ...]] = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a carrier's internal address"),
        ("127.0.0.0/8", "a loopback address"),
        ("168.63.129.16/32", "a cloud's metadata address"),
        ("169.254.0.0/16", "a link-local or metadata address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.31.196.0/24", "a reserved address"),
        ("192.52.193.0/24", "a reserved address"),
        ("192.88.99.0/24", "a 6to4 relay address"),
        ("192.168.0.0/16", "a private address"),
        ("192.175.48.0/24", "a reserved address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved or broadcast address"),
    )
)
# Only 2000::/3 is handed out to the public. Loopback, link-local, unique local, multicast and the
# forms that carry an IPv4 address (mapped, compatible, NAT64) all lie outside it.
_PUBLIC_V6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_V6: Final[tuple[tuple[IPv6Network, str], ...]] = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "a reserved address"),
        ("2001:db8::/32", "a documentation address"),
        ("2002::/16", "a 6to4 address"),
        ("2620:4f:8000::/48", "a reserved address"),
        ("3ffe::/16", "a reserved address"),
        ("3fff::/20", "a documentation address"),
    )
)
_OUTSIDE_V6: Final[tuple[tuple[IPv6Network, str], ...]] = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
        ("::/96", "an IPv4-compatible address"),
        ("64:ff9b::/96", "a NAT64 address"),
        ("64:ff9b:1::/48", "a NAT64 address"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("ff00::/8", "a multicast address"),
    )
)
# ISATAP puts an IPv4 address behind either of these, under any prefix.
_ISATAP: Final = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")

_URL = re.compile(r"(https?)://([^/?#]*)([/?][^#]*)?", re.ASCII | re.IGNORECASE)
_PLAIN = re.compile(r"[!-~]+", re.ASCII)
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(?::([0-9]{1,5}))?", re.ASCII)
_DOTTED_QUAD = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})", re.ASCII)


class TargetRefused(ValueError):
    """The message completes a sentence whose subject is the URL or host."""


class Allowed:
    """Hosts and networks that may be reached although they are not public. `setting` is the
    variable that lists them."""

    def __init__(self, setting: str, entries: Sequence[str]) -> None:
        self.setting = setting
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                self._hosts.add(entry.lower())

    def host(self, host: str) -> bool:
        return host in self._hosts

    def address(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def names(self, name: str) -> bool:
        """Whether the host or address of this name is listed."""
        try:
            return self.host(name) or self.address(ip_address(name))
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed, in parts. `host` is lower-case; an IPv6 address has no brackets. `path` is
    all that is asked for there, as it was written."""

    url: str
    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def usual_port(self) -> int:
        return _usual_port(is_tls=self.is_tls)


def parse_target(url: str, allowed: Allowed) -> Target:
    """Raises TargetRefused, saying why. Looks at the text only: no name is resolved here."""
    if len(url) > MAX_URL:
        raise TargetRefused(f"must have at most {MAX_URL} characters")
    if _PLAIN.fullmatch(url) is None or "\\" in url:
        raise TargetRefused(
            "must be plain ASCII without spaces and backslashes; write other characters"
            " percent-encoded, and such hostnames as A-labels (xn--…)"
        )
    if "#" in url:
        raise TargetRefused("must not have a fragment (#)")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise TargetRefused("must look like https://example.com/path")
    if "@" in parts[2]:
        raise TargetRefused("must not carry a user name or password")
    place = _PLACE.fullmatch(parts[2])
    if place is None:
        raise TargetRefused("has no proper host and port")
    is_tls = parts[1].lower() == "https"
    port = int(place[2]) if place[2] else _usual_port(is_tls=is_tls)
    if not 1 <= port <= 65_535:
        raise TargetRefused("has a port outside 1 to 65535")
    host = place[1].strip("[]").lower()
    listed = _check_host(host, allowed, bracketed=place[1].startswith("["))
    if not is_tls and not listed:
        raise TargetRefused(
            f"must be https; http is only for hosts and networks that {allowed.setting} lists"
        )
    path = parts[3] or "/"
    return Target(url, is_tls, host, port, path if path.startswith("/") else f"/{path}")


def refusal(address: Address) -> str | None:
    """Why an address is refused, such as "a private address"; None when it is public."""
    if isinstance(address, IPv4Address):
        return next((kind for network, kind in _NOT_PUBLIC_V4 if address in network), None)
    if address.scope_id is not None:
        return "an address with a zone"
    if address not in _PUBLIC_V6:
        return next((k for n, k in _OUTSIDE_V6 if address in n), "a reserved address")
    if address.packed[8:12] in _ISATAP:
        return "an ISATAP address"
    return next((kind for network, kind in _NOT_PUBLIC_V6 if address in network), None)


def check_address(host: str, text: str, allowed: Allowed) -> None:
    """Raises TargetRefused unless the address that a host resolved to may be connected to.

    The tenant who gave the URL reads the reason, so it does not name the address: a name may
    resolve to an internal one inside the operator's network.
    """
    try:
        address = ip_address(text)
    except ValueError:
        raise TargetRefused("resolves to something that is not an IP address") from None
    if refusal(address) is not None and not allowed.host(host) and not allowed.address(address):
        raise TargetRefused(f"leads to an address that is not public, {_unless(allowed)}")


def _check_host(host: str, allowed: Allowed, bracketed: bool) -> bool:
    """Whether the setting lists the host. Raises TargetRefused for a forbidden one."""
    if bracketed or _DOTTED_QUAD.fullmatch(host):
        try:
            address = ip_address(host)
        except ValueError:
            raise TargetRefused("has a host that is not an IP address") from None
        if bracketed != isinstance(address, IPv6Address):
            raise TargetRefused("has brackets around something other than an IPv6 address")
        if allowed.host(host) or allowed.address(address):
            return True
        kind = refusal(address)
        if kind is not None:
            raise TargetRefused(f"leads to {kind}, {_unless(allowed)}")
        return False
    if allowed.host(host):
        return True
    try:
        name = canonical_hostname(host)
    except RecipientError as problem:
        raise TargetRefused(f"has a host that {problem}") from None
    # The request must name exactly the host that was checked.
    if name != host.removesuffix("."):
        raise TargetRefused(f"has a host that should be written {name}")
    if name.endswith((".localhost", ".local", ".internal", ".arpa", ".onion", ".invalid")):
        raise TargetRefused("has a host whose name is not public")
    return False


def _usual_port(*, is_tls: bool) -> int:
    return 443 if is_tls else 80


def _unless(allowed: Allowed) -> str:
    return f"which only {allowed.setting} of the service allows"
