"""`bursar deposits`: what came in, perhaps, and could not be read."""

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.database import on_database
from bursar.cli.show import say
from bursar.config import Mode, load_config, parse_mode
from bursar.errors import CommandFailed, ConfigError

if TYPE_CHECKING:
    from bursar.chain.solana import Solana
    from bursar.chain.store import Pinned
    from bursar.db import Database
    from bursar.wallet.model import UnreadRow

app = typer.Typer(no_args_is_help=True, help="See and enter deposits that could not be read.")
_MOST_LISTED = 1_000
_AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="The agent whose wallet it is.")]
_Signature = Annotated[
    str, typer.Argument(metavar="SIGNATURE", help="The transaction on the chain.")
]
_ModeText = Annotated[str, typer.Option("--mode", help="test or live.")]
_DataDir = Annotated[str | None, typer.Option(help="Folder of the data. [BURSAR_DATA_DIR]")]


@app.command()
def unread(data_dir: _DataDir = None) -> None:
    """List transactions on wallets that no node has shown in a form that can be read.

    Any of them may be a deposit. The worker tries them again, ever more rarely.
    """
    from bursar.wallet import store

    async def work(db: "Database") -> "list[UnreadRow]":
        async with db.connection() as tx:
            return await store.list_unread(tx, None, _MOST_LISTED)

    for row in on_database(load_config(os.environ, data_dir=data_dir), work):
        at = f"{row.noticed_at:%Y-%m-%d %H:%M}"
        say(f"{row.agent_id}\t{row.signature}\t{at}\t{row.problem}")


@app.command()
def credit(
    agent_id: _AgentId,
    signature: _Signature,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="The USDC that it brought.")],
    mode: _ModeText = "test",
    data_dir: _DataDir = None,
) -> None:
    """Credit one of them that you looked up elsewhere, such as in a block explorer.

    Never more than the chain shows in the wallet beyond the ledger; leaves a line in the audit log.
    """
    from bursar.money import parse_micros
    from bursar.settlement.by_hand import credit_by_hand

    micros = parse_micros(amount)
    if micros is None or micros <= 0:
        raise CommandFailed(f"{amount} is not an amount of USDC.")
    of = parse_mode(mode)

    async def work(db: "Database", chain: "Solana", pinned: "Pinned") -> None:
        await credit_by_hand(
            db,
            chain,
            mode=of,
            mint=pinned.mint,
            agent_id=agent_id,
            signature=signature,
            micros=micros,
        )

    _with_chain(of, data_dir, work)
    say(f"{amount} USDC credited to {agent_id}.")


@app.command()
def dismiss(
    agent_id: _AgentId, signature: _Signature, mode: _ModeText = "test", data_dir: _DataDir = None
) -> None:
    """Say that one of them brought nothing: it is not tried again, nor shown."""
    from bursar.settlement import by_hand

    of = parse_mode(mode)

    async def work(db: "Database", chain: "Solana", pinned: "Pinned") -> None:
        del chain  # nothing is asked
        await by_hand.dismiss(db, mode=of, mint=pinned.mint, agent_id=agent_id, signature=signature)

    _with_chain(of, data_dir, work)
    say(f"{signature} is dismissed.")


def _with_chain(
    mode: Mode,
    data_dir: str | None,
    work: "Callable[[Database, Solana, Pinned], Awaitable[None]]",
) -> None:
    from bursar.chain import store as chain_store
    from bursar.chain.port import ChainOutOfReach
    from bursar.service.networks import find_chain

    config = load_config(os.environ, data_dir=data_dir)
    if config.network(mode) is None:
        raise ConfigError(f"BURSAR_{mode.upper()}_NETWORK", f"is not set, so {mode} has no chain")

    async def on(db: "Database") -> None:
        async with db.connection() as tx:
            pinned = await chain_store.pinned(tx, mode)
        if pinned is None:
            raise CommandFailed(f"The worker has never reached the {mode} network.")
        chain = find_chain(config, mode)
        chain.expect(pinned.genesis_hash)
        try:
            await work(db, chain, pinned)
        except ChainOutOfReach as problem:
            raise CommandFailed(str(problem)) from None
        finally:
            await chain.close()

    on_database(config, on)
