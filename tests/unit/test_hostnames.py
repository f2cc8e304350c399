"""One canonical form for recipients: a table of spellings, and matching without a wrong match."""

import idna
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from bursar.hostnames import (
    RecipientError,
    canonical_entry,
    canonical_hostname,
    canonical_recipient,
    is_address,
)
from bursar.policy.model import EntryList
from bursar_localnet import base58
from tests.support import ADDRESS

SYSTEM = "1" * 32
SO_MINT = "So11111111111111111111111111111111111111112"
LABEL_63 = "a" * 63
NAME_253 = ".".join([LABEL_63, LABEL_63, LABEL_63, "a" * 61])
NAME_254 = ".".join([LABEL_63, LABEL_63, LABEL_63, "a" * 62])

# What is written, and its canonical form; None where it must be refused.
RECIPIENTS: list[tuple[str, str | None]] = [
    # Plain names, case, trailing dots
    ("api.example.com", "api.example.com"),
    ("API.Example.COM", "api.example.com"),
    ("api.example.com.", "api.example.com"),
    ("API.EXAMPLE.COM.", "api.example.com"),
    ("api.example.com..", None),
    (".api.example.com", None),
    ("api..example.com", None),
    (".", None),
    ("..", None),
    ("", None),
    ("a.b", "a.b"),
    ("a.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.h"),
    ("example.co.uk", "example.co.uk"),
    # One label is not enough
    ("localhost", None),
    ("localhost.", None),
    ("com", None),
    ("intranet", None),
    # Dots that are not U+002E: three stand for it, the others stand for nothing
    ("api。example。com", "api.example.com"),
    ("api．example．com", "api.example.com"),
    ("api｡example｡com", "api.example.com"),
    ("api.example.com。", "api.example.com"),
    ("api.example.com。.", None),
    ("。example.com", None),
    ("api․example.com", None),  # U+2024 one dot leader
    ("api‥example.com", None),  # U+2025 two dot leader
    ("api…example.com", None),  # U+2026 ellipsis
    ("api·example.com", None),  # U+00B7 middle dot
    ("l·l.example.com", "xn--ll-0ea.example.com"),  # ... which Catalan spells between two l
    ("api・example.com", None),  # U+30FB without Japanese around it
    ("api。", None),
    # Internationalised names; non-transitional, so sharp s and final sigma are letters of their own
    ("bücher.example", "xn--bcher-kva.example"),
    ("BÜCHER.example", "xn--bcher-kva.example"),
    ("bu\u0308cher.example", "xn--bcher-kva.example"),
    ("bucher.example", "bucher.example"),
    ("faß.de", "xn--fa-hia.de"),
    ("FAẞ.de", "xn--fa-hia.de"),
    ("fass.de", "fass.de"),
    ("FASS.de", "fass.de"),
    ("βόλος.com", "xn--nxasmm1c.com"),
    ("βόλοσ.com", "xn--nxasmq6b.com"),
    ("ΒΌΛΟΣ.com", "xn--nxasmq6b.com"),
    ("日本語.jp", "xn--wgv71a119e.jp"),
    ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
    ("中国.cn", "xn--fiqs8s.cn"),
    ("مثال.إختبار", "xn--mgbh0fb.xn--kgbechtv"),
    ("מים.com", "xn--eebib.com"),
    ("1מ.com", None),  # a right-to-left label may not begin with a digit
    ("İstanbul.com", "xn--istanbul-o0e.com"),
    ("ıstanbul.com", "xn--stanbul-qfb.com"),
    ("\u0308o.com", None),  # begins with a combining mark
    ("i❤.ws", None),
    ("☃.net", None),
    ("💩.la", None),
    # Homographs keep their own A-label: none of them is the Latin name
    ("аpi.example.com", "xn--pi-6kc.example.com"),  # Cyrillic а
    ("api.exаmple.com", "api.xn--exmple-4nf.com"),
    ("api.еxample.com", "api.xn--xample-2of.com"),  # Cyrillic е
    ("αpi.example.com", "xn--pi-b9b.example.com"),  # Greek alpha
    ("apı.example.com", "xn--ap-ipa.example.com"),  # dotless i
    ("ɑpi.example.com", "xn--pi-4eb.example.com"),  # Latin alpha
    ("paypaӏ.com", "xn--paypa-iof.com"),  # palochka for l
    ("xn--80ak6aa92e.com", "xn--80ak6aa92e.com"),  # all-Cyrillic look-alike of a fruit
    ("gооgle.com", "xn--ggle-55da.com"),
    ("api.example.соm", "api.example.xn--m-0tbi"),
    # Compatibility forms that UTS-46 maps to plain letters
    ("ａｐｉ.ｅｘａｍｐｌｅ.ｃｏｍ", "api.example.com"),
    ("ＡＰＩ．ＥＸＡＭＰＬＥ．ＣＯＭ", "api.example.com"),
    ("\u212aey.example.com", "key.example.com"),  # Kelvin sign
    ("ﬁnance.example.com", "finance.example.com"),
    ("ⅷ.example.com", "viii.example.com"),
    ("𝐚𝐩𝐢.example.com", "api.example.com"),
    ("ⓐpi.example.com", "api.example.com"),
    ("x².example.com", "x2.example.com"),
    ("①.example.com", "1.example.com"),
    ("℀.example.com", None),  # a/c
    ("⒈example.com", None),  # "1."
    # Full-width and other look-alike punctuation
    ("http：／／api.example.com", None),
    ("api.example.com：443", None),
    ("api.example.com／path", None),
    ("user＠api.example.com", None),
    ("api.example.com？q", None),
    ("api.example.com＃f", None),
    ("％61pi.example.com", None),
    ("＊.example.com", None),
    ("api．example。com／", None),
    ("［::1］", None),
    ("api⁄x.example.com", None),  # fraction slash
    ("api∕x.example.com", None),  # division slash
    # Ignored by UTS-46, so they cannot make a second spelling of a name
    ("a\u00adpi.example.com", "api.example.com"),  # soft hyphen
    ("api\u200b.example.com", "api.example.com"),  # zero width space
    ("a\u2060pi.example.com", "api.example.com"),  # word joiner
    ("\ufeffapi.example.com", "api.example.com"),  # byte order mark
    ("a\u034fpi.example.com", "api.example.com"),  # combining grapheme joiner
    ("api\ufe0f.example.com", "api.example.com"),  # variation selector
    ("\u00ad.example.com", None),  # nothing is left of the label
    ("\u200b", None),
    # Joiners count, but only where a script needs them
    ("a\u200dpi.example.com", None),
    ("a\u200cpi.example.com", None),
    ("\u200dapi.example.com", None),
    ("क्\u200dष.com", "xn--11b2ezcw70k.com"),
    # Control and bidi characters, white space
    ("api.example.com\n", None),
    ("api.example.com\r\n", None),
    ("api\t.example.com", None),
    (" api.example.com", None),
    ("api.example.com ", None),
    ("api .example.com", None),
    ("api\x00.example.com", None),
    ("api.example.com\x00.evil.com", None),
    ("api\x1f.example.com", None),
    ("api\x7f.example.com", None),
    ("api\x80.example.com", None),
    ("api\x85.example.com", None),
    ("api\u00a0.example.com", None),
    ("api\u2003.example.com", None),
    ("api\u3000.example.com", None),
    ("api.example.com\u2028", None),
    ("api\u202e.example.com", None),
    ("api\u200e.example.com", None),
    ("api\u2066.example.com", None),
    ("api\ufffd.example.com", None),
    ("api\ue000.example.com", None),  # private use
    ("api\U000e0041.example.com", None),  # tag character
    # Schemes, ports, paths, user information
    ("http://api.example.com", None),
    ("https://api.example.com/", None),
    ("//api.example.com", None),
    ("javascript:api.example.com", None),
    ("api.example.com:443", None),
    ("api.example.com:", None),
    ("api.example.com/", None),
    ("api.example.com/v1", None),
    ("api.example.com?x=1", None),
    ("api.example.com#top", None),
    ("user@api.example.com", None),
    ("user:pass@api.example.com", None),
    ("@api.example.com", None),
    ("api.example.com@evil.com", None),
    ("api.example.com\\.evil.com", None),
    ("\\\\api.example.com", None),
    ("api.example.com%00.evil.com", None),
    ("api%2eexample.com", None),
    ("%61pi.example.com", None),
    ("api.example.com%", None),
    # Punctuation that STD3 forbids
    ("a_b.example.com", None),
    ("_dmarc.example.com", None),
    ("a,b.example.com", None),
    ("a;b.example.com", None),
    ("a+b.example.com", None),
    ("a=b.example.com", None),
    ("a~b.example.com", None),
    ("a!b.example.com", None),
    ("a$b.example.com", None),
    ("a&b.example.com", None),
    ("a'b.example.com", None),
    ('a"b.example.com', None),
    ("a(b).example.com", None),
    ("a{b}.example.com", None),
    ("a|b.example.com", None),
    ("a^b.example.com", None),
    ("a`b.example.com", None),
    ("a<b>.example.com", None),
    ("api≠.example.com", None),
    # Hyphens
    ("a-b.example.com", "a-b.example.com"),
    ("a--b.example.com", "a--b.example.com"),
    ("ab--c.example.com", None),  # positions 3 and 4 are kept for A-labels
    ("-api.example.com", None),
    ("api-.example.com", None),
    ("api.example.com-", None),
    ("-.example.com", None),
    ("api\u2010x.example.com", None),  # U+2010 is not the ASCII hyphen
    ("api－x.example.com", "api-x.example.com"),  # its full-width form is
    # Length of labels and of the whole
    (f"{LABEL_63}.com", f"{LABEL_63}.com"),
    (f"{LABEL_63}a.com", None),
    (f"{'ü' * 57}.com", f"xn--tda{'a' * 56}.com"),  # 63 octets as an A-label
    (f"{'ü' * 58}.com", None),
    (NAME_253, NAME_253),
    (f"{NAME_253}.", NAME_253),
    (NAME_254, None),
    (f"{NAME_254}.", None),
    ("a." * 126 + "b", "a." * 126 + "b"),
    ("a." * 127 + "b", None),
    ("a." * 5_000 + "b", None),
    ("\u00ad" * 2_000 + "a.b", None),
    # IPv4 in all its forms
    ("127.0.0.1", None),
    ("127.0.0.1.", None),
    ("127.1", None),
    ("127.0.1", None),
    ("0", None),
    ("2130706433", None),
    ("017700000001", None),
    ("0177.0.0.01", None),
    ("0x7f000001", None),
    ("0x7f.0x0.0x0.0x1", None),
    ("0X7F.1", None),
    ("0x7f.1", None),
    ("1.2.3.4.5", None),
    ("256.256.256.256", None),
    ("999.1", None),
    ("１２７.０.０.１", None),
    ("①②⑦.①", None),
    ("127。0。0。1", None),
    ("1.2.3.0x", None),
    ("1.2.3.4 ", None),
    # ... and numbers that are names
    ("1.2.3.4.example.com", "1.2.3.4.example.com"),
    ("1.2.3.4a", "1.2.3.4a"),
    ("0x7f.example.com", "0x7f.example.com"),
    ("example.0xg", "example.0xg"),
    ("example.1a", "example.1a"),
    ("8.8", None),
    ("example.com.1", None),
    ("example.0x1f", None),
    ("example.１", None),
    # IPv6
    ("::1", None),
    ("[::1]", None),
    ("[::1]:443", None),
    ("::ffff:127.0.0.1", None),
    ("fe80::1%eth0", None),
    ("2001:db8::1", None),
    # A-labels as they are written
    ("xn--fa-hia.de", "xn--fa-hia.de"),
    ("XN--FA-HIA.DE", "xn--fa-hia.de"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("ｘn--bcher-kva.example", "xn--bcher-kva.example"),
    ("xn--nxasmm1c.com", "xn--nxasmm1c.com"),
    ("xn--e1afmkfd.com", "xn--e1afmkfd.com"),
    ("xn--.com", None),
    ("xn--abc-.com", None),  # punycode of plain ASCII
    ("xn--a.com", None),  # a control character
    ("xn--0.com", None),  # no punycode at all
    ("xn--zzzzzzzzzz99.com", None),
    ("xn--ls8h.la", None),  # an emoji
    ("xn--a-ecp.ru", None),  # a label that would hold a dot
    ("xn--xn--a--gua.com", None),
    ("xn--bücher-kva.example", None),
    ("xn--BCHER-KVA.example", "xn--bcher-kva.example"),
    ("xn--tiq49xqyj.xn--fiqs8s", "xn--tiq49xqyj.xn--fiqs8s"),
    # Addresses: base58 of exactly 32 bytes, kept letter for letter
    (ADDRESS, ADDRESS),
    (SYSTEM, SYSTEM),
    (SO_MINT, SO_MINT),
    (base58.encode(b"\xff" * 32), base58.encode(b"\xff" * 32)),
    (base58.encode(bytes(31) + b"\x01"), base58.encode(bytes(31) + b"\x01")),
    (base58.encode(b"\xff" * 31), None),
    (base58.encode(b"\xff" * 33), None),
    (base58.encode(b"\x01" * 31), None),
    (base58.encode(b"\x01" * 33), None),
    ("1" * 31, None),
    ("1" * 33, None),
    ("z" * 44, None),  # one more than 32 bytes can hold
    ("z" * 43, "z" * 43),
    (ADDRESS.lower(), None),
    (ADDRESS.upper(), ADDRESS.upper()),  # by chance 32 bytes too: another address
    (ADDRESS[:-1], ADDRESS[:-1]),
    (ADDRESS[:-2], None),
    (ADDRESS + "1", None),
    (ADDRESS + ".", None),
    (" " + ADDRESS, None),
    (ADDRESS + "\n", None),
    (ADDRESS[:-1] + "０", None),
    (ADDRESS[:-1] + "0", None),  # 0, O, I and l are no base58 letters
    (ADDRESS[:-1] + "O", None),
    (ADDRESS[:-1] + "I", None),
    (ADDRESS[:-1] + "l", None),
    (ADDRESS[:-1] + "\u212a", None),
    (ADDRESS[:20] + "\u00ad" + ADDRESS[20:], None),
    (ADDRESS + ".com", ADDRESS.lower() + ".com"),
    ("0x" + "ab" * 20, None),
    # Stars are for policies, not for recipients
    ("*", None),
    ("*.example.com", None),
    ("api.*.com", None),
]

ENTRIES: list[tuple[str, str | None]] = [
    ("*", "*"),
    ("*.example.com", "*.example.com"),
    ("*.EXAMPLE.com.", "*.example.com"),
    ("*.Bücher.example", "*.xn--bcher-kva.example"),
    ("*.a.b.c", "*.a.b.c"),
    ("*.co.uk", "*.co.uk"),
    ("api.example.com", "api.example.com"),
    (ADDRESS, ADDRESS),
    ("*.com", None),
    ("*.", None),
    ("*..", None),
    (".*", None),
    ("**", None),
    ("**.x.y", None),
    ("*.*.example.com", None),
    ("*.*", None),
    ("a*.example.com", None),
    ("*a.example.com", None),
    ("api.*.com", None),
    ("example.*", None),
    ("*example.com", None),
    ("* .example.com", None),
    (" *", None),
    ("* ", None),
    ("*\n", None),
    ("＊", None),
    ("*。example.com", None),
    ("*.127.0.0.1", None),
    ("*.1", None),
    (f"*.{ADDRESS}", None),
    ("*.example.com:443", None),
    ("*.example.com/", None),
    ("https://*.example.com", None),
    ("", None),
]


def canonical_or_none(text: str) -> str | None:
    try:
        return canonical_recipient(text)
    except RecipientError:
        return None


def test_the_table_is_large_and_names_each_case_once():
    """Goal: at least 150 cases, none of them twice by mistake."""
    texts = [text for text, _ in RECIPIENTS]
    assert len(set(texts)) == len(texts) >= 150


@pytest.mark.parametrize(
    ("text", "expected"), RECIPIENTS, ids=[ascii(t)[:60] for t, _ in RECIPIENTS]
)
def test_a_recipient_has_one_canonical_form_or_is_refused(text: str, expected: str | None):
    """Goal: each spelling gives its canonical form, or a refusal that says why."""
    assert canonical_or_none(text) == expected


@pytest.mark.parametrize(("text", "expected"), ENTRIES, ids=[ascii(t)[:60] for t, _ in ENTRIES])
def test_an_entry_has_one_canonical_form_or_is_refused(text: str, expected: str | None):
    """Goal: stars stand only alone, or before a name of at least two labels."""
    if expected is None:
        with pytest.raises(RecipientError):
            canonical_entry(text)
    else:
        assert canonical_entry(text) == expected


def test_no_spelling_of_another_host_matches_an_entry():
    """Goal: of the whole table, an exact entry matches only the spellings of that very host."""
    entry = EntryList((canonical_entry("api.example.com"),))
    wrong = [
        text
        for text, expected in RECIPIENTS
        if expected is not None and entry.matches(expected) != (expected == "api.example.com")
    ]
    assert wrong == []


MATCHES: list[tuple[list[str], str, bool]] = [
    (["api.example.com"], "API.example.com.", True),
    (["api.example.com"], "example.com", False),
    (["api.example.com"], "v1.api.example.com", False),
    (["api.example.com"], "api.example.com.evil.com", False),
    (["api.example.com"], "evilapi.example.com", False),
    (["api.example.com"], "api-example.com", False),
    (["api.example.com"], "аpi.example.com", False),
    (["bücher.example"], "xn--bcher-kva.example", True),
    (["xn--bcher-kva.example"], "BÜCHER.example", True),
    (["fass.de"], "faß.de", False),
    (["*.example.com"], "api.example.com", True),
    (["*.example.com"], "a.b.c.example.com", True),
    (["*.example.com"], "example.com", False),
    (["*.example.com"], "evilexample.com", False),
    (["*.example.com"], "evil-example.com", False),
    (["*.example.com"], "example.com.evil.com", False),
    (["*.example.com"], "api.example.org", False),
    (["*.example.com"], "com.example", False),
    (["*.example.com"], ADDRESS, False),
    (["*.example.com", "example.com"], "example.com", True),
    (["*.api.example.com"], "api.example.com", False),
    (["*.api.example.com"], "x.example.com", False),
    (["*.bücher.example"], "www.xn--bcher-kva.example", True),
    (["*.co.uk"], "example.co.uk", True),
    (["*.co.uk"], "co.uk", False),
    ([ADDRESS], ADDRESS, True),
    ([ADDRESS], SYSTEM, False),
    ([ADDRESS], f"{ADDRESS}.com", False),
    ([f"{ADDRESS}.com"], ADDRESS, False),
    ([f"*.{ADDRESS}.com"], ADDRESS, False),
    (["*"], "anything.example", True),
    (["*"], ADDRESS, True),
    ([], "api.example.com", False),
    ([], ADDRESS, False),
    (["a.b", "c.d"], "a.d", False),
    (["a.b", "c.d"], "c.d", True),
]


@pytest.mark.parametrize(("entries", "recipient", "expected"), MATCHES)
def test_entries_match_what_they_say_and_nothing_else(
    entries: list[str], recipient: str, expected: bool
):
    """Goal: exact means exact, `*.` means below and not the apex, `*` means anyone."""
    listed = EntryList(tuple(canonical_entry(entry) for entry in entries))
    assert listed.matches(canonical_recipient(recipient)) is expected


LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
HOSTS = st.lists(LABELS, min_size=2, max_size=5).map(".".join)
ALPHABET = "aZ09-.。．*_%/@:ßςüаıİ\u00ad\u200b\u200d\u0301\u202e１ⅷ①℀日مא" + "xn--"
SPELLINGS = st.one_of(
    st.text(st.sampled_from(ALPHABET), max_size=30),
    st.text(max_size=30),
    st.text(max_size=20).map(lambda text: f"{text}.example.com"),
    st.from_regex(r"xn--[a-z0-9-]{1,12}\.(xn--[a-z0-9]{1,8}|com)", fullmatch=True),
)


@given(SPELLINGS)
@example("faß.de")
@example("xn--fa-hia.de")
@example("API。Example。com。")
def test_canonicalisation_is_idempotent_and_total(text: str):
    """Goal: any text gives a refusal or a form that is its own canonical form, in plain ASCII."""
    canonical = canonical_or_none(text)
    if canonical is None:
        return
    assert canonical_recipient(canonical) == canonical
    assert canonical_entry(canonical) == canonical
    assert canonical.isascii()
    assert len(canonical) <= 253
    if not is_address(canonical):
        assert canonical == canonical.lower()
        # The U-labels it stands for lead back to it: no two A-labels share a reading.
        assert canonical_hostname(idna.decode(canonical)) == canonical


@given(st.binary(min_size=28, max_size=36))
def test_an_address_is_exactly_32_bytes_of_base58(raw: bytes):
    """Goal: base58 text is an address if and only if it stands for 32 bytes."""
    text = base58.encode(raw)
    assert is_address(text) is (len(raw) == 32)
    if len(raw) == 32:
        assert canonical_recipient(text) == text == str(Pubkey.from_bytes(raw))


@given(HOSTS, HOSTS)
def test_matching_agrees_with_its_definition(entry: str, host: str):
    """Goal: exact is equality and a wildcard is a true suffix, for any two names."""
    names = [canonical_or_none(text) for text in (entry, host, f"{host}.{entry}")]
    if None in names:
        return
    first, second, below = (name or "" for name in names)
    assert EntryList((first,)).matches(second) is (first == second)
    assert EntryList((f"*.{first}",)).matches(second) is second.endswith(f".{first}")
    assert EntryList((f"*.{first}",)).matches(below)
    assert not EntryList((f"*.{first}",)).matches(first)
