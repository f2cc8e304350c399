"""The envelope that most answers share."""

from typing import Any, Final

from bursar_localnet.chain import Chain
from bursar_localnet.slots import Commitment

# The release whose answers this node is shaped after.
API_VERSION: Final = "3.0.0"


def with_context(chain: Chain, commitment: Commitment, value: Any) -> dict[str, Any]:
    return {
        "context": {"apiVersion": API_VERSION, "slot": chain.slots.at(commitment)},
        "value": value,
    }
