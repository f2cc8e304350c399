"""Which wallets a sweep asks the chain about, and which worker does."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from bursar.chain.port import Chain
from bursar.db import Database, Tx
from bursar.heartbeat.lease import Lease
from bursar.settlement.reconcile import Reconciler
from bursar.wallet import store
from tests.processes import until
from tests.settlement.support import Stage


class Watched:
    """The chain of a reconciler, with the addresses it is asked about."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.asked: list[str] = []
        self._chain = reconciler.watcher.chain
        reconciler.watcher.chain = cast("Chain", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)

    async def token_balances(
        self, owners: Sequence[str], mint: str, *, from_slot: int = 0
    ) -> Mapping[str, int]:
        self.asked += owners
        return cast(
            "Mapping[str, int]",
            await self._chain.token_balances(owners, mint, from_slot=from_slot),
        )


async def asked_by_a_sweep(reconciler: Reconciler, *agents: dict[str, Any]) -> list[bool]:
    chain = Watched(reconciler)
    await reconciler.sweep()
    reconciler.watcher.chain = chain._chain  # pyright: ignore[reportPrivateUsage]
    assert len(chain.asked) == len(set(chain.asked)), "nobody is asked about twice"
    return [agent["wallet"]["address"] in chain.asked for agent in agents]


async def grow_cold(db: Database, agent: dict[str, Any]) -> None:
    """As if two days had passed since anything happened to the wallet."""
    async with db.transaction() as tx:
        await tx.execute("ALTER TABLE deposit DISABLE TRIGGER USER")
        for statement in (
            "UPDATE agent SET created_at = created_at - interval '2 days' WHERE id = $1",
            "UPDATE deposit SET created_at = created_at - interval '2 days' WHERE agent_id = $1",
            "UPDATE wallet SET active_on = active_on - 2 WHERE agent_id = $1",
        ):
            await tx.execute(statement, agent["id"])
        await tx.execute("ALTER TABLE deposit ENABLE TRIGGER USER")


async def balance(stage: Stage, agent: dict[str, Any]) -> str:
    return (await stage.balance(agent))["balance"]


async def test_a_cold_wallet_is_asked_about_in_its_turn(stage: Stage):
    """Goal: all at the first sweep; then what is new, spends or was funded every time, and one that
    nobody used for a day, or of a terminated agent, only when its turn comes."""
    funded, spends, cold, terminated = [await stage.agent() for _ in range(4)]
    for agent in (spends, cold):
        await grow_cold(stage.db, agent)
    paid = await stage.spend(spends)
    settler = await stage.settler()
    await stage.round(settler, times=3)
    assert await stage.status(paid) == "settled"
    gone = await stage.client.delete(f"/v1/agents/{terminated['id']}")
    assert gone.status_code == 200, gone.text

    everyone = (funded, spends, cold, terminated)
    reconciler = await stage.reconciler()
    assert await asked_by_a_sweep(reconciler, *everyone) == [True] * 4
    for agent in (cold, terminated):
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)
    for _ in range(3):
        assert await asked_by_a_sweep(reconciler, *everyone) == [True, True, False, False]
    assert await balance(stage, cold) == "100.000000"

    # Its turn comes within the time that is set.
    quick = await stage.reconciler(cold_seconds=1)
    await quick.sweep()
    assert await balance(stage, cold) == "100.000007"
    await grow_cold(stage.db, cold)
    for agent in (cold, terminated):
        await stage.rpc("bursar_faucet", agent["wallet"]["address"], 7)

    async def noticed() -> bool:
        await quick.sweep()
        return [await balance(stage, agent) for agent in (cold, terminated)] == ["100.000014"] * 2

    await until(noticed, seconds=10, every=0.1)


async def test_what_the_faucet_gave_a_cold_wallet_is_credited_at_once(stage: Stage):
    """Goal: whoever asks for test money does not wait for the turn; and it is in use again."""
    agent = await stage.agent()
    await grow_cold(stage.db, agent)
    reconciler = await stage.reconciler()
    await reconciler.sweep()
    assert await asked_by_a_sweep(reconciler, agent) == [False]
    given = await stage.client.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "1"})
    assert given.json()["data"]["status"] == "credited"
    assert await asked_by_a_sweep(reconciler, agent) == [True]


async def test_a_cold_wallet_that_is_short_is_watched_until_it_is_whole(stage: Stage):
    """Goal: once in doubt it is looked at in every sweep, held at the third, and never taken for
    whole because nobody looked."""
    agent, other = await stage.agent(), await stage.agent()
    await stage.take_behind_our_back(agent, 1_000_000)
    for each in (agent, other):
        await grow_cold(stage.db, each)
    reconciler = await stage.reconciler()
    for _ in range(3):
        assert (await asked_by_a_sweep(reconciler, agent)) == [True]
    assert await is_held(stage.db, agent)
    for _ in range(5):
        assert (await asked_by_a_sweep(reconciler, agent, other)) == [True, False]
        assert await is_held(stage.db, agent)
    # Another worker, which did not see how it came to that, looks at it just as often.
    fresh = await stage.reconciler()
    for _ in range(5):
        assert (await asked_by_a_sweep(fresh, agent))[0]
    assert await is_held(stage.db, agent)


async def is_held(db: Database, agent: dict[str, Any]) -> bool:
    async with db.connection() as tx:
        return await tx.fetchval("SELECT is_frozen FROM wallet WHERE agent_id = $1", agent["id"])


async def test_of_two_workers_one_sweeps(stage: Stage):
    """Goal: the other asks the chain nothing, and takes over when the first gives up or dies."""
    agent = await stage.agent()
    first, second = [await stage.reconciler() for _ in range(2)]
    leases = {id(each): Lease(stage.db, "sweep test", 60) for each in (first, second)}

    async def sweeps(reconciler: Reconciler) -> bool:
        chain = Watched(reconciler)
        await leases[id(reconciler)].run(reconciler.sweep, otherwise=reconciler.forget)
        reconciler.watcher.chain = chain._chain  # pyright: ignore[reportPrivateUsage]
        return agent["wallet"]["address"] in chain.asked

    for _ in range(3):
        assert [await sweeps(each) for each in (first, second)] == [True, False]
    await leases[id(first)].give_up()
    assert [await sweeps(each) for each in (second, first)] == [True, False]
    # One that died says nothing any more.
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE lease SET until = clock_timestamp()")
    assert [await sweeps(each) for each in (first, second)] == [True, False]


async def test_no_cold_wallet_is_read_to_find_the_hot_ones(stage: Stage):
    """Goal: however many wallets are cold, a sweep reads those that moved lately."""
    async with stage.db.transaction() as tx:
        await tx.execute(
            "INSERT INTO agent (id, realm_id, name, policy_id, created_at, updated_at)"
            " SELECT 'ag_cold' || n, 1, 'cold', 'pol_cold' || n, '2020-01-01', '2020-01-01'"
            " FROM generate_series(1, 20000) n"
        )
        await tx.execute(
            "INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, payees,"
            " frozen, changed_by, changed_at)"
            " SELECT 'ag_cold' || n, 1, 0, '{}', '{}', 'pinned', false, 'test', '2020-01-01'"
            " FROM generate_series(1, 20000) n"
        )
        await tx.execute(
            "INSERT INTO wallet (agent_id, realm_id, address, mint, is_low)"
            " SELECT 'ag_cold' || n, 1, 'cold' || n, 'mint', true FROM generate_series(1, 20000) n"
        )
    async with stage.db.connection() as tx:
        await tx.execute("ANALYZE agent, wallet")
        before = await _read_from_wallets(tx)
        for _ in range(8):
            assert not any(i.startswith("ag_cold") for i in await store.hot_wallets(tx, "test"))
        assert await _read_from_wallets(tx) - before < 2_000


async def _read_from_wallets(tx: Tx) -> int:
    await tx.execute("SELECT pg_stat_force_next_flush()")
    return await tx.fetchval(
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables"
        " WHERE relname IN ('wallet', 'agent')"
    )
