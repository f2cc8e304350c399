"""The account's directory: which address a hostname is paid at."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from bursar.clock import iso


@dataclass(frozen=True, slots=True)
class RecipientRow:
    hostname: str
    address: str
    created_by: str
    created_at: datetime
    updated_at: datetime


class RecipientView(msgspec.Struct, rename="camel", kw_only=True):
    """A directory entry: spends to `hostname` are paid to `address`."""

    hostname: str
    address: str
    created_by: str
    created_at: str
    updated_at: str


def show_recipient(row: RecipientRow) -> RecipientView:
    return RecipientView(
        hostname=row.hostname,
        address=row.address,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
    )
