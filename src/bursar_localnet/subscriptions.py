"""Websocket subscriptions: slots, roots, signatures, accounts and logs.

The node polls only while somebody is subscribed. Notifications wait like answers: a connection
sends nothing before everything it may be based on is on disk.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from solders.pubkey import Pubkey

from bursar_localnet import base58
from bursar_localnet.answers import with_context
from bursar_localnet.chain import Chain
from bursar_localnet.encode import encode_account
from bursar_localnet.faults import Faults
from bursar_localnet.params import Config, Params, invalid
from bursar_localnet.record import Entry
from bursar_localnet.slots import Commitment

Send = Callable[[dict[str, Any]], None]

# A client that keeps subscribing must not use up the node's memory.
_MAX_PER_CONNECTION: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    id: int
    kind: str
    send: Send
    # All subscription ids of its connection, this one included.
    mine: set[int]
    commitment: Commitment
    # An address or a signature; empty where the kind needs none.
    target: bytes
    config: Config


@dataclass(frozen=True, slots=True)
class _Due:
    """Something that happened in `slot`; the client is notified when the subscription's level
    reaches it."""

    slot: int
    subscription: Subscription
    entry: Entry


class Subscriptions:
    def __init__(self, chain: Chain, faults: Faults) -> None:
        self._chain = chain
        self._faults = faults
        self._ids = itertools.count(1)
        self._all: dict[int, Subscription] = {}
        self._by_target: dict[tuple[str, bytes], dict[int, Subscription]] = {}
        self._due: list[_Due] = []
        self._wanted = asyncio.Event()
        self._last_slot = 0
        self._last_root = 0
        chain.on_landed = self._landed

    async def tick_while_wanted(self) -> None:
        """Runs until cancelled; asleep while nobody is subscribed."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._chain.slots.seconds_to_next())
            self._tick()
            if not self._all:
                self._wanted.clear()

    def knows(self, method: str) -> bool:
        return method.removesuffix("Subscribe").removesuffix("Unsubscribe") in KINDS and (
            method.endswith(("Subscribe", "Unsubscribe"))
        )

    def call(self, method: str, params: Params, send: Send, mine: set[int]) -> Any:
        """Subscribe or unsubscribe; `mine` are the ids of this connection."""
        if method.endswith("Unsubscribe"):
            return self._unsubscribe(params.integer(0), mine)
        if len(mine) >= _MAX_PER_CONNECTION:
            raise invalid(f"Too many subscriptions; max {_MAX_PER_CONNECTION}")
        kind = method.removesuffix("Subscribe")
        target, config = KINDS[kind](params)
        subscription = Subscription(
            next(self._ids), kind, send, mine, config.commitment(), target, config
        )
        self._all[subscription.id] = subscription
        self._by_target.setdefault((kind, target), {})[subscription.id] = subscription
        mine.add(subscription.id)
        self._wanted.set()
        if kind == "signature":
            # The transaction may have landed already; the notification follows the answer with the
            # id.
            asyncio.get_running_loop().call_soon(self._tell_signature, subscription)
        return subscription.id

    def forget(self, mine: set[int]) -> None:
        """The connection is gone."""
        for identifier in list(mine):
            self._remove(identifier)

    def _unsubscribe(self, identifier: int, mine: set[int]) -> bool:
        if identifier not in mine:
            raise invalid("Invalid subscription id.")
        self._remove(identifier)
        return True

    def _remove(self, identifier: int) -> None:
        subscription = self._all.pop(identifier)
        subscription.mine.discard(identifier)
        key = (subscription.kind, subscription.target)
        del self._by_target[key][identifier]
        if not self._by_target[key]:
            del self._by_target[key]

    def _of(self, kind: str, target: bytes = b"") -> list[Subscription]:
        return list(self._by_target.get((kind, target), {}).values())

    def _landed(self, entries: Sequence[Entry]) -> None:
        if not self._all:
            return
        for entry in entries:
            for subscription in self._of("signature", entry.signature):
                self._tell_signature(subscription)
            touched = [self._of("account", address) for address in entry.accounts]
            mentioned = [self._of("logs", address) for address in {b"", *entry.mentions}]
            for subscription in itertools.chain(*touched, *mentioned):
                self._due.append(_Due(entry.slot, subscription, entry))
        self._tell_due()

    def _tick(self) -> None:
        slots = self._chain.slots
        slot, root = slots.processed, slots.at("finalized")
        if slot > self._last_slot:
            for subscription in self._of("slot"):
                self._notify(subscription, {"parent": slot - 1, "root": root, "slot": slot})
        if root > self._last_root:
            for subscription in self._of("root"):
                self._notify(subscription, root)
        self._last_slot, self._last_root = slot, root
        for subscription in list(self._all.values()):
            if subscription.kind == "signature":
                self._tell_signature(subscription)
        self._tell_due()

    def _tell_signature(self, subscription: Subscription) -> None:
        """Notifies once, then ends the subscription, as nodes do."""
        if subscription.id not in self._all:
            return
        landed = self._chain.find(subscription.target)
        if landed is not None and landed.slot <= self._chain.slots.at(subscription.commitment):
            value = {"err": landed.record.err}
            self._notify(subscription, with_context(self._chain, subscription.commitment, value))
            self._remove(subscription.id)

    def _tell_due(self) -> None:
        waiting: list[_Due] = []
        for due in self._due:
            subscription = due.subscription
            if subscription.id not in self._all:
                continue
            if due.slot > self._chain.slots.at(subscription.commitment):
                waiting.append(due)
            else:
                self._tell(due)
        self._due = waiting

    def _tell(self, due: _Due) -> None:
        subscription, chain = due.subscription, self._chain
        if subscription.kind == "logs":
            value = {
                "err": due.entry.record.err,
                "logs": due.entry.record.logs,
                "signature": base58.encode(due.entry.signature),
            }
        else:
            account = chain.account(Pubkey(subscription.target), subscription.commitment)
            # A closed account is shown as an empty account of the System program.
            value = (
                _NOTHING
                if account is None
                else encode_account(chain, account, subscription.commitment, subscription.config)
            )
        self._notify(subscription, with_context(chain, subscription.commitment, value))

    def _notify(self, subscription: Subscription, result: Any) -> None:
        method = f"{subscription.kind}Notification"
        message = {
            "jsonrpc": "2.0",
            "method": method,
            "params": {"result": result, "subscription": subscription.id},
        }
        for seconds in self._faults.notices(method):
            if seconds:
                asyncio.get_running_loop().call_later(seconds, subscription.send, message)
            else:
                subscription.send(message)


def _logs_target(params: Params) -> tuple[bytes, Config]:
    if params.optional(0) in ("all", "allWithVotes"):
        return b"", params.config(1)
    wanted = params.filter(0).items("mentions")
    if len(wanted) != 1:
        raise invalid("Invalid Request: Only 1 address supported")
    return bytes(Params(wanted).address(0)), params.config(1)


_NOTHING: Final = {
    "data": ["", "base64"],
    "executable": False,
    "lamports": 0,
    "owner": str(Pubkey.default()),
    "rentEpoch": 0,
    "space": 0,
}
KINDS: Final[dict[str, Callable[[Params], tuple[bytes, Config]]]] = {
    "slot": lambda _: (b"", Config({})),
    "root": lambda _: (b"", Config({})),
    "signature": lambda params: (params.signature(0), params.config(1)),
    "account": lambda params: (bytes(params.address(0)), params.config(1)),
    "logs": _logs_target,
}
