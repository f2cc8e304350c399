"""The stop of a realm: one act that keeps every agent of an account and mode from spending.

While it stands no spend is approved, neither at once nor by a person. What was approved before is
paid all the same, unless the stop holds the unsigned: then nothing is signed for an agent either,
until a person resumes and says whether what was held is paid or cancelled. Withdrawals go on: they
are acts of an operator, who may want the money out of harm's way.
"""

from datetime import datetime
from typing import Literal

import msgspec

# What becomes of the spends that a stop has held.
Unsigned = Literal["pay", "cancel"]


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    stopped_at: datetime
    stopped_by: str
    stop_reason: str
    stop_holds_unsigned: bool

    @property
    def mark(self) -> str:
        """Which stop it is, and what it holds. Another than a person saw has another mark."""
        return f"{self.stopped_at.isoformat()} {self.stopped_by} {self.stop_holds_unsigned}"
