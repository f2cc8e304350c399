"""What an audit asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """`count` says how many rows it is about; `differs` returns a line per difference."""

    text: str
    count: str
    differs: str
