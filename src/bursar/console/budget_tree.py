"""Budgets as a tree, and how full each of their limits is. Pure: from what the API shows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bursar.money import MICROS
from bursar.policy.limits import window_end

# From here on a limit counts as nearly used up, in percent.
NEAR: Final = 80


@dataclass(frozen=True, slots=True)
class Gauge:
    """What was used of an amount, or of a number of spends, in the window that is running."""

    window: str
    used: str | int
    limit: str | int
    share: int
    # When the window is over and the count begins anew; None of a lifetime.
    opens_at: datetime | str | None

    @property
    def is_money(self) -> bool:
        return isinstance(self.limit, str)


@dataclass(frozen=True, slots=True)
class Node:
    """A budget as the API shows it, with its place in the tree."""

    budget: dict[str, Any]
    # Those above it, the highest first.
    above: tuple["Node", ...]
    below: tuple["Node", ...]
    gauges: tuple[Gauge, ...]
    # Agents under it and under the budgets below it.
    agents: int

    @property
    def id(self) -> str:
        return self.budget["id"]

    @property
    def name(self) -> str:
        return self.budget["name"]

    @property
    def level(self) -> int:
        return len(self.above) + 1

    @property
    def fullest(self) -> Gauge | None:
        return max(self.gauges, key=lambda gauge: gauge.share, default=None)

    @property
    def is_near(self) -> bool:
        return self.fullest is not None and self.fullest.share >= NEAR

    @property
    def stopped_above(self) -> bool:
        return any(node.budget["frozen"] for node in self.above)


def gauges(budget: dict[str, Any], now: datetime) -> tuple[Gauge, ...]:
    """One for each amount and each count that a budget sets, in the order of its limits."""
    found: list[Gauge] = []
    for limit in budget["limits"]:
        window, use = limit["window"], budget["use"][limit["window"]]
        end = window_end(window, now)
        for part in ("amount", "count"):
            if limit[part] is not None:
                share = _share(use[part], limit[part])
                found.append(Gauge(window, use[part], limit[part], share, end))
    return tuple(found)


def gauges_over(limits: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[Gauge]]]:
    """Each limit that stands over an agent, as its budget shows it, with its gauges."""
    return [
        (
            limit,
            [
                Gauge(
                    limit["window"], limit[used], most, _share(limit[used], most), limit["resetsAt"]
                )
                for used, most in (("usedAmount", limit["amount"]), ("usedCount", limit["count"]))
                if most is not None
            ],
        )
        for limit in limits
    ]


def forest(budgets: Sequence[dict[str, Any]], now: datetime) -> list[Node]:
    """The budgets that have none above them, by name, each with all that is below it."""
    children: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for budget in sorted(budgets, key=lambda budget: (budget["name"].casefold(), budget["id"])):
        children[budget["parentId"]].append(budget)

    # At most four deep: no budget is given a parent later.
    def grown(budget: dict[str, Any], above: tuple[Node, ...]) -> Node:
        # Those below look up to a node that does not know them yet.
        bare = Node(budget, above, (), gauges(budget, now), budget["agentCount"])
        below = tuple(grown(child, (*above, bare)) for child in children[budget["id"]])
        agents = bare.agents + sum(node.agents for node in below)
        return Node(budget, above, below, bare.gauges, agents)

    return [grown(budget, ()) for budget in children[None]]


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """Every budget, each before those below it."""
    for node in nodes:
        yield node
        yield from walk(node.below)


def nearest(nodes: Sequence[Node]) -> list[Node]:
    """Those that have used most of a limit and are not stopped, the fullest first."""
    near = [n for n in walk(nodes) if n.is_near and not n.budget["frozen"] and not n.stopped_above]
    return sorted(near, key=lambda node: (-max(g.share for g in node.gauges), node.level, node.id))


def _share(used: str | int, limit: str | int) -> int:
    """Percent, up to 100; a limit of nothing is full."""
    part, whole = _number(used), _number(limit)
    return min(part * 100 // whole, 100) if whole else 100


def _number(value: str | int) -> int:
    if isinstance(value, int):
        return value
    whole, _, places = value.partition(".")
    return int(whole) * MICROS + int(places.ljust(6, "0"))
