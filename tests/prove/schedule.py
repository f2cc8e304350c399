"""What goes wrong, in which order. Pure: the same seed gives the same faults."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

SENDS: Final = ["sendTransaction"]
LOOKS: Final = ["getSignatureStatuses", "getTransaction", "getSignaturesForAddress"]
STATUS: Final = ["getSignatureStatuses"]
# What a node of the chain does to those who ask it; the switches of `bursar localnet --faults`.
BAD_NODES: Final[dict[str, list[dict[str, Any]]]] = {
    "loses answers to sends": [{"action": "drop", "methods": SENDS, "percent": 60}],
    "loses sends": [{"action": "drop", "methods": SENDS, "at": "request", "percent": 60}],
    "doubles": [{"action": "duplicate", "percent": 50}],
    "is late": [{"action": "delay", "ms": 400, "percent": 40}],
    "is unwell": [
        {"action": "fail", "percent": 25},
        {"action": "fail", "httpStatus": 503, "percent": 10},
    ],
    "denies what landed": [{"action": "lie", "methods": STATUS, "claim": "absent", "percent": 70}],
    "calls paid failed": [{"action": "lie", "methods": STATUS, "claim": "failed", "percent": 50}],
    "calls unpaid paid": [{"action": "lie", "methods": STATUS, "claim": "landed", "percent": 50}],
    "cannot look": [{"action": "fail", "methods": LOOKS, "percent": 50}],
}
APIS: Final = ("api-1", "api-2", "api-3")
WORKERS: Final = ("worker-1", "worker-2")
# Both ends of every wire that can be broken, by the kind of part at each.
PAIRS: Final = (
    "client api",
    "api postgres",
    "worker postgres",
    "postgres postgres",
    "api redis",
    "api localnet",
    "worker localnet",
    "worker receiver",
)
TROUBLES: Final = ("cut", "silent", "slow", "torn")
# Targets of each kind, and how often the kind comes in one deck.
_KINDS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "kill api": (3, APIS),
    "kill worker": (3, WORKERS),
    "kill localnet": (2, ("localnet",)),
    "kill redis": (1, ("redis",)),
    "kill postgres": (1, ("primary",)),
    "kill backend": (1, ("primary",)),
    "kill standby": (1, ("a standby",)),
    "failover": (1, ("primary",)),
    "freeze": (2, (*APIS, *WORKERS, "redis")),
    "cut": (3, PAIRS),
    "silent": (3, PAIRS),
    "slow": (2, PAIRS),
    "torn": (3, PAIRS),
    "lying node": (4, tuple(BAD_NODES)),
    "fork": (2, ("localnet",)),
    "lost blocks": (1, ("localnet",)),
    "clock": (2, (*APIS, *WORKERS)),
    "full disk": (1, ("postgres and localnet",)),
}
KINDS: Final = tuple(_KINDS)


@dataclass(frozen=True)
class Fault:
    number: int
    kind: str
    target: str
    # How long until it is mended, where it does not mend itself.
    seconds: float
    # Given to whatever else is left to chance.
    seed: int

    def __str__(self) -> str:
        return f"{self.number}: {self.kind}, {self.target}"


def schedule(seed: int, without: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Every kind once, then deck after deck. Each kind takes its targets in turn."""
    chance = Random(f"{seed}/faults")
    kinds = [kind for kind in KINDS if kind not in without]
    targets = {kind: _round(chance, _KINDS[kind][1]) for kind in kinds}
    deck = chance.sample(kinds, len(kinds))
    number = 0
    while True:
        for kind in deck:
            number += 1
            seconds = round(chance.uniform(0.2, 2.0), 3)
            yield Fault(number, kind, next(targets[kind]), seconds, chance.randrange(1 << 30))
        deck = [kind for kind in kinds for _ in range(_KINDS[kind][0])]
        chance.shuffle(deck)


def _round(chance: Random, targets: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from chance.sample(targets, len(targets))
