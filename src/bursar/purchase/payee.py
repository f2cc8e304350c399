"""What binds a host to the address it is paid at. A seller's word alone does not."""

from dataclasses import dataclass

from bursar.config import Mode
from bursar.policy.engine import RejectCode
from bursar.policy.model import Payees


@dataclass(frozen=True, slots=True)
class Binding:
    """What is known of where an origin is paid. `listed` is the directory's address of its host,
    `pinned` what the origin said when it was first bought from. `brought`: the caller brought the
    seller's offer, so the origin did not speak to the service itself."""

    mode: Mode
    payees: Payees
    is_https: bool
    brought: bool
    listed: str | None
    pinned: str | None

    @property
    def pays_nobody(self) -> bool:
        """Whether it can be said beforehand that no payee will do, whomever the seller names."""
        if self.listed is not None:
            return False
        if self.brought:
            return self.mode == "live"
        return self.payees == "directory" or (self.payees == "host" and not self.is_https)

    def fault(self, pay_to: str) -> RejectCode | None:
        """Why this payee is not to be paid; None if it may be."""
        if self.listed is not None:
            return None if pay_to == self.listed else RejectCode.PAYEE_MISMATCH
        if self.pays_nobody:
            return RejectCode.RECIPIENT_UNRESOLVED
        is_changed = self.pinned not in (None, pay_to)
        if self.payees == "pinned" and not self.brought and is_changed:
            return RejectCode.PAYEE_CHANGED
        return None

    @property
    def pins(self) -> bool:
        """Whether a payee that fits is remembered: the first one that an origin names."""
        return (
            self.listed is None
            and not self.brought
            and self.payees == "pinned"
            and self.pinned is None
        )
