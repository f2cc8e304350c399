"""Query strings: known names only, each at most once, every fault reported together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from bursar.errors import ApiError, ErrorCode, Fault
from bursar.form.kind import Schema
from bursar.form.kinds import Metadata
from bursar.form.moments import Span
from bursar.form.record import Field, unknown_name
from bursar.form.strict_json import decode_object

_MAX_PARAMETERS: Final = 100
# Pairs of parameters that bound a list: the first must not lie after the second.
_RANGES: Final = (("from", "to"), ("settledFrom", "settledTo"))


@dataclass(frozen=True, slots=True)
class PageSize:
    """`limit`: how many rows a page holds."""

    default: int
    most: int

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if value.isascii() and value.isdigit() and len(value) <= 9 and 1 <= int(value) <= self.most:
            return int(value)
        faults.append(Fault(path, f"{path} must be a whole number from 1 to {self.most}."))
        return None

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": 1, "maximum": self.most, "default": self.default}


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """`metadata[team]=search`, repeatable with other keys, or `metadata={"team":"search"}`."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if isinstance(value, str):
            try:
                value = decode_object(value.encode("utf-8", "replace"))
            except ApiError:
                faults.append(
                    Fault(path, f"{path} must be {path}[key]=value or a JSON object of strings.")
                )
                return None
        return Metadata().parse(value, path, faults)

    def schema(self) -> Schema:
        return {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "examples": [{"team": "search"}],
        }


def parse_query(raw: bytes, fields: Sequence[Field], faults: list[Fault]) -> dict[str, Any]:
    """The parsed parameters that were given; appends to `faults` what is wrong."""
    if not raw:
        return {}
    known = [field.name for field in fields]
    accepted = f" Accepted parameters: {', '.join(known) or 'none'}."
    given: dict[str, Any] = {}
    for name, value in _pairs(raw):
        base, key = _split(name)
        if "\0" in name or "\0" in value:
            faults.append(Fault(name.replace("\0", "")[:100], "A parameter contains U+0000."))
        elif key is None:
            if base in given:
                faults.append(Fault(base, f"{base} is given more than once.{accepted}"))
            given[base] = value
        else:
            filters = given.setdefault(base, {})
            if not isinstance(filters, dict) or key in filters:
                faults.append(Fault(name, f"{name} is given more than once.{accepted}"))
            else:
                filters[key] = value
    parsed: dict[str, Any] = {}
    kinds = {field.name: field.kind for field in fields}
    for name, value in given.items():
        kind = kinds.get(name)
        if kind is None:
            faults.append(unknown_name("parameter", "", name, known, accepted))
        elif isinstance(value, dict) and not isinstance(kind, MetadataFilter):
            faults.append(Fault(name, f"{name} takes one value, not {name}[…]."))
        else:
            parsed[name] = kind.parse(value, name, faults)
    for first, last in _RANGES:
        start, end = parsed.get(first), parsed.get(last)
        if isinstance(start, Span) and isinstance(end, Span) and start.lies_after(end):
            faults.append(Fault(first, f"{first} must not lie after {last}."))
    return parsed


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise ApiError(
            ErrorCode.VALIDATION_ERROR,
            f"The query string must be percent-encoded UTF-8 with at most {_MAX_PARAMETERS}"
            " parameters.",
        ) from None


def _split(name: str) -> tuple[str, str | None]:
    """`metadata[team]` to (`metadata`, `team`); any other name to (name, None)."""
    base, bracket, rest = name.partition("[")
    if bracket and base and rest.endswith("]"):
        return base, rest[:-1]
    return name, None
