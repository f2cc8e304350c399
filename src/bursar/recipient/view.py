"""How a directory entry shows itself."""

import msgspec

from bursar.clock import iso
from bursar.recipient.model import RecipientRow


class RecipientView(msgspec.Struct, rename="camel", kw_only=True):
    """A directory entry: spends to `hostname` are paid to `address`."""

    hostname: str
    address: str
    created_by: str
    created_at: str
    updated_by: str
    updated_at: str


class RecipientSet(RecipientView, rename="camel", kw_only=True):
    """A directory entry, and the address that it had before, if it was there."""

    previous_address: str | None


class RecipientDeleted(RecipientView, rename="camel", kw_only=True):
    """A directory entry that is no more."""

    deleted_by: str


def show_recipient(row: RecipientRow) -> RecipientView:
    return RecipientView(
        hostname=row.hostname,
        address=row.address,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_by=row.updated_by,
        updated_at=iso(row.updated_at),
    )
