"""`bursar policy`: try a policy on the past, draft it, and put it in force."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bursar.cli.agents import (
    Allow,
    Block,
    CapOrNone,
    DailyCap,
    Disallow,
    ThresholdOrNone,
    Unblock,
    policy_changes,
)
from bursar.cli.budgets import Limits
from bursar.cli.remote import AgentId, Remote, remote
from bursar.cli.show import Columns
from bursar.clock import SystemClock
from bursar.errors import CommandFailed

if TYPE_CHECKING:
    from bursar.client.backtest_model import Backtest, Difference

app = typer.Typer(
    no_args_is_help=True, help="Try a policy on the past, draft it, and put it in force."
)

_LOOK_SECONDS: Final = 0.3
# Differences that are printed; all of them are in the export.
_SHOWN: Final = 20
_DIFFERENCES: "Columns[Difference]" = {
    "transaction": lambda change: change.transaction_id,
    "amount": lambda change: change.amount,
    "was": lambda change: change.was,
    "would be": lambda change: change.would,
    "rule": lambda change: change.rule,
}
_Days = Annotated[int, typer.Option(min=1, max=366, help="How many days to look back.")]
_Wait = Annotated[int, typer.Option(min=1, max=3600, help="Seconds to wait for it.")]


@app.command("try")
@remote
def try_(
    to: Remote,
    agent_id: AgentId,
    daily_cap: DailyCap = None,
    allow: Allow = None,
    disallow: Disallow = None,
    block: Block = None,
    unblock: Unblock = None,
    per_transaction_cap: CapOrNone = None,
    approval_threshold: ThresholdOrNone = None,
    limits: Limits = None,
    days: _Days = 30,
    wait: _Wait = 600,
) -> None:
    """Show what a change of the policy would have decided; nothing is changed."""
    changes = _changes(
        to,
        agent_id,
        daily_cap=daily_cap,
        allow=allow,
        disallow=disallow,
        block=block,
        unblock=unblock,
        per_transaction_cap=per_transaction_cap,
        approval_threshold=approval_threshold,
        limits=limits,
    )
    start = SystemClock().now() - timedelta(days=days)
    made = to.client.backtests.create(agent_id=agent_id, from_=start, **changes)
    found = _awaited(to, made, wait)
    if to.out.as_json:
        to.out.one(found)
        return
    _print(to, found)


def _awaited(to: Remote, backtest: "Backtest", seconds: int) -> "Backtest":
    """The backtest when it has ended. Raises CommandFailed where it failed or takes longer."""
    deadline = time.monotonic() + seconds
    with to.out.waiting("replaying …"):
        while backtest.status in ("queued", "running"):
            if time.monotonic() > deadline:
                raise CommandFailed(f"{backtest.id} is at {backtest.progress} %; a worker goes on.")
            time.sleep(_LOOK_SECONDS)
            backtest = to.client.backtests.get(backtest.id)
    if backtest.status == "failed":
        raise CommandFailed(f"{backtest.id} failed: {backtest.problem}")
    return backtest


def _print(to: Remote, found: "Backtest") -> None:
    current, draft, reproduced = found.current, found.draft, found.reproduced
    if current is None or draft is None or reproduced is None:
        raise CommandFailed(f"{found.id} has no result.")
    for name, totals in (("current", current), ("draft", draft)):
        to.out.done(
            f"{name}: {totals.approved} approved, {totals.pending} pending,"
            f" {totals.rejected} rejected, {totals.amount} USDC"
        )
    to.out.rows(found.changed, _DIFFERENCES, most=_SHOWN)
    to.out.note(f"{reproduced.same} of {reproduced.of} requests are decided again as they were.")


@app.command()
@remote
def draft(
    to: Remote,
    agent_id: AgentId,
    daily_cap: DailyCap = None,
    allow: Allow = None,
    disallow: Disallow = None,
    block: Block = None,
    unblock: Unblock = None,
    per_transaction_cap: CapOrNone = None,
    approval_threshold: ThresholdOrNone = None,
    limits: Limits = None,
) -> None:
    """Draft a change: from now on it is counted what it would decide differently."""
    changes = _changes(
        to,
        agent_id,
        daily_cap=daily_cap,
        allow=allow,
        disallow=disallow,
        block=block,
        unblock=unblock,
        per_transaction_cap=per_transaction_cap,
        approval_threshold=approval_threshold,
        limits=limits,
    )
    made = to.client.drafts.put(agent_id, **changes)
    to.out.done(f"Drafted on version {made.base_version}; see `bursar policy show`.", made)


@app.command()
@remote
def show(to: Remote, agent_id: AgentId) -> None:
    """Show an agent's draft, and what it would have decided differently."""
    to.out.one(to.client.drafts.get(agent_id))


@app.command()
@remote
def drop(to: Remote, agent_id: AgentId) -> None:
    """Drop an agent's draft."""
    to.client.drafts.delete(agent_id)
    to.out.done("The draft is dropped.")


@app.command()
@remote
def promote(to: Remote, agent_id: AgentId) -> None:
    """Put an agent's draft in force, as the next version of its policy."""
    agent = to.client.drafts.promote(agent_id)
    to.out.done(f"Version {agent.policy.version} is in force.", agent.policy)


def _changes(to: Remote, agent_id: str, **options: Any) -> dict[str, Any]:
    return policy_changes(to.client.agents.get(agent_id).policy, **options)
