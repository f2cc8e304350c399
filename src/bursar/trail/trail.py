"""Who did what: an append-only line for every change a person would ask about later."""

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
    await store.insert_trail(
        tx, realm_id, actor, request_id, action, subject, _json(before), _json(after)
    )


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
