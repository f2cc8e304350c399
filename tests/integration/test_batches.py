"""What a batch of spends hands to the database, and keys that this process does not remember."""

import asyncio

import asyncpg
import msgspec
import pytest

from bursar.access.model import IdempotencyKey
from bursar.config import load_config
from bursar.cost import store as cost_store
from bursar.db import Database, quoted, records
from bursar.policy.cache import PolicyCache
from bursar.recipient import resolve
from bursar.recipient.resolve import Directory
from bursar.spend import authorise, store
from bursar.spend.authorise import Authorised, Authoriser
from bursar.spend.deciding import SpendRequest
from bursar.spend.model import SpendRow, bounds_of
from bursar.spend.view import Transaction, show_spend
from tests.support import Service, new_account, new_agent

NASTY = [
    "plain", "", "null", "NULL", "a,b", "{}", '"', '\\"', "\\", "\\\\", "a\nb\tc", " leading",
    "trailing ", "it's", "π 🙂", '","', "{1,2}", "--", "\x01\x1f\x7f",
]  # fmt: skip


async def test_rows_arrive_as_they_are(db: Database):
    """Goal: no text, however written, becomes another one, another field or another row, and null
    stays null."""
    texts = [*NASTY, "(", ")", "(1,2)", '"",', ')","(', '\\\\"', None]
    pairs = list(zip(texts, texts[::-1], strict=True))
    async with db.connection() as tx:
        await tx.execute("CREATE TYPE pg_temp.pair AS (number bigint, one text, other text)")
        for given in ([], [(None, None)], pairs, *([(text, text)] for text in texts)):
            made = records(
                f"{number},{quoted(one)},{quoted(other)}"
                for number, (one, other) in enumerate(given)
            )
            found = await tx.fetch("SELECT * FROM unnest($1::text::pg_temp.pair[])", made)
            assert [tuple(row) for row in found] == [
                (number, one, other) for number, (one, other) in enumerate(given)
            ]
        await tx.execute("DROP TYPE pg_temp.pair")


async def test_a_wallet_that_is_held_fails_only_its_own_spends(service: Service):
    """Goal: of one batch, the spends of a wallet that somebody sits on are refused, and all others
    are decided, once each."""
    async with await service.admin() as admin:
        held, free = [(await new_agent(admin))["id"] for _ in range(2)]
    for agent_id in (held, free):
        await service.fund(agent_id, "50")
    async with service.db.connection() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", held)
    asked = [_request(realm_id, agent_id, None) for agent_id in (held, free, held, free, free)]
    assert service.config.database_url is not None
    hasty = await Database.open(service.config.database_url, 2, 3)
    try:
        async with service.db.transaction() as tx:
            await tx.execute("SELECT FROM wallet WHERE agent_id = $1 FOR NO KEY UPDATE", held)
            deciding = _authoriser(hasty)
            outcomes = await asyncio.gather(
                *(deciding.authorise(request) for request in asked), return_exceptions=True
            )
        assert [type(outcome) for outcome in outcomes] == [
            asyncpg.LockNotAvailableError if request.agent_id == held else Authorised
            for request in asked
        ]
        # Nobody was hurried for longer than that: the wallet is free, and the session as before.
        assert isinstance(await deciding.authorise(asked[0]), Authorised)
        async with hasty.connection() as tx:
            assert await tx.fetchval("SHOW lock_timeout") == "2700ms"
    finally:
        await hasty.close()
    async with service.db.connection() as tx:
        count = "SELECT count(*) FROM spend WHERE agent_id = $1"
        assert [await tx.fetchval(count, agent_id) for agent_id in (held, free)] == [1, 3]


async def test_a_key_of_another_process_is_found_by_its_uniqueness(service: Service):
    """Goal: a process that never saw a key answers as the first did, spends nothing twice, and
    the neighbours in the batch lose nothing."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent_id: str = (await new_agent(admin))["id"]
    await service.fund(agent_id, "50")
    async with service.db.connection() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)

    def request(key: str, fingerprint: bytes = bytes(32)) -> SpendRequest:
        place = (realm_id, "POST /v1/spend/authorise", agent_id, key)
        return _request(realm_id, agent_id, IdempotencyKey(*place, fingerprint))

    first, second = (_authoriser(service.db) for _ in range(2))
    made = [await first.authorise(request(f"key {number}")) for number in range(3)]
    again = await asyncio.gather(
        *(second.authorise(request(f"key {number}")) for number in range(5)),
        second.authorise(request("key 0", fingerprint=bytes([1]) * 32)),
        return_exceptions=True,
    )
    answers = [answer for answer in again if isinstance(answer, Authorised)]
    assert [answer.body for answer in answers[:3]] == [answer.body for answer in made]
    assert [answer.replayed for answer in answers] == [True, True, True, False, False]
    assert "different request" in str(again[5])
    # Now it remembers them, and looks first.
    assert (await second.authorise(request("key 4"))).replayed
    async with service.db.connection() as tx:
        assert await tx.fetchval("SELECT count(*) FROM spend WHERE agent_id = $1", agent_id) == 5
        row = await tx.fetchrow("SELECT memo, metadata FROM spend WHERE agent_id = $1", agent_id)
        assert row is not None
        assert tuple(row) == ('a "quoted" \\ memo', '{"a":"\\""}')


async def test_an_answer_says_what_was_found_not_what_was_expected(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    """Goal: the answer to a spend that comes alone is made while it is written. Where another
    process has moved the wallet meanwhile, it shows the numbers of the wallet all the same."""
    async with await service.admin() as admin:
        agent_id: str = (await new_agent(admin))["id"]
    await service.fund(agent_id, "50")
    async with service.db.connection() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent_id)
        # Whose token account is not known to be open is paid by what is decided under locks.
        await cost_store.note_open(tx, {(realm_id, resolve.test_address("api.example.com")): 0})
    shown = 0

    def counting(spend: SpendRow) -> Transaction:
        nonlocal shown
        shown += 1
        return show_spend(spend)

    monkeypatch.setattr(authorise, "show_spend", counting)
    one, other = (_authoriser(service.db) for _ in range(2))
    # How often an answer was made: twice where it was expected to be another.
    made: list[int] = []
    for process in (one, one, one, other, one, one, other, other):
        shown = 0
        answer = await process.authorise(_request(realm_id, agent_id, None))
        made.append(shown)
        told = msgspec.json.decode(answer.body)["data"]
        async with service.db.connection() as tx:
            kept = await store.get_spend(tx, realm_id, told["id"])
        assert kept is not None
        assert told == msgspec.json.decode(msgspec.json.encode(show_spend(kept)))
    # The first of a wallet is decided under its lock.
    assert made == [1, 1, 1, 1, 2, 1, 2, 1]


def _authoriser(db: Database) -> Authoriser:
    return Authoriser(
        db, PolicyCache(), Directory(), bounds_of(load_config({})), approval_seconds=60
    )


def _request(realm_id: int, agent_id: str, key: IdempotencyKey | None) -> SpendRequest:
    return SpendRequest(
        realm_id=realm_id,
        mode="test",
        agent_id=agent_id,
        amount_micros=1_000_000,
        recipient="api.example.com",
        memo='a "quoted" \\ memo',
        metadata={"a": '"'},
        created_by="key_test",
        network="localnet",
        key=key,
    )
