"""The test faucet: credited when it answers, once per key, within its limits."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from bursar.clock import SystemClock
from bursar.ids import new_id
from bursar.ledger import book, lock
from bursar.policy.cache import PolicyCache
from bursar.service.api import Api
from bursar.service.postgres import EmbeddedPostgres
from bursar.wallet import store as wallet_store
from tests.processes import until
from tests.settlement.stage import Stage, balance, get, running_stage, token_account_of
from tests.support import error_of, new_account, new_agent, spend

FIELDS = [
    "id",
    "agentId",
    "amount",
    "currency",
    "sender",
    "signature",
    "blockTime",
    "status",
    "createdAt",
    "creditedAt",
]


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("faucet")) as running:
        yield running


async def test_the_faucet_answers_when_it_is_credited(stage: Stage):
    """Goal: 201 with every field; the next spend can use it; a mint has no sender."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        deposit = await stage.fund(client, agent["id"], "12.5")
        assert list(deposit) == FIELDS
        assert (deposit["amount"], deposit["currency"]) == ("12.500000", "USDC")
        assert deposit["sender"] is None
        assert deposit["creditedAt"] is not None
        shown = await stage.rpc(
            "getTransaction", deposit["signature"], {"maxSupportedTransactionVersion": 0}
        )
        assert shown["blockTime"] == deposit["blockTime"]
        assert await stage.tokens(agent["wallet"]["address"]) == 12_500_000
        assert (await spend(client, agent["id"], "12.5"))["status"] == "approved"
        assert await get(client, f"/v1/wallets/{agent['id']}/deposits") == [deposit]


async def test_a_deposit_is_not_credited_before_it_is_noticed(stage: Stage):
    """Goal: creditedAt is not before createdAt, though the faucet writes the deposit down while
    the watcher holds the wallet's lock, whose moment is the older one."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
    signature = await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
    async with stage.db.transaction() as watcher:
        realm_id = await watcher.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent["id"])
        locked = await lock.lock_agents(watcher, [agent["id"]], [realm_id])
        moment = locked[agent["id"]].wallet.now

        async def later() -> bool:
            return await watcher.fetchval("SELECT moment() > $1", moment)

        await until(later, seconds=60)
        async with stage.db.connection() as faucet:
            noticed = await wallet_store.insert_deposit(
                faucet,
                deposit_id=new_id("dep"),
                realm_id=realm_id,
                agent_id=agent["id"],
                amount_micros=7,
                token_account=token_account_of(agent["wallet"]["address"]),
                signature=signature,
            )
        credited = await wallet_store.credit_deposit(
            watcher, noticed.id, amount_micros=7, sender=None, block_time=None, at=moment
        )
        locked[agent["id"]].wallet.deposit(noticed.id, 7)
        await book.save_balances(watcher, PolicyCache(), list(locked.values()))
    assert credited is not None
    assert credited.credited_at == noticed.created_at > moment


async def test_the_faucet_once_per_key(stage: Stage):
    """Goal: the same Idempotency-Key mints once, in turn and at the same time."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "first-money"}
        first, second = await asyncio.gather(
            *(client.post(path, json={"amount": "5"}, headers=headers) for _ in range(2))
        )
        third = await client.post(path, json={"amount": "5"}, headers=headers)
        assert first.json() == second.json() == third.json()
        assert third.headers["idempotent-replayed"] == "true"
        assert await balance(client, agent) == "5.000000"
        other = await client.post(path, json={"amount": "6"}, headers=headers)
        error_of(other, 422, "idempotency_key_reused")


async def test_the_faucet_once_per_key_in_every_process(stage: Stage):
    """Goal: two processes that are asked at the same time mint once and give one answer."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "shared"}
        api = await Api.start(stage.service.config, SystemClock())
        try:
            elsewhere = f"http://127.0.0.1:{api.port}{path}"
            first, second = await asyncio.gather(
                *(
                    client.post(url, json={"amount": "5"}, headers=headers)
                    for url in (path, elsewhere)
                )
            )
        finally:
            await api.stop()
        assert (first.status_code, second.status_code) == (201, 201)
        assert first.json() == second.json()
        assert await stage.tokens(agent["wallet"]["address"]) == 5_000_000
        assert await balance(client, agent) == "5.000000"


async def test_a_mint_whose_answer_is_lost_is_not_made_again(stage: Stage):
    """Goal: whatever dies between the mint and its record, the same key finds what was minted."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "k"}
        rule = {"action": "drop", "methods": ["bursar_faucet"], "at": "answer"}
        await stage.rpc("bursar_faults", {"rules": [rule]})
        answer = await client.post(path, json={"amount": "1"}, headers=headers)
        await stage.rpc("bursar_faults", {})
        error_of(answer, 503, "unavailable")
        assert await stage.tokens(agent["wallet"]["address"]) == 1_000_000
        # It may have been noticed on the chain before it is asked for again.
        await stage.work()
        made = await client.post(path, json={"amount": "1"}, headers=headers)
        assert made.status_code == 201
        assert made.json()["data"]["status"] == "credited"
        assert await get(client, f"/v1/wallets/{agent['id']}/deposits") == [made.json()["data"]]
        assert await balance(client, agent) == "1.000000"
        # Another key, and none, are other requests.
        for other in ({"Idempotency-Key": "l"}, {}):
            again = await client.post(path, json={"amount": "1"}, headers=other)
            assert again.status_code == 201
        assert await balance(client, agent) == "3.000000"


async def test_the_faucets_key_comes_before_its_wallet(stage: Stage):
    """Goal: a key that stands for another request is 422 even where there is no such agent."""
    async with await stage.service.admin() as client:
        agent, nobody = await new_agent(client), "ag_00000000000000000000000000"
        headers = {"Idempotency-Key": "k"}
        path = "/v1/test/wallets/{}/fund"
        missing = await client.post(path.format(nobody), json={"amount": "1"}, headers=headers)
        error_of(missing, 404, "not_found")
        made = await client.post(path.format(agent["id"]), json={"amount": "1"}, headers=headers)
        assert made.status_code == 201
        reused = await client.post(path.format(nobody), json={"amount": "1"}, headers=headers)
        error_of(reused, 422, "idempotency_key_reused")


async def test_the_faucet_has_limits(stage: Stage):
    """Goal: over 1,000,000 is 400, live mode is 404, other agents are 404, other scopes 403."""
    account = new_account()
    async with await stage.service.admin(account=account) as client:
        agent = await new_agent(client)
        path = f"/v1/test/wallets/{agent['id']}/fund"
        for amount in ("1000000.000001", "2000000", "0", "-1", "1e2"):
            answer = await client.post(path, json={"amount": amount})
            error = error_of(answer, 400, "validation_error")
            assert error["param"] == "amount"
        assert (await client.post(path, json={"amount": "1000000"})).status_code == 201
        async with await stage.service.admin() as stranger:
            error_of(await stranger.post(path, json={"amount": "1"}), 404, "not_found")
        for scope in ("read", "approver"):
            key = await stage.service.key(account=account, scope=scope)
            async with stage.service.client(key) as reader:
                error_of(await reader.post(path, json={"amount": "1"}), 403, "forbidden")
    async with await stage.service.admin(mode="live") as live:
        agent = await new_agent(live)
        answer = await live.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "1"})
        error_of(answer, 404, "not_found")


async def test_a_chain_that_is_away_is_503_and_changes_nothing(stage: Stage):
    """Goal: unavailable with Retry-After; once the chain is back the same key works, once."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        path, headers = f"/v1/test/wallets/{agent['id']}/fund", {"Idempotency-Key": "k"}
        rule = {"action": "drop", "methods": ["bursar_faucet"], "at": "request"}
        await stage.rpc("bursar_faults", {"rules": [rule]})
        answer = await client.post(path, json={"amount": "1"}, headers=headers)
        await stage.rpc("bursar_faults", {})
        assert error_of(answer, 503, "unavailable")["retryable"]
        assert int(answer.headers["retry-after"]) >= 1
        assert await get(client, f"/v1/wallets/{agent['id']}/deposits") == []
        assert (await client.post(path, json={"amount": "1"}, headers=headers)).status_code == 201
        assert await balance(client, agent) == "1.000000"


async def test_a_chain_that_goes_away_after_the_mint_loses_nothing(stage: Stage):
    """Goal: what was minted is answered as it stands and credited later, once."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        away = {"action": "drop", "methods": ["getSignaturesForAddress"], "count": 6}
        await stage.rpc("bursar_faults", {"rules": [away]})
        answer = await client.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "1"})
        await stage.rpc("bursar_faults", {})
        assert answer.status_code == 201, answer.text
        await stage.work()
        assert await balance(client, agent) == "1.000000"
        assert len(await get(client, f"/v1/wallets/{agent['id']}/deposits")) == 1
