"""Implements the port for Solana: JSON-RPC to one node or several; when one fails, the next is
asked.

The `solana` package is not used: its parser raises BaseException on some error answers, and its
confirmation can call a paid transaction expired.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self, TypeVar

import aiohttp
import structlog
from solders.signature import Signature

from bursar.chain import answers, refusal
from bursar.chain.answers import Unreadable
from bursar.chain.message import COMPUTE_LIMIT, token_account
from bursar.chain.node import Node, NodeError, NotReached
from bursar.chain.port import (
    Account,
    Balances,
    Blockhash,
    ChainOutOfReach,
    Height,
    Landed,
    Look,
    Mention,
    Refused,
    SendResult,
    Sent,
    Status,
    Statuses,
    Unclear,
    Unknown,
    vouched,
)
from bursar.errors import check

T = TypeVar("T")
S = TypeVar("S")

# The most that nodes accept in one request.
MOST_STATUSES: Final = 256
MOST_ACCOUNTS: Final = 100
MOST_HISTORY: Final = 1_000
_MOST_FEE_ACCOUNTS: Final = 128
# Transactions read, or sent, with one request: few enough for every node, and even the largest ones
# fit into the 50 KB that nodes read of a request.
_SHOWN_AT_ONCE: Final = 25
_SENT_AT_ONCE: Final = 25
# Requests that one call has under way at once, so that 10,000 wallets do not flood a node.
_AT_ONCE: Final = 4
# Every node is asked this often before a read is given up.
_ROUNDS: Final = 2
_BACKOFF_SECONDS: Final = 0.1
# How long a node may take that is asked beside others, and how long one that took longer is left
# alone: it must not slow every payment.
_SOON_SECONDS: Final = 2.0
_SILENT_SECONDS: Final = 10.0
# We read only account keys and balances, which every version of a transaction has. With a lower
# number, nodes would answer a deposit in a newer version with an error.
_NEWEST_VERSION: Final = 127
_MICROS_PER_LAMPORT: Final = 1_000_000

_LATEST_BLOCKHASH: Final = "getLatestBlockhash", [{"commitment": "confirmed"}]
_CONFIRMED: Final = "getEpochInfo", [{"commitment": "confirmed"}]
_FINALIZED: Final = "getEpochInfo", [{"commitment": "finalized"}]

_log = structlog.get_logger()


class Solana:
    """Implements `port.Chain` for one network: see `expect`."""

    def __init__(self, nodes: Sequence[Node], priority_fee_max_lamports: int) -> None:
        check(len(nodes) > 0, "a chain has at least one address")
        self._nodes = tuple(nodes)
        self._fee_max_lamports = priority_fee_max_lamports
        self._session: aiohttp.ClientSession | None = None
        # The node that answered last is asked first, so that one that is down does not slow every
        # call.
        self._first = 0
        self._genesis: str | None = None

    @classmethod
    def open(
        cls, addresses: Sequence[str], timeout_seconds: float, priority_fee_max_lamports: int
    ) -> Self:
        """Needs a running event loop. The caller closes it."""
        # Proxies set in the environment are ignored: they would see what is signed, and could lie.
        session = aiohttp.ClientSession(trust_env=False)
        nodes = [Node(session, address, timeout_seconds) for address in addresses]
        # What a node said is remembered by its name, so two at one host need two.
        hosts = [node.name for node in nodes]
        for place, node in enumerate(nodes, start=1):
            if hosts.count(node.name) > 1:
                node.name = f"{node.name} ({place})"
        chain = cls(nodes, priority_fee_max_lamports)
        chain._session = session
        return chain

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def name(self) -> str:
        return ",".join(str(node.name) for node in self._nodes)

    def expect(self, genesis: str) -> None:
        """From now on a node is used only once it has shown this genesis hash."""
        self._genesis = genesis

    def witnesses(self) -> Sequence["Solana"]:
        views = [Solana([node], self._fee_max_lamports) for node in self._nodes]
        if self._genesis is not None:
            for view in views:
                view.expect(self._genesis)
        return views

    # Reading ------------------------------------------------------------------------------------

    async def genesis_hash(self) -> str:
        return await self._ask("getGenesisHash", [], answers.read_hash)

    async def mint(self, address: str) -> int | None:
        config = {"encoding": "base64", "commitment": "confirmed"}
        return await self._ask("getAccountInfo", [address, config], answers.read_decimals)

    async def latest_blockhash(self) -> Blockhash:
        told, final, heights = await asyncio.gather(
            self._ask(*_LATEST_BLOCKHASH, answers.read_blockhash),
            self.finalized(),
            self._heights_of(self._nodes if len(self._nodes) > 1 else (), _CONFIRMED),
        )
        return vouched(told, [final, *heights])

    async def finalized(self) -> Height:
        return await self._ask(*_FINALIZED, answers.read_height)

    async def is_valid(self, blockhash: str) -> bool:
        return await self._ask(
            "isBlockhashValid", [blockhash, {"commitment": "finalized"}], answers.read_yes_or_no
        )

    async def heights(self) -> list[Height]:
        if len(self._nodes) > 1:
            heights = await self._heights_of(self._nodes, _FINALIZED)
            if heights:
                return heights
        return [await self.finalized()]

    async def _heights_of(
        self, nodes: Sequence[Node], question: tuple[str, Sequence[Any]]
    ) -> list[Height]:
        told = await asyncio.gather(
            *(self._soon(node, *question, answers.read_height) for node in nodes)
        )
        return [height for height in told if height is not None]

    async def look(self, addresses: Sequence[str]) -> Look:
        if len(addresses) <= MOST_ACCOUNTS:
            index = self._first
            node = self._nodes[index]
            others = [other for other in self._nodes if other is not node]
            try:
                await self._check_genesis(node)
                looked, heights = await asyncio.gather(
                    _looked(node, addresses), self._heights_of(others, _CONFIRMED)
                )
            except (ChainOutOfReach, Unreadable):
                # Some nodes take no batches, and one that is out of reach is not asked first again.
                if self._first == index:
                    self._first = (index + 1) % len(self._nodes)
            else:
                told, final, accounts = looked
                return Look(vouched(told, [final, *heights]), accounts)
        blockhash, accounts = await asyncio.gather(
            self.latest_blockhash(), self.accounts(addresses)
        )
        return Look(blockhash, accounts)

    async def block_time(self, slot: int) -> int | None:
        """In seconds since 1970; None when the node does not say."""
        try:
            return await self._ask("getBlockTime", [slot], answers.read_time)
        except NodeError:
            return None  # a slot without a block, or older than what the node keeps

    async def statuses(self, signatures: Sequence[str]) -> Statuses:
        check(len(signatures) > 0, "statuses of at least one signature")

        async def ask(batch: Sequence[str]) -> tuple[int, dict[str, Status | None]]:
            return await self._ask(
                "getSignatureStatuses",
                [batch, {"searchTransactionHistory": True}],
                lambda result: answers.read_statuses(result, batch),
            )

        parts = await _in_batches(ask, signatures, MOST_STATUSES)
        found: dict[str, Status | None] = {}
        for _, part in parts:
            found |= part
        return Statuses(min(slot for slot, _ in parts), found)

    async def signatures_of(
        self,
        address: str,
        *,
        until: str | None = None,
        before: str | None = None,
        limit: int = MOST_HISTORY,
        from_slot: int | None = None,
    ) -> list[Mention]:
        check(1 <= limit <= MOST_HISTORY, "a page of history has 1 to 1,000 lines")
        config: dict[str, Any] = {"commitment": "finalized", "limit": limit}
        given = {"until": until, "before": before, "minContextSlot": from_slot}
        config |= {name: value for name, value in given.items() if value is not None}
        return await self._ask("getSignaturesForAddress", [address, config], answers.read_mentions)

    async def transaction(self, signature: str) -> Landed | None:
        shown = await self._ask("getTransaction", _shown(signature), _read_shown(signature))
        if shown is None and len(self._nodes) > 1:
            # One that is behind, or has lost it, shows nothing.
            for node in self._nodes:
                shown = await self._soon(
                    node, "getTransaction", _shown(signature), _read_shown(signature)
                )
                if shown is not None:
                    break
        return shown

    async def transactions(self, signatures: Sequence[str]) -> dict[str, Landed | None]:
        async def ask(batch: Sequence[str]) -> list[Landed | None]:
            node = self._nodes[self._first]
            try:
                await self._check_genesis(node)
                results = await node.calls([("getTransaction", _shown(s)) for s in batch])
            except ChainOutOfReach:
                # Asked one by one instead: the whole batch may have been lost, and some nodes take
                # none.
                return [await self._shown_alone(signature) for signature in batch]
            found = [_read_or_none(result, s) for s, result in zip(batch, results, strict=True)]
            return [
                await self._shown_alone(signature)
                if landed is None and (isinstance(result, ChainOutOfReach) or len(self._nodes) > 1)
                else landed
                for signature, result, landed in zip(batch, results, found, strict=True)
            ]

        parts = await _in_batches(ask, signatures, _SHOWN_AT_ONCE)
        return dict(zip(signatures, (found for part in parts for found in part), strict=True))

    async def _shown_alone(self, signature: str) -> Landed | None:
        try:
            return await self.transaction(signature)
        except ChainOutOfReach:
            return None

    async def accounts(self, addresses: Sequence[str]) -> dict[str, Account | None]:
        _, found = await self._accounts(addresses, "confirmed")
        return dict(zip(addresses, found, strict=True))

    async def token_balances(
        self, owners: Sequence[str], mint: str, *, from_slot: int = 0
    ) -> Balances:
        held_in = [token_account(owner, mint) for owner in owners]
        slot, accounts = await self._accounts(held_in, "finalized", from_slot)
        return Balances(
            slot,
            {
                owner: account.token.amount_micros
                if account is not None and account.token is not None and account.token.mint == mint
                else 0
                for owner, account in zip(owners, accounts, strict=True)
            },
        )

    async def priority_fee(self, writable: Sequence[str]) -> int:
        """The fee that was enough for three quarters of the recent blocks; 0 when no node tells,
        because a missing fee must not stop payments."""
        try:
            recent = await self._ask(
                "getRecentPrioritizationFees", [writable[:_MOST_FEE_ACCOUNTS]], answers.read_fees
            )
        except ChainOutOfReach:
            return 0
        usual = sorted(recent)[len(recent) * 3 // 4] if recent else 0
        return min(usual, self._fee_max_lamports * _MICROS_PER_LAMPORT // COMPUTE_LIMIT)

    async def _accounts(
        self, addresses: Sequence[str], commitment: str, from_slot: int = 0
    ) -> tuple[int, list[Account | None]]:
        """(oldest slot that an answer came from, accounts in the order asked for)."""
        check(len(addresses) > 0, "at least one account")

        async def ask(batch: Sequence[str]) -> tuple[int, list[Account | None]]:
            return await self._ask(
                *_read_accounts(batch, commitment, from_slot),
                lambda result: answers.read_accounts(result, len(batch), from_slot),
            )

        parts = await _in_batches(ask, addresses, MOST_ACCOUNTS)
        return min(slot for slot, _ in parts), [account for _, part in parts for account in part]

    async def _ask(self, method: str, params: Sequence[Any], read: Callable[[Any], T]) -> T:
        """The answer of the first node that gives a readable one. Takes at most nodes x rounds x
        timeout."""
        problem = ChainOutOfReach("no node was asked")
        unclear: Unclear | None = None
        for round_ in range(_ROUNDS):
            if round_ > 0:
                await asyncio.sleep(_BACKOFF_SECONDS)
            for index in self._order():
                node = self._nodes[index]
                try:
                    await self._check_genesis(node)
                    answer = read(await node.call(method, *params))
                except Unreadable as unreadable:
                    unclear = Unclear(_unreadable(node, method, unreadable))
                except ChainOutOfReach as out_of_reach:
                    problem = out_of_reach
                else:
                    self._first = index
                    return answer
        raise unclear or problem

    async def _soon(
        self, node: Node, method: str, params: Sequence[Any], read: Callable[[Any], T]
    ) -> T | None:
        """What a node says that is asked beside others; None when it gives no readable answer, or
        none soon."""
        now = asyncio.get_running_loop().time()
        if node.silent_until.get(method, 0) > now:
            return None
        try:
            async with asyncio.timeout(_SOON_SECONDS):
                await self._check_genesis(node)
                return read(await node.call(method, *params))
        except (NodeError, Unreadable):
            return None
        except (ChainOutOfReach, TimeoutError):
            node.silent_until[method] = now + _SILENT_SECONDS
            return None

    # Sending ------------------------------------------------------------------------------------

    async def send(self, raw: bytes, *, everywhere: bool = False) -> SendResult:
        """Sends to one node after the other until one takes it. If none does but one answer was
        lost, the result is Unknown, whatever the other nodes said. A node that could not be reached
        does not count."""
        refused: list[Refused] = []
        sent = unknown = not_reached = None
        for index in self._order():
            if sent is not None:
                await self._soon(
                    self._nodes[index], "sendTransaction", _sent(raw), answers.read_text
                )
                continue
            try:
                result = await self._send_to(self._nodes[index], raw)
            except ChainOutOfReach as problem:
                not_reached = Unknown(str(problem))
                continue
            match result:
                case Sent():
                    if not everywhere:
                        self._first = index
                        return result
                    sent = result
                case Unknown():
                    unknown = result
                case Refused():
                    refused.append(result)
        weakest = min(refused, key=lambda refusal: refusal.kind, default=None)
        return sent or unknown or weakest or not_reached or Unknown("no node was asked")

    async def send_many(self, raws: Sequence[bytes]) -> list[bytes]:
        node = self._nodes[self._first]

        async def ask(batch: Sequence[bytes]) -> list[bytes]:
            try:
                await self._check_genesis(node)
                told = await node.calls([("sendTransaction", _sent(raw)) for raw in batch])
            except ChainOutOfReach:  # some nodes take no batches at all
                return list(batch)
            return [raw for raw, as_ in zip(batch, told, strict=True) if as_ != _signature(raw)]

        parts = await _in_batches(ask, raws, _SENT_AT_ONCE)
        return [raw for left in parts for raw in left]

    async def _send_to(self, node: Node, raw: bytes) -> SendResult:
        """Raises ChainOutOfReach only if nothing was sent."""
        await self._check_genesis(node)
        try:
            told = await node.call("sendTransaction", *_sent(raw))
        except NotReached:
            raise
        except NodeError as error:
            return refusal.of_answer(error.code, error.message, error.data)
        except ChainOutOfReach as problem:
            return Unknown(str(problem))
        if told != _signature(raw):
            return Unknown(f"{node.name}: answered with another signature")
        return Sent()

    # Faucets of test networks -------------------------------------------------------------------

    async def airdrop(self, address: str, lamports: int) -> str:
        """Free SOL, on test networks and the localnet; returns the signature."""
        return await self._once("requestAirdrop", address, lamports)

    async def mint_test_money(self, owner: str, micros: int, reference: str | None = None) -> str:
        """Mints test USDC into the owner's token account, on the localnet only. With the same
        `reference` (any unused address) it is minted only once."""
        return await self._once("bursar_faucet", owner, micros, reference)

    async def _once(self, method: str, *params: Any) -> str:
        """Asks one node, once: after a lost answer a retry could give the money twice."""
        node = self._nodes[self._first]
        await self._check_genesis(node)
        try:
            return answers.read_text(await node.call(method, *params))
        except Unreadable as unreadable:
            raise ChainOutOfReach(_unreadable(node, method, unreadable)) from None

    # Which node ---------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        count = len(self._nodes)
        return [(self._first + offset) % count for offset in range(count)]

    async def _check_genesis(self, node: Node) -> None:
        """Raises ChainOutOfReach for a node of another network. Such a node must not be believed,
        least of all when it says that a payment does not exist."""
        if self._genesis is None or node.genesis == self._genesis:
            return
        try:
            seen = answers.read_hash(await node.call("getGenesisHash"))
        except Unreadable as unreadable:
            raise ChainOutOfReach(_unreadable(node, "getGenesisHash", unreadable)) from None
        if seen != self._genesis:
            _log.error("wrong_network", node=node.name, expected=self._genesis, found=seen)
            raise ChainOutOfReach(f"{node.name} is another network: {seen}")
        node.genesis = seen


def _read_accounts(
    addresses: Sequence[str], commitment: str, from_slot: int = 0
) -> tuple[str, list[Any]]:
    """The method and its parameters."""
    config = {
        "commitment": commitment,
        "encoding": "base64",
        "dataSlice": answers.ACCOUNT_SLICE,
        "minContextSlot": from_slot,
    }
    return "getMultipleAccounts", [addresses, config]


async def _looked(
    node: Node, addresses: Sequence[str]
) -> tuple[Blockhash, Height, dict[str, Account | None]]:
    """With one request. Raises ChainOutOfReach or Unreadable."""
    told = await node.calls([_LATEST_BLOCKHASH, _FINALIZED, _read_accounts(addresses, "confirmed")])
    for result in told:
        if isinstance(result, ChainOutOfReach):
            raise result
    blockhash, final, accounts = told
    _, found = answers.read_accounts(accounts, len(addresses))
    return (
        answers.read_blockhash(blockhash),
        answers.read_height(final),
        dict(zip(addresses, found, strict=True)),
    )


def _unreadable(node: Node, method: str, why: Unreadable) -> str:
    return f"{node.name}: {method} gave an unreadable answer: {why}"


def _sent(raw: bytes) -> list[Any]:
    """The parameters of `sendTransaction`."""
    config = {
        "encoding": "base64",
        # The same level as the blockhash's; a stricter one would refuse a valid transaction.
        "preflightCommitment": "confirmed",
        # We decide when to send again; a node that retries by itself could not be stopped.
        "maxRetries": 0,
    }
    return [base64.b64encode(raw).decode(), config]


def _shown(signature: str) -> list[Any]:
    """The parameters of `getTransaction`."""
    config = {
        "commitment": "finalized",
        "encoding": "json",
        "maxSupportedTransactionVersion": _NEWEST_VERSION,
    }
    return [signature, config]


def _read_shown(signature: str) -> Callable[[Any], Landed | None]:
    return lambda result: None if result is None else answers.read_transaction(result, signature)


def _read_or_none(result: Any, signature: str) -> Landed | None:
    if isinstance(result, ChainOutOfReach):
        return None
    try:
        return _read_shown(signature)(result)
    except Unreadable:
        return None


def _signature(raw: bytes) -> str:
    """A transaction begins with the count of its signatures (one byte); the first one identifies
    it."""
    return str(Signature.from_bytes(raw[1:65]))


async def _in_batches(
    ask: Callable[[Sequence[S]], Awaitable[T]], items: Sequence[S], size: int
) -> list[T]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(batch: Sequence[S]) -> T:
        async with turn:
            return await ask(batch)

    batches = [items[start : start + size] for start in range(0, len(items), size)]
    tasks = [asyncio.create_task(one(batch)) for batch in batches]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        # After one failure the answer cannot be complete, so the other requests are cancelled.
        for task in tasks:
            task.cancel()
