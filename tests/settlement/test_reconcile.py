"""Ledger against chain: what is missing stops a wallet, what is on its way does not."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from solders.keypair import Keypair
from solders.signature import Signature

from bursar.chain.port import ChainOutOfReach
from bursar.chain.solana import Solana
from bursar.errors import ApiError, CommandFailed
from bursar.policy.cache import PolicyCache
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement import books_store
from bursar.settlement.deposits import DepositWatcher
from bursar.settlement.reconcile import (
    MOST_STOPPED_AT_ONCE,
    Reconciler,
    reads_again,
    unexplained,
)
from bursar.settlement.worker import Settler
from bursar.wallet import store as wallet_store
from bursar.wallet.model import WatchedWallet
from tests.localnet.support import MINT
from tests.processes import Finished, bursar, until
from tests.settlement.stage import Stage, adopt, get, running_stage
from tests.settlement.support import in_front_of, nothing_there
from tests.support import new_agent, spend


@pytest.fixture
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    """Of its own for each: the audit looks at everything."""
    async with running_stage(postgres, tmp_path_factory.mktemp("reconcile")) as running:
        yield running


def metric(kind: str) -> float | None:
    labels = {"mode": "test", "kind": kind}
    return REGISTRY.get_sample_value("bursar_wallets_differing", labels)


async def state_of(stage: Stage, payment_id: str) -> str | None:
    async with stage.db.connection() as tx:
        return await tx.fetchval("SELECT state FROM payment WHERE id = $1", payment_id)


async def wallet_frozen(stage: Stage, agent_id: str) -> bool:
    async with stage.db.connection() as tx:
        return await tx.fetchval("SELECT is_frozen FROM wallet WHERE agent_id = $1", agent_id)


async def test_a_theft_stops_the_wallet(stage: Stage):
    """Goal: policy and wallet are frozen by `system` with version and event, in the metric, named
    by the audit; nothing more is signed; when it is whole again payments go on, and the policy
    stays frozen."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        other = await stage.funded_agent(client, "10")
        theft = await stage.steal(agent["id"], 4_000_000)
        for _ in range(2):
            await stage.reconciler.sweep()
        # One look proves nothing; the third does.
        assert not await wallet_frozen(stage, agent["id"])
        await stage.reconciler.sweep()
        assert await wallet_frozen(stage, agent["id"])
        assert metric("short") == 1

        shown = await get(client, f"/v1/agents/{agent['id']}")
        assert shown["policy"]["frozen"]
        assert shown["policy"]["version"] == 2
        newest = (await get(client, f"/v1/agents/{agent['id']}/policies"))[0]
        assert (newest["version"], newest["changedBy"]) == (2, "system")
        ((_, event),) = await stage.events(agent["id"], "agent.policy_updated")
        assert event["policy"]["frozen"]
        assert not event["previousPolicy"]["frozen"]
        assert (await spend(client, agent["id"], "1"))["rejectCode"] == "policy_frozen"

        # A withdrawal is still taken in, and waits; other wallets are not concerned.
        waits = await stage.withdraw(client, agent["id"], "2", str(Keypair().pubkey()))
        goes = await spend(client, other["id"], "2")
        assert (await stage.ended(client, goes["id"]))["status"] == "settled"
        for _ in range(3):
            await stage.work()
        assert await state_of(stage, waits["id"]) in (None, "waiting")
        assert (await get(client, f"/v1/withdrawals/{waits['id']}"))["status"] == "pending"
        assert (await get(client, f"/v1/agents/{agent['id']}"))["policy"]["version"] == 2

        wallet, unknown = await stage.differences()
        assert wallet == (
            f"{agent['id']} holds 4.000000 USDC less at {agent['wallet']['address']} than the"
            " ledger (10.000000) and what is on its way explain"
        )
        assert unknown == (
            f"{agent['id']}: unknown payment of 4.000000 USDC, transaction {theft} (memo not by"
            " Bursar); `bursar adopt` enters it"
        )

        # A person has looked, and enters what happened into the books: they fit again.
        adopted = await adopt_by_command(stage, agent["id"], theft)
        assert adopted.code == 0, adopted.err
        assert "4.000000 USDC" in adopted.out
        assert (await stage.ended(client, waits["id"]))["status"] == "settled"
        # One look at a node that is behind proves nothing here either.
        for _ in range(3):
            await stage.reconciler.sweep()
        assert not await wallet_frozen(stage, agent["id"])
        assert metric("short") == 0
        wallet = await stage.wallet(client, agent["id"])
        assert (wallet["balance"], wallet["reserved"]) == ("4.000000", "0.000000")
        # The policy stays frozen until a person says otherwise.
        assert (await get(client, f"/v1/agents/{agent['id']}"))["policy"]["frozen"]
        assert await stage.differences() == []
        with pytest.raises(CommandFailed, match="in the books already"):
            await adopt(stage, agent["id"], theft)


async def adopt_by_command(stage: Stage, agent_id: str, signature: str) -> Finished:
    assert stage.config.database_url is not None
    return await bursar(
        "adopt",
        agent_id,
        signature,
        database_url=stage.config.database_url,
        data_dir=str(stage.config.data_dir),
        localnet_port=str(stage.config.localnet_port),
    )


async def test_only_what_left_is_adopted(stage: Stage):
    """Goal: not a deposit, not our own payment, nothing unknown, not more than is available."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        deposit = (await get(client, f"/v1/wallets/{agent['id']}/deposits"))[0]["signature"]
        made = await spend(client, agent["id"], "1")
        ours = (await stage.ended(client, made["id"]))["signature"]
        theft = await stage.steal(agent["id"], 3_000_000)
        await spend(client, agent["id"], "8")  # reserved, so that 1 is left
        for signature, said in (
            (deposit, "took no USDC out"),
            (ours, "in the books already"),
            (str(Signature.default()), "no finalized transaction"),
            (theft, "1.000000 USDC available"),
        ):
            with pytest.raises((CommandFailed, ApiError), match=said):
                await adopt(stage, agent["id"], signature)
        assert (await stage.wallet(client, agent["id"]))["balance"] == "9.000000"


# Nodes that are wrong -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def reconciler_at(stage: Stage, *urls: str) -> AsyncGenerator[Reconciler]:
    chain = Solana.open(urls, 2, 0)
    try:
        yield Reconciler(
            stage.db, DepositWatcher(stage.db, chain, PolicyCache(), "test", str(MINT), 600)
        )
    finally:
        await chain.close()


async def frozen(client: Any, agent: dict[str, Any]) -> bool:
    return (await get(client, f"/v1/agents/{agent['id']}"))["policy"]["frozen"]


async def test_one_node_that_answers_null_freezes_nothing(stage: Stage):
    """Goal: while another node shows the money, nothing is stopped; nor while that is silent."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")
        async with in_front_of(stage.rpc, nothing_there) as liar:
            for other in (stage.rpc.url, "http://127.0.0.1:1"):
                async with reconciler_at(stage, liar, other) as reconciler:
                    for _ in range(4):
                        await reconciler.sweep()
                assert not await wallet_frozen(stage, agent["id"])
                assert not await frozen(client, agent)
        paid = await spend(client, agent["id"], "2")
        assert (await stage.ended(client, paid["id"]))["status"] == "settled"


async def test_a_node_that_is_behind_freezes_nothing(stage: Stage):
    """Goal: what a node says that has not seen the newest deposit is no answer."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "3")
        then: list[Any] = []

        def behind(method: str, result: Any) -> Any:
            if method != "getMultipleAccounts":
                return result
            then.append(result)
            return then[0]

        async with (
            in_front_of(stage.rpc, behind) as url,
            reconciler_at(stage, url) as reconciler,
        ):
            await reconciler.sweep()
            seen = await stage.rpc("getSlot", {"commitment": "finalized"})

            async def later() -> bool:
                return await stage.rpc("getSlot", {"commitment": "processed"}) > seen + 1

            await until(later, seconds=20)
            await stage.fund(client, agent["id"], "4")
            for _ in range(4):
                with pytest.raises(ChainOutOfReach, match="older than the slot asked for"):
                    await reconciler.sweep()
        assert not await wallet_frozen(stage, agent["id"])
        assert not await frozen(client, agent)


async def test_many_at_once_are_not_frozen_but_told(stage: Stage):
    """Goal: when the only node shows nobody's money, one alert and no standstill."""
    async with await stage.service.admin() as client:
        agents = [await stage.funded_agent(client, "1") for _ in range(MOST_STOPPED_AT_ONCE + 1)]
        async with (
            in_front_of(stage.rpc, nothing_there) as url,
            reconciler_at(stage, url) as reconciler,
        ):
            for _ in range(4):
                await reconciler.sweep()
            assert too_many_short() == 1
        assert not any([await wallet_frozen(stage, agent["id"]) for agent in agents])
        assert not any([await frozen(client, agent) for agent in agents])
        for _ in range(2):
            await stage.reconciler.sweep()
        assert too_many_short() == 0


def too_many_short() -> float | None:
    return REGISTRY.get_sample_value("bursar_wallets_too_many_short", {"mode": "test"})


async def test_a_freeze_that_proves_wrong_thaws_with_an_event(stage: Stage):
    """Goal: by the word of every node, look after look; but not one that a person has touched."""
    async with await stage.service.admin() as client:
        wrongly = await stage.funded_agent(client, "5")
        touched = await stage.funded_agent(client, "5")
        async with (
            in_front_of(stage.rpc, nothing_there) as url,
            reconciler_at(stage, url) as reconciler,
        ):
            for _ in range(3):
                await reconciler.sweep()
        for agent in (wrongly, touched):
            assert await wallet_frozen(stage, agent["id"])
            assert await frozen(client, agent)
        changed = {"policy": {"dailyCap": "7.00"}}
        await client.patch(f"/v1/agents/{touched['id']}", json=changed)
        for _ in range(2):
            await stage.reconciler.sweep()
        assert await wallet_frozen(stage, wrongly["id"]), "one look proves nothing here either"
        await stage.reconciler.sweep()
        assert not await wallet_frozen(stage, wrongly["id"])
        assert not await wallet_frozen(stage, touched["id"])
        assert not await frozen(client, wrongly)
        assert await frozen(client, touched)
        newest = (await get(client, f"/v1/agents/{wrongly['id']}/policies"))[0]
        assert (newest["version"], newest["changedBy"]) == (3, "system")
        ((_, event),) = await stage.events(wrongly["id"], "agent.thawed")
        assert (event["policy"]["version"], event["policy"]["frozen"]) == (3, False)
        assert await stage.events(touched["id"], "agent.thawed") == []
        paid = await spend(client, wrongly["id"], "2")
        assert (await stage.ended(client, paid["id"]))["status"] == "settled"


async def test_a_block_time_that_came_late_is_filled_in(stage: Stage):
    """Goal: spend, withdrawal and deposit get it, nothing else of them changes, and the audit is
    clean."""

    def timeless(method: str, result: Any) -> Any:
        return result | {"blockTime": None} if method == "getTransaction" else result

    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 9_000_000)
        async with in_front_of(stage.rpc, timeless) as url, reconciler_at(stage, url) as timeless_:
            await timeless_.sweep()
            settler = Settler(
                stage.db,
                timeless_.watcher.chain,
                stage.vault,
                PolicyCache(),
                "test",
                6,
                stage.settler.bounds,
            )
            paid = await spend(client, agent["id"], "1")
            out = await stage.withdraw(client, agent["id"], "1", str(Keypair().pubkey()))

            async def shown() -> list[dict[str, Any]]:
                deposits = await get(client, f"/v1/wallets/{agent['id']}/deposits")
                return [
                    await get(client, f"/v1/transactions/{paid['id']}"),
                    await get(client, f"/v1/withdrawals/{out['id']}"),
                    *deposits,
                ]

            async def settled() -> bool:
                await settler.sign()
                await settler.follow()
                return [each["status"] for each in await shown()] == [
                    "settled",
                    "settled",
                    "credited",
                ]

            await until(settled, seconds=30)
            before = await shown()
            assert [each["blockTime"] for each in before] == [None, None, None]
            await timeless_.fill_block_times()
            assert await shown() == before
        await stage.reconciler.fill_block_times()
        after = await shown()
        assert all(each["blockTime"] > 1_700_000_000 for each in after)
        assert [each | {"blockTime": None} for each in after] == before
        assert await stage.differences() == []


async def test_payments_on_their_way_are_no_difference(stage: Stage):
    """Goal: sweeps in the middle of settlements and deposits neither stop a wallet nor count it."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "50")
        for _ in range(6):
            made = await spend(client, agent["id"], "1")
            await stage.settler.sign()  # on the chain, not in the books
            await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
            await stage.reconciler.sweep()
            assert metric("short") == 0
            await stage.ended(client, made["id"])
        assert not await wallet_frozen(stage, agent["id"])
        assert (await get(client, f"/v1/agents/{agent['id']}"))["policy"]["version"] == 1
        assert (await stage.wallet(client, agent["id"]))["balance"] == "44.000042"


async def test_what_happens_between_the_looks_is_explained(stage: Stage):
    """Goal: the chain is read between two looks at the ledger, and whatever is booked meanwhile
    neither hides a theft nor looks like one."""
    async with await stage.service.admin() as client:
        agent = await stage.funded_agent(client, "10")

        async def seen() -> list[tuple[WatchedWallet, int]]:
            async with stage.db.connection() as tx:
                (wallet,) = await wallet_store.watched_wallets(tx, [agent["id"]])
            return [(wallet, await stage.tokens(wallet.address))]

        before_deposit = await seen()
        await stage.fund(client, agent["id"], "5")
        assert await unexplained(stage.db, before_deposit) == []

        before_payment = await seen()
        made = await spend(client, agent["id"], "2")
        await stage.ended(client, made["id"])
        assert await unexplained(stage.db, before_payment) == []

        theft = await seen()
        await stage.steal(agent["id"], 1)
        ((_, gap),) = await unexplained(stage.db, [(theft[0][0], theft[0][1] - 1)])
        assert gap == -1
        await stage.fund(client, agent["id"], "5")
        ((_, gap),) = await unexplained(stage.db, [(theft[0][0], theft[0][1] - 1)])
        assert gap == -1


async def test_more_than_the_ledger_says_is_read_again_from_the_start(stage: Stage):
    """Goal: a deposit that a node listed too late, behind the cursor, is found all the same."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 11)
        newest = await stage.rpc("bursar_faucet", agent["wallet"]["address"], 22)
        async with stage.db.connection() as tx:
            await books_store.put_deposit_cursor(tx, agent["id"], newest)
        await stage.reconciler.sweep()
        assert metric("over") == 1
        (named,) = await stage.differences()
        assert "0.000033 USDC more" in named
        for _ in range(3):
            await stage.reconciler.sweep()
        assert metric("over") == 0
        assert (await stage.wallet(client, agent["id"]))["balance"] == "0.000033"


async def test_a_surplus_that_could_not_be_read_is_read_later(stage: Stage):
    """Goal: a history that no node shows at the third look is read at the sixth."""
    async with await stage.service.admin() as client:
        agent = await new_agent(client)
        newest = await stage.rpc("bursar_faucet", agent["wallet"]["address"], 11)
        async with stage.db.connection() as tx:
            await books_store.put_deposit_cursor(tx, agent["id"], newest)
        unread = {"action": "fail", "methods": ["getSignaturesForAddress"], "at": "request"}
        await stage.rpc("bursar_faults", {"rules": [unread]})
        for _ in range(3):
            await stage.reconciler.sweep()
        await stage.rpc("bursar_faults", {})
        for _ in range(3):
            assert (await stage.wallet(client, agent["id"]))["balance"] == "0.000000"
            await stage.reconciler.sweep()
        assert (await stage.wallet(client, agent["id"]))["balance"] == "0.000011"


def test_a_lasting_surplus_costs_ever_fewer_histories():
    """Goal: each wait is twice the last."""
    assert [looks for looks in range(100) if reads_again(looks)] == [3, 6, 12, 24, 48, 96]


async def test_a_wallet_that_cannot_be_read_hides_no_theft(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Goal: one wallet's history that no node shows keeps no other from being stopped."""

    async def unreadable(*_: object, **__: object) -> None:
        raise ChainOutOfReach("mentioned but not shown")

    async with await stage.service.admin() as client:
        rich = await stage.funded_agent(client, "10")
        robbed = await stage.funded_agent(client, "10")
        monkeypatch.setattr(DepositWatcher, "look", unreadable)
        await stage.rpc("bursar_faucet", rich["wallet"]["address"], 7)
        await stage.steal(robbed["id"], 4_000_000)
        for _ in range(4):
            with contextlib.suppress(ChainOutOfReach):
                await stage.reconciler.sweep()
        assert await wallet_frozen(stage, robbed["id"])


async def robbed_and_filled_up(stage: Stage, client: httpx.AsyncClient) -> dict[str, Any]:
    """Stopped for what was taken; then somebody sends as much."""
    agent = await stage.funded_agent(client, "10")
    await stage.steal(agent["id"], 10_000_000)
    for _ in range(4):
        await stage.reconciler.sweep()
    assert await wallet_frozen(stage, agent["id"])
    await stage.rpc("bursar_faucet", agent["wallet"]["address"], 10_000_000)
    return agent


async def test_money_that_comes_in_hides_no_theft(stage: Stage):
    """Goal: what came in is credited, and the wallet stays stopped: with as much as was taken the
    chain holds what the books say."""
    async with await stage.service.admin() as client:
        agent = await robbed_and_filled_up(stage, client)
        for _ in range(6):
            await stage.reconciler.sweep()
        assert await wallet_frozen(stage, agent["id"])
        assert (await stage.wallet(client, agent["id"]))["balance"] == "20.000000"


async def test_a_history_that_cannot_be_read_hides_no_theft_either(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Goal: a wallet is whole again only when what came in is known."""

    async def unreadable(*_: object, **__: object) -> None:
        raise ChainOutOfReach("too many requests")

    async with await stage.service.admin() as client:
        agent = await robbed_and_filled_up(stage, client)
        monkeypatch.setattr(DepositWatcher, "look", unreadable)
        for _ in range(6):
            await stage.reconciler.sweep()
        assert await wallet_frozen(stage, agent["id"])
