"""`bursar policy`: what an agent may spend. A change can be tried on the past first."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bursar.cli.agents import Allow, Block, Payees
from bursar.cli.budgets import NewLimits, read_limits, show_limits
from bursar.cli.remote import AgentId, All, Limit, Remote, remote, row_limit
from bursar.cli.show import ROWS, Columns
from bursar.clock import SystemClock
from bursar.errors import CommandFailed, ConfigError

if TYPE_CHECKING:
    from bursar.client.backtest_model import Backtest, Difference
    from bursar.client.model import Policy, PolicyVersion

app = typer.Typer(
    no_args_is_help=True, help="See and change what an agent may spend; try a change on the past."
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
_VERSIONS: "Columns[PolicyVersion]" = {
    "version": lambda policy: policy.version,
    "daily cap": lambda policy: policy.daily_cap,
    "per transaction": lambda policy: policy.per_transaction_cap,
    "approval above": lambda policy: policy.approval_threshold,
    "network lamports": lambda policy: policy.daily_network_lamports,
    "frozen": lambda policy: policy.frozen,
    "limits": lambda policy: show_limits(policy.limits),
    "payees": lambda policy: policy.payees,
    "allowlist": lambda policy: policy.allowlist,
    "blocklist": lambda policy: policy.blocklist,
    "changed by": lambda policy: policy.changed_by,
    "changed at": lambda policy: policy.changed_at,
}
_Disallow = Annotated[
    list[str] | None, typer.Option("--disallow", help="Take off the allowlist; repeatable.")
]
_Unblock = Annotated[
    list[str] | None, typer.Option("--unblock", help="Take off the blocklist; repeatable.")
]
_DailyCap = Annotated[str | None, typer.Option(help="USDC a day, e.g. 25.00.")]
_CapOrNone = Annotated[
    str | None, typer.Option(help="The most one spend may be; `none` removes it.")
]
_ThresholdOrNone = Annotated[
    str | None, typer.Option(help="Spends above it wait for a person; `none`: none do.")
]
_Days = Annotated[int, typer.Option(min=1, max=366, help="How many days to look back.")]
_Wait = Annotated[int, typer.Option(min=1, max=3600, help="Seconds to wait for it.")]


@app.command()
@remote
def show(
    to: Remote,
    agent_id: AgentId,
    draft: Annotated[
        bool, typer.Option("--draft", help="The draft, and what it would decide differently.")
    ] = False,
) -> None:
    """Show the policy in force, or its draft."""
    if draft:
        to.out.one(to.client.drafts.get(agent_id))
    else:
        to.out.one(to.client.agents.get(agent_id).policy)


@app.command()
@remote
def history(to: Remote, agent_id: AgentId, limit: Limit = ROWS, every: All = False) -> None:
    """List every version of an agent's policy, newest first."""
    to.out.rows(to.client.agents.policies(agent_id), _VERSIONS, most=row_limit(limit, every))


@app.command("set")
@remote
def set_policy(
    to: Remote,
    agent_id: AgentId,
    daily_cap: _DailyCap = None,
    allow: Allow = None,
    disallow: _Disallow = None,
    block: Block = None,
    unblock: _Unblock = None,
    per_transaction_cap: _CapOrNone = None,
    approval_threshold: _ThresholdOrNone = None,
    daily_network_lamports: Annotated[
        str | None,
        typer.Option(help="Fees and token accounts a day; `none`: the service's default."),
    ] = None,
    payees: Payees = None,
    limits: NewLimits = None,
) -> None:
    """Change what is given, in force at once. Refuses when somebody else changed it meanwhile."""
    before = to.client.agents.get(agent_id).policy
    changes = _policy_changes(
        before,
        daily_cap=daily_cap,
        allow=allow,
        disallow=disallow,
        block=block,
        unblock=unblock,
        per_transaction_cap=per_transaction_cap,
        approval_threshold=approval_threshold,
        daily_network_lamports=daily_network_lamports,
        payees=payees,
        limits=limits,
    )
    agent = to.client.agents.update(agent_id, policy_version=before.version, **changes)
    to.out.one(agent.policy)


@app.command("try")
@remote
def try_(
    to: Remote,
    agent_id: AgentId,
    daily_cap: _DailyCap = None,
    allow: Allow = None,
    disallow: _Disallow = None,
    block: Block = None,
    unblock: _Unblock = None,
    per_transaction_cap: _CapOrNone = None,
    approval_threshold: _ThresholdOrNone = None,
    limits: NewLimits = None,
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
    to.out.note(f"Check: {reproduced.same} of {reproduced.of} requests came out again as recorded.")


@app.command()
@remote
def draft(
    to: Remote,
    agent_id: AgentId,
    daily_cap: _DailyCap = None,
    allow: Allow = None,
    disallow: _Disallow = None,
    block: Block = None,
    unblock: _Unblock = None,
    per_transaction_cap: _CapOrNone = None,
    approval_threshold: _ThresholdOrNone = None,
    limits: NewLimits = None,
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
    to.out.done(
        f"Drafted on version {made.base_version}; see `bursar policy show {agent_id} --draft`.",
        made,
    )


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
    return _policy_changes(to.client.agents.get(agent_id).policy, **options)


def _policy_changes(
    before: "Policy",
    *,
    daily_cap: str | None = None,
    allow: list[str] | None = None,
    disallow: list[str] | None = None,
    block: list[str] | None = None,
    unblock: list[str] | None = None,
    per_transaction_cap: str | None = None,
    approval_threshold: str | None = None,
    daily_network_lamports: str | None = None,
    payees: str | None = None,
    limits: list[str] | None = None,
) -> dict[str, Any]:
    """What options say to change of a policy, as the client takes it. Raises ConfigError where they
    say nothing."""
    changes: dict[str, Any] = {}
    if daily_cap is not None:
        changes["daily_cap"] = daily_cap
    if per_transaction_cap is not None:
        changes["per_transaction_cap"] = _or_none(per_transaction_cap)
    if approval_threshold is not None:
        changes["approval_threshold"] = _or_none(approval_threshold)
    if daily_network_lamports is not None:
        changes["daily_network_lamports"] = _lamports(daily_network_lamports)
    if payees is not None:
        changes["payees"] = payees
    if limits is not None:
        if any(limit.recipient for limit in before.limits):
            raise ConfigError(
                "--limit", "replaces limits of one recipient, which are set in the API alone"
            )
        changes["limits"] = read_limits(limits)
    if allow or disallow:
        changes["allowlist"] = _changed(before.allowlist, allow, disallow, "--disallow")
    if block or unblock:
        changes["blocklist"] = _changed(before.blocklist, block, unblock, "--unblock")
    if not changes:
        raise ConfigError("--daily-cap", "is needed, or another option that says what to change")
    return changes


def _or_none(text: str) -> str | None:
    return None if text == "none" else text


def _lamports(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError("--daily-network-lamports", f"is a whole number or `none`, not {text!r}")
    return int(text)


def _changed(
    entries: tuple[str, ...], add: list[str] | None, remove: list[str] | None, flag: str
) -> list[str]:
    for entry in remove or ():
        if entry not in entries:
            raise ConfigError(flag, f"{entry} is not on the list")
    return [entry for entry in entries if entry not in (remove or ())] + [*(add or ())]
