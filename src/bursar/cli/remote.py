"""What commands that call a running service share: their options, client and output."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec
from uuid import uuid4

import typer

from bursar.cli.connection import Connection, find_connection
from bursar.cli.exits import exit_code, outcome_is_open
from bursar.cli.show import Output
from bursar.errors import BursarError, CommandFailed, ConfigError

if TYPE_CHECKING:
    from bursar.client.client import Bursar

P = ParamSpec("P")

_PANEL: Final = "Connection"
_ONCE: Final = "idempotency_key"

# Options that say where the service is and which key to use.
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        help="The key to call with; shows in the list of processes. [BURSAR_API_KEY]",
        rich_help_panel=_PANEL,
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url", help="Where the service is. [BURSAR_BASE_URL]", rich_help_panel=_PANEL
    ),
]
ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="A saved connection, see `bursar login`. [BURSAR_PROFILE]",
        rich_help_panel=_PANEL,
    ),
]
_OPTIONS: Final[dict[str, Any]] = {
    "api_key": (ApiKey, None),
    "base_url": (BaseUrl, None),
    "profile": (ProfileName, None),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON.")], False),
}

# Options and arguments of many commands.
AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id, ag_….")]
AmountText = Annotated[str, typer.Argument(metavar="AMOUNT", help="USDC, e.g. 12.50.")]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="The most rows to show.")]
All = Annotated[bool, typer.Option("--all", help="Show every row.")]
OffCurve = Annotated[
    bool, typer.Option("--allow-off-curve", help="Also to an address that no key belongs to.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OnceKey = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="A command repeated with the same key is done once."),
]
From = Annotated[str | None, typer.Option("--from", help="From this date or time on, UTC.")]
To = Annotated[str | None, typer.Option("--to", help="Before this time; a date is included.")]
Pairs = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="May be repeated.")
]


class Remote:
    """A command's client and output."""

    def __init__(self, connection: Connection, output: Output) -> None:
        self.connection = connection
        self.out = output

    @cached_property
    def client(self) -> "Bursar":
        from bursar.client.client import Bursar

        if self.connection.api_key is None:
            raise ConfigError(
                "BURSAR_API_KEY",
                "is not set. Set it, give --api-key, or save a key once with: bursar login",
            )
        return Bursar(self.connection.api_key, self.connection.base_url)


def confirm(question: str, *, yes: bool) -> None:
    """Asks before something that cannot be undone. Without a terminal, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("--yes", "is needed when there is no terminal to ask on")
    if not typer.confirm(question, err=True):
        raise CommandFailed("Nothing was done.")


def remote(command: Callable[Concatenate[Remote, P], None]) -> Callable[..., None]:
    """Adds the shared options to a command, and passes it the `Remote` made from them."""

    @wraps(command)
    def run(
        *, api_key: str | None, base_url: str | None, profile: str | None, as_json: bool, **own: Any
    ) -> None:
        connection = find_connection(api_key=api_key, base_url=base_url, profile=profile)
        to = Remote(connection, Output(as_json=as_json))
        if _ONCE in own:
            # Made here, so that the message below can name it however the command ends.
            own[_ONCE] = own[_ONCE] or uuid4().hex
        try:
            try:
                command(to, **own)  # pyright: ignore[reportCallIssue]
            finally:
                # Here, so that of output that is lost the key is told.
                sys.stdout.flush()
        except (BursarError, KeyboardInterrupt) as problem:
            if _ONCE in own and outcome_is_open(problem):
                to.out.note(
                    "Whether it was done is not known. To find out, or to do it once, give the same"
                    f" command again with --idempotency-key {own[_ONCE]}"
                )
            if as_json and isinstance(problem, BursarError):
                to.out.problem(problem)
                raise typer.Exit(exit_code(problem)) from problem
            raise
        finally:
            # The client is made on first use; only then it has to be closed.
            if "client" in vars(to):
                to.client.close()

    _, *parameters = signature(command, eval_str=True).parameters.values()
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in _OPTIONS.items()
    ]
    parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def download(to: Remote, pieces: Iterable[bytes]) -> None:
    """Streams the service's CSV, with a progress bar if the output does not go to the terminal."""
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TimeElapsedColumn

    if to.out.as_json:
        raise ConfigError("--csv", "cannot be combined with --json")
    hidden = not to.out.errors.is_terminal or to.out.on_terminal
    columns = (SpinnerColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=to.out.errors, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=None)

        def counted() -> Iterator[bytes]:
            for piece in pieces:
                progress.update(task, advance=len(piece))
                yield piece

        to.out.csv(counted())


def row_limit(limit: int, every: bool) -> int | None:
    return None if every else limit


def metadata(pairs: list[str] | None) -> dict[str, str] | None:
    """`team=search` as the API takes it; None when none was given."""
    if not pairs:
        return None
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError("--metadata", f"must be KEY=VALUE, not {pair!r}")
        found[name] = value
    return found
