"""Decided requests as they were recorded, and the order to replay them in."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from graphlib import TopologicalSorter
from itertools import groupby, pairwise

import msgspec

from bursar.policy.engine import RejectCode, Terms, Used, Verdict
from bursar.policy.limits import METER


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a spend after its decision. A decision comes after something if its own place
    is no smaller; places are numbers that the wallet and its meters gave out."""

    # How many decisions its wallet had when a person approved it.
    approved_after: int | None = None
    # Of the wallet's journal: when it was paid, or its amount given back.
    transfer: int | None = None
    is_released: bool = False
    # What it has cost on the network by then.
    network_lamports: int = 0
    # How many decisions and releases each of its meters had counted when its amount was given back,
    # in the order of `Terms.meter_ids`.
    released_after: tuple[int, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A request, what it was judged by and on, and what was decided."""

    id: str
    agent_id: str
    created_at: datetime
    amount_micros: int
    recipient: str
    # Where the recipient is paid, shown or not; None: nowhere.
    pay_to: str | None
    wallet_address: str
    # Whether that address is a host's that the draft blocks.
    pays_blocked_host: bool = False
    verdict: Verdict
    # Of the decision, not of what came later.
    reject_code: RejectCode | None
    terms: Terms
    used: Used
    decision_number: int
    ending: Ending = Ending()

    def meter_place(self, place: int) -> int:
        """How much the meter at this place of `Terms.meter_ids` had counted before."""
        return self.used.meters[(1 + place) * METER]

    def meter_numbers(self, place: int) -> tuple[int, ...]:
        """Amounts and counts of that meter's windows; 0 is the wallet's own."""
        return self.used.meters[place * METER + 1 : (place + 1) * METER]


def in_order(requests: Sequence[Recorded]) -> Iterator[Recorded]:
    """In an order in which every wallet and every meter decided them. All of a moment must be
    among them: moments never run back in a wallet or a meter, and within one its numbers tell."""
    ordered = sorted(requests, key=lambda request: request.created_at)
    for _, some in groupby(ordered, key=lambda request: request.created_at):
        moment = list(some)
        if len(moment) == 1:
            yield from moment
            continue
        trees = {(request.agent_id, _place(request)[0]) for request in moment}
        if len(trees) == len({agent_id for agent_id, _ in trees}):
            yield from sorted(moment, key=_place)
        else:
            yield from _untangled(moment)


def _place(request: Recorded) -> tuple[str, int]:
    """The budget above all others that counts it, or else its wallet, and its place there. While
    its agent stays in one tree, all that shares a wallet or a meter with it is numbered there."""
    if not request.terms.budgets:
        return request.agent_id, request.decision_number
    last = len(request.terms.meter_ids) - 1
    return request.terms.meter_ids[last], request.meter_place(last)


def _untangled(moment: Sequence[Recorded]) -> Iterator[Recorded]:
    """Where an agent has moved from one tree of budgets to another within a moment."""
    lines: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for request in moment:
        lines[request.agent_id].append((request.decision_number, request.id))
        for place, meter_id in enumerate(request.terms.meter_ids):
            lines[meter_id].append((request.meter_place(place), request.id))
    before: TopologicalSorter[str] = TopologicalSorter()
    for line in lines.values():
        line.sort()
        before.add(line[0][1])
        for (_, earlier), (_, later) in pairwise(line):
            before.add(later, earlier)
    by_id = {request.id: request for request in moment}
    yield from (by_id[id_] for id_ in before.static_order())
