"""`bursar spend`, `preview` and `approvals`: pay for an agent, or decide what it asked for."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.exits import ExitCode
from bursar.cli.remote import (
    AgentId,
    All,
    AmountText,
    Limit,
    OffCurve,
    OnceKey,
    Pairs,
    Remote,
    metadata,
    remote,
    row_limit,
)
from bursar.cli.show import ROWS, Columns

if TYPE_CHECKING:
    from bursar.client.model import Preview, Purchase, Transaction

approvals = typer.Typer(no_args_is_help=True, help="Decide on spends that wait for a person.")

_WAITING: "Columns[Transaction]" = {
    "id": lambda spend: spend.id,
    "agent": lambda spend: spend.agent_id,
    "amount": lambda spend: spend.amount,
    "recipient": lambda spend: spend.recipient,
    "memo": lambda spend: spend.memo,
    "asked": lambda spend: spend.created_at,
    "expires": lambda spend: spend.expires_at,
}

# What a person wants to know of a spend just made; --json has the rest.
_MADE: "Columns[Transaction]" = {
    "id": lambda spend: spend.id,
    "status": lambda spend: spend.status,
    "amount": lambda spend: f"{spend.amount} {spend.currency}",
    "recipient": lambda spend: spend.recipient,
    "signature": lambda spend: spend.signature,
}

_Recipient = Annotated[str, typer.Argument(metavar="RECIPIENT", help="A hostname or an address.")]
_TransactionId = Annotated[str, typer.Argument(metavar="TRANSACTION", help="Its id, txn_….")]
_Reason = Annotated[str | None, typer.Option(help="Why, for the books.")]


# What an operator can do about a refusal that neither another amount nor waiting would change.
_ADVICE = {
    "account_stopped": "To let every agent spend again: bursar resume --unsigned pay",
    "agent_paused": "To let it spend again: bursar agents resume AGENT",
    "insufficient_funds": "To give it test money: bursar fund AGENT AMOUNT",
    "policy_frozen": "To let it spend again: bursar agents unfreeze AGENT",
    "recipient_blocked": "To lift the block, see which entry it is: bursar policy show AGENT",
    "recipient_not_allowed": "To allow it: bursar policy set AGENT --allow RECIPIENT",
    "recipient_unresolved": "To say where it is paid: bursar recipients set HOSTNAME ADDRESS",
    "payee_mismatch": "If the directory is out of date: bursar recipients set HOSTNAME ADDRESS",
    "payee_changed": "If the new address is right: bursar pins accept ORIGIN ADDRESS",
}


@remote
def spend(
    to: Remote,
    agent_id: AgentId,
    amount: AmountText,
    recipient: _Recipient,
    memo: Annotated[str | None, typer.Option(help="A note of yours.")] = None,
    metadata_: Pairs = None,
    allow_off_curve: OffCurve = False,
    wait: Annotated[
        int, typer.Option(min=0, max=30, help="Seconds to wait until it is paid.")
    ] = 10,
    idempotency_key: OnceKey = None,
) -> None:
    """Spend from an agent's wallet, as its policy allows. Exit code 3: refused, 4: waits."""
    pay = partial(
        to.client.spend.authorise,
        agent_id=agent_id,
        amount=amount,
        recipient=recipient,
        allow_off_curve=allow_off_curve or None,
        memo=memo,
        metadata=metadata(metadata_),
        idempotency_key=idempotency_key,
    )
    with to.out.waiting(f"paying {amount} to {recipient} …"):
        made = pay()
        if wait and made.status == "approved":
            # Sends the same request again with its idempotency key, to wait for the outcome. A
            # spend that needs approval is not waited for.
            made = pay(wait=wait)
    to.out.one(made, _MADE)
    if not to.out.as_json:
        for line in explained(made, agent_id, recipient):
            to.out.note(line)
    _end(made)


@remote
def preview(
    to: Remote,
    agent_id: AgentId,
    amount: AmountText,
    recipient: _Recipient,
    allow_off_curve: OffCurve = False,
) -> None:
    """Show what a spend would be answered now, without making it. Exit codes as for `spend`."""
    answer = to.client.spend.preview(
        agent_id=agent_id,
        amount=amount,
        recipient=recipient,
        allow_off_curve=allow_off_curve or None,
    )
    to.out.one(answer)
    if not to.out.as_json:
        for line in explained(answer, agent_id, recipient):
            to.out.note(line)
    _end(answer)


@approvals.command("list")
@remote
def list_(to: Remote, limit: Limit = ROWS, every: All = False) -> None:
    """List what waits for approval, newest first."""
    waiting = to.client.transactions.list(status="pending")
    to.out.rows(waiting, _WAITING, most=row_limit(limit, every))


@approvals.command()
@remote
def approve(to: Remote, transaction_id: _TransactionId, reason: _Reason = None) -> None:
    """Let a spend be paid, if the policy as it is now still allows it."""
    done = to.client.transactions.approve(transaction_id, reason=reason)
    to.out.done(f"{done.id}: {done.amount} to {done.recipient} is {done.status}.", done)


@approvals.command()
@remote
def deny(to: Remote, transaction_id: _TransactionId, reason: _Reason = None) -> None:
    """Refuse a spend; its funds are available again."""
    done = to.client.transactions.deny(transaction_id, reason=reason)
    to.out.done(f"{done.id}: {done.amount} to {done.recipient} is denied.", done)


def explained(
    answer: "Transaction | Preview | Purchase", agent_id: str, recipient: str
) -> list[str]:
    """Why a spend was refused, what would pass, and when; nothing for a spend that was not
    refused."""
    decision = answer.decision
    if answer.status == "pending":
        return ["It waits for a person: bursar approvals list"]
    if answer.status != "rejected" or decision is None:
        return []
    lines = [f"Refused: {answer.reject_code}."]
    # The first rule that failed gave the reject code.
    decisive = next((check for check in decision.checks if check.outcome == "fail"), None)
    if decisive is not None:
        seen = {"limit": decisive.limit, "observed": decisive.observed}
        facts = ", ".join(f"{name} {value}" for name, value in seen.items() if value)
        of = "".join(f" {id_}" for id_ in (decisive.budget_id, decisive.limit_id) if id_)
        lines.append(f"  {decisive.rule}{of}: {facts}")
    if answer.reject_code in _ADVICE:
        advice = _ADVICE[answer.reject_code].replace("AGENT", agent_id)
        lines.append(f"  {advice.replace('RECIPIENT', recipient).replace('HOSTNAME', recipient)}")
    alone = ""
    if decision.max_without_approval != decision.max_amount_now:
        alone = f", without a person {decision.max_without_approval:f}"
    lines.append(f"  What would pass now: {decision.max_amount_now:f}{alone}")
    if decision.retry_at is not None:
        lines.append(f"  This amount may pass again at {decision.retry_at:%Y-%m-%d %H:%M} UTC")
    return lines


def _end(answer: "Transaction | Preview") -> None:
    codes = {"rejected": ExitCode.REFUSED, "pending": ExitCode.WAITING}
    raise typer.Exit(codes.get(answer.status, ExitCode.DONE))
