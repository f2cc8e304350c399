"""Strict JSON, and the kinds of values that bodies and queries are made of.

A `Kind` parses one value and describes itself for OpenAPI, so the two cannot drift. Parsing goes
on after a fault: a caller learns of everything that is wrong in one reply.
"""

import difflib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn, Protocol, cast

from bursar.clock import truncate
from bursar.errors import ApiError, ErrorCode, Fault
from bursar.hostnames import (
    RecipientError,
    canonical_entry,
    canonical_hostname,
    canonical_recipient,
    is_address,
)
from bursar.money import AMOUNT_PATTERN, CAP_PATTERN, parse_cap_micros, parse_micros

MAX_BODY_BYTES: Final = 512 * 1024
MAX_NESTING: Final = 32
MAX_METADATA_PAIRS: Final = 50
MAX_METADATA_KEY: Final = 40
MAX_METADATA_VALUE: Final = 500
# Of the whole, as JSON in UTF-8, which is how it is stored: with every spend, refused ones too.
MAX_METADATA_BYTES: Final = 8 * 1024
MAX_ENTRIES: Final = 1_000
_MAX_INTEGER_DIGITS: Final = 30
# Unknown fields that are named one by one; a body may hold tens of thousands.
MAX_UNKNOWN: Final = 100

Schema = dict[str, Any]


# Strict JSON -------------------------------------------------------------------------------------


def decode_object(raw: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8: no duplicate keys, no NaN, no U+0000, no lone surrogate, shallow."""
    try:
        value = _decode(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _invalid_json("The body is not UTF-8.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as problem:
        raise _invalid_json(f"The body is not valid JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise _invalid_json("The body must be a JSON object, as in {...}.")
    # Only escapes can bring in what UTF-8 cannot hold, and only many brackets can nest deep, so
    # the walk is needed for few bodies.
    made = cast("dict[str, Any]", value)
    if b"\\u" in raw or raw.count(b"{") + raw.count(b"[") > MAX_NESTING:
        _inspect(made, depth=1)
    return made


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:100]!r} appears twice")
            seen.add(name)
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _integer(text: str) -> int | float:
    # Reading an endless number exactly takes quadratic time, and no field wants one.
    return int(text) if len(text) <= _MAX_INTEGER_DIGITS else float(text)


_decode = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_integer
).decode


def _inspect(value: Any, depth: int) -> None:
    if depth > MAX_NESTING:
        raise _too_deep()
    if isinstance(value, str):
        _inspect_text(value)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            _inspect_text(name)
            _inspect(item, depth + 1 if isinstance(item, dict | list) else depth)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _inspect(item, depth + 1 if isinstance(item, dict | list) else depth)


def _inspect_text(text: str) -> None:
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise _invalid_json("Strings must not contain U+0000 or half a surrogate pair.")


def _too_deep() -> ApiError:
    return _invalid_json(f"The body nests deeper than {MAX_NESTING} levels.")


def _invalid_json(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_JSON, message)


# Kinds -------------------------------------------------------------------------------------------


class Kind(Protocol):
    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        """The value in the form the use cases want; appends to `faults` what is wrong."""
        ...

    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class Text:
    least: int = 0
    most: int = 1_000
    trim: bool = False
    pattern: str | None = None

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, str):
            faults.append(Fault(path, f"{path} must be a string, not {_name(value)}."))
            return None
        text = value.strip() if self.trim else value
        if not self.least <= len(text) <= self.most:
            faults.append(Fault(path, f"{path} must have {self.least} to {self.most} characters."))
        elif self.pattern is not None and re.fullmatch(self.pattern, text, re.ASCII) is None:
            faults.append(Fault(path, f"{path} must match {self.pattern}."))
        return text

    def schema(self) -> Schema:
        made: Schema = {"type": "string", "minLength": self.least, "maxLength": self.most}
        if self.pattern:
            made["pattern"] = f"^{self.pattern}$"
        return made


# Which object is meant. One of the wrong form is not malformed, it is just not found.
ID: Final = Text(0, 1_000)


@dataclass(frozen=True, slots=True)
class Amount:
    """Money that moves: a decimal string above zero, to exact micro-units."""

    most_micros: int | None = None

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        micros = parse_micros(value) if isinstance(value, str) else None
        if micros is None:
            faults.append(Fault(path, f"{path} {_money_advice(value, 6)}"))
        elif micros == 0:
            faults.append(Fault(path, f"{path} must be more than zero."))
        elif self.most_micros is not None and micros > self.most_micros:
            faults.append(Fault(path, f"{path} must be at most {self.most_micros // 1_000_000}."))
        return micros

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{AMOUNT_PATTERN}$", "examples": ["12.500000"]}


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit of a policy: a decimal string of two places, zero allowed, to exact micro-units."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        micros = parse_cap_micros(value) if isinstance(value, str) else None
        if micros is None:
            faults.append(Fault(path, f"{path} {_money_advice(value, 2)}"))
        return micros

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{CAP_PATTERN}$", "examples": ["25.00"]}


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]
    # Sentences for values that people try and that mean something else here.
    advice: tuple[tuple[str, str], ...] = ()

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if value not in self.values or not isinstance(value, str):
            listed = ", ".join(self.values)
            sentence = f"{path} must be one of: {listed}."
            for tried, advice in self.advice:
                if tried == value:
                    sentence = f"{sentence} {advice}"
            faults.append(Fault(path, sentence))
        return value

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class Flag:
    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, bool):
            faults.append(Fault(path, f"{path} must be true or false, not {_name(value)}."))
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    least: int
    most: int

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            faults.append(Fault(path, f"{path} must be a whole number, not {_name(value)}."))
            return None
        if not self.least <= value <= self.most:
            faults.append(Fault(path, f"{path} must be from {self.least} to {self.most}."))
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Recipient:
    """A hostname or a base58 address, to its canonical form."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        return _canonical(canonical_recipient, value, path, faults)

    def schema(self) -> Schema:
        return {
            "type": "string",
            "minLength": 3,
            "maxLength": 1024,
            "examples": ["api.example.com"],
        }


@dataclass(frozen=True, slots=True)
class Hostname:
    """A bare hostname, to its canonical form."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        return _canonical(canonical_hostname, value, path, faults)

    def schema(self) -> Schema:
        return {
            "type": "string",
            "minLength": 3,
            "maxLength": 1024,
            "examples": ["api.example.com"],
        }


@dataclass(frozen=True, slots=True)
class Address:
    """A Solana address: base58 of 32 bytes."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, str) or not is_address(value):
            faults.append(
                Fault(path, f"{path} must be a Solana address: base58 of exactly 32 bytes.")
            )
        return value

    def schema(self) -> Schema:
        return {
            "type": "string",
            "minLength": 32,
            "maxLength": 44,
            "examples": ["So11111111111111111111111111111111111111112"],
        }


@dataclass(frozen=True, slots=True)
class Entries:
    """A policy's allowlist or blocklist: canonical entries, repeats collapsed, order kept."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, list):
            faults.append(Fault(path, f"{path} must be an array of hostnames, not {_name(value)}."))
            return None
        items = cast("list[Any]", value)
        if len(items) > MAX_ENTRIES:
            faults.append(Fault(path, f"{path} may hold at most {MAX_ENTRIES} entries."))
            return None
        parsed = [
            _canonical(canonical_entry, item, f"{path}[{index}]", faults)
            for index, item in enumerate(items)
        ]
        return list(dict.fromkeys(parsed))

    def schema(self) -> Schema:
        return {
            "type": "array",
            "maxItems": MAX_ENTRIES,
            "items": {"type": "string", "minLength": 1, "maxLength": 1024},
            "examples": [["api.example.com", "*.example.org"]],
        }


@dataclass(frozen=True, slots=True)
class Metadata:
    """Key-value pairs with string values."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            faults.append(
                Fault(path, f"{path} must be an object of string values, not {_name(value)}.")
            )
            return None
        pairs = cast("dict[str, Any]", value)
        if len(pairs) > MAX_METADATA_PAIRS:
            faults.append(Fault(path, f"{path} may hold at most {MAX_METADATA_PAIRS} pairs."))
            return None
        known = len(faults)
        for name, item in pairs.items():
            where = f"{path}.{name[:MAX_METADATA_KEY]}"
            if not 1 <= len(name) <= MAX_METADATA_KEY:
                faults.append(
                    Fault(where, f"A key of {path} must have 1 to {MAX_METADATA_KEY} characters.")
                )
            if not isinstance(item, str):
                faults.append(Fault(where, f"{where} must be a string, not {_name(item)}."))
            elif len(item) > MAX_METADATA_VALUE:
                faults.append(
                    Fault(where, f"{where} may have at most {MAX_METADATA_VALUE} characters.")
                )
        if len(faults) == known and _json_bytes(pairs) > MAX_METADATA_BYTES:
            faults.append(
                Fault(path, f"{path} may take at most {MAX_METADATA_BYTES} bytes in all, as JSON.")
            )
        return pairs

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": MAX_METADATA_PAIRS,
            "propertyNames": {"minLength": 1, "maxLength": MAX_METADATA_KEY},
            "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
            "examples": [{"team": "search"}],
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """A full ISO-8601 timestamp; no offset means UTC."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        moment = parse_moment(value) if isinstance(value, str) and "T" in value else None
        if moment is None:
            faults.append(
                Fault(path, f"{path} must be an ISO-8601 time such as 2026-11-30T12:00:00Z.")
            )
        return moment

    def schema(self) -> Schema:
        return {"type": "string", "format": "date-time"}


class Span(NamedTuple):
    """What a boundary names: from its first moment to the one after it. An instant is empty."""

    start: datetime
    end: datetime

    def lies_after(self, other: "Span") -> bool:
        """Whether nothing can be both from this one on and up to the other."""
        return self.start > other.start and self.start >= other.end


@dataclass(frozen=True, slots=True)
class Boundary:
    """A date or timestamp that bounds a list. A bare date stands for its whole day.

    Between two of the milliseconds that rows have, an instant stands for the later one: as a start
    that is the first row not before it, and as an end it still includes the earlier one.
    """

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        moment = parse_moment(value, up=True)
        if moment is None:
            faults.append(
                Fault(
                    path,
                    f"{path} must be an ISO-8601 date or time: 2026-11-30 or 2026-11-30T12:00:00Z.",
                )
            )
            return None
        whole_day = _BARE_DATE.fullmatch(value) is not None
        # A day before the calendar's end, where no row is, so that a day can still be added to it.
        moment = min(moment, _LATEST - _DAY)
        return Span(moment, moment + _DAY if whole_day else moment)

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 8, "examples": ["2026-11-30"]}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: "Kind"
    doc: str
    required: bool = False
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """An object of known fields. Anything else is refused, with the nearest name and all names."""

    title: str
    fields: tuple[Field, ...]

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            faults.append(Fault(path, f"{path} must be an object, not {_name(value)}."))
            return None
        given = cast("dict[str, Any]", value)
        prefix = f"{path}." if path else ""
        parsed: dict[str, Any] = {}
        for field in self.fields:
            if field.name not in given:
                if field.required:
                    faults.append(
                        Fault(
                            prefix + field.name,
                            f"{prefix}{field.name} is required.{self.accepted()}",
                        )
                    )
                continue
            item = given[field.name]
            if item is None and field.nullable:
                parsed[field.name] = None
            else:
                parsed[field.name] = field.kind.parse(item, prefix + field.name, faults)
        if len(parsed) < len(given):
            known = [field.name for field in self.fields]
            unknown = [name for name in given if name not in known]
            faults += [
                unknown_name("field", prefix, name, known, self.accepted())
                for name in unknown[:MAX_UNKNOWN]
            ]
            if more := unknown[MAX_UNKNOWN:]:
                faults.append(
                    Fault(path or more[0][:100], f"{len(more)} more fields are not known.")
                )
        return parsed

    def schema(self) -> Schema:
        properties: dict[str, Schema] = {}
        for field in self.fields:
            schema = field.kind.schema()
            if field.nullable:
                schema = {"oneOf": [schema, {"type": "null"}]}
            properties[field.name] = {**schema, "description": field.doc}
        made: Schema = {
            "title": self.title,
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        if required := [field.name for field in self.fields if field.required]:
            made["required"] = required
        return made

    def accepted(self) -> str:
        """The whole payload in a sentence, so that one bad request teaches it."""
        listed = ", ".join(
            f"{field.name} (required)" if field.required else field.name for field in self.fields
        )
        return f" Accepted fields: {listed or 'none'}."


def unknown_name(what: str, prefix: str, name: str, known: Sequence[str], accepted: str) -> Fault:
    shown = name[:100]
    meant = _folded(shown)
    near = max(
        known,
        key=lambda one: difflib.SequenceMatcher(None, _folded(one), meant).ratio(),
        default=None,
    )
    hint = "" if near is None else f" Did you mean {prefix}{near}?"
    return Fault(f"{prefix}{shown}", f"{prefix}{shown} is not a known {what}.{hint}{accepted}")


def _folded(name: str) -> str:
    """What is left of a name when the ways to write it are put aside: `daily_cap` is `dailyCap`."""
    return name.casefold().replace("_", "").replace("-", "")


# Moments -----------------------------------------------------------------------------------------

_BARE_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{8}", re.ASCII)
_DAY: Final = timedelta(days=1)
# The calendar's ends. What would lie beyond them, by its offset or its last moment, is put there.
_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


def parse_moment(text: str, *, up: bool = False) -> datetime | None:
    """Any ISO-8601 date or time, to UTC at the millisecond, cut or rounded up; None when it is not
    one."""
    if not text.isascii() or len(text) > 40:
        return None
    try:
        if _BARE_DATE.fullmatch(text):
            day = date.fromisoformat(text)
            moment = datetime(day.year, day.month, day.day)  # noqa: DTZ001 (made UTC below)
        elif "T" in text:
            # A '+' in a query string arrives as a space.
            moment = datetime.fromisoformat(text.replace(" ", "+"))
        else:
            return None
    except ValueError:
        return None
    try:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        moment = _LATEST if moment.year == _LATEST.year else _EARLIEST
    return truncate(min(moment, _LATEST) + timedelta(microseconds=999) if up else moment)


def _json_bytes(value: dict[str, Any]) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _canonical(
    canonical: Callable[[str], str], value: Any, path: str, faults: list[Fault]
) -> str | None:
    if not isinstance(value, str):
        faults.append(Fault(path, f"{path} must be a string, not {_name(value)}."))
        return None
    try:
        return canonical(value)
    except RecipientError as problem:
        faults.append(Fault(path, f"{path} {problem}."))
        return None


def _money_advice(value: Any, places: int) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 'must be a string in quotes, such as "12.50", so that no digit is lost.'
    return (
        f'must be a decimal string such as "12.50": digits, at most {places} places,'
        " no sign, exponent or spaces."
    )


def _name(value: Any) -> str:
    """What JSON calls the type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
