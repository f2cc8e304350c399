"""Withdrawals over HTTP, from the reservation to the token account of the destination."""

from collections.abc import AsyncGenerator

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from bursar.service.postgres import EmbeddedPostgres
from tests.localnet.support import MINT
from tests.settlement.stage import Stage, get, running_stage, token_account_of
from tests.support import error_of, new_account, new_agent, spend

TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
# Of the contract, in its order.
FIELDS = [
    "id",
    "agentId",
    "amount",
    "currency",
    "destination",
    "status",
    "signature",
    "blockTime",
    "failureCode",
    "memo",
    "metadata",
    "network",
    "createdBy",
    "createdAt",
    "settledAt",
    "feeLamports",
    "rentLamports",
]


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("withdrawals")) as running:
        yield running


def somebody() -> str:
    return str(Keypair().pubkey())


async def test_a_withdrawal_reserves_at_once_and_arrives(stage: Stage):
    """Goal: every field as the contract has it, before and after; the money is where it belongs."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10", policy={"dailyCap": "1.00", "allowlist": []})
        to = somebody()
        made = await stage.withdraw(
            client, agent["id"], "7.5", to, memo="rent", metadata={"month": "11"}
        )
        assert list(made) == FIELDS
        assert made["status"] == "pending"
        assert made["amount"] == "7.500000"
        assert (made["currency"], made["network"]) == ("USDC", "localnet")
        assert (made["memo"], made["metadata"]) == ("rent", {"month": "11"})
        assert made["createdBy"].startswith("key_")
        assert all(
            made[name] is None for name in ("signature", "blockTime", "failureCode", "settledAt")
        )
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["reserved"], wallet["available"]) == ("7.500000", "2.500000")

        settled = await stage.ended(client, made["id"])
        assert settled["status"] == "settled"
        assert settled["settledAt"] is not None
        assert await stage.tokens(to) == 7_500_000
        shown = await stage.rpc(
            "getTransaction", settled["signature"], {"maxSupportedTransactionVersion": 0}
        )
        assert shown["blockTime"] == settled["blockTime"]
        assert made["id"] in shown["meta"]["logMessages"].__str__()
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["balance"], wallet["reserved"]) == ("2.500000", "0.000000")
        # A withdrawal counts towards no cap.
        budget = await get(client, f"/v1/agents/{agent['id']}/budget")
        assert budget["spentToday"] == "0.000000"
        (event,) = await stage.events(agent["id"], "withdrawal.settled")
        assert event[1] == settled


async def test_what_is_no_destination_is_refused_with_the_reason(stage: Stage):
    """Goal: 400 names the destination and says why; nothing is reserved."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        path = f"/v1/wallets/{agent['id']}/withdraw"
        vault = token_account_of(somebody())  # an address that no key has
        assert not Pubkey.from_string(vault).is_on_curve()
        own = (await stage.wallet(client, agent["id"]))["address"]
        for destination, said in (
            (vault, "allowOffCurve"),
            (own, "this wallet itself"),
            ("api.example.com", "base58"),
            ("1111", "base58"),
            (somebody()[:-1] + "0", "base58"),
        ):
            body = {"amount": "1", "destination": destination}
            error = error_of(await client.post(path, json=body), 400, "validation_error")
            assert error["param"] == "destination", destination
            assert said in error["message"] or said in str(error.get("details")), error
        for amount in ("0", "-1", "1.0000001", "1e3", ""):
            body = {"amount": amount, "destination": somebody()}
            error = error_of(await client.post(path, json=body), 400, "validation_error")
            assert error["param"] == "amount"
        # The wallet itself is not a vault either.
        body = {"amount": "1", "destination": own, "allowOffCurve": True}
        error_of(await client.post(path, json=body), 400, "validation_error")
        assert (await stage.wallet(client, agent["id"]))["reserved"] == "0.000000"


async def test_a_vault_is_paid_when_asked_for(stage: Stage):
    """Goal: allowOffCurve pays an address that is off the curve and holds nothing yet."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        vault, _ = Pubkey.find_program_address([b"vault"], MINT)
        made = await stage.withdraw(client, agent["id"], "1", str(vault), allowOffCurve=True)
        assert (await stage.ended(client, made["id"]))["status"] == "settled"
        assert await stage.tokens(str(vault)) == 1_000_000


async def test_no_more_than_is_available(stage: Stage):
    """Goal: 409 to the micro-unit, also when something is reserved; all of it can be taken."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "5")
        assert (await spend(client, agent["id"], "2"))["status"] == "approved"
        path = f"/v1/wallets/{agent['id']}/withdraw"
        body = {"amount": "3.000001", "destination": somebody()}
        error = error_of(await client.post(path, json=body), 409, "insufficient_funds")
        assert "3.000000" in error["message"]
        made = await stage.withdraw(client, agent["id"], "3", somebody())
        error_of(
            await client.post(path, json={"amount": "0.000001", "destination": somebody()}),
            409,
            "insufficient_funds",
        )
        assert (await stage.ended(client, made["id"]))["status"] == "settled"


@pytest.mark.parametrize("kind", ["token account", "program", "mint"])
async def test_a_destination_that_is_no_wallet_fails_and_gives_back(stage: Stage, kind: str):
    """Goal: failed with destination_invalid, nothing signed, all available again, one event."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "4")
        owner = await stage.rpc.wallet(micros=1)
        destination = {
            "token account": token_account_of(str(owner.pubkey())),
            "program": TOKEN_PROGRAM,
            "mint": str(MINT),
        }[kind]
        made = await stage.withdraw(client, agent["id"], "4", destination, allowOffCurve=True)
        failed = await stage.ended(client, made["id"])
        assert (failed["status"], failed["failureCode"]) == ("failed", "destination_invalid")
        assert failed["signature"] is None
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["available"], wallet["status"]) == ("4.000000", "funded")
        assert [e for e in await stage.events(agent["id"]) if e[0].startswith("withdrawal.")] == [
            ("withdrawal.failed", failed)
        ]
        async with stage.db.connection() as tx:
            assert await tx.fetchval("SELECT attempts FROM payment WHERE id = $1", made["id"]) == 0


async def test_a_terminated_agent_can_still_be_emptied(stage: Stage):
    """Goal: paused, frozen and terminated stop spends, never the way out for the money."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "3")
        await client.patch(
            f"/v1/agents/{agent['id']}", json={"status": "paused", "policy": {"frozen": True}}
        )
        first = await stage.withdraw(client, agent["id"], "1", somebody())
        assert (await stage.ended(client, first["id"]))["status"] == "settled"
        second = await stage.withdraw(client, agent["id"], "1", somebody())
        await client.delete(f"/v1/agents/{agent['id']}")
        assert (await stage.ended(client, second["id"]))["status"] == "settled"
        third = await stage.withdraw(client, agent["id"], "1", somebody())
        assert (await stage.ended(client, third["id"]))["status"] == "settled"
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["balance"], wallet["status"]) == ("0.000000", "depleted")
        # Nothing about a wallet fires after termination.
        assert await stage.events(agent["id"], "wallet.depleted") == []
        assert len(await stage.events(agent["id"], "withdrawal.settled")) == 3


async def test_lists_pages_and_who_may_look(stage: Stage):
    """Goal: newest first, each once; an agent key sees its own, others get 404 or 403."""
    account = new_account()
    async with await stage.service.admin(account=account) as client:
        agent = await stage.funded_agent(client, "10")
        other = await new_agent(client)
        made = [await stage.withdraw(client, agent["id"], "1", somebody()) for _ in range(5)]
        path = f"/v1/wallets/{agent['id']}/withdrawals"
        seen: list[str] = []
        after = ""
        while True:
            page = (await client.get(f"{path}?limit=2{after}")).json()
            seen += [row["id"] for row in page["data"]]
            if not page["hasMore"]:
                break
            after = f"&after={page['nextCursor']}"
        assert seen == [row["id"] for row in reversed(made)]
        assert await get(client, f"/v1/withdrawals/{made[0]['id']}") == made[0]
        assert await get(client, f"/v1/wallets/{other['id']}/withdrawals") == []

        keys = {
            scope: await stage.service.key(account=account, scope=scope, agent_id=agent_id)
            for scope, agent_id in (("read", None), ("approver", None), ("agent", agent["id"]))
        }
        own_body = {"amount": "1", "destination": somebody()}
        for key in keys.values():
            async with stage.service.client(key) as reader:
                assert len(await get(reader, path)) == 5
                assert await get(reader, f"/v1/withdrawals/{made[1]['id']}") == made[1]
                answer = await reader.post(f"/v1/wallets/{agent['id']}/withdraw", json=own_body)
                error_of(answer, 403, "forbidden")
        stranger = await stage.service.key(account=account, scope="agent", agent_id=other["id"])
        for key in (stranger, await stage.service.key(account=new_account())):
            async with stage.service.client(key) as reader:
                for hidden in (path, f"/v1/withdrawals/{made[0]['id']}"):
                    error_of(await reader.get(hidden), 404, "not_found")
        for wrong in ("wdr_x", "wdr_00000000000000000000000000", made[0]["id"].upper()):
            error_of(await client.get(f"/v1/withdrawals/{wrong}"), 404, "not_found")


async def test_one_key_one_withdrawal(stage: Stage):
    """Goal: the same Idempotency-Key reserves once; another request with it is refused."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        path = f"/v1/wallets/{agent['id']}/withdraw"
        headers = {"Idempotency-Key": "rent-november"}
        body = {"amount": "2", "destination": somebody()}
        first = await client.post(path, json=body, headers=headers)
        again = await client.post(path, json=body, headers=headers)
        assert first.json() == again.json()
        assert again.headers["idempotent-replayed"] == "true"
        other = await client.post(path, json={**body, "amount": "3"}, headers=headers)
        error_of(other, 422, "idempotency_key_reused")
        assert (await stage.wallet(client, agent["id"]))["reserved"] == "2.000000"
