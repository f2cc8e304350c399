"""The chain itself: which transactions land, in which order, and at which commitment level they
are.

One rule keeps every promise to clients: **an answer is sent only after everything it may be based
on is on disk.** Transactions run in memory at once and are written in one commit with all others of
the same moment; before an answer is sent, its sender awaits `durable()`.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from solders.account import Account
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.token.associated import get_associated_token_address
from solders.token.state import Mint
from solders.transaction import VersionedTransaction

from bursar_localnet import programs
from bursar_localnet.clock import Clock
from bursar_localnet.disk import Disk
from bursar_localnet.errors import LocalnetFailed
from bursar_localnet.genesis import DECIMALS, Network
from bursar_localnet.messages import RecentMessages
from bursar_localnet.record import Entry, Landed, Mention, Record
from bursar_localnet.slots import Commitment, Lag, Slots, next_era
from bursar_localnet.vm import Run, Vm, touches_lookup_tables
from bursar_localnet.wire import Wire, parse_transaction

T = TypeVar("T")

_FAUCET_LAMPORTS: Final = 500_000_000_000_000_000
# Without `searchTransactionHistory`, nodes search this many slots for a signature.
_RECENT_SLOTS: Final = 300
_SLOT_HASHES: Final = 512


class Refused(Exception):
    """The transaction did not land. `err` is spelled as nodes spell it."""

    def __init__(self, err: Any, record: Record | None = None) -> None:
        super().__init__(str(err))
        self.err = err
        self.record = record


@dataclass(frozen=True, slots=True)
class _Unfinal:
    """A landed transaction that another fork could still undo."""

    wire: Wire
    slot: int
    before: dict[Pubkey, Account | None]


def open_chain(folder: Path, network: Network, clock: Clock, slot_ms: int, lag: Lag) -> "Chain":
    """Founds the chain on the first start, loads it on every other one.

    Everything on the disk counts as finalized: after a restart nothing can be undone.
    Raises LocalnetFailed when the folder is taken or belongs to the other network.
    """
    disk = Disk(folder)
    if disk.is_new:
        _found(disk, network)
    elif disk.setting("network") != network.name.encode():
        disk.close()
        raise LocalnetFailed(f"{folder} holds the other network; this is {network.name!r}.")
    vm = Vm()
    # Programs last: the VM loads a program together with the account that holds its code.
    deployed: dict[Pubkey, Account | None] = {}
    for address, account in disk.accounts():
        if account.executable:
            deployed[address] = account
        else:
            vm.put_back({address: account})
    vm.put_back(deployed)
    rooted = disk.last_slot()
    now_ms = round(clock.now().timestamp() * 1000)
    disk.add_era(next_era(disk.eras(), now_ms, slot_ms, rooted))
    seed = disk.setting("seed")
    slots = Slots(clock, seed, disk.eras(), lag, rooted)
    faucet = Keypair.from_bytes(disk.setting("faucet"))
    return Chain(network, disk, vm, slots, faucet, seed)


def _found(disk: Disk, network: Network) -> None:
    """Makes the genesis accounts. The faucet's key is random for each folder: with a published key
    anybody could mint."""
    faucet = Keypair()
    # As for the real USDC, whose issuer can freeze accounts too.
    key = faucet.pubkey()
    mint = Mint(key, supply=0, decimals=DECIMALS, is_initialized=True, freeze_authority=key)
    settings = {
        "network": network.name.encode(),
        "mint": network.mint.encode(),
        "seed": secrets.token_bytes(32),
        "faucet": bytes(faucet),
    }
    rent = Vm().minimum_balance(len(bytes(mint)))
    disk.found(
        settings,
        {
            faucet.pubkey(): Account(_FAUCET_LAMPORTS, b"", programs.SYSTEM),
            Pubkey.from_string(network.mint): Account(rent, bytes(mint), programs.TOKEN),
        },
    )


class Chain:
    def __init__(
        self, network: Network, disk: Disk, vm: Vm, slots: Slots, faucet: Keypair, seed: bytes
    ) -> None:
        self.network = network
        self.genesis_hash = network.genesis_hash(seed)
        self.identity = str(Keypair.from_seed(seed).pubkey())
        self.slots = slots
        self.mint = Pubkey.from_string(disk.mint(network))
        self.has_former_token = str(self.mint) != network.mint
        self.on_landed: Callable[[Sequence[Entry]], None] = lambda _: None
        # Set when memory and disk may differ. The process must end then; a new one loads the disk.
        self.broken = asyncio.Event()
        self._disk = disk
        self._vm = vm
        self._faucet = faucet
        self._pending: dict[bytes, Entry] = {}
        self._messages = RecentMessages(slots, disk)
        self._flushed: asyncio.Event | None = None
        self._unfinal: deque[_Unfinal] = deque()
        self._before: dict[Pubkey, deque[tuple[int, Account | None]]] = {}

    def submit(self, wire: Wire, preflight: Commitment | None) -> bytes:
        """Runs it and queues it for the disk. Returns the signature; await `durable()` before
        telling anybody.

        With `preflight` a transaction that fails is refused and changes nothing; without, it lands
        as failed and pays its fee. It is executed only once for both. Raises Refused.
        """
        # The slot is read once: a transaction checked in its last valid block must not land in the
        # next.
        slot = self.slots.processed
        self._check_fresh(wire, preflight or "processed")
        run = self._run(wire, slot)
        if not run.included:
            raise Refused(run.record.err, run.record)
        if run.record.err is not None and preflight is not None:
            # A failed transaction changes only its fee payer, by the fee.
            self._vm.put_back({wire.payer: run.before[wire.payer]})
            raise Refused(run.record.err, run.record)
        self._queue(self._land(wire, run, slot))
        return bytes(wire.signature)

    def simulate(
        self, wire: Wire, commitment: Commitment, *, any_blockhash: bool
    ) -> tuple[Record, dict[Pubkey, Account]]:
        """Runs it as `submit` would, but changes nothing. Raises Refused if it would not even
        run."""
        if not any_blockhash:
            self._check_fresh(wire, commitment)
        self._set_time(wire, self.slots.processed)
        return self._vm.simulate(wire)

    async def durable(self) -> None:
        """Returns when everything that ran before this call is on disk; never returns if the disk
        fails."""
        if self._flushed is not None:
            await self._flushed.wait()

    def mint_to(self, owner: Pubkey, micros: int, reference: Pubkey | None = None) -> bytes:
        """Mints test money by a real transaction, so that it looks like any other deposit. With the
        same `reference` (any unused address) it is minted only once."""
        references = [] if reference is None else [reference]
        for one in references:
            for given in self.mentioning(one, "processed", before=None, until=None, limit=1):
                return given.signature
        account = get_associated_token_address(owner, self.mint)
        authority = self._faucet.pubkey()
        return self._send_own(
            programs.create_token_account(authority, owner, self.mint),
            programs.mint_to(self.mint, account, authority, micros, DECIMALS, *references),
        )

    def freeze(self, owner: Pubkey, *, frozen: bool) -> bytes:
        """Freezes a token account as the token's issuer, or thaws it. Raises Refused."""
        account = get_associated_token_address(owner, self.mint)
        authority = self._faucet.pubkey()
        return self._send_own(
            programs.create_token_account(authority, owner, self.mint),
            programs.freeze(self.mint, account, authority, frozen=frozen),
        )

    def airdrop(self, address: Pubkey, lamports: int) -> bytes:
        source = self._faucet.pubkey()
        return self._send_own(
            transfer(TransferParams(from_pubkey=source, to_pubkey=address, lamports=lamports))
        )

    def account(self, address: Pubkey, commitment: Commitment) -> Account | None:
        """The account at this commitment level: changes that have not reached it are left out."""
        changes = self._before.get(address)
        if changes:
            reached = self.slots.at(commitment)
            for slot, before in changes:
                if slot > reached:
                    return before
        return self._vm.account(address)

    def owned_by(self, program: Pubkey) -> list[Pubkey]:
        self._flush()
        return self._disk.owned_by(bytes(program))

    def held_by(self, holder: Pubkey) -> list[Pubkey]:
        self._flush()
        return self._disk.held_by(bytes(holder))

    def find(self, signature: bytes, *, search_history: bool = True) -> Landed | None:
        if signature in self._pending:
            self._flush()
        landed = self._disk.find(signature)
        if landed is None or search_history:
            return landed
        return landed if landed.slot > self.slots.processed - _RECENT_SLOTS else None

    def in_slot(self, slot: int) -> list[Landed]:
        self._flush()
        return self._disk.in_slot(slot)

    def mentioning(
        self,
        address: Pubkey,
        commitment: Commitment,
        *,
        before: Landed | None,
        until: Landed | None,
        limit: int,
    ) -> list[Mention]:
        self._flush()
        return self._disk.mentioning(
            bytes(address),
            below=before.sequence if before else 2**63 - 1,
            above=until.sequence if until else 0,
            max_slot=self.slots.at(commitment),
            limit=limit,
        )

    def level_of(self, slot: int) -> Commitment:
        if slot <= self.slots.at("finalized"):
            return "finalized"
        return "confirmed" if slot <= self.slots.at("confirmed") else "processed"

    def count(self) -> int:
        return self._disk.count()

    def minimum_balance(self, data_bytes: int) -> int:
        return self._vm.minimum_balance(data_bytes)

    def skip_slots(self, count: int) -> None:
        self._disk.add_era(self.slots.skip(count))

    def fork_away(self, signature: bytes) -> list[bytes]:
        """Undoes an unfinalized transaction as a fork would; returns the signatures of all that
        were lost.

        Everything since is undone and run again in the replacing block, as the cluster would. What
        no longer works without the lost transaction is lost too. Raises KeyError when the signature
        is unknown or final.
        """
        self._flush()
        self._settle()
        undone = list(self._unfinal)
        while undone and bytes(undone[0].wire.signature) != signature:
            undone.pop(0)
        if not undone:
            raise KeyError(signature)
        restored: dict[Pubkey, Account | None] = {}
        for item in reversed(undone):
            restored.update(item.before)
            self._messages.forget(item.wire)
            self._unfinal.pop()
        self._vm.put_back(restored)
        self._before.clear()
        for item in self._unfinal:
            self._index(item)
        slot = self.slots.processed
        entries: list[Entry] = []
        for item in undone[1:]:
            run = self._run(item.wire, slot)
            if run.included:
                entries.append(self._land(item.wire, run, slot))
        dropped = [bytes(item.wire.signature) for item in undone]
        self._guarded(
            lambda: self._disk.rewrite(
                dropped, {bytes(key): account for key, account in restored.items()}, entries
            )
        )
        self.on_landed(entries)
        kept = {entry.signature for entry in entries}
        return [lost for lost in dropped if lost not in kept]

    def close(self) -> None:
        if not self.broken.is_set():
            self._flush()
        self._disk.close()

    def _check_fresh(self, wire: Wire, commitment: Commitment) -> None:
        """Raises Refused for a transaction that landed already, or whose blockhash is too old or
        has not reached the commitment level."""
        slot = self.slots.slot_of_blockhash(bytes(wire.blockhash))
        if slot is None or slot > self.slots.at(commitment):
            raise Refused("BlockhashNotFound")
        signature = bytes(wire.signature)
        if (
            wire.message_hash in self._messages
            or signature in self._pending
            or self._disk.slot_of(signature) is not None
        ):
            raise Refused("AlreadyProcessed")

    def _run(self, wire: Wire, slot: int) -> Run:
        self._set_time(wire, slot)
        return self._guarded(lambda: self._vm.run(wire))

    def _set_time(self, wire: Wire, slot: int) -> None:
        self._vm.set_time(slot, self.slots.unix_time(slot))
        if touches_lookup_tables(wire):
            recent = range(slot - 1, slot - 1 - _SLOT_HASHES, -1)
            self._vm.set_slot_hashes([(s, Hash(self.slots.blockhash(s))) for s in recent])

    def _guarded(self, step: Callable[[], T]) -> T:
        """If a step fails half-way, memory and disk may differ: marks the chain as broken, so that
        the process ends."""
        try:
            return step()
        except BaseException:
            self.broken.set()
            raise

    def _land(self, wire: Wire, run: Run, slot: int) -> Entry:
        changed = {key: account for key, account in run.after.items() if account != run.before[key]}
        item = _Unfinal(wire, slot, {key: run.before[key] for key in changed})
        self._unfinal.append(item)
        self._messages.add(wire, slot)
        self._index(item)
        self._settle()
        return Entry(
            signature=bytes(wire.signature),
            slot=slot,
            memo=_memo(wire),
            raw=wire.raw,
            record=run.record,
            mentions=[bytes(key) for key in run.keys.all],
            accounts={bytes(key): account for key, account in changed.items()},
        )

    def _settle(self) -> None:
        """Drops the undo data of transactions that are final by now."""
        finalized = self.slots.at("finalized")
        while self._unfinal and self._unfinal[0].slot <= finalized:
            for key in self._unfinal.popleft().before:
                changes = self._before[key]
                changes.popleft()
                if not changes:
                    del self._before[key]

    def _index(self, item: _Unfinal) -> None:
        for key, before in item.before.items():
            self._before.setdefault(key, deque()).append((item.slot, before))

    def _queue(self, entry: Entry) -> None:
        self._pending[entry.signature] = entry
        if self._flushed is None:
            # Everything else that runs in this turn of the event loop joins the same commit.
            self._flushed = asyncio.Event()
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Writes what is pending. Called before every read from the disk, so that the disk is as
        new as the accounts in memory."""
        if not self._pending:
            return
        entries = list(self._pending.values())
        self._guarded(lambda: self._disk.append(entries))
        self._pending.clear()
        if self._flushed is not None:
            self._flushed.set()
            self._flushed = None
        self.on_landed(entries)

    def _send_own(self, *instructions: Instruction) -> bytes:
        # The memo is random, because the same amount twice in one slot would be the same
        # transaction.
        memo = programs.memo(f"localnet faucet {secrets.token_hex(8)}")
        message = Message.new_with_blockhash(
            [*instructions, memo],
            self._faucet.pubkey(),
            Hash(self.slots.blockhash(self.slots.processed)),
        )
        signed = VersionedTransaction(message, [self._faucet])
        return self.submit(parse_transaction(bytes(signed)), "processed")


def _memo(wire: Wire) -> str | None:
    """As nodes list it: the length in bytes, then the text."""
    memos = [
        f"[{len(call.data)}] {call.data.decode(errors='replace')}"
        for call in wire.message.instructions
        if call.program_id_index < len(wire.keys)
        and wire.keys[call.program_id_index] in programs.MEMO_PROGRAMS
    ]
    return "; ".join(memos) or None


def keys_of(record: Record, wire: Wire) -> list[Pubkey]:
    """All keys of a landed transaction, in index order, as they were resolved when it ran."""
    loaded: Iterable[bytes] = [*record.loaded_writable, *record.loaded_readonly]
    return [*wire.keys, *map(Pubkey, loaded)]
