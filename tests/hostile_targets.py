"""URLs and addresses that lead inside, for whatever the service sends to strangers."""

import socket
from typing import Any

import pytest

from bursar.outbound import gate

HOSTILE_URLS = [
    # Other schemes and no scheme
    "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/",
    "javascript:alert(1)", "data:text/plain,x", "//example.com/", "example.com/x",
    "https:/example.com",
    "https:example.com", "https//example.com", "", "https://", "https:///", "https:///example.com",
    "unix:///var/run/docker.sock", "httpss://example.com/",
    # User info, fragments, backslashes, white space, control characters
    "https://user@example.com/", "https://user:pw@example.com/", "https://example.com@127.0.0.1/",
    "https://127.0.0.1#@example.com/", "https://example.com/#x", "https://example.com\\@127.0.0.1/",
    "https://example.com\\.evil.com/", "https:\\\\example.com\\", "https://exa mple.com/",
    "https://example.com/\t", "https://example.com/\r\nHost: x", "https://example.com/\x00",
    " https://example.com/", "https://example.com/ ", "https://exämple.com/", "https://①②⑦.0.0.1/",
    "https://127。0。0。1/", "https://１２７.0.0.1/", "https://ⓔxample.com/",
    # Ports
    "https://example.com:0/", "https://example.com:65536/", "https://example.com:99999/",
    "https://example.com:-1/", "https://example.com:80:80/", "https://example.com:/",
    "https://example.com:0x50/", "https://example.com:８０/", "https://example.com:443@127.0.0.1/",
    # Loopback, private, link-local and metadata, as they are
    "https://127.0.0.1/", "https://127.255.255.254/", "https://0.0.0.0/", "https://0.1.2.3/",
    "https://10.0.0.1/", "https://172.16.0.1/", "https://172.31.255.255/", "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data/", "https://168.63.129.16/", "https://100.64.0.1/",
    "https://100.100.100.200/", "https://192.0.0.192/", "https://192.0.2.1/",
    "https://198.51.100.7/",
    "https://203.0.113.9/", "https://198.18.0.1/", "https://198.19.255.255/",
    "https://192.88.99.1/",
    "https://224.0.0.1/", "https://239.255.255.250/", "https://240.0.0.1/",
    "https://255.255.255.255/",
    # Decimal, octal, hexadecimal and short forms of addresses
    "https://2130706433/", "https://017700000001/", "https://0x7f000001/", "https://0x7f.1/",
    "https://0x7f.0x0.0x0.0x1/", "https://127.1/", "https://127.0.1/", "https://0177.0.0.1/",
    "https://0177.0.0.01/", "https://010.0.0.1/", "https://3232235777/", "https://0xa9fea9fe/",
    "https://2852039166/", "https://00000127.0.0.1/", "https://127.0.0.1./", "https://1.2.3.256/",
    "https://1.2.3/", "https://127.0.0.0x1/", "https://4294967296/",
    # IPv6: own, mapped, translated, tunnelled; brackets that hold something else
    "https://[::1]/", "https://[::]/", "https://[0:0:0:0:0:0:0:1]/", "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/", "https://[::ffff:0:127.0.0.1]/", "https://[::127.0.0.1]/",
    "https://[::7f00:1]/", "https://[64:ff9b::127.0.0.1]/", "https://[64:ff9b::c0a8:1]/",
    "https://[64:ff9b:1::a00:1]/", "https://[2002:7f00:1::1]/", "https://[2002:c0a8:101::]/",
    "https://[2001:0:7f00:1::]/", "https://[2001::1]/", "https://[2001:db8::1]/",
    "https://[2001:2::1]/",
    "https://[2001:10::1]/", "https://[2001:20::1]/", "https://[3fff::1]/", "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/", "https://[fec0::1]/", "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[ff02::1]/", "https://[100::1]/", "https://[5f00::1]/",
    "https://[2606:4700::5efe:7f00:1]/",
    "https://[2606:4700::200:5efe:a00:1]/", "https://[example.com]/", "https://[127.0.0.1]/",
    "https://[[::1]]/", "https://[::1", "https://::1]/", "https://[]/", "https://[::1]x/",
    "https://[v1.x]/", "https://::1/", "https://[::1].example.com/", "https://example.com[::1]/",
    # Names that are not public
    "https://localhost/", "https://LOCALHOST/", "https://localhost./", "https://foo.localhost/",
    "https://printer.local/", "https://metadata.google.internal/",
    "https://intranet/", "https://1.0.0.127.in-addr.arpa/", "https://x.onion/",
    "https://.example.com/",
    "https://example..com/", "https://-example.com/", "https://exam_ple.com/",
    "https://*.example.com/",
    "https://%31%32%37.0.0.1/", "https://127.0.0.1%2f.example.com/", "https://example.com%00/",
    "https://a" + "b" * 64 + ".com/", "https://" + "a." * 127 + "com/", "https://xn--/",
]  # fmt: skip

# What a name may resolve to, besides a good address.
HOSTILE_ADDRESSES = [
    "127.0.0.1", "127.0.0.2", "0.0.0.0", "10.1.2.3", "172.20.0.1", "192.168.0.1", "169.254.169.254",
    "168.63.129.16", "100.64.1.1", "192.0.0.170", "198.18.5.5", "224.0.0.251", "255.255.255.255",
    "240.1.1.1", "192.31.196.1", "192.52.193.1", "192.175.48.1", "::1", "::", "::ffff:127.0.0.1",
    "::ffff:8.8.8.8", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b::808:808", "2002:7f00:1::", "2001::1",
    "2001:db8::2", "fe80::2", "fe80::2%lo", "fd00::3", "fec0::3", "ff05::2", "100::2",
    "2a00:1450::5efe:c0a8:1", "3ffe::1", "2620:4f:8000::1", "not an address", "0x7f.1",
]  # fmt: skip
PUBLIC = ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:80f::200e")


def opened_sockets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every socket that is opened to a stranger from now on."""
    opened: list[Any] = []

    class Counted(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            if arguments[0] != socket.AF_UNIX:
                opened.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(gate.socket, "socket", Counted)
    return opened
