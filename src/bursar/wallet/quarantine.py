"""A wallet whose commit raises is set aside: it is tried alone and rarely, and the others go on.

Whatever the reason is (a broken row, a bug), it shows in the log, the metrics, `/readyz` and
`bursar doctor`, and a person has to look into it. One try that goes well ends it.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import asyncpg
import structlog

from bursar.chain.port import ChainOutOfReach
from bursar.config import Mode
from bursar.db import OUT_OF_REACH, ROLLED_BACK, Database
from bursar.metrics import Duties as Metrics
from bursar.wallet import store
from bursar.wallet.store import Duty

NOBODYS_FAULT: Final = (*OUT_OF_REACH, *ROLLED_BACK, ChainOutOfReach)

_log = structlog.get_logger()


class OfWallet(Protocol):
    """Something to be done for one wallet. `set_aside`: the wallet failed before."""

    @property
    def agent_id(self) -> str: ...

    @property
    def set_aside(self) -> bool: ...


Item = TypeVar("Item", bound=OfWallet)


async def apart(
    db: Database,
    duty: Duty,
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Awaitable[None]],
) -> None:
    """Does the work for all items at once, but alone for each wallet that is set aside. When the
    work raises, it is done in halves, until the item that makes it raise is alone; its wallet is
    set aside.

    `work` may be given items that it has done already. Raises only what is no fault of a wallet:
    that the database or the chain is out of reach.
    """
    failed: set[str] = set()

    async def attempt(some: Sequence[Item]) -> None:
        try:
            await work(some)
        except Exception as problem:
            # A row that another session has locked is of one wallet, unlike a lost database.
            locked = isinstance(problem, asyncpg.LockNotAvailableError)
            if isinstance(problem, NOBODYS_FAULT) and not locked:
                raise
            if len(some) > 1:
                middle = len(some) // 2
                await attempt(some[:middle])
                await attempt(some[middle:])
            else:
                failed.add(some[0].agent_id)
                await set_aside(db, some[0].agent_id, duty, problem)

    known = [item for item in items if item.set_aside]
    trusted = [item for item in items if not item.set_aside]
    if trusted:
        await attempt(trusted)
    for item in known:
        await attempt([item])
    await _take_back(db, {item.agent_id for item in known} - failed, duty)


async def alone(
    db: Database, duty: Duty, agent_id: str, work: Callable[[], Awaitable[object]]
) -> None:
    """As `apart`, for work that is done for one wallet at a time anyway."""
    try:
        await work()
    except NOBODYS_FAULT:
        raise
    except Exception as problem:  # noqa: BLE001 - the other wallets go on
        await set_aside(db, agent_id, duty, problem)
    else:
        await _take_back(db, [agent_id], duty)


async def set_aside(db: Database, agent_id: str, duty: Duty, problem: Exception) -> None:
    """Must be called while the problem is being handled, so that the log has its traceback."""
    _log.exception("wallet_set_aside", agent=agent_id, duty=duty)
    async with db.connection() as tx:
        await store.set_aside(tx, agent_id, duty, type(problem).__name__)


async def _take_back(db: Database, agent_ids: Iterable[str], duty: Duty) -> None:
    agents = sorted(agent_ids)
    if agents:
        async with db.connection() as tx:
            for agent_id in await store.take_back(tx, agents, duty):
                _log.info("wallet_taken_back", agent=agent_id, duty=duty)


async def report(db: Database, modes: Sequence[Mode]) -> int:
    """How many wallets are set aside, as a metric."""
    async with db.connection() as tx:
        counts = await store.count_set_aside(tx)
    for mode in modes:
        Metrics.set_aside(mode, counts.get(mode, 0))
    return 0
