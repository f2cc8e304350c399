"""What a seller says became of a payment. It decides nothing: the chain is asked in any case."""

import re
from dataclasses import dataclass
from typing import Any, Final

_SIGNATURE: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{64,88}", re.ASCII)
_MOST_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class Claim:
    """`signature` is the chain's, if the seller named one; `reason` why it says that it failed."""

    success: bool
    signature: str | None
    reason: str | None


def read_claim(success: bool, signature: Any, reason: Any) -> Claim:
    """Of values as they came: what is nothing of its kind is as good as nothing."""
    named = isinstance(signature, str) and _SIGNATURE.fullmatch(signature) is not None
    said = reason[:_MOST_REASON] if isinstance(reason, str) and reason.isprintable() else ""
    return Claim(success, signature if named else None, said or None)
