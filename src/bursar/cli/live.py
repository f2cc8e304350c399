"""`bursar doctor --live`: the list to go through before real money, ticked by asking the nodes.
Nothing is written, signed or sent."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bursar.cli.finding import Finding
from bursar.clock import SystemClock
from bursar.config import LOCALNET, Config
from bursar.errors import BursarError

if TYPE_CHECKING:
    from bursar.chain.solana import Solana
    from bursar.chain.store import Pinned
    from bursar.db import Database

# Nodes of a healthy network are a few slots apart; this is a minute, after which one that lags
# holds up what the other knows already.
_SLOTS_APART: Final = 150
# Of a finalized block, which is some 15 seconds old, by a clock that validators agree on roughly.
_OLDEST_BLOCK_SECONDS: Final = 90
_YOUNGEST_BLOCK_SECONDS: Final = -30
_LAMPORTS_PER_SOL: Final = 10**9
_SETTING: Final = "BURSAR_LIVE_NETWORK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the live network should be. `genesis` is None for a chain of our own that is new;
    `fee_payer` is None while it is not made, or not known here."""

    mint: str
    genesis: str | None
    fee_payer: str | None
    fee_payer_low_lamports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one node says."""

    name: str
    genesis: str
    decimals: int | None
    slot: int
    block_time: int | None
    lamports: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    name: str
    problem: str


def look_at_live(config: Config) -> Iterator[Finding]:
    """Works before the first start too, when there is no database yet."""
    network = config.network("live")
    if network is None:
        yield Finding(
            what="live network",
            state="wrong",
            found="none is set",
            fix=f"Name two RPC nodes of two providers: {_SETTING}, or live_network in bursar.toml.",
        )
        return
    from bursar.chain.networks import MAINNET_GENESIS, usdc_mint
    from bursar.service.networks import find_chain

    pinned, fee_payer = _from_database(config)
    expected = MAINNET_GENESIS if network != LOCALNET else None
    if network == LOCALNET:
        yield Finding(
            what="live network",
            state="warning",
            found="a localnet, to rehearse on: no real money",
            fix=f"To go live, name two RPC nodes of two providers: {_SETTING}.",
        )
    if pinned is not None and expected not in (None, pinned.genesis_hash):
        yield Finding(
            what="database",
            state="wrong",
            found=f"its live mode began on another network, with genesis {pinned.genesis_hash}",
            fix="Go live with another database or data folder than the one you rehearsed in.",
        )
    wanted = Wanted(
        mint=usdc_mint(config, "live"),
        genesis=expected or (None if pinned is None else pinned.genesis_hash),
        fee_payer=fee_payer,
        fee_payer_low_lamports=config.fee_payer_low_lamports,
    )

    async def ask() -> list[Told | Silent]:
        chain = find_chain(config, "live")
        try:
            return await ask_nodes(chain, wanted)
        finally:
            await chain.close()

    yield from judge(asyncio.run(ask()), wanted, SystemClock().now())


def _from_database(config: Config) -> "tuple[Pinned | None, str | None]":
    """(the network that live mode is pinned to, the address of its fee payer), where known."""
    from bursar.chain.store import pinned
    from bursar.cli.database import on_database
    from bursar.custody.store import fee_payer_key

    async def read(db: "Database") -> "tuple[Pinned | None, str | None]":
        async with db.connection() as tx:
            key = await fee_payer_key(tx, "live")
            return await pinned(tx, "live"), None if key is None else key.address

    try:
        return on_database(config, read)
    except BursarError:
        return None, None


async def ask_nodes(chain: "Solana", wanted: Wanted) -> list[Told | Silent]:
    """All at once, so that their heights can be compared."""
    return await asyncio.gather(*(_ask(view, wanted) for view in chain.witnesses()))


async def _ask(node: "Solana", wanted: Wanted) -> Told | Silent:
    from bursar.chain.port import ChainOutOfReach

    try:
        height = await node.finalized()
        # Without it nothing that expired is ever given back.
        await node.is_valid((await node.latest_blockhash()).hash)
        lamports = None
        if wanted.fee_payer is not None:
            account = (await node.accounts([wanted.fee_payer]))[wanted.fee_payer]
            lamports = 0 if account is None else account.lamports
        return Told(
            name=node.name,
            genesis=await node.genesis_hash(),
            decimals=await node.mint(wanted.mint),
            slot=height.slot,
            block_time=await node.block_time(height.slot),
            lamports=lamports,
        )
    except ChainOutOfReach as problem:
        return Silent(name=node.name, problem=str(problem))


# What it means -----------------------------------------------------------------------------------


def judge(answers: Sequence[Told | Silent], wanted: Wanted, now: datetime) -> Iterator[Finding]:
    told = [answer for answer in answers if isinstance(answer, Told)]
    for answer in answers:
        if isinstance(answer, Silent):
            yield Finding(
                what=f"node {answer.name}",
                state="wrong",
                found=f"no answer that can be read ({answer.problem})",
                fix=f"Check {_SETTING}, its access token, and that this machine may connect there.",
            )
        else:
            yield Finding(what=f"node {answer.name}", state="ok", found="answers")
    if told:
        yield from _genesis(told, wanted)
        yield from _mint(told, wanted)
        yield from _agreement(answers, told)
        yield _fee_payer(told, wanted)
        yield _clock(told, now)


def _genesis(told: Sequence[Told], wanted: Wanted) -> Iterator[Finding]:
    expected = wanted.genesis or told[0].genesis
    others = [node for node in told if node.genesis != expected]
    for node in others:
        yield Finding(
            what="genesis",
            state="wrong",
            found=f"{node.name} is on another network: {node.genesis}, not {expected}",
            fix=f"Use nodes of one network, and of the right one: {_SETTING}.",
        )
    if not others:
        yield Finding(what="genesis", state="ok", found=expected)


def _mint(told: Sequence[Told], wanted: Wanted) -> Iterator[Finding]:
    from bursar.chain.pin import USDC_DECIMALS

    others = [node for node in told if node.decimals != USDC_DECIMALS]
    for node in others:
        knows = "no such token" if node.decimals is None else f"it with {node.decimals} decimals"
        yield Finding(
            what=f"USDC {wanted.mint}",
            state="wrong",
            found=f"{node.name} knows {knows}",
            fix=f"It is no node of this network: {_SETTING}.",
        )
    if not others:
        yield Finding(what=f"USDC {wanted.mint}", state="ok", found=f"{USDC_DECIMALS} decimals")


def _agreement(answers: Sequence[Told | Silent], told: Sequence[Told]) -> Iterator[Finding]:
    if len(answers) == 1:
        yield Finding(
            what="two nodes",
            state="warning",
            found="there is one, and nothing to compare it with",
            fix=f"Name a second one, of another provider, behind a comma: {_SETTING}.",
        )
    if len(told) > 1:
        ahead, behind = max(told, key=lambda n: n.slot), min(told, key=lambda n: n.slot)
        apart = ahead.slot - behind.slot
        good = apart <= _SLOTS_APART
        yield Finding(
            what="heights",
            state="ok" if good else "wrong",
            found=f"{apart} slots apart"
            if good
            else f"{behind.name} is {apart} slots behind {ahead.name}",
            fix="" if good else "Wait until it has caught up, or choose another node.",
        )


def _fee_payer(told: Sequence[Told], wanted: Wanted) -> Finding:
    held = [node.lamports for node in told if node.lamports is not None]
    if wanted.fee_payer is None or not held:
        return Finding(
            what="fee payer",
            state="warning",
            found="not known: it is made at the first start, and its address is in the database",
            fix="Ask again on the machine of the service while that runs.",
        )
    lamports = min(held)  # what all of them agree on at least
    good = lamports >= wanted.fee_payer_low_lamports
    return Finding(
        what=f"fee payer {wanted.fee_payer}",
        state="ok" if good else "warning" if lamports else "wrong",
        found=f"{lamports / _LAMPORTS_PER_SOL:.9f} SOL" if lamports else "has no SOL",
        fix=""
        if good
        else "Send SOL to this address: payments wait when it has none. Enough is"
        f" {wanted.fee_payer_low_lamports / _LAMPORTS_PER_SOL:g} (BURSAR_FEE_PAYER_LOW_LAMPORTS).",
    )


def _clock(told: Sequence[Told], now: datetime) -> Finding:
    times = [node.block_time for node in told if node.block_time is not None]
    if not times:
        return Finding(
            what="clock",
            state="warning",
            found="no node says when its last block was",
            fix="See that this machine's clock is set by NTP.",
        )
    age = now.timestamp() - max(times)
    good = _YOUNGEST_BLOCK_SECONDS <= age <= _OLDEST_BLOCK_SECONDS
    return Finding(
        what="clock",
        state="ok" if good else "wrong",
        found=f"the last final block is {age:.0f} seconds old",
        fix="" if good else "Set this machine's clock by NTP. If it is right, the nodes lag.",
    )
