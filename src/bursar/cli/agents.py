"""`bursar agents`: who may spend."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bursar.cli.budgets import Limits, read_limits
from bursar.cli.remote import (
    AgentId,
    All,
    Limit,
    Pairs,
    Remote,
    Yes,
    confirm,
    metadata,
    remote,
    row_limit,
)
from bursar.cli.show import ROWS, Columns
from bursar.errors import ConfigError

if TYPE_CHECKING:
    from bursar.client.model import Agent

app = typer.Typer(no_args_is_help=True, help="Make, see, stop and end agents.")

_AGENTS: "Columns[Agent]" = {
    "id": lambda agent: agent.id,
    "name": lambda agent: agent.name,
    "status": lambda agent: agent.status,
    "frozen": lambda agent: agent.policy.frozen,
    "daily cap": lambda agent: agent.policy.daily_cap,
    "balance": lambda agent: agent.wallet.balance,
    "created": lambda agent: agent.created_at,
}

Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", help="api.example.com, *.example.com, an address or *; repeatable."),
]
Block = Annotated[
    list[str] | None,
    typer.Option("--block", help="Never paid; written as for --allow; repeatable."),
]
_PerTransaction = Annotated[
    str | None, typer.Option("--per-transaction-cap", help="The most one spend may be.")
]
_Threshold = Annotated[
    str | None, typer.Option("--approval-threshold", help="Spends above it wait for a person.")
]

Payees = Annotated[
    Literal["directory", "pinned", "host"] | None,
    typer.Option(
        "--payees",
        help="What tells where a seller is paid that the directory does not have: `directory` "
        "nothing, `pinned` what the host said first, `host` what it says now.",
    ),
]


@app.command()
@remote
def create(
    to: Remote,
    name: Annotated[str, typer.Argument(help="What to call it.")],
    daily_cap: Annotated[str, typer.Option(help="USDC a day, e.g. 25.00.")],
    allow: Allow = None,
    block: Block = None,
    per_transaction_cap: _PerTransaction = None,
    approval_threshold: _Threshold = None,
    daily_network_lamports: Annotated[
        int | None,
        typer.Option(min=0, help="Fees and token accounts a day; left out: the service's default."),
    ] = None,
    payees: Payees = None,
    limits: Limits = None,
    budget: Annotated[str | None, typer.Option(help="The budget that it is under.")] = None,
    metadata_: Pairs = None,
) -> None:
    """Make an agent with its policy and wallet. Prints its id when piped."""
    made = to.client.agents.create(
        name,
        daily_cap=daily_cap,
        allowlist=allow or (),
        blocklist=block or (),
        per_transaction_cap=per_transaction_cap,
        approval_threshold=approval_threshold,
        daily_network_lamports=daily_network_lamports,
        payees=payees,
        limits=read_limits(limits),
        budget_id=budget,
        metadata=metadata(metadata_),
    )
    if to.out.as_json or to.out.on_terminal:
        to.out.one(made)
    else:
        to.out.done(made.id)
    if not allow:
        to.out.note("It may pay nobody yet: add recipients with `bursar policy set --allow`.")


@app.command("list")
@remote
def list_(
    to: Remote,
    status: Annotated[
        Literal["all", "active", "paused", "terminated"], typer.Option(help="Only these.")
    ] = "all",
    budget: Annotated[str | None, typer.Option(help="Only those directly under it.")] = None,
    metadata_: Pairs = None,
    limit: Limit = ROWS,
    every: All = False,
) -> None:
    """List agents, newest first."""
    found = to.client.agents.list(status=status, budget_id=budget, metadata=metadata(metadata_))
    to.out.rows(found, _AGENTS, most=row_limit(limit, every))


@app.command()
@remote
def show(to: Remote, agent_id: AgentId) -> None:
    """Show an agent."""
    to.out.one(to.client.agents.get(agent_id))


@app.command()
@remote
def update(
    to: Remote,
    agent_id: AgentId,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    metadata_: Pairs = None,
    no_metadata: Annotated[
        bool, typer.Option("--no-metadata", help="Remove all metadata.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(help="The budget that it is under from now on; `none`: under none."),
    ] = None,
) -> None:
    """Rename an agent, replace its metadata or move it. Its policy: `bursar policy set`."""
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = name
    if no_metadata or metadata_:
        changes["metadata"] = {} if no_metadata else metadata(metadata_)
    if budget is not None:
        changes["budget_id"] = None if budget == "none" else budget
    if not changes:
        raise ConfigError("--name, --metadata or --budget", "say what to change")
    to.out.one(to.client.agents.update(agent_id, **changes))


@app.command()
@remote
def pause(to: Remote, agent_id: AgentId) -> None:
    """Refuse the agent's new spends until it is resumed."""
    agent = to.client.agents.pause(agent_id)
    to.out.done(f"{agent.id} ({agent.name}) is paused.", agent)


@app.command()
@remote
def resume(to: Remote, agent_id: AgentId) -> None:
    """Let a paused agent spend again."""
    agent = to.client.agents.resume(agent_id)
    to.out.done(f"{agent.id} ({agent.name}) is active.", agent)


@app.command()
@remote
def freeze(to: Remote, agent_id: AgentId) -> None:
    """Freeze the agent's policy: every new spend is refused."""
    agent = to.client.agents.freeze(agent_id)
    to.out.done(f"{agent.id} ({agent.name}): policy {agent.policy.version}, frozen.", agent)


@app.command()
@remote
def unfreeze(to: Remote, agent_id: AgentId) -> None:
    """Undo `freeze`."""
    agent = to.client.agents.unfreeze(agent_id)
    to.out.done(f"{agent.id} ({agent.name}): policy {agent.policy.version}, not frozen.", agent)


@app.command("update-many")
@remote
def update_many(
    to: Remote,
    having: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="KEY=VALUE", help="Only agents with this metadata."),
    ] = None,
    which: Annotated[
        Literal["all", "active", "paused"], typer.Option("--in", help="Only agents in this state.")
    ] = "all",
    under: Annotated[
        str | None, typer.Option(metavar="BUDGET", help="Only agents directly under this budget.")
    ] = None,
    status: Annotated[
        Literal["active", "paused"] | None, typer.Option(help="Pause them, or let them go on.")
    ] = None,
    freeze: Annotated[
        bool | None, typer.Option("--freeze/--unfreeze", help="Freeze their policies, or undo it.")
    ] = None,
    daily_cap: Annotated[str | None, typer.Option(help="USDC a day for each, e.g. 25.00.")] = None,
) -> None:
    """Change every agent that matches (at most 1,000), all or nothing, in force at once."""
    wanted = {"status": status, "frozen": freeze, "daily_cap": daily_cap}
    changes: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if not changes:
        raise ConfigError("--status, --freeze or --daily-cap", "say what to change")
    done = to.client.agents.update_many(
        where_status=which, where_budget_id=under, where_metadata=metadata(having), **changes
    )
    to.out.done(f"{done.matched} agents match, {done.changed} of them are changed.", done)


@app.command()
@remote
def terminate(to: Remote, agent_id: AgentId, yes: Yes = False) -> None:
    """End an agent, for good. Its wallet can still be withdrawn from."""
    confirm(f"End {agent_id} for good?", yes=yes)
    agent = to.client.agents.terminate(agent_id)
    to.out.done(f"{agent.id} ({agent.name}) is terminated.", agent)


@app.command()
@remote
def budget(to: Remote, agent_id: AgentId) -> None:
    """Show what an agent may spend now."""
    to.out.one(to.client.agents.budget(agent_id))
