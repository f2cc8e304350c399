"""The tests of the rules can fail: with a rule broken on purpose, money is paid twice or lost.

Each test breaks one thing in the code and runs the same scenario as `test_rules.py`.
"""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bursar.chain.port import Height
from bursar.chain.solana import Solana
from bursar.settlement import evidence, submission_store, watch_store, worker
from bursar.settlement.model import PaymentRow, Stored, SubmissionRow, Watch
from bursar.settlement.outcome import bury
from bursar.settlement.outside import Outside
from bursar.settlement.worker import Settler
from tests.settlement import scenarios
from tests.settlement.support import Stage


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


async def _as_it_comes(witness: Any, submission: SubmissionRow) -> Height:
    """Believes the first look: the witness is not asked for the status again."""
    return await witness.finalized()


async def _no(*_: Any) -> bool:
    return False


async def _no_memo(*_: Any) -> evidence.Found:
    return {}


async def test_rule_1_sent_before_it_is_stored(stage: Stage, broken: pytest.MonkeyPatch):
    insert = submission_store.insert_submissions

    async def send_first(tx: Any, submissions: Any, *arguments: Any) -> Stored:
        chain = await stage.chain()
        for submission in submissions:
            await chain.send(submission.raw)
        return await insert(tx, submissions, *arguments)

    broken.setattr(submission_store, "insert_submissions", send_first)
    # If it landed in a later block than the first look, rule 6 would notice it on the chain.
    broken.setattr(Outside, "knows_more", _no)
    assert (await scenarios.crash_at_the_commit(stage)).made == 2


async def test_rule_1_sent_whether_stored_or_not(stage: Stage, broken: pytest.MonkeyPatch):
    insert = submission_store.insert_submissions

    async def everything(tx: Any, submissions: Any, *arguments: Any) -> Stored:
        await insert(tx, submissions, *arguments)
        return Stored({s.payment.id for s in submissions}, set())

    broken.setattr(submission_store, "insert_submissions", everything)
    assert (await scenarios.two_workers_one_payment(stage)).made == 2


async def test_rule_2_the_first_look_is_believed(stage: Stage, broken: pytest.MonkeyPatch):
    broken.setattr(evidence, "never_saw", _as_it_comes)
    broken.setattr(evidence, "find_by_memo", _no_memo)
    assert (await scenarios.lands_between_status_and_height(stage)).made == 2


async def test_rule_2_an_error_means_failed(stage: Stage, broken: pytest.MonkeyPatch):
    async def give_up(settler: Settler, unseen: Any) -> None:
        for submission in unseen:
            await bury(settler.db, submission, "no answer", None, final=False)

    broken.setattr(Settler, "_resend", give_up)
    assert (await scenarios.arrives_at_last(stage)).made > 1


async def test_rule_3_an_error_is_overlooked(stage: Stage, broken: pytest.MonkeyPatch):
    shown = Settler._shown

    async def overlook(settler: Settler, signatures: Any) -> Any:
        found = await shown(settler, signatures)
        return {key: landed and replace(landed, error=None) for key, landed in found.items()}

    broken.setattr(Settler, "_shown", overlook)
    broken.setattr(evidence, "pays", lambda *_: True)
    outcome, _ = await scenarios.lands_with_an_error(stage)
    assert (outcome.made, outcome.status) == (0, "settled")


async def test_rule_3_confirmed_is_taken_for_final(stage: Stage, broken: pytest.MonkeyPatch):
    chain_of = Stage.chain

    async def hasty(stage: Stage, *addresses: str) -> Any:
        return scenarios.Hasty(await chain_of(stage, *addresses))

    broken.setattr(Stage, "chain", hasty)
    outcome = await scenarios.loses_its_fork(stage)
    assert (outcome.made, outcome.status) == (0, "settled")


async def test_rule_4_no_search_for_the_memo(stage: Stage, broken: pytest.MonkeyPatch):
    broken.setattr(evidence, "find_by_memo", _no_memo)
    assert (await scenarios.denied_by_its_status(stage)).made == 2


async def test_rule_4_one_witness_is_enough(stage: Stage, broken: pytest.MonkeyPatch):
    witnesses = Solana.witnesses
    broken.setattr(Solana, "witnesses", lambda chain: witnesses(chain)[:1])
    assert (await scenarios.denied_by_one_node(stage)).made == 2


async def test_rules_4_and_5_no_wait_for_the_expiry(stage: Stage, broken: pytest.MonkeyPatch):
    for module in (worker, evidence):
        broken.setattr(module, "SAFETY_BLOCKS", -1_000)
    # And no node says that it would still take it.
    broken.setattr(Solana, "is_valid", _no)
    assert (await scenarios.arrives_at_last(stage)).made > 1


async def test_rule_5_a_refusal_is_final_at_once(stage: Stage, broken: pytest.MonkeyPatch):
    async def fail_at_once(settler: Settler, unseen: Any) -> None:
        for submission in unseen:
            await bury(settler.db, submission, "refused", None, final=True)

    broken.setattr(Settler, "_resend", fail_at_once)
    outcome = await scenarios.refused_but_funded_later(stage)
    assert (outcome.made, outcome.status) == (1, "rejected")


async def test_rule_6_no_quiet_after_a_failover(stage: Stage, broken: pytest.MonkeyPatch):
    watch = Settler.watch

    async def not_quiet(settler: Settler) -> Watch:
        known = await watch(settler)
        return msgspec.structs.replace(known, quiet_until_height=0)

    broken.setattr(Settler, "watch", not_quiet)
    # What the worker's folder and the chain remember would notice it all the same.
    broken.setattr(Outside, "knows_more", _no)
    assert (await scenarios.forgotten_and_on_its_way(stage)).made == 2


async def test_rule_6_no_search_after_a_failover(stage: Stage, broken: pytest.MonkeyPatch):
    async def everything(_: Settler, claimed: list[PaymentRow], __: Watch) -> list[PaymentRow]:
        return claimed

    broken.setattr(Settler, "_adopt_forgotten", everything)
    assert (await scenarios.forgotten_and_landed(stage)).made == 2


async def test_rule_6_any_memo_is_believed(stage: Stage, broken: pytest.MonkeyPatch):
    broken.setattr(evidence, "pays", lambda *_: True)
    outcome = await scenarios.somebody_writes_its_memo(stage)
    assert (outcome.made, outcome.status) == (0, "settled")


async def test_rule_6_stored_in_whatever_history(stage: Stage, broken: pytest.MonkeyPatch):
    insert = submission_store.insert_submissions

    async def anywhere(tx: Any, submissions: Any, _: str, *arguments: Any) -> Stored:
        return await insert(tx, submissions, await watch_store.timeline(tx), *arguments)

    broken.setattr(submission_store, "insert_submissions", anywhere)
    assert (await scenarios.stored_after_a_failover(stage)).made == 2
