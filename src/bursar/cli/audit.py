"""`bursar audit`: are the books right?"""

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.database import on_database
from bursar.cli.show import say
from bursar.config import MODES, Mode, load_config, parse_mode
from bursar.errors import ApiError, CommandFailed, ConfigError
from bursar.money import format_micros

if TYPE_CHECKING:
    from bursar.db import Database
    from bursar.ledger.audit import Finding
    from bursar.withdrawal.model import WithdrawalRow


def audit(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    with_chain: Annotated[
        bool, typer.Option("--chain/--no-chain", help="Compare every wallet with the chain.")
    ] = True,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Check old data too: every event, stored answer and settled signature."
        ),
    ] = False,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")
    ] = None,
) -> None:
    """Recompute the books, compare them with the chain, and name every difference.

    Exit code 1: something differs. 2: nothing does, but not everything could be checked.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from bursar.ledger.audit import QUESTIONS
    from bursar.ledger.audit import audit as ask
    from bursar.service.networks import find_chain
    from bursar.settlement.reconcile import (
        audit_chain,
        audit_payments,
        audit_without_chain,
        chain_question,
        payments_question,
    )

    config = load_config(os.environ, data_dir=data_dir)
    modes: tuple[Mode, ...] = MODES if with_chain else ()

    bar = Progress(
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=len(QUESTIONS) + 1 + 2 * len(modes))

        async def work(db: "Database") -> "list[Finding]":
            def asked(question: str) -> None:
                bar.update(task, advance=1, description=question)

            findings = await ask(db, asked, everything=everything)
            for mode in modes:
                asked(chain_question(mode))
                if config.network(mode) is None:
                    findings += await audit_without_chain(db, mode)
                    continue
                chain = find_chain(config, mode)
                try:
                    findings.append(await audit_chain(db, chain, mode))
                    asked(payments_question(mode, everything=everything))
                    if findings[-1].problem is None:
                        findings.append(
                            await audit_payments(db, chain, mode, everything=everything)
                        )
                finally:
                    await chain.close()
            return findings

        findings = on_database(config, work)
    if as_json:
        say(
            json.dumps(
                [
                    {
                        "question": finding.question,
                        "checked": finding.checked,
                        "differences": finding.difference_count,
                        "named": finding.differences,
                        "problem": finding.problem,
                    }
                    for finding in findings
                ]
            )
        )
    else:
        for finding in findings:
            say(_line(finding))
    if not all(finding.clean for finding in findings):
        raise typer.Exit(1)
    if any(finding.problem is not None for finding in findings):
        raise typer.Exit(2)


def adopt(
    agent_id: Annotated[str, typer.Argument(help="The agent whose wallet it left.")],
    signature: Annotated[str, typer.Argument(help="The transaction on the chain.")],
    mode: Annotated[str, typer.Option(help="test or live.")] = "test",
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")
    ] = None,
) -> None:
    """Enter money that left a wallet without Bursar into the books, so that they fit again."""
    from bursar.chain import store as chain_store
    from bursar.chain.networks import network_name
    from bursar.chain.port import ChainOutOfReach
    from bursar.service.networks import find_chain
    from bursar.settlement.adopt import adopt as enter

    config, of = load_config(os.environ, data_dir=data_dir), parse_mode(mode)
    if config.network(of) is None:
        raise ConfigError(f"BURSAR_{mode.upper()}_NETWORK", f"is not set, so {mode} has no chain")

    async def work(db: "Database") -> "WithdrawalRow":
        async with db.connection() as tx:
            pinned = await chain_store.pinned(tx, of)
        if pinned is None:
            raise CommandFailed(f"The worker has never reached the {mode} network.")
        chain = find_chain(config, of)
        chain.expect(pinned.genesis_hash)
        try:
            return await enter(
                db,
                chain,
                mode=of,
                mint=pinned.mint,
                network=network_name(config, of),
                agent_id=agent_id,
                signature=signature,
            )
        except (ChainOutOfReach, ApiError) as problem:
            raise CommandFailed(str(problem)) from None
        finally:
            await chain.close()

    row = on_database(config, work)
    say(
        f"{row.id}: {format_micros(row.amount_micros)} USDC to {row.destination}, out of {agent_id}"
    )


def _line(finding: "Finding") -> str:
    if finding.problem is not None:
        return f"????? {finding.question}: not checked, {finding.problem}"
    if finding.clean:
        return f"ok    {finding.question} ({finding.checked:,} checked)"
    named = "\n".join(f"        {line}" for line in finding.differences)
    more = finding.difference_count - len(finding.differences)
    return (
        f"WRONG {finding.question} ({finding.difference_count:,} differences in"
        f" {finding.checked:,})\n{named}" + (f"\n        and {more:,} more" if more > 0 else "")
    )
