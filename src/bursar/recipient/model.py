"""The account's directory: which address a hostname is paid at; and which addresses can be paid."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from solders.pubkey import Pubkey

from bursar.errors import Fault
from bursar.form.kinds import Flag
from bursar.form.record import Field
from bursar.hostnames import is_address

ALLOW_OFF_CURVE = Field(
    "allowOffCurve",
    Flag(),
    "True pays an address that no key can spend from, such as a program's vault.",
)


def curve_faults(body: dict[str, Any], name: str) -> list[Fault]:
    """Faults for an address off the curve: no key can spend from it, so money sent there is lost
    unless a program controls it."""
    to: Any = body.get(name)
    if body.get("allowOffCurve") is True or not isinstance(to, str) or not is_address(to):
        return []
    if Pubkey.from_string(to).is_on_curve():
        return []
    return [
        Fault(
            name,
            f"{name} is not on the curve, so no key can spend from it. If it is a vault"
            " that a program controls, send allowOffCurve true.",
        )
    ]


@dataclass(frozen=True, slots=True)
class RecipientRow:
    hostname: str
    address: str
    created_by: str
    created_at: datetime
    updated_at: datetime
