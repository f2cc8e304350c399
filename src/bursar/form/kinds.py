"""The kinds of values that bodies and queries are made of."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from bursar.errors import Fault
from bursar.form.kind import LocalName, Schema, json_name
from bursar.hostnames import (
    LocalNameError,
    RecipientError,
    canonical_entry,
    canonical_hostname,
    canonical_recipient,
    is_address,
)
from bursar.money import AMOUNT_PATTERN, CAP_PATTERN, parse_cap_micros, parse_micros

MAX_METADATA_PAIRS: Final = 50

MAX_METADATA_KEY: Final = 40

MAX_METADATA_VALUE: Final = 500

# Of all pairs together, as JSON in UTF-8. It is bounded because it is stored with every spend,
# refused ones included.
MAX_METADATA_BYTES: Final = 8 * 1024

MAX_ENTRIES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Text:
    least: int = 0
    most: int = 1_000
    trim: bool = False
    pattern: str | None = None

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, str):
            faults.append(Fault(path, f"{path} must be a string, not {json_name(value)}."))
            return None
        text = value.strip() if self.trim else value
        if not self.least <= len(text) <= self.most:
            faults.append(Fault(path, f"{path} must have {self.least} to {self.most} characters."))
        elif self.pattern is not None and re.fullmatch(self.pattern, text, re.ASCII) is None:
            faults.append(Fault(path, f"{path} must match {self.pattern}."))
        return text

    def schema(self) -> Schema:
        made: Schema = {"type": "string", "minLength": self.least}
        # Blanks around it are not counted where they are trimmed, which a schema cannot say.
        if not self.trim:
            made["maxLength"] = self.most
        if self.pattern:
            made["pattern"] = f"^{self.pattern}$"
        return made


# The id of an object. An id of the wrong form is not a validation error: the object is not found.
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
    # Advice for wrong values that people are likely to send.
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
            faults.append(Fault(path, f"{path} must be true or false, not {json_name(value)}."))
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    least: int
    most: int

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            faults.append(Fault(path, f"{path} must be a whole number, not {json_name(value)}."))
            return None
        if not self.least <= value <= self.most:
            faults.append(Fault(path, f"{path} must be from {self.least} to {self.most}."))
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


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


class Recipient(Hostname):
    """A hostname or a base58 address, to its canonical form."""

    __slots__ = ()

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        return _canonical(canonical_recipient, value, path, faults)


class Entry(Hostname):
    """One entry of an allowlist, to its canonical form."""

    __slots__ = ()

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        return _canonical(canonical_entry, value, path, faults)


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
            faults.append(
                Fault(path, f"{path} must be an array of hostnames, not {json_name(value)}.")
            )
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
                Fault(path, f"{path} must be an object of string values, not {json_name(value)}.")
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
                faults.append(Fault(where, f"{where} must be a string, not {json_name(item)}."))
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


def _json_bytes(value: dict[str, Any]) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _canonical(
    canonical: Callable[[str], str], value: Any, path: str, faults: list[Fault]
) -> str | None:
    if not isinstance(value, str):
        faults.append(Fault(path, f"{path} must be a string, not {json_name(value)}."))
        return None
    try:
        return canonical(value)
    except LocalNameError as problem:
        faults.append(LocalName(path, f"{path} {problem}.", problem.name))
        return problem.name
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
