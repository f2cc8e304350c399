"""Money in and out: exact decimal strings, integer micro-units, no float anywhere."""

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.money import format_cents, format_micros, parse_cap_micros, parse_micros

# The largest amount that can be written.
MAX_MICROS = 999_999_999_999_999_999
MICROS = st.integers(0, MAX_MICROS)

GOOD: list[tuple[str, int]] = [
    ("0", 0),
    ("0.0", 0),
    ("0.000000", 0),
    ("0.000001", 1),
    ("0.1", 100_000),
    ("1", 1_000_000),
    ("1.5", 1_500_000),
    ("12.50", 12_500_000),
    ("10", 10_000_000),
    ("123456.789012", 123_456_789_012),
    ("999999999999", 999_999_999_999_000_000),
    ("999999999999.999999", MAX_MICROS),
]
BAD = [
    "",
    " ",
    "1 ",
    " 1",
    "1\n",
    "+1",
    "-1",
    "-0",
    "00",
    "01",
    "00.1",
    ".5",
    "5.",
    ".",
    "1.",
    "1.0000000",
    "0.0000001",
    "1000000000000",
    "9999999999999.0",
    "1e2",
    "1E2",
    "1e400",
    "0x10",
    "1_000",
    "1,000",
    "1,5",
    "1.2.3",
    "$1",
    "1 USDC",
    "NaN",
    "Infinity",
    "inf",
    "null",
    "１２",
    "1２",
    "1．5",
    "١٢",
    "１",
    "²",
    "1\u200b",
    "\ufeff1",
    "1\x00",
    "--1",
    "1/2",
    "9" * 5_000,
]


@pytest.mark.parametrize(("text", "micros"), GOOD)
def test_a_decimal_string_is_read_exactly(text: str, micros: int):
    """Goal: what a caller writes is what is booked, to the last micro-unit."""
    assert parse_micros(text) == micros


@pytest.mark.parametrize("text", BAD, ids=[ascii(text)[:30] for text in BAD])
def test_anything_else_is_no_amount(text: str):
    """Goal: no sign, exponent, space, separator or foreign digit passes for money."""
    assert parse_micros(text) is None
    assert parse_cap_micros(text) is None


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("0", 0),
        ("25", 25_000_000),
        ("25.1", 25_100_000),
        ("25.12", 25_120_000),
        ("25.120000", 25_120_000),
        ("25.123", None),
        ("25.1200001", None),
        ("0.001", None),
        ("0.000001", None),
        ("999999999999.99", 999_999_999_999_990_000),
        ("999999999999.999999", None),
    ],
)
def test_a_cap_has_two_places(text: str, micros: int | None):
    """Goal: in caps every place after the second is zero."""
    assert parse_cap_micros(text) == micros


@given(MICROS)
def test_what_is_shown_reads_back_as_the_same_amount(micros: int):
    """Goal: out and in again loses nothing, and there are always six places."""
    shown = format_micros(micros)
    assert parse_micros(shown) == micros
    assert len(shown.partition(".")[2]) == 6


@given(MICROS)
def test_cents_are_rounded_half_up_from_exact_micros(micros: int):
    """Goal: two places agree with decimal arithmetic, never with binary rounding."""
    exact = Decimal(micros) / Decimal(1_000_000)
    assert format_cents(micros) == str(exact.quantize(Decimal("0.01"), ROUND_HALF_UP))


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(0, "0.00"), (4_999, "0.00"), (5_000, "0.01"), (14_999, "0.01"), (994_999, "0.99"),
     (995_000, "1.00"), (2_675_000, "2.68"), (MAX_MICROS, "1000000000000.00")],
)  # fmt: skip
def test_cents_at_the_half(micros: int, shown: str):
    """Goal: a half goes up, whatever digit stands before it."""
    assert format_cents(micros) == shown


def test_a_negative_difference_keeps_its_sign():
    """Goal: -0.000001 is not shown as -1.999999 or 0.999999."""
    assert format_micros(-1) == "-0.000001"
    assert format_micros(-1_500_000) == "-1.500000"


@given(st.text(max_size=20))
def test_reading_never_fails_and_agrees_with_decimal(text: str):
    """Goal: whatever is accepted is the plain decimal reading of the text."""
    micros = parse_micros(text)
    if micros is not None:
        assert text.isascii()
        assert Decimal(text) * 1_000_000 == micros
        assert 0 <= micros <= MAX_MICROS
