"""Objects of known fields: the bodies of requests."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from bursar.errors import Fault
from bursar.form.kind import Kind, Schema, json_name

# How many unknown fields an error names; a body may hold tens of thousands.
MAX_UNKNOWN: Final = 100


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
    # Whether its schema shows an example of each field.
    illustrated: bool = True

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            faults.append(Fault(path, f"{path} must be an object, not {json_name(value)}."))
            return None
        given = cast("dict[str, Any]", value)
        prefix = f"{path}." if path else ""
        parsed: dict[str, Any] = {}
        for field in self.fields:
            name = field.name
            if name in given:
                item = given[name]
                omitted = item is None and field.nullable
                parsed[name] = None if omitted else field.kind.parse(item, prefix + name, faults)
            elif field.required:
                required = f"{prefix}{name} is required.{self.accepted()}"
                faults.append(Fault(prefix + name, required))
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
            if not self.illustrated:
                schema = _plain(schema)
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
        """Lists every accepted field, so that one bad request is enough to learn the payload."""
        listed = ", ".join(
            f"{field.name} (required)" if field.required else field.name for field in self.fields
        )
        return f" Accepted fields: {listed or 'none'}."


def _plain(part: Any) -> Any:
    """A piece of a schema without examples, its own and those of its parts."""
    match part:
        case dict():
            named = cast("dict[str, Any]", part)
            return {name: _plain(one) for name, one in named.items() if name != "examples"}
        case list():
            return [_plain(one) for one in cast("list[Any]", part)]
        case _:
            return part


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
    """A name without case and separators, so that `daily_cap` is recognised as `dailyCap`."""
    return name.casefold().replace("_", "").replace("-", "")
