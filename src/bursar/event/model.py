"""An event: what happened, when, and its subject as the API showed it at that moment."""

from datetime import datetime

import msgspec

from bursar.config import Mode


class EventRow(msgspec.Struct, frozen=True):
    id: str
    type: str
    agent_id: str | None
    # The JSON as it was written.
    data: str
    created_at: datetime
    mode: Mode


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of events is narrowed to."""

    realm_id: int
    type: str | None = None
    agent_id: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    # Whether to include what was done to keys.
    with_keys: bool = True
