"""`bursar fund`, `withdraw` and `wallets`: money in, money out, and what is there."""

from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.remote import (
    AgentId,
    All,
    AmountText,
    Limit,
    OffCurve,
    OnceKey,
    Pairs,
    Remote,
    Yes,
    confirm,
    download,
    metadata,
    remote,
    row_limit,
)
from bursar.cli.show import ROWS, Columns
from bursar.config import ConfigError

if TYPE_CHECKING:
    from bursar.client.model import Deposit, Withdrawal

app = typer.Typer(no_args_is_help=True, help="See wallets, deposits and withdrawals.")

_SomeAgent = Annotated[
    str | None,
    typer.Argument(metavar="[AGENT]", help="The agent's id, ag_…; not needed for --csv."),
]
_Csv = Annotated[bool, typer.Option("--csv", help="All rows as CSV, however many.")]

_DEPOSITS: "Columns[Deposit]" = {
    "id": lambda deposit: deposit.id,
    "amount": lambda deposit: deposit.amount,
    "status": lambda deposit: deposit.status,
    "sender": lambda deposit: deposit.sender,
    "signature": lambda deposit: deposit.signature,
    "created": lambda deposit: deposit.created_at,
}
_WITHDRAWALS: "Columns[Withdrawal]" = {
    "id": lambda taken: taken.id,
    "amount": lambda taken: taken.amount,
    "destination": lambda taken: taken.destination,
    "status": lambda taken: taken.status,
    "failure": lambda taken: taken.failure_code,
    "memo": lambda taken: taken.memo,
    "created": lambda taken: taken.created_at,
}


@remote
def fund(
    to: Remote, agent_id: AgentId, amount: AmountText, idempotency_key: OnceKey = None
) -> None:
    """Mint test USDC into an agent's wallet. Test keys only; live wallets are paid on the chain."""
    with to.out.waiting(f"funding {agent_id} …"):
        deposit = to.client.wallets.fund(agent_id, amount=amount, idempotency_key=idempotency_key)
    to.out.done(f"{deposit.id}: {deposit.amount} {deposit.currency} {deposit.status}.", deposit)


@remote
def withdraw(
    to: Remote,
    agent_id: AgentId,
    amount: AmountText,
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="The Solana address that is paid.")
    ],
    memo: Annotated[str | None, typer.Option(help="A note of yours.")] = None,
    metadata_: Pairs = None,
    allow_off_curve: OffCurve = False,
    idempotency_key: OnceKey = None,
    yes: Yes = False,
) -> None:
    """Take money out of an agent's wallet. Counts towards no cap."""
    confirm(f"Pay {amount} USDC out of {agent_id} to {destination}?", yes=yes)
    taken = to.client.wallets.withdraw(
        agent_id,
        amount=amount,
        destination=destination,
        allow_off_curve=allow_off_curve or None,
        memo=memo,
        metadata=metadata(metadata_),
        idempotency_key=idempotency_key,
    )
    to.out.done(f"{taken.id}: {taken.amount} to {taken.destination} is {taken.status}.", taken)


@app.command()
@remote
def show(to: Remote, agent_id: AgentId) -> None:
    """Show an agent's wallet."""
    to.out.one(to.client.wallets.get(agent_id))


@app.command()
@remote
def deposits(
    to: Remote,
    agent_id: _SomeAgent = None,
    limit: Limit = ROWS,
    every: All = False,
    as_csv: _Csv = False,
) -> None:
    """List what came in, newest first; with --csv and no agent, of all wallets."""
    if as_csv:
        download(to, to.client.wallets.export_deposits(agent_id=agent_id))
    else:
        found = to.client.wallets.deposits(_one(agent_id))
        to.out.rows(found, _DEPOSITS, most=row_limit(limit, every))


@app.command()
@remote
def withdrawals(
    to: Remote,
    agent_id: _SomeAgent = None,
    limit: Limit = ROWS,
    every: All = False,
    as_csv: _Csv = False,
) -> None:
    """List what was taken out, newest first; with --csv and no agent, of all wallets."""
    if as_csv:
        download(to, to.client.wallets.export_withdrawals(agent_id=agent_id))
    else:
        found = to.client.wallets.withdrawals(_one(agent_id))
        to.out.rows(found, _WITHDRAWALS, most=row_limit(limit, every))


def _one(agent_id: str | None) -> str:
    if agent_id is None:
        raise ConfigError("AGENT", "is needed: only --csv has all wallets")
    return agent_id


@app.command()
@remote
def withdrawal(
    to: Remote, withdrawal_id: Annotated[str, typer.Argument(metavar="WITHDRAWAL")]
) -> None:
    """Show a withdrawal."""
    to.out.one(to.client.wallets.get_withdrawal(withdrawal_id))
