"""How a budget shows itself."""

from datetime import datetime

import msgspec

from bursar.budget.model import BudgetRow, MeterRow
from bursar.clock import iso
from bursar.money import format_micros
from bursar.policy.limits import WINDOWS
from bursar.policy.view import LimitView, show_limit


class WindowUse(msgspec.Struct, rename="camel", kw_only=True):
    """What was spent in a window that is running, and how often."""

    amount: str
    count: int


class BudgetView(msgspec.Struct, rename="camel", kw_only=True):
    """A ceiling that agents share. `use` is what they spent in each UTC window that is running."""

    id: str
    name: str
    parent_id: str | None
    limits: list[LimitView]
    frozen: bool
    use: dict[str, WindowUse]
    agent_count: int
    created_by: str
    created_at: str
    updated_at: str


def show_budget(row: BudgetRow, meter: MeterRow, agent_count: int, now: datetime) -> BudgetView:
    numbers = meter.at(now).numbers
    return BudgetView(
        id=row.id,
        name=row.name,
        parent_id=row.parent_id,
        limits=[show_limit(limit) for limit in row.limits],
        frozen=row.frozen,
        use={
            window: WindowUse(
                amount=format_micros(numbers[1 + 2 * place]), count=numbers[2 + 2 * place]
            )
            for place, window in enumerate(WINDOWS)
        },
        agent_count=agent_count,
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
    )
