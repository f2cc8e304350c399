"""`bursar stop` and `bursar resume`: every agent of the account at once."""

from typing import Annotated, Literal

import typer

from bursar.cli.remote import Remote, remote


@remote
def stop(
    to: Remote,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why, for whoever resumes.")],
    also_unsigned: Annotated[
        bool,
        typer.Option("--also-unsigned", help="Also hold what is approved and not yet signed."),
    ] = False,
) -> None:
    """Stop every agent of the account, at once: no new spend and no approval passes."""
    made = to.client.account.stop(reason, also_unsigned=also_unsigned)
    held = " What is approved and not signed waits." if made.also_unsigned else ""
    to.out.done(f"Every agent is stopped.{held} To go on: bursar resume", made)


@remote
def resume(
    to: Remote,
    unsigned: Annotated[
        Literal["pay", "cancel"],
        typer.Option(help="What becomes of spends that the stop held (--also-unsigned)."),
    ],
) -> None:
    """Let the agents of a stopped account spend again."""
    made = to.client.account.resume(unsigned=unsigned)
    held = f" {made.cancelled} held spends are cancelled." if made.unsigned == "cancel" else ""
    to.out.done(f"The agents may spend again.{held}", made)
