"""Money is an integer number of micro-units (1 USDC = 1,000,000); text only at the edges."""

import re
from functools import lru_cache
from typing import Final

MICROS: Final = 1_000_000
MICROS_PER_CENT: Final = 10_000
# A column of the database holds no more.
MOST_MICROS: Final = 2**63 - 1

# Twelve digits before the point: the largest amount a caller may name is well inside BIGINT even
# when the ledger adds nine of them.
AMOUNT_PATTERN: Final = r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?"
CAP_PATTERN: Final = r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,2}0{0,4})?"
_AMOUNT = re.compile(AMOUNT_PATTERN, re.ASCII)


def parse_micros(text: str) -> int | None:
    """The exact micro-units of a decimal string, or None when it is not one."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    whole, fraction = match.groups()
    if fraction is None:
        return int(whole) * MICROS
    return int(whole) * MICROS + int(fraction[1:].ljust(6, "0"))


def parse_cap_micros(text: str) -> int | None:
    """As `parse_micros`, but every place after the second must be zero."""
    micros = parse_micros(text)
    return None if micros is None or micros % MICROS_PER_CENT else micros


def format_micros(micros: int) -> str:
    """Six places, for balances and amounts."""
    if micros < 0:
        return f"-{format_micros(-micros)}"
    digits = str(micros).zfill(7)
    return f"{digits[:-6]}.{digits[-6:]}"


# Caps are few, and every spend shows its own.
@lru_cache(maxsize=1_024)
def format_cents(micros: int) -> str:
    """Two places, half-up, for caps and per-recipient totals; never negative."""
    cents = (micros + MICROS_PER_CENT // 2) // MICROS_PER_CENT
    whole, fraction = divmod(cents, 100)
    return f"{whole}.{fraction:02d}"


def format_cents_or_none(micros: int | None) -> str | None:
    return None if micros is None else format_cents(micros)
