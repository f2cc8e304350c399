"""What a caller wants sent to a seller: what is taken, what is refused, and by which words."""

from typing import Any

import pytest

from bursar.config import load_config
from bursar.errors import Fault
from bursar.form.record import Record
from bursar.purchase.order import (
    METHODS,
    MOST_BYTES,
    MOST_HEADERS,
    ORDER_FIELDS,
    Order,
    order_faults,
    purchase_targets,
    read_order,
)
from tests.hostile_targets import HOSTILE_URLS

ORDER = Record("Order", ORDER_FIELDS)
CONFIG = load_config({"BURSAR_PURCHASES_ALLOW": "localhost,127.0.0.0/8,::1,shop"})
LIVE, TEST = purchase_targets(CONFIG, "live"), purchase_targets(CONFIG, "test")
URL = "https://api.example.com/weather"


def _read(allowed: Any = LIVE, **body: Any) -> Order | list[Fault]:
    faults = order_faults(body, allowed)
    parsed = ORDER.parse(body, "", faults)
    return faults or read_order(parsed)


def _order(allowed: Any = LIVE, **body: Any) -> Order:
    order = _read(allowed, **body)
    assert isinstance(order, Order), order
    return order


def _faults(allowed: Any = LIVE, **body: Any) -> list[Fault]:
    faults = _read(allowed, **body)
    assert isinstance(faults, list), faults
    return faults


def test_a_url_alone_is_an_order():
    assert _order(url=URL) == Order(URL, "GET", (), b"")


def test_an_order_is_taken_as_it_is():
    order = _order(
        url="https://API.Example.com:8443/a/../b?q=%20|",
        method="POST",
        headers={"Accept": "text/plain", "X-Empty": "", "Authorization": "Bearer payment x"},
        body="süß",
    )
    assert order.url == "https://API.Example.com:8443/a/../b?q=%20|"
    assert order.headers == (
        ("Accept", "text/plain"),
        ("X-Empty", ""),
        ("Authorization", "Bearer payment x"),
    )
    assert order.body == "süß".encode()


def test_secrets_stay_out_of_logs():
    """Goal: what a caller sends to a seller is not shown by accident."""
    order = _order(url=URL, headers={"Authorization": "Bearer hunter2"}, body="hunter2")
    assert "hunter2" not in repr(order)


@pytest.mark.parametrize(
    ("url", "host", "origin"),
    [
        (URL, "api.example.com", "https://api.example.com:443"),
        ("HTTPS://API.EXAMPLE.COM", "api.example.com", "https://api.example.com:443"),
        ("https://api.example.com:443/", "api.example.com", "https://api.example.com:443"),
        ("https://api.example.com:80?x", "api.example.com", "https://api.example.com:80"),
        ("https://xn--mnchen-3ya.example/", "xn--mnchen-3ya.example",
         "https://xn--mnchen-3ya.example:443"),
        ("http://localhost:4021/w", "localhost", "http://localhost:4021"),
        ("http://LOCALHOST", "localhost", "http://localhost:80"),
        ("http://127.0.0.1/", "127.0.0.1", "http://127.0.0.1:80"),
        ("https://[::1]:8443/", "::1", "https://[::1]:8443"),
        ("http://shop/", "shop", "http://shop:80"),
    ],
)  # fmt: skip
def test_the_host_and_the_origin_have_one_form(url: str, host: str, origin: str):
    order = _order(TEST, url=url)
    assert (order.host, order.origin) == (host, origin)


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_url_that_leads_inside_is_refused(url: str):
    (fault, *_) = _faults(url=url)
    assert fault.param == "url"
    assert len(fault.message) > 10


@pytest.mark.parametrize(
    "url",
    ["http://localhost/", "https://127.0.0.1/", "http://[::1]/", "https://shop/", "http://a.com/"],
)
def test_live_mode_opens_nothing(url: str):
    """Goal: what the setting lists counts in test mode only, and the refusal says so."""
    (fault,) = _faults(url=url)
    assert fault.param == "url"
    if url != "http://a.com/":
        _order(TEST, url=url)
    else:
        assert "BURSAR_PURCHASES_ALLOW (in test mode)" in fault.message


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("https://8.8.8.8/", "must name a host"),
        ("https://[2606:4700:4700::1111]/", "must name a host"),
        ("http://[0:0:0:0:0:0:0:1]/", "should be written ::1"),
        ("https://api.example.com./", "should be written api.example.com"),
        ("http://10.0.0.1/", "a private address"),
        ("http://other/", "two labels"),
        ("http://api.example.com/", "must be https"),
        (URL + "#x", "fragment"),
        ("https://a:b@api.example.com/", "user name"),
        (URL + "?" + "x" * 2_048, "2048 characters"),
    ],
)
def test_one_seller_has_one_name(url: str, word: str):
    """Goal: no second spelling of a host, and no address that nobody listed."""
    assert word in " ".join(fault.message for fault in _faults(TEST, url=url))


def test_methods():
    for method in METHODS:
        assert _order(url=URL, method=method).method == method
    for method in ("TRACE", "CONNECT", "get", "", "GET /", None, 1):
        (fault,) = _faults(url=URL, method=method)
        assert fault.param == "method"


@pytest.mark.parametrize(
    "name",
    ["Connection", "KEEP-ALIVE", "te", "Trailer", "Transfer-Encoding", "upgrade", "Host",
     "Content-Length", "Expect", "Proxy-Authorization", "proxy-connection", "Payment-Signature",
     "PAYMENT-REQUIRED", "payment-response", "X-Payment", "X-PAYMENT-RESPONSE",
     "", "a b", "a:b", "a\r\nb", "ä", "x" * 101],
)  # fmt: skip
def test_headers_that_are_not_the_callers(name: str):
    (fault,) = _faults(url=URL, headers={name: "x"})
    assert fault.param == f"headers.{name[:100]}"


@pytest.mark.parametrize(
    "value", ["a\r\nHost: b", "a\n", "\n", "\x00", "é", "…", " a", "a ", "\t", "\x7f", 1, None, []]
)
def test_values_that_are_no_header(value: Any):
    (fault,) = _faults(url=URL, headers={"X-A": value})
    assert fault.param == "headers.X-A"


@pytest.mark.parametrize("value", ["Payment abc", "payment", "PAYMENT\tx"])
def test_a_caller_does_not_pay_by_itself(value: str):
    (fault,) = _faults(url=URL, headers={"authorization": value})
    assert "Payment" in fault.message


def test_one_name_in_two_spellings_is_refused():
    (fault,) = _faults(url=URL, headers={"Accept": "a", "ACCEPT": "b"})
    assert fault.param == "headers.ACCEPT"


def test_headers_are_counted():
    assert len(_order(url=URL, headers={f"X-{n}": "x" for n in range(MOST_HEADERS)}).headers) == 50
    (fault,) = _faults(url=URL, headers={f"X-{n}": "x" for n in range(MOST_HEADERS + 1)})
    assert fault.param == "headers"


def test_headers_and_body_are_measured_together():
    """Goal: in bytes, not characters."""
    half = "ü" * (MOST_BYTES // 4)
    headers = {"X": "x" * (MOST_BYTES // 2 - 1)}
    assert len(_order(url=URL, headers=headers, body=half).body) == MOST_BYTES // 2
    for more in ({"body": half + "x"}, {"headers": {"Xy": headers["X"]}}):
        (fault,) = _faults(**({"url": URL, "headers": headers, "body": half} | more))
        assert fault.param == "body"
        assert "256 KiB" in fault.message


@pytest.mark.parametrize(
    "body",
    [{}, {"url": None}, {"url": 1}, {"url": ""}, {"url": URL, "headers": [["a", "b"]]},
     {"url": URL, "headers": "a: b"}, {"url": URL, "body": {}}, {"url": URL, "body": 1},
     {"url": ["x"], "headers": 1, "body": [], "method": {}}],
)  # fmt: skip
def test_nonsense_is_refused_field_by_field(body: dict[str, Any]):
    assert _faults(**body)
