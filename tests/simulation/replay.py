"""Decides everything again, in the order of the locks, and compares.

What happened to a wallet is three lists, each in the order of the wallet's lock: its decisions (by
number), its journal (by number), and what the audit log says of its agent and its approvals (by
id). Every row has the millisecond at which it was written under that lock. So the lists are laid
together by time, and within one millisecond in any way that explains every decision. If there is
none, some decision rested on what was not so, or on what no longer was.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.db import Database, Row, Tx
from bursar.policy.engine import RejectCode, Terms, Used, Verdict, judge, terms_of, waits
from bursar.policy.model import Bounds, Policy
from bursar.policy.store import policy_of
from bursar.recipient.resolve import test_address as sandbox_address
from bursar.spend.model import SpendRow
from bursar.spend.store import spend_of

Place = tuple[int, int, int]


@dataclass(frozen=True)
class State:
    """All that a decision rests on."""

    status: str
    version: int
    credits: int
    debits: int
    pending: int
    used: Mapping[date, int] = field(default_factory=dict[date, int])
    # In SOL: what a day's spends have cost or hold, and what each open one holds.
    network: Mapping[date, int] = field(default_factory=dict[date, int])
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    waiting: frozenset[str] = frozenset()

    def use(self, day: date, micros: int) -> "State":
        return replace(
            self,
            pending=self.pending + micros,
            used={**self.used, day: self.used.get(day, 0) + micros},
        )

    def hold(self, spend: SpendRow) -> "State":
        today = day(spend)
        cost = spend.used.network_cost_lamports
        return replace(
            self,
            network={**self.network, today: self.network.get(today, 0) + cost},
            held={**self.held, spend.id: cost},
            waiting=self.waiting | ({spend.id} if spend.verdict == "pending" else set()),
        )

    def close(self, spend: SpendRow) -> "State":
        """What it cost in the end takes the place of what it held."""
        network = self.network[day(spend)] - self.held[spend.id] + spend.network_lamports
        return replace(
            self,
            network={**self.network, day(spend): network},
            held={name: lamports for name, lamports in self.held.items() if name != spend.id},
            waiting=self.waiting - {spend.id},
        )


def day(spend: SpendRow) -> date:
    return spend.created_at.date()


def _judged(terms: Terms, used: Used, amount_micros: int) -> tuple[Verdict, RejectCode | None]:
    code = judge(terms, used, amount_micros)
    if code is not None:
        return "rejected", code
    return ("pending" if waits(terms, amount_micros) else "approved"), None


@dataclass
class History:
    """One wallet's three lists, and what is needed to read them."""

    address: str
    bounds: Bounds
    policies: dict[int, Policy]
    spends: dict[str, SpendRow]
    decisions: Sequence[SpendRow]
    transfers: Sequence[Row]
    trail: Sequence[Row]
    reserved: set[str]

    def replay(self) -> State:
        """The state in the end; fails on the first millisecond that cannot be explained."""
        created, *_ = self.trail
        assert created["action"] == "agent.created"
        state, place = State("active", 1, 0, 0, 0), (0, 0, 1)
        for end in self._milliseconds():
            found = self._explain(state, place, end)
            assert found is not None, self._unexplained(state, place, end)
            state, place = found, end
        assert place == (len(self.decisions), len(self.transfers), len(self.trail))
        return state

    def _milliseconds(self) -> Iterator[Place]:
        """How far each list is read after each millisecond in which anything happened."""
        lists = [
            [spend.created_at for spend in self.decisions],
            [transfer["created_at"] for transfer in self.transfers],
            [line["at"] for line in self.trail],
        ]
        for times in lists:
            assert times == sorted(times), "a list is not in the order of its times"
        place = [0, 0, 1]
        moments = sorted({moment for times in lists for moment in times})
        for moment in moments:
            for number, times in enumerate(lists):
                while place[number] < len(times) and times[place[number]] <= moment:
                    place[number] += 1
            yield place[0], place[1], place[2]

    def _explain(self, state: State, start: Place, end: Place) -> State | None:
        """Tries every order of what happened in one millisecond; the first that fits is enough,
        because all of them end in the same state."""
        seen = {start}
        stack = [(start, state)]
        while stack:
            place, state = stack.pop()
            if place == end:
                return state
            for following, after in self._steps(state, place, end):
                if following not in seen:
                    seen.add(following)
                    stack.append((following, after))
        return None

    def _steps(self, state: State, place: Place, end: Place) -> Iterator[tuple[Place, State]]:
        decision, transfer, line = place
        if line < end[2] and (after := self._change(state, self.trail[line])):
            yield (decision, transfer, line + 1), after
        if transfer < end[1] and (after := self._move(state, self.transfers[transfer])):
            yield (decision, transfer + 1, line), after
        if decision < end[0]:
            spend = self.decisions[decision]
            if not self._explained(state, spend, transfer):
                return
            if spend.id not in self.reserved:
                if spend.verdict == "rejected":
                    yield (decision + 1, transfer, line), state
            elif transfer < end[1] and spend.verdict != "rejected":
                row = self.transfers[transfer]
                after = state.use(day(spend), spend.amount_micros).hold(spend)
                if (row["kind"], row["subject_id"]) == ("reserve", spend.id) and agrees(after, row):
                    yield (decision + 1, transfer + 1, line), after

    def _explained(self, state: State, spend: SpendRow, transfers: int) -> bool:
        """Whether this state gives the decision that was made, with all that it was judged on."""
        # Whether its payee's token account is known depends on other agents too, so either cost is
        # right; what the day has cost before is not left to the record.
        cost = spend.used.network_cost_lamports
        fee = self.bounds.payment_lamports
        terms = self._terms(state, spend)
        used = self._used(state, spend, cost, len(state.waiting), transfers)
        verdict, code = _judged(terms, used, spend.amount_micros)
        rejected = spend.reject_code if spend.verdict == "rejected" else None
        return (
            cost in (fee, fee + TOKEN_ACCOUNT_LAMPORTS)
            and state.version == spend.policy_version
            and (terms, used) == (spend.terms, spend.used)
            and (verdict, code) == (spend.verdict, rejected)
        )

    def _terms(self, state: State, spend: SpendRow) -> Terms:
        return terms_of(
            self.policies[state.version],
            self.bounds,
            stopped=False,
            agent_status=state.status,
            wallet_address=self.address,
            recipient=spend.recipient,
            pay_to=sandbox_address(spend.recipient),
            # In test mode each host has an address of its own.
            pays_blocked_host=False,
        )

    def _used(
        self, state: State, spend: SpendRow, cost: int, pending_count: int, transfers: int
    ) -> Used:
        return Used(
            spent_today_micros=state.used.get(day(spend), 0),
            available_micros=state.credits - state.debits - state.pending,
            network_today_lamports=state.network.get(day(spend), 0),
            network_cost_lamports=cost,
            pending_count=pending_count,
            transfers=transfers,
        )

    def _move(self, state: State, row: Row) -> State | None:
        """A transfer that no decision of now made: a reserve comes only with its decision."""
        micros = row["amount_micros"]
        match row["kind"]:
            case "deposit":
                after = replace(state, credits=state.credits + micros)
            case "void":
                spend = self.spends[row["subject_id"]]
                after = state.close(spend).use(day(spend), -micros)
            case "post":
                closed = state.close(self.spends[row["subject_id"]])
                after = replace(
                    closed, pending=state.pending - micros, debits=state.debits + micros
                )
            case _:
                return None
        return after if agrees(after, row) else None

    def _change(self, state: State, line: Row) -> State | None:
        if line["action"] == "transaction.denied":
            return state  # the journal tells what it did
        if line["action"] != "transaction.approved":
            after = json.loads(line["after"])
            return replace(state, status=after["status"], version=after["policy"]["version"])
        # Approved only if it would pass now, as if its own reservation were not there.
        spend = self.spends[line["subject"]]
        held = state.held[spend.id]
        without = replace(
            state.use(day(spend), -spend.amount_micros),
            network={**state.network, day(spend): state.network[day(spend)] - held},
        )
        used = self._used(without, spend, held, pending_count=0, transfers=0)
        if judge(self._terms(without, spend), used, spend.amount_micros) is not None:
            return None
        return replace(state, waiting=state.waiting - {spend.id})

    def _unexplained(self, state: State, start: Place, end: Place) -> str:
        parts = [
            *(f"decision {s}" for s in self.decisions[start[0] : end[0]]),
            *(f"transfer {dict(t)}" for t in self.transfers[start[1] : end[1]]),
            *(f"change {dict(line)}" for line in self.trail[start[2] : end[2]]),
        ]
        return f"nothing explains, from {state}:\n" + "\n".join(parts)


def agrees(state: State, row: Row) -> bool:
    return (state.credits, state.debits, state.pending) == (
        row["credits_posted_after"],
        row["debits_posted_after"],
        row["debits_pending_after"],
    )


async def replay_agent(db: Database, agent_id: str, bounds: Bounds) -> History:
    """Replays all that happened to an agent, and compares the end with the rows."""
    async with db.transaction() as tx:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        history = await _read(tx, agent_id, bounds)
        wallet = await tx.fetchrow("SELECT * FROM wallet WHERE agent_id = $1", agent_id)
        assert wallet is not None
        used = await tx.fetch(
            "SELECT (windows_at AT TIME ZONE 'UTC')::date AS day, day_micros AS micros,"
            " day_lamports AS lamports FROM wallet WHERE agent_id = $1 AND windows_at IS NOT NULL"
            " UNION ALL SELECT (window_start AT TIME ZONE 'UTC')::date, micros, lamports FROM usage"
            " WHERE agent_id = $1 AND window_kind = 'day'",
            agent_id,
        )
    end = history.replay()
    assert (end.credits, end.debits, end.pending) == (
        wallet["credits_posted"],
        wallet["debits_posted"],
        wallet["debits_pending"],
    )
    days = {row["day"] for row in used}
    assert {day: end.used.get(day, 0) for day in days} == {r["day"]: r["micros"] for r in used}
    assert {day: end.network.get(day, 0) for day in days} == {
        row["day"]: row["lamports"] for row in used
    }
    assert days >= {day for day, micros in end.used.items() if micros}
    return history


async def _read(tx: Tx, agent_id: str, bounds: Bounds) -> History:
    spends = [
        spend_of(row)
        for row in await tx.fetch(
            "SELECT * FROM spend WHERE agent_id = $1 ORDER BY decision_number", agent_id
        )
    ]
    assert [spend.decision_number for spend in spends] == list(range(1, len(spends) + 1))
    transfers = await tx.fetch(
        "SELECT * FROM transfer WHERE agent_id = $1 ORDER BY number", agent_id
    )
    policies = await tx.fetch("SELECT * FROM policy WHERE agent_id = $1", agent_id)
    trail = await tx.fetch(
        "SELECT at, action, subject, after FROM audit_log WHERE subject = $1 OR subject IN"
        " (SELECT id FROM spend WHERE agent_id = $1) ORDER BY id",
        agent_id,
    )
    return History(
        address=await tx.fetchval("SELECT address FROM wallet WHERE agent_id = $1", agent_id),
        bounds=bounds,
        policies={row["version"]: policy_of(row) for row in policies},
        spends={spend.id: spend for spend in spends},
        decisions=spends,
        transfers=transfers,
        trail=trail,
        reserved={row["subject_id"] for row in transfers if row["kind"] == "reserve"},
    )
