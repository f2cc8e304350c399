"""The account's directory: which address a hostname is paid at."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RecipientRow:
    hostname: str
    address: str
    created_by: str
    created_at: datetime
    # Who gave it its address, and when.
    updated_by: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class RecipientFilter:
    realm_id: int
    # A part of the hostname.
    hostname: str | None = None
    address: str | None = None
