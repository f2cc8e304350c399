"""Who may call the node: programs on this network, but no web page of another site.

A hostile page can make its visitor's browser call a node on the same machine: by pointing its own
name at this address (DNS rebinding), or over a websocket, which browsers open to any site. The
first shows in the Host header, the second in Origin.
"""

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


def guard(own_host: str) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        host = _name(f"//{request.host}")
        if not (host == own_host or is_no_public_name(host)):
            raise web.HTTPForbidden(text="Call this node by its address or as localhost\n")
        if origin is not None and not is_this_machine(_name(origin)):
            raise web.HTTPForbidden(text="This node is not for pages of other sites\n")
        return await handler(request)

    return check


def is_no_public_name(host: str | None) -> bool:
    """An address, or a name without a dot. The owner of a domain cannot make such a name lead
    here."""
    return host is not None and (_address(host) is not None or "." not in host or _local(host))


def is_this_machine(host: str | None) -> bool:
    if host is None:
        return False
    address = _address(host)
    return _local(host) if address is None else address.is_loopback


def _local(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
