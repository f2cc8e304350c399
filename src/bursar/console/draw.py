"""Templates, and how amounts, moments and long names look in them.

Everything is escaped on its way into a page. What agents write (names, memos, metadata, hostnames)
is always shown as text, never as markup, script or a link.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bursar.clock import iso
from bursar.console.explorer import explorer
from bursar.console.store import MOST_COUNTED
from bursar.console.words import (
    FAILURES,
    FIELDS,
    OUTCOMES,
    PURCHASES,
    REFUSALS,
    RULE_NAMES,
    RULES,
    WINDOW_WORDS,
)
from bursar.errors import Fault
from bursar.money import format_micros
from bursar.policy.engine import RejectCode, Rule


def draw(template: str, content: dict[str, Any], asset: Callable[[str], str]) -> bytes:
    return _templates().get_template(template).render(content, asset=asset).encode()


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("bursar.console", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = made.filters
    filters.update(
        amount=amount,
        moment=moment,
        brief=brief,
        spoken=spoken,
        number=number,
        counted=counted,
        refusal=refusal,
        percent=percent,
    )
    words: dict[str, Any] = made.globals
    words.update(
        rule_words=rule_words,
        rule_names=RULE_NAMES,
        explorer=explorer,
        outcomes=OUTCOMES,
        failures=FAILURES,
        purchase_words=PURCHASES,
        window_words=WINDOW_WORDS,
    )
    return made


def amount(value: int | str | None) -> str:
    """`1234.5` as `1,234.50`: groups of three, and no more places than it needs but two."""
    if value is None:
        return "–"
    text = format_micros(value) if isinstance(value, int) else value
    whole, _, places = text.partition(".")
    sign = "-" if whole.startswith("-") else ""
    return f"{sign}{int(whole.lstrip('-')):,}.{places.rstrip('0').ljust(2, '0')}"


def moment(value: datetime | str | None, shape: str = "minute") -> str | Markup:
    """A time to the `minute` or `second`. The page's script shows it in the reader's time zone; the
    tooltip has UTC."""
    if value is None:
        return "–"
    at = datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)
    exact = at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"
    shown = at.strftime("%-d %b %Y, %H:%M:%S" if shape == "second" else "%-d %b %Y, %H:%M")
    return Markup('<time datetime="{}" data-as="{}" title="{} UTC">{} UTC</time>').format(
        iso(at), shape, exact, shown
    )


def brief(value: str | None, ends: int = 5) -> str | Markup:
    """The two ends of a long id or address; the tooltip has all of it."""
    if value is None:
        return "–"
    if len(value) <= 2 * ends + 3:
        return value
    return Markup('<span title="{}">{}…{}</span>').format(value, value[:ends], value[-ends:])


def spoken(fault: Fault) -> str:
    """What is wrong with a field, in the words of the form: `policy.allowlist[0] must be …` is
    "Line 1 of the allowlist must be …"."""
    name, *inner = re.findall(r"[^.\[\]]+", fault.param.removeprefix("policy.")) or [""]
    words = FIELDS.get(name)
    # A message that does not begin with the field's name is in plain words already.
    if words is None or not fault.message.startswith(f"{fault.param} "):
        return fault.message
    if inner and inner[0].isdecimal():
        place = int(inner[0]) + 1
        words = f"Limit {place}" if name == "limits" else f"Line {place} of {words.lower()}"
        if len(inner) > 1:
            words = f"The {inner[1]} of {words.lower()}"
    elif inner:
        words = f"{words} “{'.'.join(inner)}”"
    said = fault.message.removeprefix(fault.param)
    return words + said.replace('a decimal string such as "12.50"', "an amount such as 12.50")


def number(value: int) -> str:
    return f"{value:,}"


def counted(value: int) -> str:
    """A count, as "1,000+" if counting stopped at its bound."""
    return f"{MOST_COUNTED:,}+" if value >= MOST_COUNTED else f"{value:,}"


def refusal(code: str) -> str:
    return REFUSALS[RejectCode(code)]


def rule_words(rule: str) -> tuple[str, str, str]:
    return RULES[Rule(rule)]


def percent(part: int, whole: int) -> int:
    """0 to 100; 100 when the whole is zero."""
    if whole <= 0:
        return 100 if part > 0 else 0
    return min(part * 100 // whole, 100)
