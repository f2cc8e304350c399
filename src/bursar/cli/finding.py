"""What a check of `bursar doctor` found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. `fix` is empty when all is well."""

    what: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    fix: str = ""
