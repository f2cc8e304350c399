"""Faults by schedule under a load, with an audit of everything every few faults."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.processes import bursar
from tests.prove.auditor import Auditor
from tests.prove.faults import FELL_FLAT, Faults
from tests.prove.journal import Journal
from tests.prove.schedule import KINDS, Strike, schedule
from tests.prove.stage import Stage, running_stage
from tests.prove.tenants import make_tenants
from tests.prove.workload import Load, Unanswered

FAULTS_BETWEEN_AUDITS: Final = 25
# Of the time, what is kept for the last audit.
LAST_AUDIT_SHARE: Final = 0.05
# From one strike to the next, or as long as it takes: there has to be something to break.
STRIKE_SECONDS: Final = 4.0
# Between the end of one and the next, at least.
REST_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Plan:
    seed: int
    minutes: float
    # Operations that all clients together try to do in a second.
    rate: float
    tenants: int = 18


@dataclass
class Outcome:
    plan: Plan
    journal: Journal
    struck: Counter[str] = field(default_factory=Counter)
    left_out: frozenset[str] = frozenset()
    # By kind: seconds from the strike to the next acknowledged spend, and from its end until every
    # node was ready.
    resumed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    whole: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    calmed: list[float] = field(default_factory=list)
    audits: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    payments: int = 0
    deliveries: int = 0
    repeated: int = 0
    seconds: float = 0.0


Say = Callable[[str], None]


async def run(plan: Plan, folder: Path, mount: Path | None, say: Say) -> Outcome:
    """Ends early when something is wrong; `outcome.journal.wrong` says what."""
    journal = Journal()
    outcome = Outcome(plan, journal)
    disk = mount or folder / "disk"
    disk.mkdir(exist_ok=True)
    async with running_stage(folder, disk) as stage:
        await stage.ready()
        tenants = await make_tenants(stage, journal, plan.tenants)
        load = Load(stage, journal, tenants, plan.seed, plan.rate)
        auditor = Auditor(stage, journal, tenants)
        began = time.monotonic()
        load.start()
        try:
            await _burn(plan, outcome, stage, load, auditor, Faults(stage, mount), say)
            await _finish(stage, auditor, journal)
        except (Unanswered, AssertionError) as problem:
            journal.accuse("stuck", repr(problem))
        finally:
            await load.stop()
        outcome.seconds = time.monotonic() - began
        outcome.calmed = auditor.calmed
        outcome.statuses = Counter(spend.status for spend in auditor.shown.values())
        outcome.payments = len(auditor.paid)
        outcome.deliveries = stage.receiver.deliveries
        outcome.repeated = stage.receiver.repeated
    return outcome


async def _burn(
    plan: Plan,
    outcome: Outcome,
    stage: Stage,
    load: Load,
    auditor: Auditor,
    faults: Faults,
    say: Say,
) -> None:
    outcome.left_out = faults.impossible
    end = time.monotonic() + plan.minutes * 60 * (1 - LAST_AUDIT_SHARE)
    kinds = len(KINDS) - len(faults.impossible)
    load.strike()
    load.going.set()
    for strike in schedule(plan.seed, faults.impossible):
        since = time.monotonic() - load.struck_at
        await asyncio.sleep(max(REST_SECONDS, STRIKE_SECONDS - since))
        # However slow the machine is, each kind comes once.
        if time.monotonic() > end and strike.number > kinds:
            break
        await _suffer(strike, outcome, stage, load, faults, say)
        if outcome.journal.wrong:
            break
        if strike.number % FAULTS_BETWEEN_AUDITS == 0:
            await load.pause()
            await auditor.audit(everything=False)
            outcome.audits += 1
            say(f"audit {outcome.audits}: {_so_far(outcome, auditor)}")
            if outcome.journal.wrong:
                break
            load.going.set()
    await load.pause()
    await auditor.audit(everything=True)
    outcome.audits += 1
    say(f"last audit: {_so_far(outcome, auditor)}")


async def _suffer(
    strike: Strike, outcome: Outcome, stage: Stage, load: Load, faults: Faults, say: Say
) -> None:
    load.strike()
    ends = await asyncio.gather(
        *(faults.strike(fault) for fault in strike.faults), return_exceptions=True
    )
    problems = [end for end in ends if isinstance(end, BaseException)]
    for problem in problems:
        if not isinstance(problem, FELL_FLAT):
            raise problem
    if problems:
        say(f"{strike}: fell flat, {problems!r}")
    else:
        outcome.struck[strike.kind] += 1
    resumed = await load.resumed()
    whole = await stage.ready()
    if not problems:
        outcome.resumed[strike.kind].append(resumed)
        outcome.whole[strike.kind].append(whole)
    spends = len(outcome.journal.spends)
    say(f"{strike}: spends after {resumed:.2f} s, all ready after {whole:.2f} s; {spends} spends")


def _so_far(outcome: Outcome, auditor: Auditor) -> str:
    journal = outcome.journal
    return (
        f"{len(journal.spends)} spends, {len(auditor.paid)} payments on the chain,"
        f" calm after {auditor.calmed[-1] if auditor.calmed else 0:.1f} s,"
        f" {len(journal.wrong)} wrong, {psutil.Process().memory_info().rss >> 20} MB"
    )


async def _finish(stage: Stage, auditor: Auditor, journal: Journal) -> None:
    """The product's own audit, which looks into the books."""
    if journal.wrong:
        return
    config = stage.config
    audit = await bursar(
        "audit",
        data_dir=str(config.data_dir),
        database_url=config.database_url or "",
        localnet_port=str(config.localnet_port),
    )
    if audit.code != 0:
        journal.accuse("ledger", audit.out + audit.err)
