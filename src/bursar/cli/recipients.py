"""`bursar recipients`: which address a hostname is paid at."""

from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.remote import All, Limit, OffCurve, Remote, remote, row_limit
from bursar.cli.show import ROWS, Columns

if TYPE_CHECKING:
    from bursar.client.model import Recipient

app = typer.Typer(no_args_is_help=True, help="The directory of hostnames and their addresses.")

_COLUMNS: "Columns[Recipient]" = {
    "hostname": lambda entry: entry.hostname,
    "address": lambda entry: entry.address,
    "changed": lambda entry: entry.updated_at,
    "changed by": lambda entry: entry.updated_by,
}

_Hostname = Annotated[str, typer.Argument(metavar="HOSTNAME")]


@app.command("list")
@remote
def list_(
    to: Remote,
    hostname: Annotated[str | None, typer.Option(help="Only hostnames with this in them.")] = None,
    address: Annotated[str | None, typer.Option(help="Only those paid at this address.")] = None,
    limit: Limit = ROWS,
    every: All = False,
) -> None:
    """List the directory, newest first."""
    found = to.client.recipients.list(hostname=hostname, address=address)
    to.out.rows(found, _COLUMNS, most=row_limit(limit, every))


@app.command()
@remote
def show(to: Remote, hostname: _Hostname) -> None:
    """Show an entry."""
    to.out.one(to.client.recipients.get(hostname))


@app.command("set")
@remote
def set_(
    to: Remote,
    hostname: _Hostname,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="A Solana address.")],
    allow_off_curve: OffCurve = False,
) -> None:
    """Set the address that spends to a hostname are paid to."""
    entry = to.client.recipients.put(
        hostname, address=address, allow_off_curve=allow_off_curve or None
    )
    to.out.done(f"{entry.hostname} is paid at {entry.address}.", entry)


@app.command()
@remote
def remove(to: Remote, hostname: _Hostname) -> None:
    """Remove an entry."""
    to.client.recipients.delete(hostname)
    to.out.done(f"{hostname} is no longer in the directory.")
