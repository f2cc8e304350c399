"""`bursar audit`: are the books right?"""

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.database import on_database
from bursar.config import load_config

if TYPE_CHECKING:
    from bursar.db import Database
    from bursar.ledger.audit import Finding


def audit(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")
    ] = None,
) -> None:
    """Recompute the books and name every difference. Exit code 1 if there is one."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from bursar.ledger.audit import QUESTIONS
    from bursar.ledger.audit import audit as ask

    bar = Progress(
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=len(QUESTIONS) + 1)

        async def work(db: "Database") -> "list[Finding]":
            def asked(question: str) -> None:
                bar.update(task, advance=1, description=question)

            return await ask(db, asked)

        findings = on_database(load_config(os.environ, data_dir=data_dir), work)
    if as_json:
        typer.echo(
            json.dumps(
                [
                    {
                        "question": finding.question,
                        "checked": finding.checked,
                        "differences": finding.difference_count,
                        "named": finding.differences,
                    }
                    for finding in findings
                ]
            )
        )
    else:
        for finding in findings:
            typer.echo(_line(finding))
    if not all(finding.clean for finding in findings):
        raise typer.Exit(1)


def _line(finding: "Finding") -> str:
    if finding.clean:
        return f"ok    {finding.question} ({finding.checked:,} checked)"
    named = "\n".join(f"        {line}" for line in finding.differences)
    more = finding.difference_count - len(finding.differences)
    return (
        f"WRONG {finding.question} ({finding.difference_count:,} differences in"
        f" {finding.checked:,})\n{named}" + (f"\n        and {more:,} more" if more > 0 else "")
    )
