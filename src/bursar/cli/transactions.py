"""`bursar transactions`: what was spent, on what, and why something was not."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bursar.cli.remote import All, From, Limit, Remote, To, download, remote, row_limit
from bursar.cli.show import ROWS, Columns

if TYPE_CHECKING:
    from bursar.client.model import Transaction

app = typer.Typer(no_args_is_help=True, help="List, show, add up and cancel transactions.")

_COLUMNS: "Columns[Transaction]" = {
    "id": lambda spend: spend.id,
    "created": lambda spend: spend.created_at,
    "agent": lambda spend: spend.agent_id,
    "amount": lambda spend: spend.amount,
    "recipient": lambda spend: spend.recipient,
    "status": lambda spend: spend.status,
    "reject code": lambda spend: spend.reject_code,
    "memo": lambda spend: spend.memo,
}

_Agent = Annotated[str | None, typer.Option("--agent", help="Only this agent's.")]
_Status = Annotated[
    Literal["all", "pending", "approved", "settled", "rejected"], typer.Option(help="Only these.")
]
_RecipientFilter = Annotated[str | None, typer.Option(help="Only to this hostname or address.")]
_SettledFrom = Annotated[str | None, typer.Option(help="Settled from this date or time on.")]
_SettledTo = Annotated[str | None, typer.Option(help="Settled before this time.")]


@app.command("list")
@remote
def list_(
    to: Remote,
    agent: _Agent = None,
    status: _Status = "all",
    recipient: _RecipientFilter = None,
    from_: From = None,
    until: To = None,
    settled_from: _SettledFrom = None,
    settled_to: _SettledTo = None,
    limit: Limit = ROWS,
    every: All = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="All matching rows as CSV, however many.")
    ] = False,
) -> None:
    """List transactions, newest first: as a table, with --json or with --csv."""
    filters: dict[str, Any] = {
        "agent_id": agent,
        "status": status,
        "recipient": recipient,
        "from_": from_,
        "to": until,
        "settled_from": settled_from,
        "settled_to": settled_to,
    }
    if not as_csv:
        found = to.client.transactions.list(**filters)
        to.out.rows(found, _COLUMNS, most=row_limit(limit, every))
    else:
        download(to, to.client.transactions.export(**filters))


@app.command()
@remote
def show(to: Remote, transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION")]) -> None:
    """Show a transaction with every check of its decision."""
    to.out.one(to.client.transactions.get(transaction_id))


@app.command()
@remote
def cancel(
    to: Remote,
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION")],
    reason: Annotated[str | None, typer.Option(help="Why, for the books.")] = None,
) -> None:
    """Call off a spend that still waits for a person; its funds are available again."""
    done = to.client.transactions.cancel(transaction_id, reason=reason)
    to.out.done(f"{done.id}: {done.amount} to {done.recipient} is cancelled.", done)


@app.command()
@remote
def stats(to: Remote, agent: _Agent = None, from_: From = None, until: To = None) -> None:
    """Add up transactions: totals, counts, the largest recipients."""
    to.out.one(to.client.transactions.stats(agent_id=agent, from_=from_, to=until))
