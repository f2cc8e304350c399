"""What a caller wants sent to a seller: a URL, a method, headers and a body, all checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain
from typing import Any, Final, cast
from urllib.parse import urlsplit

from bursar.config import Config, Mode
from bursar.errors import Fault
from bursar.form.kind import Schema, json_name
from bursar.form.kinds import Choice, Text
from bursar.form.record import Field
from bursar.outbound.target import MAX_URL, Allowed, Target, TargetRefused, parse_target

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MOST_HEADERS: Final = 50
# Of headers and body together. It is kept with the purchase, to be sent again with a payment.
MOST_BYTES: Final = 256 * 1024

# A purchase asks several times about its URL, and agents ask sellers more than once.
_CACHED_URLS: Final = 1_024

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?", re.ASCII)
# What belongs to the connection is the service's to say, and so is what pays.
_OF_THE_CONNECTION: Final = frozenset(
    [
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "expect",
    ]
)
_OF_PAYMENTS: Final = frozenset(
    ["payment-signature", "payment-required", "payment-response", "x-payment", "x-payment-response"]
)
_PAYING: Final = re.compile(r"payment(?:[ \t]|$)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """Only of a URL that `read_order` took. Headers and body may hold a caller's secrets."""

    url: str
    method: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def host(self) -> str:
        """In canonical form, as a recipient: the one that the policy judges."""
        return _place(self.url)[0]

    @property
    def origin(self) -> str:
        """Scheme, host and port, the last one always named: whom a pinned payee belongs to."""
        return _place(self.url)[1]


@lru_cache(_CACHED_URLS)
def _place(url: str) -> tuple[str, str]:
    """Host and origin."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return host, f"{parts.scheme}://{shown}:{port}"


def purchase_targets(config: Config, mode: Mode) -> Allowed:
    """What may be bought from although it is not public: in test mode only."""
    return _targets(tuple(config.purchases_allow) if mode == "test" else ())


@lru_cache
def _targets(listed: tuple[str, ...]) -> Allowed:
    return Allowed("BURSAR_PURCHASES_ALLOW (in test mode)", listed)


@dataclass(frozen=True, slots=True)
class OrderUrl:
    """Checks only that it is a string; `order_faults`, which knows the settings, checks where it
    leads."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        return Text(1, MAX_URL).parse(value, path, faults)

    def schema(self) -> Schema:
        return {
            "type": "string",
            "format": "uri",
            "minLength": 1,
            "maxLength": MAX_URL,
            "examples": ["https://api.example.com/weather?city=Berlin"],
        }


@dataclass(frozen=True, slots=True)
class SentHeaders:
    """Names and values of headers, to pairs in the order given."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            faults.append(
                Fault(path, f"{path} must be an object of string values, not {json_name(value)}.")
            )
            return ()
        pairs = cast("dict[str, Any]", value)
        if len(pairs) > MOST_HEADERS:
            faults.append(Fault(path, f"{path} may hold at most {MOST_HEADERS} headers."))
            return ()
        seen: set[str] = set()
        for name, item in pairs.items():
            problem = "is there in two spellings" if name.lower() in seen else _wrong(name, item)
            if problem is not None:
                where = f"{path}.{name[:100]}"
                faults.append(Fault(where, f"{where} {problem}."))
            seen.add(name.lower())
        return tuple(pairs.items())

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": MOST_HEADERS,
            "propertyNames": {"pattern": f"^{_NAME.pattern}$"},
            "additionalProperties": {"type": "string", "maxLength": MOST_BYTES},
            "examples": [{"Accept": "application/json"}],
        }


ORDER_FIELDS: Final = (
    Field(
        "url",
        OrderUrl(),
        "What to buy: https, a public host, no user info, no fragment. Its host is the recipient"
        " that the policy judges.",
        required=True,
    ),
    Field("method", Choice(METHODS), "How to ask for it; `GET` unless given."),
    Field(
        "headers",
        SentHeaders(),
        "Headers to send, at most 50. Not those of the connection (such as `Host`,"
        " `Content-Length`, `Connection`) and not those that pay.",
    ),
    Field("body", Text(0, MOST_BYTES), "What to send as the body, in UTF-8."),
)


def order_faults(body: Mapping[str, Any], allowed: Allowed) -> list[Fault]:
    """What the fields of a body, as it came, cannot say of themselves."""
    faults: list[Fault] = []
    url = body.get("url")
    if isinstance(url, str) and url:
        try:
            check_order_url(url, allowed)
        except TargetRefused as problem:
            faults.append(Fault("url", f"url {problem}."))
    if _bytes_of(body) > MOST_BYTES:
        faults.append(
            Fault("body", f"body and headers may have at most {MOST_BYTES // 1024} KiB together.")
        )
    return faults


def read_order(body: Mapping[str, Any]) -> Order:
    """From validated ORDER_FIELDS without `order_faults`."""
    return Order(
        url=body["url"],
        method=body.get("method", "GET"),
        headers=body.get("headers", ()),
        body=body.get("body", "").encode(),
    )


@lru_cache(_CACHED_URLS)
def check_order_url(url: str, allowed: Allowed) -> Target:
    """Raises TargetRefused unless this may be bought from. Its host is then in canonical form, so
    that one seller cannot stand under two names."""
    target = parse_target(url, allowed)
    host = target.host
    if host.endswith("."):
        raise TargetRefused(f"has a host that should be written {host[:-1]}")
    try:
        address = str(ip_address(host))
    except ValueError:
        return target
    if not allowed.names(host):
        raise TargetRefused(
            f"must name a host; an address may stand there only if {allowed.setting} lists it"
        )
    if address != host:
        raise TargetRefused(f"has a host that should be written {address}")
    return target


def _wrong(name: str, value: Any) -> str | None:
    lower = name.lower()
    if _NAME.fullmatch(name) is None:
        return "is not the name of a header: 1 to 100 letters, digits and hyphens"
    if lower in _OF_THE_CONNECTION or lower.startswith("proxy-"):
        return "cannot be given: it belongs to the connection, which the service makes"
    if lower in _OF_PAYMENTS:
        return "cannot be given: the service pays"
    if not isinstance(value, str):
        return f"must be a string, not {json_name(value)}"
    if _VALUE.fullmatch(value) is None:
        return "must be visible ASCII, with spaces and tabs between but not around"
    if lower == "authorization" and _PAYING.match(value):
        return "cannot be of the scheme Payment: the service pays"
    return None


def _bytes_of(body: Mapping[str, Any]) -> int:
    headers = body.get("headers")
    pairs = cast("dict[str, Any]", headers).items() if isinstance(headers, dict) else ()
    texts = (body.get("body"), *chain.from_iterable(pairs))
    return sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))
