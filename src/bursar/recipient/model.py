"""The account's directory: which address a hostname is paid at."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RecipientRow:
    hostname: str
    address: str
    created_by: str
    created_at: datetime
    updated_at: datetime
