"""Addresses that no key can spend from: money there is lost, unless a program controls it."""

from collections.abc import Callable
from typing import Any

from solders.pubkey import Pubkey

from bursar.access.model import Caller
from bursar.api.call import Services
from bursar.errors import Fault
from bursar.form.kinds import Flag
from bursar.form.record import Field
from bursar.hostnames import is_address

ALLOW_OFF_CURVE = Field(
    "allowOffCurve",
    Flag(),
    "True pays an address that no key can spend from, such as a program's vault.",
)


def curve_faults(name: str) -> Callable[[Services, Caller, dict[str, Any]], list[Fault]]:
    """The check of the field `name`, for the route of a body that also has ALLOW_OFF_CURVE."""

    def faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
        del services, caller
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

    return faults
