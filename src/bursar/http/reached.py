"""The address that a client reached the service by, as its own request says it."""

import re
from collections.abc import Mapping
from typing import Final

# A name or an address, and a port: nothing that could make another page of a link, or another
# command of a line that is copied.
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


def reached_at(headers: Mapping[bytes, bytes], *, is_secure: bool) -> str | None:
    """None where the request names no host that could be one."""
    host = headers.get(b"host", b"").decode("latin-1")
    if _HOST.fullmatch(host) is None:
        return None
    return f"{'https' if is_secure else 'http'}://{host}"
