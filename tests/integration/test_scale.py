"""Lists cost the same at 100,000 agents as at 1,000."""

import hashlib
import statistics
import time
from typing import Final

import httpx
import pytest

from bursar.db import Database
from tests.support import Service, new_account

FEW: Final = 1_000
MANY: Final = 100_000
MOST_RATIO: Final = 1.3
ROUNDS: Final = 60
# One measurement sums a few requests, so that the network's jitter weighs less.
PAGES: Final = 3


async def _fill(db: Database, account: str, agents: int) -> None:
    """`agents` agents, one in a hundred of the team `search`, as if made one millisecond apart.

    In one statement: a hundred thousand requests would take minutes and prove nothing more.
    """
    async with db.transaction() as tx:
        await tx.execute("SET LOCAL statement_timeout = 0")
        realm_id = await tx.fetchval(
            "SELECT r.id FROM realm r JOIN account a ON a.id = r.account_id WHERE a.name = $1",
            account,
        )
        # Ids that sort by age, as real ones do.
        await tx.execute(
            "CREATE TEMPORARY TABLE made ON COMMIT DROP AS"
            " SELECT 'ag_' || lpad($1 || lpad(n::text, 8, '0'), 26, '0') AS id,"
            "  date_trunc('milliseconds', clock_timestamp()) - interval '1 day'"
            "   + n * interval '1 millisecond' AS at,"
            "  CASE WHEN n % 100 = 0 THEN 'search' ELSE 'other' END AS team, n"
            " FROM generate_series(1, $2::integer) AS n",
            str(realm_id),
            agents,
        )
        await tx.execute(
            "INSERT INTO agent (id, realm_id, name, metadata, policy_id, created_at, updated_at)"
            " SELECT id, $1, 'agent ' || n, jsonb_build_object('team', team),"
            "  'pol_' || substr(id, 4), at, at FROM made",
            realm_id,
            timeout=120,
        )
        await tx.execute(
            "INSERT INTO policy (agent_id, version, cap_micros_daily, allowlist, blocklist, frozen,"
            " changed_by, changed_at)"
            " SELECT id, 1, 1000000, ARRAY['api.example.com'], '{}', false, 'key', at FROM made",
            timeout=120,
        )
        await tx.execute(
            "INSERT INTO wallet (agent_id, realm_id, address, mint, is_low)"
            " SELECT id, $1, 'address of ' || id, 'mint', true FROM made",
            realm_id,
            timeout=120,
        )
        await tx.execute(
            "INSERT INTO agent_label (agent_id, realm_id, name, value_hash, created_at)"
            " SELECT id, $1, 'team', CASE team WHEN 'search' THEN $2::bytea ELSE $3::bytea END, at"
            " FROM made",
            realm_id,
            _label_hash("search"),
            _label_hash("other"),
            timeout=120,
        )


def _label_hash(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()[:16]


@pytest.fixture(scope="module")
async def accounts(service: Service) -> dict[int, str]:
    """Accounts of each size, with a key each; statistics as autovacuum would leave them."""
    keys: dict[int, str] = {}
    for agents in (FEW, MANY):
        account = new_account()
        keys[agents] = await service.key(account=account, scope="read")
        await _fill(service.db, account, agents)
    async with service.db.read() as tx:
        await tx.execute("VACUUM (ANALYZE) agent, policy, wallet, agent_label", timeout=120)
    return keys


async def _walk(client: httpx.AsyncClient, query: dict[str, str], pages: int) -> list[str]:
    """The ids of the first pages, following the cursor."""
    seen: list[str] = []
    after: dict[str, str] = {}
    for _ in range(pages):
        answer = await client.get("/v1/agents", params={**query, **after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        seen += [agent["id"] for agent in page["data"]]
        if not page["hasMore"]:
            break
        after = {"after": page["nextCursor"]}
    return seen


@pytest.mark.parametrize(
    ("query", "pages", "rows"),
    [
        # 1,000 agents have ten of the team `search`: pages of three walk both lists alike.
        ({}, 1, 20),
        ({"metadata[team]": "search", "limit": "3"}, PAGES, 9),
        ({"metadata[team]": "search", "status": "active", "limit": "3"}, PAGES, 9),
        ({"status": "active"}, 1, 20),
        ({"limit": "20"}, PAGES, 60),
    ],
    ids=["first page", "pages of a filter", "filter and status", "by status", "pages"],
)
async def test_a_page_costs_the_same_at_any_size(
    service: Service, accounts: dict[int, str], query: dict[str, str], pages: int, rows: int
):
    """Goal: p50 at 100,000 agents is under 1.3 x that at 1,000, measured in turns."""
    times: dict[int, list[int]] = {agents: [] for agents in accounts}
    async with service.client(accounts[FEW]) as few, service.client(accounts[MANY]) as many:
        clients = {FEW: few, MANY: many}
        for client in clients.values():
            await _walk(client, query, pages)
        for turn in range(ROUNDS):
            # Whoever goes second may find warmer caches, so they take turns at that too.
            for agents in sorted(accounts, reverse=turn % 2 == 0):
                started = time.perf_counter_ns()
                seen = await _walk(clients[agents], query, pages)
                times[agents].append(time.perf_counter_ns() - started)
                assert len(set(seen)) == rows
    medians = {agents: statistics.median(taken) / 1e6 for agents, taken in times.items()}
    ratio = medians[MANY] / medians[FEW]
    assert ratio < MOST_RATIO, f"{ratio:.2f} x: {medians} ms"


async def test_a_deep_page_of_the_filter_costs_no_more(service: Service, accounts: dict[int, str]):
    """Goal: the cursor goes straight to its place: the last pages cost what the first ones do."""
    query = {"metadata[team]": "search", "limit": "100"}
    async with service.client(accounts[MANY]) as client:
        cursors: list[dict[str, str]] = [{}]
        for _ in range(MANY):
            page = (await client.get("/v1/agents", params={**query, **cursors[-1]})).json()
            assert len(page["data"]) == 100
            if not page["hasMore"]:
                break
            cursors.append({"after": page["nextCursor"]})
        assert len(cursors) == MANY // 100 // 100
        times: dict[int, list[int]] = {0: [], len(cursors) - 1: []}
        for _ in range(15):
            for place, taken in times.items():
                started = time.perf_counter_ns()
                await client.get("/v1/agents", params={**query, **cursors[place]})
                taken.append(time.perf_counter_ns() - started)
    first, last = (statistics.median(taken) / 1e6 for taken in times.values())
    assert last / first < MOST_RATIO, f"first {first:.2f} ms, last {last:.2f} ms"
