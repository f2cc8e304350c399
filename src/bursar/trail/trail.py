"""Who did what: an append-only line for every change a person would ask about later."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bursar.db import Tx
from bursar.trail import store


async def leave_trail(
    tx: Tx,
    *,
    realm_id: int | None,
    actor: str,
    request_id: str,
    action: str,
    subject: str,
    before: Any = None,
    after: Any = None,
) -> None:
    """`before` and `after` are what the API shows of the subject, so they hold no secret. A line
    about the whole service has no realm."""
    line = action, subject, before, after
    await leave_trails(tx, realm_id=realm_id, actor=actor, request_id=request_id, lines=[line])


async def leave_trails(
    tx: Tx,
    *,
    realm_id: int | None,
    actor: str,
    request_id: str,
    lines: Sequence[tuple[str, str, Any, Any]],
) -> None:
    """Lines of (action, subject, before, after), of one act that changed many."""
    await store.insert_trail(
        tx,
        realm_id,
        actor,
        request_id,
        [
            (action, subject, _json(before), _json(after))
            for action, subject, before, after in lines
        ],
    )


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
