"""Stopping every agent of a realm at once, and letting them go on."""

from dataclasses import dataclass

import msgspec

from bursar.clock import iso
from bursar.config import Mode
from bursar.db import Tx, moment
from bursar.errors import ApiError, ErrorCode
from bursar.event.catalog import EventType
from bursar.event.outbox import NewEvent, emit
from bursar.stop import store
from bursar.stop.model import Stop, Unsigned
from bursar.stop.view import Resumed, show_stop, show_stop_or_none
from bursar.trail.trail import leave_trail


@dataclass(frozen=True, slots=True)
class Person:
    """Who stops or resumes, by the key, and what."""

    realm_id: int
    account_id: str
    mode: Mode
    key_id: str
    request_id: str


async def stop_realm(tx: Tx, by: Person, reason: str, *, also_unsigned: bool) -> Stop:
    """In force for every spend and approval that is requested after the answer.

    A second stop loosens nothing: it stays as it is, or holds the unsigned as well from now on.
    """
    before = await store.lock_stop(tx, by.realm_id)
    if before is not None and (before.stop_holds_unsigned or not also_unsigned):
        return before
    now = await moment(tx)
    after = Stop(
        stopped_at=now if before is None else before.stopped_at,
        stopped_by=by.key_id,
        stop_reason=reason,
        stop_holds_unsigned=also_unsigned,
    )
    await store.put_stop(tx, by.realm_id, after)
    shown = show_stop(after)
    await emit(tx, [NewEvent(by.realm_id, EventType.ACCOUNT_STOPPED, None, shown, now)])
    await leave_trail(
        tx,
        realm_id=by.realm_id,
        actor=by.key_id,
        request_id=by.request_id,
        action="account.stopped",
        subject=by.account_id,
        before=show_stop_or_none(before),
        after=shown,
    )
    return after


async def resume_realm(tx: Tx, by: Person, unsigned: Unsigned) -> Resumed:
    """Spends are decided again. What the stop held is paid, or called off: then nothing of it is
    signed any more, and settlement gives its money back."""
    stop = await store.lock_stop(tx, by.realm_id)
    if stop is None:
        raise ApiError(ErrorCode.INVALID_STATE, "This account is not stopped.")
    cancelled = 0
    if stop.stop_holds_unsigned and unsigned == "cancel":
        cancelled = await store.call_off(tx, by.realm_id, by.mode, by.key_id)
    await store.clear_stop(tx, by.realm_id)
    now = await moment(tx)
    resumed = Resumed(
        **msgspec.structs.asdict(show_stop(stop)),
        resumed_at=iso(now),
        resumed_by=by.key_id,
        unsigned=unsigned,
        cancelled=cancelled,
    )
    await emit(tx, [NewEvent(by.realm_id, EventType.ACCOUNT_RESUMED, None, resumed, now)])
    await leave_trail(
        tx,
        realm_id=by.realm_id,
        actor=by.key_id,
        request_id=by.request_id,
        action="account.resumed",
        subject=by.account_id,
        before=show_stop(stop),
        after=resumed,
    )
    return resumed
