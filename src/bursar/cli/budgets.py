"""`bursar budgets`: ceilings that agents share."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from bursar.cli.remote import All, Limit, Remote, remote, row_limit
from bursar.cli.show import ROWS, Columns
from bursar.errors import CommandFailed

if TYPE_CHECKING:
    from bursar.client.budgets import NewLimit
    from bursar.client.model import Limit as PolicyLimit
    from bursar.client.model import SharedBudget

app = typer.Typer(no_args_is_help=True, help="Ceilings that agents share.")

_LIMIT = re.compile(
    r"(hour|day|week|month|lifetime)=(?:(\d+)x|(\d+(?:\.\d+)?)(?:,(\d+)x)?)", re.ASCII
)
_Id = Annotated[str, typer.Argument(metavar="BUDGET")]
_HOW = (
    "week=250.00 (an amount), day=100x (a number of spends), hour=5.00,3x (both);"
    " windows: hour, day, week, month, lifetime. Repeat for more."
)
Limits = Annotated[list[str] | None, typer.Option("--limit", help=_HOW)]
NewLimits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help=f"{_HOW} They replace all that were there: repeat those that stay. `none`: no limit.",
    ),
]


def _used(budget: "SharedBudget") -> "Iterator[str]":
    for limit in budget.limits:
        use = budget.use[limit.window]
        if limit.amount is not None:
            yield f"{limit.window} {use.amount} of {limit.amount}"
        if limit.count is not None:
            yield f"{limit.window} {use.count}x of {limit.count}x"


def _spent(window: str, budget: "SharedBudget") -> str:
    use = budget.use[window]
    return f"{use.amount} USDC, {use.count} spend{'' if use.count == 1 else 's'}"


_COLUMNS: "Columns[SharedBudget]" = {
    "id": lambda budget: budget.id,
    "name": lambda budget: budget.name,
    "used": lambda budget: ", ".join(_used(budget)),
    "agents": lambda budget: budget.agent_count,
    "frozen": lambda budget: budget.frozen,
    "under": lambda budget: budget.parent_id,
}
_WINDOWS: Final = ("hour", "day", "week", "month", "lifetime")
_BUDGET: "Columns[SharedBudget]" = {
    "id": lambda budget: budget.id,
    "name": lambda budget: budget.name,
    "under": lambda budget: budget.parent_id,
    "limits": lambda budget: show_limits(budget.limits),
    "frozen": lambda budget: budget.frozen,
    **{f"used, {window}": partial(_spent, window) for window in _WINDOWS},
    "agents": lambda budget: budget.agent_count,
    "created": lambda budget: budget.created_at,
}


def show_limits(limits: "Iterable[PolicyLimit]") -> str:
    """As `--limit` takes them; those of one recipient, which it does not take, with its name."""

    def one(limit: "PolicyLimit") -> str:
        amount = None if limit.amount is None else f"{limit.amount}"
        count = None if limit.count is None else f"{limit.count}x"
        bound = f"{limit.window}={','.join(filter(None, (amount, count)))}"
        return bound if limit.recipient is None else f"{bound} to {limit.recipient}"

    return ", ".join(map(one, limits)) or "none"


def read_limits(given: Sequence[str] | None) -> "list[NewLimit]":
    """Raises CommandFailed on what is no limit. `none` alone is an empty list."""
    limits: list[NewLimit] = []
    if given == ["none"]:
        return limits
    for text in given or ():
        match = _LIMIT.fullmatch(text)
        if match is None:
            raise CommandFailed(
                f"{text!r} is no limit: write week=250.00, day=100x or hour=5.00,3x."
            )
        count = match[2] or match[4]
        limit = {"window": match[1], "amount": match[3], "count": count and int(count)}
        limits.append(cast("NewLimit", {k: v for k, v in limit.items() if v is not None}))
    return limits


@app.command("list")
@remote
def list_(to: Remote, limit: Limit = ROWS, every: All = False) -> None:
    """List budgets with what was used of each limit."""
    to.out.rows(to.client.budgets.list(), _COLUMNS, most=row_limit(limit, every))


@app.command()
@remote
def show(to: Remote, budget: _Id) -> None:
    """Show a budget and what was used in each window."""
    to.out.one(to.client.budgets.get(budget), _BUDGET)


@app.command()
@remote
def create(
    to: Remote,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    limits: Limits = None,
    parent: Annotated[str | None, typer.Option(help="The budget above it, for good.")] = None,
) -> None:
    """Make a budget. Put agents under it with `bursar agents create` or `update`, `--budget`."""
    made = to.client.budgets.create(name, limits=read_limits(limits), parent_id=parent)
    to.out.done(made.id, made)


@app.command("set")
@remote
def set_(
    to: Remote,
    budget: _Id,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    limits: NewLimits = None,
) -> None:
    """Change a budget's name, or its limits as a whole."""
    changes: dict[str, object] = {}
    if name is not None:
        changes["name"] = name
    if limits is not None:
        changes["limits"] = read_limits(limits)
    changed = to.client.budgets.update(budget, **changes)  # pyright: ignore[reportArgumentType]
    to.out.done(f"{changed.name} is changed; its limits: {show_limits(changed.limits)}.", changed)


@app.command()
@remote
def freeze(to: Remote, budget: _Id) -> None:
    """Refuse every spend below it until it is thawed."""
    changed = to.client.budgets.update(budget, frozen=True)
    to.out.done(f"{changed.name} is frozen: nothing below it is approved.", changed)


@app.command()
@remote
def thaw(to: Remote, budget: _Id) -> None:
    """Let spends below it go on."""
    changed = to.client.budgets.update(budget, frozen=False)
    to.out.done(f"{changed.name} is thawed.", changed)


@app.command()
@remote
def remove(to: Remote, budget: _Id) -> None:
    """Remove a budget that nothing is under."""
    to.client.budgets.delete(budget)
    to.out.done("It is removed.")
