"""What a seller offers, and what the chain says of it."""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bursar.chain.port import Chain, ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.chain.store import Pinned
from bursar.clock import Clock
from bursar.config import Mode
from bursar.db import Database
from bursar.purchase import store
from bursar.purchase.choose import (
    Choice,
    Ground,
    Offers,
    choose,
    pinned_network,
    read_ground,
    read_offers,
)
from bursar.purchase.offer import Offer
from bursar.purchase.order import Order
from bursar.purchase.payee import Binding
from bursar.purchase.pin_store import Bound
from bursar.purchase.seller import SellerAnswer

# A blockhash ages: what was read before a slow seller answered is read again.
_FRESH_SECONDS: Final = 5.0
_MOST_STRANGERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Seen:
    """What the seller offers, and what the chain says of those that it names."""

    offers: Offers
    ground: Ground

    def choose(self, binding: Binding) -> Choice | None:
        return choose(self.offers.usable, self.ground, binding)


class Lookout:
    """One for a process: it remembers what never changes."""

    def __init__(self, clock: Clock, db: Database, chains: Mapping[Mode, Solana]) -> None:
        self._clock = clock
        self._db = db
        self._chains = chains
        self._networks: dict[Mode, Pinned] = {}
        # Addresses whose keys are not ours. They never will be, but for one that a provider of keys
        # had ready and that somebody named before it was taken: its purchases would fail.
        self._strangers: set[str] = set()

    @contextmanager
    def early(self, mode: Mode, bound: Bound) -> Generator["Early | None"]:
        """Looks at the chain while the purchase is stored and the seller asked, where it is known
        whom that names."""
        chain, network = self._chains.get(mode), self._networks.get(mode)
        payee = bound.listed or bound.pinned
        if chain is None or network is None or payee is None:
            yield None
            return
        task = asyncio.create_task(read_ground(chain, network, [payee]))
        # What nobody waits for any more may fail without a word.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            yield Early(task, asyncio.get_running_loop().time())
        finally:
            task.cancel()

    async def look(
        self, mode: Mode, order: Order, answer: SellerAnswer, early: "Early | None" = None
    ) -> Seen:
        """Raises ChainOutOfReach, and ApiError (503) before the network was ever reached."""
        chain = self._chains.get(mode)
        if chain is None:
            raise ChainOutOfReach(f"there is no {mode} network")
        network = await self._network(chain, mode)
        offers = read_offers(
            network,
            answer,
            self._clock.now(),
            sends_authorization=any(name.lower() == "authorization" for name, _ in order.headers),
        )
        ground, ours = await asyncio.gather(
            _ground(chain, network, offers.usable, early), self._ours(offers.fee_payers)
        )
        return Seen(offers.but_ours(ours), ground)

    async def _ours(self, addresses: Sequence[str]) -> set[str]:
        """Those that Bursar holds the key of."""
        unknown = [address for address in addresses if address not in self._strangers]
        if not unknown:
            return set()
        async with self._db.connection() as tx:
            ours = await store.ours(tx, unknown)
        if len(self._strangers) > _MOST_STRANGERS:
            self._strangers.clear()
        self._strangers.update(address for address in unknown if address not in ours)
        return ours

    async def _network(self, chain: Solana, mode: Mode) -> Pinned:
        """It never changes once it is pinned."""
        if mode not in self._networks:
            async with self._db.connection() as tx:
                self._networks[mode] = await pinned_network(tx, mode)
            chain.expect(self._networks[mode].genesis_hash)
        return self._networks[mode]


@dataclass(frozen=True, slots=True)
class Early:
    """A look at the chain that was begun at this time of the event loop."""

    task: "asyncio.Task[Ground]"
    began: float

    @property
    def is_of_use(self) -> bool:
        """Young enough, and not in vain so far: what fails from now on need not be tried again."""
        if asyncio.get_running_loop().time() - self.began > _FRESH_SECONDS:
            return False
        return not self.task.done() or self.task.exception() is None


async def _ground(
    chain: Chain, network: Pinned, offers: Sequence[Offer], early: Early | None
) -> Ground:
    if early is not None and early.is_of_use:
        ground = await early.task
        if ground.covers(offers):
            return ground
    return await read_ground(chain, network, {offer.pay_to for offer in offers})
