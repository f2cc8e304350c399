"""What the model of these examples does, so that they run without one: it reads what the tools
answered, and decides."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WEATHER = os.environ.get("SHOP_URL", "http://127.0.0.1:8402/weather")
FORECAST = WEATHER.replace("/weather", "/forecast")


@dataclass
class Call:
    """A tool that the model wants called."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


def decide(answers: Sequence[dict[str, Any]]) -> Call | str:
    """The next call, or the last words; `answers` are those of the tools so far."""
    if not answers:
        return Call("get_budget")
    last = answers[-1]
    if len(answers) == 1:
        return Call("buy", {"url": FORECAST})
    if last["status"] == "rejected":
        # Too dear for today: something that fits what is left.
        return Call("buy", {"url": WEATHER, "maxAmount": last["decision"]["maxAmountNow"]})
    refused = answers[1]["rejectCode"]
    return (
        f"The forecast was refused ({refused}); {last['amount']} USDC: {last['response']['body']}"
    )
