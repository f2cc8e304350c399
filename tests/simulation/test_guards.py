"""Spends are decided on what a process remembers; the write finds out whether that still holds."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from bursar.access.model import IdempotencyKey
from bursar.config import load_config
from bursar.db import Database, Tx
from bursar.ledger import lock
from bursar.policy.cache import PolicyCache
from bursar.policy.engine import RejectCode
from bursar.recipient.resolve import Directory
from bursar.service.postgres import ADMIN_ROLE
from bursar.settlement import payment_store
from bursar.spend import authorise, memory, store
from bursar.spend.authorise import Authorised, Authoriser
from bursar.spend.close import reject_spends
from bursar.spend.deciding import SpendRequest
from bursar.spend.model import bounds_of
from tests.simulation.meters import replay_fleet
from tests.simulation.replay import replay_agent
from tests.simulation.world import HOST, LONG, World, assert_clean, make_agent

SPENDS = 3_000 if LONG else 300


@pytest.fixture
async def agents(world: World) -> list[str]:
    """A few with a cap, funds, and a payee that was paid before."""
    connection = world.connect(await world.admin_key())
    made = [(await make_agent(connection, dailyCap="5.00"))["id"] for _ in range(4)]
    connection.close()
    for number, agent_id in enumerate(made):
        # Some run out of funds, the others reach their cap.
        await world.service.fund(agent_id, ("4.50", "9.00")[number % 2])
    await world.note_payee(made[0])
    return made


async def _realm(db: Database, agent_id: str) -> int:
    async with db.connection() as tx:
        return await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)


def _authoriser(world: World, *, always_lock: bool = False) -> Authoriser:
    return Authoriser(
        world.db,
        PolicyCache(),
        Directory(),
        bounds_of(load_config({})),
        approval_seconds=60,
        always_lock=always_lock,
    )


def _request(realm_id: int, agent_id: str, micros: int) -> SpendRequest:
    return SpendRequest(
        realm_id=realm_id,
        mode="test",
        agent_id=agent_id,
        amount_micros=micros,
        recipient=HOST,
        memo=None,
        metadata={},
        created_by="key_01k9zz0000000000000000test",
        network="localnet",
        key=None,
    )


def _status(answer: Authorised) -> str:
    data: dict[str, Any] = msgspec.json.decode(answer.body)["data"]
    return data["rejectCode"] or data["status"]


async def _release_one(db: Database, realm_id: int, agent_id: str) -> None:
    """A payment failed for good: an approved spend gives its amount back."""

    async def work(tx: Tx) -> None:
        locked = await lock.lock_agents(tx, [agent_id], [realm_id])
        spend_id = await tx.fetchval(
            "SELECT id FROM spend WHERE agent_id = $1 AND status = 'approved' LIMIT 1", agent_id
        )
        if spend_id is not None:
            await payment_store.fail_payment(tx, spend_id, "failed for good", "waiting")
            await reject_spends(
                tx,
                locked[agent_id].wallet,
                [spend_id],
                expected="approved",
                code=RejectCode.SETTLEMENT_FAILED,
                decided_by=None,
                reason=None,
            )

    await db.transact(work)


@pytest.mark.timeout(1800 if LONG else 900)
async def test_every_wallet_moves_between_the_decision_and_the_write(
    world: World, agents: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Goal: with somebody else's spend, or a release, between each decision and its write, nothing
    passes the cap or the funds, nothing that fits is refused, and all of it can be explained."""
    realm_id = await _realm(world.db, agents[0])
    deciding, meddling = _authoriser(world), _authoriser(world, always_lock=True)
    write, meddled = store.write_spends, itertools.count(1)
    found: Counter[str] = Counter()

    async def write_after_meddling(tx: Tx, life: str, locked_at: datetime | None, *rest: Any):
        touched = rest[1].agent_ids
        if locked_at is None:
            for agent_id in touched:
                number = next(meddled)
                if number % 3 == 0:
                    await _release_one(world.db, realm_id, agent_id)
                else:
                    request = _request(realm_id, agent_id, 10_000 + number)
                    found["meddling " + _status(await meddling.authorise(request))] += 1
        written = await write(tx, life, locked_at, *rest)
        found["missed"] += len(touched) - len(written)
        return written

    monkeypatch.setattr(store, "write_spends", write_after_meddling)
    for start in range(0, SPENDS, 12):
        requests = [
            _request(realm_id, agents[n % len(agents)], 20_000 + 7_919 * n % 300_000)
            for n in range(start, start + 12)
        ]
        for answer in await _one_then_the_others(deciding, requests):
            found[_status(answer)] += 1
    monkeypatch.undo()
    print(dict(found))
    assert found["missed"] > 0, "the guard was never needed"
    for outcome in ("approved", "daily_cap_exceeded", "insufficient_funds"):
        assert found[outcome] > 0, found
    for agent_id in agents:
        await replay_agent(world.db, agent_id, bounds_of(load_config({})))
    await assert_clean(world.db)


async def test_an_exhausted_agent_goes_on_refusing_without_a_miss(
    world: World, agents: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Goal: while other spends of an exhausted agent settle or are refused elsewhere, its refusals
    are written at the first try: the numbers moved, what they mean did not."""
    agent_id = agents[0]
    realm_id = await _realm(world.db, agent_id)
    deciding, elsewhere = _authoriser(world), _authoriser(world)
    await deciding.authorise(_request(realm_id, agent_id, 4_400_000))
    misses: list[int] = []
    write = store.write_spends

    async def counted(tx: Tx, life: str, locked_at: datetime | None, *rest: Any):
        written = await write(tx, life, locked_at, *rest)
        if locked_at is None:
            misses.append(len(rest[1].agent_ids) - len(written))
        return written

    assert _status(await deciding.authorise(_request(realm_id, agent_id, 300_000))) == (
        "insufficient_funds"
    )
    monkeypatch.setattr(store, "write_spends", counted)
    for number in range(20):
        # It takes a little of what is left, so every number that the first one remembers is old.
        small = await elsewhere.authorise(_request(realm_id, agent_id, 100 + number))
        assert _status(small) == "approved"
        refused = await deciding.authorise(_request(realm_id, agent_id, 300_000))
        assert _status(refused) == "insufficient_funds"
    assert len(misses) >= 40
    # What `elsewhere` knows moves too, but its approvals fit all the same.
    assert sum(misses) == 0


async def test_a_limited_wallet_that_missed_sends_no_other_back(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Goal: limits that nobody shares tie no wallets together. Where one of a batch has other rules
    by now, or has used more of its limit, the others are written at once, and explained by their
    own numbers."""
    connection = world.connect(await world.admin_key())
    limits = [{"window": "day", "amount": "1.00"}]
    made = [(await make_agent(connection, dailyCap="5.00", limits=limits))["id"] for _ in range(4)]
    for agent_id in made:
        await world.service.fund(agent_id, "5")
    await world.note_payee(made[0])
    realm_id = await _realm(world.db, made[0])
    deciding, elsewhere = _authoriser(world), _authoriser(world)
    for number, agent_id in enumerate(made):
        first = await deciding.authorise(_request(realm_id, agent_id, 100_000 + number))
        assert _status(first) == "approved"
    changed, exhausted, *others = made
    write, written = store.write_spends, list[set[str]]()
    meddled = itertools.count()

    async def write_late(tx: Tx, life: str, locked_at: datetime | None, *rest: Any):
        if next(meddled) == 0:
            async with world.db.connection() as other:
                await other.execute(
                    "UPDATE wallet SET rules = rules + 1 WHERE agent_id = $1", changed
                )
            used_up = await elsewhere.authorise(_request(realm_id, exhausted, 800_000))
            assert _status(used_up) == "approved"
        found = await write(tx, life, locked_at, *rest)
        written.append(set(found))
        return found

    # The first makes a batch of its own, during which the others gather.
    ahead = asyncio.create_task(deciding.authorise(_request(realm_id, others[0], 1)))
    await asyncio.sleep(0)
    monkeypatch.setattr(store, "write_spends", write_late)
    answers = await asyncio.gather(
        *(deciding.authorise(_request(realm_id, agent_id, 200_000)) for agent_id in made)
    )
    monkeypatch.undo()
    await ahead
    connection.close()
    assert [_status(answer) for answer in answers] == [
        "approved", "limit_exceeded", "approved", "approved",
    ]  # fmt: skip
    assert set(others) in written, written
    for number, answer in enumerate(answers[2:], start=2):
        checks = msgspec.json.decode(answer.body)["data"]["decision"]["checks"]
        (check,) = [check for check in checks if check["rule"] == "limit"]
        before = 100_000 + number + (1 if made[number] == others[0] else 0)
        assert check["observed"] == f"0.{before + 200_000:06d}"
    await replay_fleet(world.db, realm_id)
    await assert_clean(world.db)


async def _plain_and_limited(world: World, limit: dict[str, str]) -> tuple[str, str]:
    """Two agents with money and a known payee, the second under this limit."""
    connection = world.connect(await world.admin_key())
    plain = (await make_agent(connection, dailyCap="5.00"))["id"]
    limited = (await make_agent(connection, dailyCap="5.00", limits=[limit]))["id"]
    connection.close()
    for agent_id in (plain, limited):
        await world.service.fund(agent_id, "5")
    await world.note_payee(plain)
    return plain, limited


async def test_what_was_written_is_not_written_again_because_of_a_neighbours_key(world: World):
    """Goal: of a batch the spends under limits are written after the others. Where one of them has
    a key that another process used, all that was written before it stays written once, also a
    spend without a key, which nothing else would keep from being made twice."""
    limit = {"window": "day", "amount": "4.00"}
    plain, limited = await _plain_and_limited(world, limit)
    realm_id = await _realm(world.db, plain)
    deciding, elsewhere = _authoriser(world), _authoriser(world)
    place = (realm_id, "POST /v1/spend/authorise", limited, "used elsewhere")
    keyed = msgspec.structs.replace(
        _request(realm_id, limited, 300_000), key=IdempotencyKey(*place, bytes(32))
    )
    first = await elsewhere.authorise(keyed)
    for agent_id in (plain, limited):  # so that it knows both
        await deciding.authorise(_request(realm_id, agent_id, 100_000))
    ahead = asyncio.create_task(deciding.authorise(_request(realm_id, limited, 50_000)))
    await asyncio.sleep(0)
    answers = await asyncio.gather(
        deciding.authorise(_request(realm_id, plain, 200_000)), deciding.authorise(keyed)
    )
    await ahead
    assert _status(answers[0]) == "approved"
    assert answers[1].replayed
    assert answers[1].body == first.body
    async with world.db.connection() as tx:
        amounts = "SELECT amount_micros FROM spend WHERE agent_id = $1 ORDER BY amount_micros"
        assert [row[0] for row in await tx.fetch(amounts, plain)] == [100_000, 200_000]
        assert [row[0] for row in await tx.fetch(amounts, limited)] == [50_000, 100_000, 300_000]
    await assert_clean(world.db)


async def test_meters_that_are_forgotten_while_neighbours_are_written(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Goal: of a batch the spends under limits are written after the others. What another batch
    makes this process forget meanwhile fails none of them."""
    limit = {"window": "day", "amount": "4.00", "recipient": HOST}
    plain, limited = await _plain_and_limited(world, limit)
    realm_id = await _realm(world.db, plain)
    deciding = _authoriser(world)
    for agent_id in (plain, limited):  # so that it knows both
        await deciding.authorise(_request(realm_id, agent_id, 100_000))
    write, batches = store.write_spends, list[set[str]]()

    async def write_and_forget(tx: Tx, *rest: Any):
        found = await write(tx, *rest)
        batches.append(set(found))
        if plain in found:
            known = deciding._memory  # pyright: ignore[reportPrivateUsage]
            known.forget_meters(list(known._meters))  # pyright: ignore[reportPrivateUsage]
        return found

    ahead = asyncio.create_task(deciding.authorise(_request(realm_id, limited, 50_000)))
    await asyncio.sleep(0)
    monkeypatch.setattr(store, "write_spends", write_and_forget)
    both = (_request(realm_id, agent_id, 200_000) for agent_id in (plain, limited))
    answers = await asyncio.gather(*map(deciding.authorise, both))
    monkeypatch.undo()
    await ahead
    assert [_status(answer) for answer in answers] == ["approved", "approved"]
    assert batches[-2:] == [{plain}, {limited}]
    await assert_clean(world.db)


async def _one_then_the_others(
    deciding: Authoriser, requests: Sequence[SpendRequest]
) -> list[Authorised]:
    """One that comes alone is written by other statements than those that come together."""
    alone = await deciding.authorise(requests[0])
    return [alone, *await asyncio.gather(*map(deciding.authorise, requests[1:]))]


@asynccontextmanager
async def _another_life(world: World) -> AsyncGenerator[None]:
    """The server's life as a failover makes it another one: what `server_life` says changes."""
    async with world.db.transaction() as tx:
        source = await tx.fetchval("SELECT pg_get_functiondef('server_life'::regproc)")
        await tx.execute(
            "CREATE OR REPLACE FUNCTION server_life() RETURNS text LANGUAGE plpgsql STABLE"
            " AS $$ BEGIN RETURN 'another life'; END $$"
        )
    yield
    async with world.db.transaction() as tx:
        await tx.execute(source)


async def test_numbers_that_repeat_after_a_failover_are_not_believed(
    world: World, agents: list[str]
):
    """Goal: a failover forgot a change and its number was given to another change. What a process
    remembers under that number is not taken for it."""
    agent_id = agents[1]
    realm_id = await _realm(world.db, agent_id)
    deciding = _authoriser(world)
    assert _status(await deciding.authorise(_request(realm_id, agent_id, 10_000))) == "approved"
    # The same version and the same `rules`, but frozen: as only another history can have it.
    await _rewrite_policy(world, "frozen = true", agent_id)
    # In the same life it cannot be told apart.
    assert _status(await deciding.authorise(_request(realm_id, agent_id, 10_000))) == "approved"
    async with _another_life(world):
        refused = await deciding.authorise(_request(realm_id, agent_id, 10_000))
    assert _status(refused) == "policy_frozen"
    await _rewrite_policy(world, "frozen = false", agent_id)


async def _rewrite_policy(world: World, change: str, agent_id: str) -> None:
    async with world.db.connection() as tx:
        database = await tx.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(world.postgres.dsn_for(database, ADMIN_ROLE))
    await admin.execute("SET session_replication_role = replica")
    await admin.execute(f"UPDATE policy SET {change} WHERE agent_id = $1", agent_id)
    await admin.close()


async def test_both_ways_decide_the_same(world: World):
    """Goal: the same requests in the same order, on twins, give the same answers whether they are
    decided on what is remembered or under the lock."""
    connection = world.connect(await world.admin_key())
    policy = {"dailyCap": "3.00", "approvalThreshold": "0.40", "perTransactionCap": "0.90"}
    twins = [(await make_agent(connection, **policy))["id"] for _ in range(2)]
    connection.close()
    for agent_id in twins:
        await world.service.fund(agent_id, "2.80")
    await world.note_payee(twins[0])
    realm_id = await _realm(world.db, twins[0])
    answers: list[list[str]] = []
    for agent_id, always_lock in zip(twins, (False, True), strict=True):
        deciding = _authoriser(world, always_lock=always_lock)
        shown: list[str] = []
        for start in range(0, SPENDS, 10):
            requests = [
                _request(realm_id, agent_id, 1 + 104_729 * n % 950_000)
                for n in range(start, start + 10)
            ]
            for answer in await _one_then_the_others(deciding, requests):
                data = msgspec.json.decode(answer.body)["data"]
                shown.append(f"{data['amount']} {data['status']} {data['rejectCode']}"
                             f" {data['decision']}")  # fmt: skip
        answers.append(shown)
    assert answers[0] == answers[1]


async def test_a_batch_to_more_recipients_than_are_remembered(world: World):
    """Goal: a crowd of requests to ever new recipients is decided, and what is remembered of them
    stays bounded."""
    connection = world.connect(await world.admin_key())
    policy = {"dailyCap": "1000.00", "allowlist": ["*"], "dailyNetworkLamports": 10**12}
    agent_id = (await make_agent(connection, **policy))["id"]
    connection.close()
    await world.service.fund(agent_id, "1000")
    realm_id = await _realm(world.db, agent_id)
    deciding = _authoriser(world)
    for round_ in range(3):
        requests = [
            msgspec.structs.replace(
                _request(realm_id, agent_id, 1), recipient=f"r{round_}-{n % 150}.example.com"
            )
            for n in range(300)
        ]
        answers = await asyncio.gather(*map(deciding.authorise, requests))
        assert {_status(answer) for answer in answers} == {"approved"}
    found = deciding._memory.get(agent_id, realm_id)  # pyright: ignore[reportPrivateUsage]
    assert found is not None
    assert len(found.recipients) <= 20 + 128


async def test_what_was_written_is_never_written_again(
    world: World, agents: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Goal: where an answer cannot be made after the write, its caller gets an error; the spends of
    the batch, of which none has a key, are there once."""
    realm_id = await _realm(world.db, agents[0])
    for always_lock in (False, True):
        deciding = _authoriser(world, always_lock=always_lock)
        for agent_id in agents:
            await deciding.authorise(_request(realm_id, agent_id, 1))
        made, numbers = authorise.show_spend, itertools.count()

        def broken(spend: Any, made: Any = made, numbers: Any = numbers) -> Any:
            if next(numbers) == 3:
                raise RuntimeError("no answer")
            return made(spend)

        before = await _count(world.db, realm_id)
        with monkeypatch.context() as patched:
            patched.setattr(authorise, "show_spend", broken)
            sent = [deciding.authorise(_request(realm_id, a, 7)) for a in agents for _ in range(3)]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(o) for o in outcomes if not isinstance(o, Authorised)] == [RuntimeError]
        assert await _count(world.db, realm_id) - before == len(sent)


async def _count(db: Database, realm_id: int) -> int:
    async with db.connection() as tx:
        return await tx.fetchval("SELECT count(*) FROM spend WHERE realm_id = $1", realm_id)


async def test_an_agent_that_is_forgotten_meanwhile_is_still_found(
    world: World, agents: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Goal: with room for one agent in memory, batches of many are decided, and none is told that
    its agent does not exist."""
    realm_id = await _realm(world.db, agents[0])
    deciding = _authoriser(world)
    monkeypatch.setattr(memory, "_MOST_BYTES", 1)
    for _ in range(5):
        sent = [deciding.authorise(_request(realm_id, a, 1)) for a in agents for _ in range(4)]
        assert {_status(answer) for answer in await asyncio.gather(*sent)} == {"approved"}


async def test_agents_of_two_lives_are_not_decided_together(world: World, agents: list[str]):
    """Goal: what is remembered of one life of the server is worth nothing beside what was read in
    another."""
    realm_id = await _realm(world.db, agents[0])
    deciding = _authoriser(world)
    for agent_id in agents[:2]:
        await deciding.authorise(_request(realm_id, agent_id, 1))
    known = deciding._memory  # pyright: ignore[reportPrivateUsage]
    remembered = known.get(agents[1], realm_id)
    assert remembered is not None
    remembered.life = "an older one"
    await _rewrite_policy(world, "frozen = true", agents[1])
    try:
        # The policy's version is remembered too, under the name that the new life gives it.
        known._policies._known.clear()  # pyright: ignore[reportPrivateUsage]
        # The first makes a batch of its own, the two others are one.
        sent = [deciding.authorise(_request(realm_id, agents[n], 1)) for n in (2, 0, 1)]
        answers = await asyncio.gather(*sent)
        assert [_status(answer) for answer in answers] == ["approved", "approved", "policy_frozen"]
    finally:
        await _rewrite_policy(world, "frozen = false", agents[1])


async def test_another_isolation_level_by_default_still_decides(world: World, agents: list[str]):
    """Goal: a default of the database that the quick way cannot change costs time and nothing
    else."""
    realm_id = await _realm(world.db, agents[0])
    async with world.db.connection() as tx:
        database = await tx.fetchval("SELECT current_database()")
    admin = await asyncpg.connect(world.postgres.dsn_for(database, ADMIN_ROLE))
    await admin.execute(
        f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = 'serializable'"
    )
    try:
        db = await Database.open(world.postgres.dsn, 2, 10)
        deciding = Authoriser(
            db, PolicyCache(), Directory(), bounds_of(load_config({})), approval_seconds=60
        )
        for _ in range(3):
            sent = [deciding.authorise(_request(realm_id, a, 1)) for a in agents]
            assert {_status(answer) for answer in await asyncio.gather(*sent)} == {"approved"}
        await db.close()
    finally:
        await admin.execute(f'ALTER DATABASE "{database}" RESET default_transaction_isolation')
        await admin.close()


async def test_windows_that_were_just_closed_count_as_they_are(world: World, agents: list[str]):
    """Goal: midnight between closing the windows and reading them gives nobody a second day."""
    realm_id = await _realm(world.db, agents[0])
    await _authoriser(world).authorise(_request(realm_id, agents[0], 1_000_000))
    async with world.db.connection() as tx:
        found = (await lock.read_agents(tx, [agents[0]], [realm_id]))[agents[0]]
        found.wallet.now += timedelta(days=1)
        known = memory.Memory(PolicyCache(), Directory(), bounds_of(load_config({})))
        closed = await known.seen(tx, {agents[0]: found}, windows_are_new=True)
        tomorrow = await known.seen(tx, {agents[0]: found})
    assert closed[agents[0]].spent_micros == 1_000_000
    assert tomorrow[agents[0]].spent_micros == 0
    assert not tomorrow[agents[0]].hour_runs
