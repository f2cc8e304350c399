"""How a stop, and its end, show themselves."""

import msgspec

from bursar.clock import iso
from bursar.stop.model import Stop, Unsigned


class Stopped(msgspec.Struct, rename="camel", kw_only=True):
    """Every agent of the account is stopped: since when, by which key, and why. `alsoUnsigned`:
    what was approved before and is not signed waits, too."""

    stopped_at: str
    stopped_by: str
    reason: str
    also_unsigned: bool


class Resumed(Stopped, rename="camel", kw_only=True):
    """The stop that is over. `cancelled` is how many of the spends that it held are not paid."""

    resumed_at: str
    resumed_by: str
    unsigned: Unsigned
    cancelled: int


def show_stop(stop: Stop) -> Stopped:
    return Stopped(
        stopped_at=iso(stop.stopped_at),
        stopped_by=stop.stopped_by,
        reason=stop.stop_reason,
        also_unsigned=stop.stop_holds_unsigned,
    )


def show_stop_or_none(stop: Stop | None) -> Stopped | None:
    return None if stop is None else show_stop(stop)
