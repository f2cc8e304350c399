"""The interface of a kind of value that callers send.

A `Kind` parses one value and describes itself for OpenAPI, so the two cannot drift. Parsing goes
on after a fault: a caller learns of everything that is wrong in one reply.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from bursar.errors import Fault

Schema = dict[str, Any]


class Kind(Protocol):
    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        """The value as the use cases take it; appends to `faults` what is wrong."""
        ...

    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class LocalName(Fault):
    """`localhost` or an address where a hostname belongs. A fault unless the service lets test mode
    buy from it, which a kind cannot know."""

    name: str


def json_name(value: Any) -> str:
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
