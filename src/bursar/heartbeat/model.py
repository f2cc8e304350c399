"""Whether the workers live and move, judged by the heartbeats that they leave in the database."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

# What a duty concerns: one mode, or all modes together.
Part = Literal["test", "live", "all"]

# The first duty of a mode: to reach its network.
START: Final = "start"
BEAT_SECONDS: Final = 5.0
# After this long several beats are missing: the worker is gone, or hangs.
SILENT_SECONDS: Final = 30.0


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One duty as the database has it. `silent_seconds`: since a worker last reported it;
    `still_seconds`: since a round of it last succeeded."""

    mode: Part
    duty: str
    silent_seconds: float
    still_seconds: float
    patience_seconds: float
    problem: str | None


def health(beats: Sequence[Beat]) -> str:
    """`ok`, or what is wrong with a part's worker, in a few words."""
    if not beats:
        return "starting"
    # A duty that only an older version had is no longer reported by anyone, and is left out.
    alive = [beat for beat in beats if beat.silent_seconds < SILENT_SECONDS]
    if not alive:
        return f"silent for {min(beat.silent_seconds for beat in beats):.0f} s"
    late = [beat for beat in alive if beat.still_seconds > beat.patience_seconds]
    if late:
        return "; ".join(_late(beat) for beat in late)
    begins = [beat.problem for beat in alive if beat.duty == START and beat.problem]
    return f"starting ({begins[0]})" if begins else "ok"


def _late(beat: Beat) -> str:
    why = f" ({beat.problem})" if beat.problem else ""
    return f"{beat.duty} stuck for {beat.still_seconds:.0f} s{why}"
