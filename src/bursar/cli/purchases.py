"""`bursar buy`, `purchases` and `pins`: what agents buy on the web, and where sellers are paid."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bursar.cli.exits import ExitCode
from bursar.cli.remote import (
    All,
    From,
    Limit,
    OnceKey,
    Pairs,
    Remote,
    To,
    Yes,
    confirm,
    metadata,
    remote,
    row_limit,
)
from bursar.cli.show import ROWS, Columns
from bursar.cli.spends import explained
from bursar.errors import ConfigError

if TYPE_CHECKING:
    from bursar.client.model import Pin, Purchase

app = typer.Typer(no_args_is_help=True, help="List, show and go on with purchases.")
pins = typer.Typer(no_args_is_help=True, help="Where sellers are paid, as they said themselves.")

_COLUMNS: "Columns[Purchase]" = {
    "id": lambda purchase: purchase.id,
    "created": lambda purchase: purchase.created_at,
    "agent": lambda purchase: purchase.agent_id,
    "amount": lambda purchase: purchase.amount,
    "host": lambda purchase: purchase.host,
    "status": lambda purchase: purchase.status,
    "why": lambda purchase: purchase.reject_code or purchase.failure_code,
    "url": lambda purchase: purchase.url,
}
_PINS: "Columns[Pin]" = {
    "origin": lambda pin: pin.origin,
    "address": lambda pin: pin.address,
    "offered": lambda pin: pin.offered,
    "offered at": lambda pin: pin.offered_at,
    "by": lambda pin: pin.created_by,
}

_PurchaseId = Annotated[str, typer.Argument(metavar="PURCHASE", help="Its id, pur_….")]
_Origin = Annotated[
    str, typer.Argument(metavar="ORIGIN", help="As the list has it: https://api.example.com:443.")
]
_Status = Annotated[
    Literal["all", "open", "free", "failed", "rejected", "pending", "presented", "paid", "unpaid"],
    typer.Option(help="Only these."),
]
_Wait = Annotated[
    int, typer.Option(min=0, max=30, help="Seconds to wait until the payment is final.")
]


@remote
def buy(
    to: Remote,
    url: Annotated[str, typer.Argument(metavar="URL", help="What to fetch, and pay for.")],
    agent: Annotated[
        str | None, typer.Option("--agent", help="Who buys; an agent's own key may leave it out.")
    ] = None,
    method: Annotated[str, typer.Option("--method", "-X", help="GET, POST and so on.")] = "GET",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME: VALUE", help="May be repeated."),
    ] = None,
    body: Annotated[
        str | None, typer.Option("--body", "-d", help="What to send; @FILE sends a file's text.")
    ] = None,
    max_amount: Annotated[
        str | None, typer.Option(help="The most you would pay for it, USDC.")
    ] = None,
    memo: Annotated[str | None, typer.Option(help="A note of yours.")] = None,
    metadata_: Pairs = None,
    wait: _Wait = 0,
    idempotency_key: OnceKey = None,
) -> None:
    """Fetch a URL and pay what it costs, as the policy allows. Prints what was bought; what it
    cost goes to standard error. Exit code 1: nothing usable came back, 3: refused, 4: waits."""
    from bursar.client.errors import PurchaseError

    with to.out.waiting(f"buying {url} …"):
        try:
            bought = to.client.fetch(
                url,
                method=method,
                headers=_headers(header),
                content=None if body is None else _body(body),
                agent_id=agent,
                max_amount=max_amount,
                memo=memo,
                metadata=metadata(metadata_),
                wait=wait or None,
                idempotency_key=idempotency_key,
            )
        except PurchaseError as problem:
            purchase = problem.purchase
        else:
            purchase = bought.purchase
    _hand_over(to, purchase)


@app.command("list")
@remote
def list_(
    to: Remote,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent's.")] = None,
    status: _Status = "all",
    seller: Annotated[str | None, typer.Option(help="Only from this host.")] = None,
    from_: From = None,
    until: To = None,
    limit: Limit = ROWS,
    every: All = False,
) -> None:
    """List purchases, newest first."""
    found = to.client.purchases.list(
        agent_id=agent, status=status, host=seller, from_=from_, to=until
    )
    to.out.rows(found, _COLUMNS, most=row_limit(limit, every))


@app.command()
@remote
def show(to: Remote, purchase_id: _PurchaseId) -> None:
    """Show a purchase, and for a day what was sent and what came back."""
    to.out.one(to.client.purchases.get(purchase_id))


@app.command()
@remote
def retry(
    to: Remote, purchase_id: _PurchaseId, wait: _Wait = 0, idempotency_key: OnceKey = None
) -> None:
    """Ask the seller again for what was paid, with the same payment. Pays nothing more."""
    with to.out.waiting("asking the seller again …"):
        purchase = to.client.purchases.retry(
            purchase_id, wait=wait or None, idempotency_key=idempotency_key
        )
    _hand_over(to, purchase)


@app.command("continue")
@remote
def continue_(
    to: Remote, purchase_id: _PurchaseId, wait: _Wait = 0, idempotency_key: OnceKey = None
) -> None:
    """Go on with a purchase that a person approved."""
    with to.out.waiting("buying …"):
        purchase = to.client.purchases.continue_(
            purchase_id, wait=wait or None, idempotency_key=idempotency_key
        )
    _hand_over(to, purchase)


# Pins ---------------------------------------------------------------------------------------------


@pins.command("list")
@remote
def list_pins(to: Remote, limit: Limit = ROWS, every: All = False) -> None:
    """List where sellers are paid; `offered` is what one asks for since, and does not get."""
    to.out.rows(to.client.pins.list(), _PINS, most=row_limit(limit, every))


@pins.command()
@remote
def accept(
    to: Remote,
    origin: _Origin,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The one it offers.")],
    yes: Yes = False,
) -> None:
    """Pay a seller at the address that it offers from now on."""
    confirm(f"Pay {origin} at {address} from now on?", yes=yes)
    pin = to.client.pins.accept(origin, address=address)
    to.out.done(f"{pin.origin} is paid at {pin.address}.", pin)


@pins.command()
@remote
def forget(to: Remote, origin: _Origin, yes: Yes = False) -> None:
    """Forget where a seller is paid. What it says at the next purchase is remembered instead."""
    confirm(f"Forget where {origin} is paid?", yes=yes)
    to.client.pins.forget(origin)
    to.out.done(f"{origin} is forgotten.")


# What came of it ----------------------------------------------------------------------------------


def _hand_over(to: Remote, purchase: "Purchase") -> None:
    """Prints what was bought, says what it cost, and ends with the code that fits."""
    from bursar.client.fetch import Bought

    answer = purchase.response
    if to.out.as_json:
        to.out.one(purchase)
    elif answer is not None:
        to.out.body(Bought(purchase).content)
    for line in _outcome(purchase):
        if not to.out.as_json:
            to.out.note(line)
    codes = {"rejected": ExitCode.REFUSED, "pending": ExitCode.WAITING}
    if purchase.status in codes:
        raise typer.Exit(codes[purchase.status])
    if answer is None or answer.status >= 400 or purchase.status in ("failed", "unpaid"):
        raise typer.Exit(ExitCode.FAILED)


def _outcome(purchase: "Purchase") -> list[str]:
    """What happened, for people."""
    paid = f"{purchase.amount} USDC to {purchase.host} ({purchase.id})"
    lines = {
        "open": [f"{purchase.id} is still being made: bursar purchases show {purchase.id}"],
        "free": [f"It cost nothing ({purchase.id})."],
        "failed": [
            f"Nothing was paid: {purchase.failure_code}. {purchase.problem or ''} ({purchase.id})"
        ],
        "rejected": explained(purchase, purchase.agent_id, purchase.host),
        "pending": [
            f"{paid} waits for a person: bursar approvals list",
            f"  Once it is approved: bursar purchases continue {purchase.id}",
        ],
        "presented": [f"Pays {paid}; not final yet."],
        "paid": [f"Paid {paid}."],
        "unpaid": [f"The seller never took {paid}; it is available again."],
    }[purchase.status]
    answer = purchase.response
    if purchase.status in ("presented", "paid") and answer is None:
        lines.append(f"  No answer came. To ask again: bursar purchases retry {purchase.id}")
    if answer is not None and answer.status >= 400:
        lines.append(f"  The seller answered {answer.status}.")
    if answer is not None and answer.truncated:
        lines.append("  The answer was cut: it is too long, or broke off.")
    return lines


def _headers(lines: list[str] | None) -> dict[str, str] | None:
    """`Accept: text/plain` as the API takes it; None when none was given."""
    if not lines:
        return None
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ConfigError("--header", f"must be NAME: VALUE, not {line!r}")
        found[name.strip()] = value.strip()
    return found


def _body(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError("--body", f"cannot read {text[1:]!r}: {problem}") from None
