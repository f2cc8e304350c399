"""Moments in which a payment could be made twice or be lost, one function each.

Each returns how often the chain shows the payment and what the service says of it. The tests run
them on the code as it is, and again on copies in which one rule is broken.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from bursar.chain import answers
from bursar.chain.port import Height, Landed, Statuses
from bursar.chain.solana import Solana
from bursar.db import Tx
from bursar.settlement import submission_store, watch_store
from bursar.settlement.model import Stored
from bursar.settlement.worker import Settler
from tests.localnet.support import payment as foreign_payment
from tests.settlement.support import Crash, Stage, deny_everything, in_front_of

NEVER_ARRIVES = {"action": "drop", "methods": ["sendTransaction"], "at": "request"}


@dataclass(frozen=True)
class Outcome:
    made: int
    status: str
    attempts: int


async def _outcome(stage: Stage, agent: dict[str, Any], payment_id: str) -> Outcome:
    return Outcome(
        await stage.made(agent, payment_id),
        await stage.status(payment_id),
        len(await stage.attempts(payment_id)),
    )


async def crash_at_the_commit(stage: Stage) -> Outcome:
    """Rule 1: the worker dies while it stores what it signed, so nothing is stored."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    dying = await stage.settler()
    insert = submission_store.insert_submissions

    async def die(tx: Tx, *arguments: Any) -> Stored:
        await insert(tx, *arguments)
        raise Crash

    with pytest.MonkeyPatch.context() as patch, suppress(Crash):
        patch.setattr(submission_store, "insert_submissions", die)
        await dying.sign()
    await stage.pass_blocks()  # another blockhash for whoever is next
    await stage.round(await stage.settler(), 2)
    return await _outcome(stage, agent, payment_id)


async def crash_before_sending(stage: Stage, kind: str = "spend") -> Outcome:
    """Rule 1: stored and committed, and the worker dies before it sends."""
    agent = await stage.agent()
    payment_id = await (stage.spend(agent) if kind == "spend" else stage.withdraw(agent))
    dying = await stage.settler()

    async def die(_: Settler, submissions: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch, suppress(Crash):
        patch.setattr(Settler, "_send", die)
        await dying.sign()
    await stage.round(await stage.settler(), 3)
    return await _outcome(stage, agent, payment_id)


async def crash_after_sending(stage: Stage) -> Outcome:
    """Rules 1 and 2: it was sent and has landed, and nobody here knows."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    await (await stage.settler()).sign()
    await stage.round(await stage.settler(), 2)
    return await _outcome(stage, agent, payment_id)


async def two_workers_one_payment(stage: Stage) -> Outcome:
    """Rule 1: a worker is so slow that its lease ends; another one pays; then it wakes up."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    slow, quick = await stage.settler(), await stage.settler()
    sign = stage.vault.sign

    # Awake again within the life of its blockhash, which is the dangerous case.
    async def overslept(*arguments: Any) -> Any:
        signed = await sign(*arguments)
        stage.vault.sign = sign  # type: ignore[method-assign]
        await stage.next_block()
        await stage.round(quick, 2)
        return signed

    stage.vault.sign = overslept  # type: ignore[method-assign]
    await stage.due()
    await slow.sign()
    await stage.round(quick, 2)
    return await _outcome(stage, agent, payment_id)


class LandsLate:
    """The chain as a naive confirm loop meets it: between the status and the height, the
    transaction lands and its last valid height passes."""

    def __init__(self, chain: Solana, stage: Stage) -> None:
        self._chain = chain
        self._stage = stage
        self._late: list[bytes] = []

    def lands_late(self, raw: bytes) -> None:
        self._late.append(raw)

    async def finalized(self) -> Height:
        while self._late:
            await self._chain.send(self._late.pop())
            await self._stage.pass_blocks()
        return await self._chain.finalized()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)


async def lands_between_status_and_height(stage: Stage) -> Outcome:
    """Rules 2 and 4: the race that fools naive confirm loops."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await stage.faults(NEVER_ARRIVES)
    await settler.sign()
    await stage.faults()
    (attempt,) = await stage.attempts(payment_id)
    late: Any = LandsLate(await stage.chain(), stage)
    late.lands_late(attempt["raw"])
    settler.chain = late
    await stage.round(settler, 4)
    return await _outcome(stage, agent, payment_id)


async def bad_answers(stage: Stage, *rules: dict[str, Any]) -> Outcome:
    """Rule 2: no answer, a late one, two, or an error; each is "unknown" and never "failed"."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    await stage.faults(*rules)
    settler = await stage.settler()
    await stage.round(settler, 3)
    await stage.faults()
    await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


async def lands_with_an_error(stage: Stage) -> tuple[Outcome, str]:
    """Rule 3: final, and nothing was paid. Also tells what the wallet has reserved then."""
    agent = await stage.agent("10")
    payment_id = await stage.spend(agent, "8")
    await stage.take_behind_our_back(agent, 5_000_000)
    settler = await stage.settler()
    await settler.sign()
    (attempt,) = await stage.attempts(payment_id)
    await stage.rpc.send(
        VersionedTransaction.from_bytes(attempt["raw"]),
        skipPreflight=True,
        preflightCommitment="confirmed",
    )
    await stage.round(settler, 2)
    return await _outcome(stage, agent, payment_id), (await stage.balance(agent))["reserved"]


async def denied_by_its_status(stage: Stage) -> Outcome:
    """Rule 4: it landed, but the node says for ever that it knows no such signature."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await settler.sign()
    await stage.faults({"action": "lie", "methods": ["getSignatureStatuses"], "claim": "absent"})
    await stage.pass_blocks()
    await stage.round(settler, 4)
    await stage.faults()
    await stage.round(settler, 2)
    return await _outcome(stage, agent, payment_id)


async def denied_by_one_node(stage: Stage) -> Outcome:
    """Rule 4: one node denies everything, the other has seen the payment."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    await (await stage.settler()).sign()
    await stage.pass_blocks()
    async with in_front_of(stage.rpc, deny_everything) as liar:
        await stage.round(await stage.settler(liar, stage.rpc.url), 4)
    await stage.round(await stage.settler(), 2)
    return await _outcome(stage, agent, payment_id)


async def arrives_at_last(stage: Stage) -> Outcome:
    """Rules 4 and 5: nobody has seen it, but its blockhash lives; then it arrives after all."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await stage.faults(NEVER_ARRIVES)
    await stage.round(settler, 3)
    await stage.faults()
    for attempt in await stage.attempts(payment_id):
        await settler.chain.send(attempt["raw"])
    await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


async def loses_its_fork(stage: Stage) -> Outcome:
    """Rules 2 and 3: confirmed, seen by everybody, and gone with its fork."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await stage.faults(lag={"confirmed": 0, "finalized": 100})
    await settler.sign()
    (attempt,) = await stage.attempts(payment_id)
    await stage.round(settler, 2)
    lost = await stage.rpc("bursar_fork", attempt["signature"])
    assert attempt["signature"] in lost
    if await stage.status(payment_id) == "approved":
        await stage.round(settler, 2)
        await stage.faults()
        await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


class Hasty:
    """Takes for final what is only confirmed."""

    def __init__(self, chain: Solana) -> None:
        self._chain = chain

    async def statuses(self, signatures: Any) -> Statuses:
        told = await self._chain.statuses(signatures)
        return replace(
            told, found={k: s and replace(s, finalized=True) for k, s in told.found.items()}
        )

    async def transaction(self, signature: str) -> Landed | None:
        config = {
            "commitment": "confirmed",
            "encoding": "json",
            "maxSupportedTransactionVersion": 0,
        }
        return await self._chain._ask(
            "getTransaction",
            [signature, config],
            lambda result: result and answers.read_transaction(result, signature),
        )

    async def transactions(self, signatures: Any) -> dict[str, Landed | None]:
        return {signature: await self.transaction(signature) for signature in signatures}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)


async def never_arrives(stage: Stage) -> tuple[Outcome, Outcome, Outcome]:
    """Rule 5: while its blockhash lives, after it expired, and when nodes can be reached again."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    settler = await stage.settler()
    await stage.faults(NEVER_ARRIVES)
    await stage.round(settler, 3)
    young = await _outcome(stage, agent, payment_id)
    await stage.pass_blocks()
    await stage.round(settler, 2)
    old = await _outcome(stage, agent, payment_id)
    await stage.faults()
    await stage.round(settler, 3)
    return young, old, await _outcome(stage, agent, payment_id)


async def refused_but_funded_later(stage: Stage) -> Outcome:
    """Rule 5: every node refuses it, until money comes in and an old copy of it arrives."""
    agent = await stage.agent("10")
    payment_id = await stage.spend(agent, "8")
    await stage.take_behind_our_back(agent, 5_000_000)
    settler = await stage.settler()
    await stage.round(settler, 3)
    (attempt, *_) = await stage.attempts(payment_id)
    async with stage.db.connection() as tx:
        owner = await tx.fetchval("SELECT address FROM wallet WHERE agent_id = $1", agent["id"])
    await stage.rpc("bursar_faucet", owner, 20_000_000)
    await settler.chain.send(attempt["raw"])
    await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


async def forgotten_and_landed(stage: Stage) -> Outcome:
    """Rule 6: the payment was made, and the database that knew it is gone."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    await (await stage.settler()).sign()
    await stage.forget_attempts(payment_id)
    await stage.fail_over()
    settler = await stage.settler()
    await stage.round(settler, 2)
    await stage.pass_blocks()
    await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


async def forgotten_and_on_its_way(stage: Stage) -> Outcome:
    """Rule 6: the same, but it lands only after the failover."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    await stage.faults(NEVER_ARRIVES)
    settler = await stage.settler()
    await settler.sign()
    await stage.faults()
    (forgotten,) = await stage.attempts(payment_id)
    await stage.forget_attempts(payment_id)
    await stage.fail_over()
    await stage.next_block()
    await stage.round(settler, 2)
    await settler.chain.send(forgotten["raw"])
    await stage.pass_blocks()
    await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


async def somebody_writes_its_memo(stage: Stage) -> Outcome:
    """Rule 6: a stranger sends a little to the wallet, with the payment's id as the memo."""
    agent = await stage.agent()
    settler = await stage.settler()
    await stage.round(settler)
    first = await stage.spend(agent)
    await stage.round(settler, 2)
    assert await stage.status(first) == "settled"
    payment_id = await stage.spend(agent)
    stranger = await stage.rpc.wallet(micros=1_000_000)
    async with stage.db.connection() as tx:
        owner = await tx.fetchval("SELECT address FROM wallet WHERE agent_id = $1", agent["id"])
    blockhash = await stage.rpc.blockhash("confirmed")
    for micros in (1, 1_000):
        await stage.rpc.send(
            foreign_payment(stranger, Pubkey.from_string(owner), micros, blockhash, payment_id)
        )
    await stage.fail_over()
    await stage.round(settler)
    await stage.pass_blocks()
    await stage.round(settler, 3)
    return await _outcome(stage, agent, payment_id)


async def stored_after_a_failover(stage: Stage) -> Outcome:
    """Rule 6: signed before the failover, stored after it, while another worker's payment of the
    same spend was forgotten in between."""
    agent = await stage.agent()
    payment_id = await stage.spend(agent)
    slow, quick = await stage.settler(), await stage.settler()
    sign = stage.vault.sign

    async def overslept(*arguments: Any) -> Any:
        signed = await sign(*arguments)
        stage.vault.sign = sign  # type: ignore[method-assign]
        await stage.next_block()
        await stage.due()
        await quick.sign()
        await stage.forget_attempts(payment_id)
        async with stage.db.connection() as tx:
            timeline = await watch_store.timeline(tx)

        # Now the database itself says so, as it would after a promotion.
        async def another(_: Tx) -> str:
            return f"{timeline}, promoted"

        watch_store.timeline = another
        return signed

    timeline_of = watch_store.timeline
    stage.vault.sign = overslept  # type: ignore[method-assign]
    try:
        await stage.due()
        await slow.sign()
        await stage.round(quick)
        await stage.pass_blocks()
        await stage.round(quick, 3)
    finally:
        watch_store.timeline = timeline_of
    return await _outcome(stage, agent, payment_id)
