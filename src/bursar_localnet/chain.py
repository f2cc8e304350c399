"""The chain itself: what lands, in which order, and how sure one can be of it.

One rule keeps every promise to clients: **an answer leaves only after everything it may have seen
is on disk.** Transactions run in memory at once, are written in one commit with all others of the
same moment, and whoever computed an answer in between awaits `durable()` before sending it.
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
from bursar_localnet.record import Entry, Landed, Record
from bursar_localnet.slots import Commitment, Lag, Slots, next_era
from bursar_localnet.vm import Run, Vm, touches_lookup_tables
from bursar_localnet.wire import Wire, parse_transaction

T = TypeVar("T")

_FAUCET_LAMPORTS: Final = 500_000_000_000_000_000
# Without a search of the history, nodes look through this many slots for a signature.
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

    All that the disk has counts as finalized: a node that was away has nothing left to undo.
    Raises LocalnetFailed when the folder is taken or belongs to the other network.
    """
    disk = Disk(folder)
    if disk.is_new:
        _found(disk, network)
    elif disk.setting("network") != network.name.encode():
        disk.close()
        raise LocalnetFailed(f"{folder} holds the other network; this is {network.name!r}.")
    vm = Vm()
    # Programs last: the machine loads one together with the account that holds its code.
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
    """The faucet's key is drawn here, per folder: a key anybody could look up is no authority."""
    faucet = Keypair()
    # As of the real USDC, whose issuer can freeze an account too.
    key = faucet.pubkey()
    mint = Mint(key, supply=0, decimals=DECIMALS, is_initialized=True, freeze_authority=key)
    settings = {
        "network": network.name.encode(),
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
        self.mint = Pubkey.from_string(network.mint)
        self.on_landed: Callable[[Sequence[Entry]], None] = lambda _: None
        # Set when memory and disk may differ; the process must end, a new one loads the disk.
        self.broken = asyncio.Event()
        self._disk = disk
        self._vm = vm
        self._faucet = faucet
        self._pending: dict[bytes, Entry] = {}
        self._flushed: asyncio.Event | None = None
        self._unfinal: deque[_Unfinal] = deque()
        self._before: dict[Pubkey, deque[tuple[int, Account | None]]] = {}

    def submit(self, wire: Wire, preflight: Commitment | None) -> bytes:
        """Run it and queue it for the disk. Returns the signature; await `durable()` to tell it.

        With `preflight` a transaction that fails is refused and changes nothing; without, it
        lands, failed, and pays its fee. The one execution serves as both. Raises Refused.
        """
        # Read once: a transaction checked in its last valid block must not land in the next.
        slot = self.slots.processed
        self._check_fresh(wire, preflight or "processed")
        run = self._run(wire, slot)
        if not run.included:
            raise Refused(run.record.err, run.record)
        if run.record.err is not None and preflight is not None:
            # A failed transaction changed its payer only: the fee.
            self._vm.put_back({wire.payer: run.before[wire.payer]})
            raise Refused(run.record.err, run.record)
        self._queue(self._land(wire, run, slot))
        return bytes(wire.signature)

    def simulate(
        self, wire: Wire, commitment: Commitment, *, any_blockhash: bool
    ) -> tuple[Record, dict[Pubkey, Account]]:
        """As `submit` would run it now, changing nothing. Raises Refused before it runs at all."""
        if not any_blockhash:
            self._check_fresh(wire, commitment)
        self._set_time(wire, self.slots.processed)
        return self._vm.simulate(wire)

    async def durable(self) -> None:
        """Returns when all that ran before this call is on disk; never, if it cannot be."""
        if self._flushed is not None:
            await self._flushed.wait()

    def mint_to(self, owner: Pubkey, micros: int, reference: Pubkey | None = None) -> bytes:
        """Test money by a real transaction, so that it shows up like any other deposit. What is
        asked for again by the same reference, an address of nobody, is not given again."""
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
        """As the issuer of the token does it, or takes it back. Raises Refused."""
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
        """As the level's slot left it: a change not yet at that level is looked through."""
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
    ) -> list[Landed]:
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
        """Undo an unfinalized transaction as a fork does, and say which others went with it.

        Everything since is undone and run again in the block that replaces it, as the cluster
        would; what no longer works without the lost one is gone too. Raises KeyError when the
        signature is unknown or final.
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
        """A blockhash counts from the moment its block is at the level asked for, as on nodes."""
        slot = self.slots.slot_of_blockhash(bytes(wire.blockhash))
        if slot is None or slot > self.slots.at(commitment):
            raise Refused("BlockhashNotFound")
        signature = bytes(wire.signature)
        if signature in self._pending or self._disk.slot_of(signature) is not None:
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
        """A step that fails half-way leaves memory and disk apart: say so, and let it end."""
        try:
            return step()
        except BaseException:
            self.broken.set()
            raise

    def _land(self, wire: Wire, run: Run, slot: int) -> Entry:
        changed = {key: account for key, account in run.after.items() if account != run.before[key]}
        item = _Unfinal(wire, slot, {key: run.before[key] for key in changed})
        self._unfinal.append(item)
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
        """Forget how to undo what is final by now."""
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
            # Whatever else runs in this turn of the loop joins the same commit.
            self._flushed = asyncio.Event()
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write out what is pending. What reads the disk calls this first, so that it never knows
        less than the accounts in memory do."""
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
        # The same gift twice in one slot would be the same transaction, hence the random memo.
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
