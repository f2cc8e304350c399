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


def show_recipient(row: RecipientRow) -> RecipientView:
    return RecipientView(
        hostname=row.hostname,
        address=row.address,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_by=row.updated_by,
        updated_at=iso(row.updated_at),
    )
