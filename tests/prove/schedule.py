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


# What may go wrong at the same time and is survived. At most one of each concerns the database's
# servers, which bear the loss of one, and one what the chain itself tells, which has one switch.
COMBINATIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("kill api", "kill worker"),
    ("kill worker", "lying node"),
    ("kill worker", "failover"),
    ("kill redis", "failover"),
    ("kill localnet", "kill postgres"),
    ("freeze", "fork"),
    ("torn", "kill worker"),
    ("clock", "failover"),
    ("silent", "lying node"),
    ("slow", "kill backend"),
    ("cut", "lost blocks"),
    ("kill standby", "torn"),
    ("full disk", "kill api"),
    ("kill api", "kill redis", "lying node"),
    ("kill worker", "fork", "torn"),
    ("kill worker", "failover", "lying node"),
    ("clock", "kill localnet", "kill api"),
    ("silent", "kill worker", "kill postgres"),
    ("freeze", "cut", "lost blocks"),
)


@dataclass(frozen=True)
class Fault:
    kind: str
    target: str
    # How long until it is mended, where it does not mend itself.
    seconds: float
    # Given to whatever else is left to chance.
    seed: int


@dataclass(frozen=True)
class Strike:
    """Faults that begin at the same moment: one, two or three."""

    number: int
    faults: tuple[Fault, ...]

    @property
    def kind(self) -> str:
        return " + ".join(fault.kind for fault in self.faults)

    def __str__(self) -> str:
        return f"{self.number}: " + " + ".join(f"{f.kind}, {f.target}" for f in self.faults)


def schedule(seed: int, without: frozenset[str] = frozenset()) -> Iterator[Strike]:
    """Every kind once by itself, then every combination once, then deck after deck of both. Each
    kind takes its targets in turn."""
    chance = Random(f"{seed}/faults")
    kinds = [kind for kind in KINDS if kind not in without]
    together = [group for group in COMBINATIONS if not without & set(group)]
    targets = {kind: _round(chance, _KINDS[kind][1]) for kind in kinds}
    number = 0

    def strike(group: tuple[str, ...]) -> Strike:
        faults: list[Fault] = []
        for kind in group:
            # In company the servers' own wires are left alone: the one fault of the database that
            # a combination may hold is all that its copies are made for.
            target = next(t for t in targets[kind] if len(group) == 1 or t != "postgres postgres")
            seconds = round(chance.uniform(0.2, 2.0), 3)
            faults.append(Fault(kind, target, seconds, chance.randrange(1 << 30)))
        return Strike(number, tuple(faults))

    deck = [(kind,) for kind in chance.sample(kinds, len(kinds))]
    deck += chance.sample(together, len(together))
    while True:
        for group in deck:
            number += 1
            yield strike(group)
        deck = [(kind,) for kind in kinds for _ in range(_KINDS[kind][0])] + together * 2
        chance.shuffle(deck)


def _round(chance: Random, targets: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from chance.sample(targets, len(targets))
