"""Reading spends back: lists, pages, statistics and the export, each against a plain recount."""

import asyncio
import csv
import io
import itertools
import random
import tracemalloc
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from bursar.clock import iso
from bursar.config import Config
from bursar.ledger.audit import audit
from bursar.service.postgres import EmbeddedPostgres
from tests.clockwork import ClockedService, clocked_service, settle
from tests.support import ON_CURVE, error_of, new_account, new_agent, spend

Spend = dict[str, Any]
SEED: Final = 20261102
HOSTS: Final = ("api.example.com", "b.example.com", "c.example.org", ON_CURVE)
SPENDS: Final = 160
MILLISECOND: Final = timedelta(milliseconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def instant(text: str) -> tuple[datetime, datetime]:
    return at(text), at(text)


# How a boundary may be written: what it means as a start, and as an end.
BOUNDARIES: Final[dict[str | None, tuple[datetime, datetime]]] = {
    None: (at("1970-01-01"), at("9990-01-01")),
    "2026-11-02": (at("2026-11-02"), at("2026-11-03")),
    "20261103": (at("2026-11-03"), at("2026-11-04")),
    "2026-11-04": (at("2026-11-04"), at("2026-11-05")),
    "2026-11-02T00:00:00Z": instant("2026-11-02"),
    "2026-11-02T12:00:00": instant("2026-11-02T12:00"),
    "2026-11-02T14:00:00.001+02:00": instant("2026-11-02T12:00:00.001"),
    "2026-11-03T00:00-0330": instant("2026-11-03T03:30"),
    # Between two of the milliseconds that rows have: the next one is the first that is not before.
    "2026-11-02T11:59:59.9999Z": instant("2026-11-02T12:00"),
    "2026-11-02T12:00:00.0001Z": instant("2026-11-02T12:00:00.001"),
    "2026-11-03T23:59:59.999Z": instant("2026-11-03T23:59:59.999"),
    "2026-12-24": (at("2026-12-24"), at("2026-12-25")),
}
# When the spends of the history are made: near every boundary, on both sides and on it.
MOMENTS: Final = sorted(
    {
        moment + delta
        for text, pair in BOUNDARIES.items()
        if text is not None and pair[0] < at("2026-12-01")
        for moment in pair
        for delta in (-MILLISECOND, timedelta(), MILLISECOND)
    }
)


@dataclass(frozen=True)
class History:
    service: ClockedService
    client: httpx.AsyncClient
    agents: list[str]
    # Newest first, as the API shows them.
    spends: list[Spend]


@pytest.fixture(scope="module")
async def clocked(postgres: EmbeddedPostgres, config: Config) -> AsyncGenerator[ClockedService]:
    async with clocked_service(postgres, config, "transactions") as service:
        yield service


@pytest.fixture(scope="module")
async def history(clocked: ClockedService) -> AsyncGenerator[History]:
    """Three agents over five days, in every state, beside a tenant that must never be seen."""
    chance = random.Random(SEED)
    async with await clocked.admin() as client, await clocked.admin() as stranger:
        policy = {"dailyCap": "200", "allowlist": ["*"], "approvalThreshold": "9"}
        agents = [(await new_agent(client, policy=policy))["id"] for _ in range(3)]
        foreign = (await new_agent(stranger, policy=policy))["id"]
        for agent_id in (*agents, foreign):
            await clocked.fund(agent_id, "150")
        await clocked.set_clock(MOMENTS[0])
        await spend(stranger, foreign, "1")
        moments = sorted(chance.choices(MOMENTS, k=SPENDS))
        made: list[str] = []
        for moment in moments:
            await clocked.set_clock(moment)
            amount = f"{chance.randint(1, 12)}.{chance.randint(0, 999_999):06}"
            recipient = chance.choice(HOSTS)
            shown = await spend(client, chance.choice(agents), amount, recipient=recipient)
            made.append(shown["id"])
            for spend_id in chance.sample(made, min(2, len(made))):
                now = (await client.get(f"/v1/transactions/{spend_id}")).json()["data"]
                if now["status"] == "pending":
                    verb = chance.choice(["approve", "deny"])
                    answer = await client.post(f"/v1/transactions/{spend_id}/{verb}")
                    assert answer.status_code in (200, 409), answer.text
                elif now["status"] == "approved":
                    await settle(clocked.db, spend_id)
        await clocked.set_clock(moments[-1] + timedelta(hours=1))
        findings = await audit(clocked.db, lambda _: None)
        assert [f for f in findings if not f.clean] == [], f"seed {SEED}"
        rows = [
            (await client.get(f"/v1/transactions/{spend_id}")).json()["data"] for spend_id in made
        ]
        rows.sort(key=lambda row: (row["createdAt"], row["id"]), reverse=True)
        assert {row["status"] for row in rows} == {"pending", "approved", "settled", "rejected"}
        yield History(clocked, client, agents, rows)


async def page(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    params = {name: value for name, value in query.items() if value is not None}
    answer = await client.get("/v1/transactions", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def all_pages(client: httpx.AsyncClient, **query: Any) -> list[Spend]:
    found: list[Spend] = []
    after: str | None = None
    while True:
        got = await page(client, after=after, **query)
        found += got["data"]
        after = got["nextCursor"]
        assert (after is not None) == got["hasMore"]
        if after is None:
            return found


def keeps(query: Mapping[str, str | None]) -> Callable[[Spend], bool]:
    """The filter, written out once more in the plainest way."""
    start, end = BOUNDARIES[query.get("from")][0], BOUNDARIES[query.get("to")][1]
    settled_start = BOUNDARIES[query.get("settledFrom")][0]
    settled_end = BOUNDARIES[query.get("settledTo")][1]
    by_settlement = query.get("settledFrom") or query.get("settledTo")

    def keep(row: Spend) -> bool:
        settled = row["settledAt"]
        return (
            query.get("agentId") in (None, row["agentId"])
            and query.get("status") in (None, "all", row["status"])
            and query.get("recipient") in (None, row["recipient"])
            and start <= datetime.fromisoformat(row["createdAt"]) < end
            and (
                not by_settlement
                or (settled and settled_start <= datetime.fromisoformat(settled) < settled_end)
            )
        )

    return keep


def ranges() -> list[tuple[str | None, str | None]]:
    """Every pair of boundaries that is not the wrong way round."""
    return [
        (start, end)
        for start, end in itertools.product(BOUNDARIES, repeat=2)
        if BOUNDARIES[start][0] <= BOUNDARIES[end][0] or BOUNDARIES[start][0] < BOUNDARIES[end][1]
    ]


# Lists --------------------------------------------------------------------------------------------


async def test_every_filter_alone_and_combined_lists_what_a_recount_finds(history: History):
    unknown = "ag_" + "0" * 26
    choices: dict[str, list[str | None]] = {
        "agentId": [None, *history.agents, unknown, "nobody"],
        "status": [None, "all", "pending", "approved", "settled", "rejected"],
        "recipient": [None, *HOSTS, "never-paid.example.com"],
        "from": list(BOUNDARIES),
        "to": list(BOUNDARIES),
        "settledFrom": list(BOUNDARIES),
        "settledTo": list(BOUNDARIES),
    }
    queries: list[Mapping[str, str | None]] = [{}]
    queries += [{name: value} for name, values in choices.items() for value in values if value]
    queries += [{"from": start, "to": end} for start, end in ranges()]
    queries += [{"settledFrom": start, "settledTo": end} for start, end in ranges()]
    chance = random.Random(SEED)
    while len(queries) < 600:
        query = {
            name: chance.choice([*values, *[None] * len(values)])
            for name, values in choices.items()
        }
        pairs = [(query["from"], query["to"]), (query["settledFrom"], query["settledTo"])]
        if all(pair in ranges() for pair in pairs):
            queries.append(query)
    hits = 0
    for query in queries:
        got = await page(history.client, limit=200, **query)
        assert got["data"] == list(filter(keeps(query), history.spends)), f"{query}, seed {SEED}"
        assert (got["hasMore"], got["nextCursor"]) == (False, None)
        hits += bool(got["data"])
    # The combinations are no use if hardly any finds something.
    assert hits > 200, f"seed {SEED}"


async def test_faulty_filters_are_refused_by_name(history: History):
    faults = [
        ({"from": "2026-11-03", "to": "2026-11-02"}, "from"),
        ({"from": "2026-11-02T12:00:00.001Z", "to": "2026-11-02T12:00:00Z"}, "from"),
        ({"from": "2026-11-03T00:00+02:00", "to": "2026-11-02T21:59:59Z"}, "from"),
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-11-31"}, "to"),
        ({"to": "1762041600"}, "to"),
        ({"recipient": "localhost"}, "recipient"),
        ({"stauts": "settled"}, "stauts"),
    ]
    listed_only = [
        ({"settledFrom": "2026-11-03", "settledTo": "2026-11-02"}, "settledFrom"),
        ({"status": "done"}, "status"),
    ]
    for path in ("/v1/transactions", "/v1/transactions/export", "/v1/transactions/stats"):
        for query, param in [*faults, *(listed_only if not path.endswith("stats") else [])]:
            answer = await history.client.get(path, params=query)
            error = error_of(answer, 400, "validation_error")
            assert error["details"][0]["param"] == param, (path, query)
    for limit in ("0", "201", "-1", "x", "1.0", ""):
        answer = await history.client.get("/v1/transactions", params={"limit": limit})
        assert "200" in error_of(answer, 400, "validation_error")["message"]
    # The same day as both ends is that day, and the same instant is nothing at all.
    noon = "2026-11-02T12:00:00Z"
    got = await page(history.client, **{"from": noon, "to": noon})
    assert got == {"data": [], "hasMore": False, "nextCursor": None}


async def test_the_default_page_holds_fifty_and_pages_join_up(history: History):
    first = await page(history.client)
    assert first["data"] == history.spends[:50]
    assert await all_pages(history.client) == history.spends
    for limit in (1, 7, 159, 160, 161, 200):
        assert await all_pages(history.client, limit=limit) == history.spends, limit


async def test_a_cursor_belongs_to_its_list_and_its_filters(history: History):
    cursor = (await page(history.client, limit=5))["nextCursor"]
    # Another page size is no other filter.
    got = await page(history.client, limit=9, after=cursor)
    assert got["data"] == history.spends[5:14]
    settled = (await page(history.client, limit=5, status="settled"))["nextCursor"]
    other: list[dict[str, str]] = [
        {"after": cursor, "status": "settled"},
        {"after": cursor, "agentId": history.agents[0]},
        {"after": cursor, "from": "2026-11-02"},
        {"after": settled, "status": "approved"},
        {"after": settled},
        {"after": "nonsense"},
        {"after": "!"},
        {"after": cursor[:-1]},
        {"after": cursor + "AAAA"},
    ]
    for query in other:
        answer = await history.client.get("/v1/transactions", params=query)
        error = error_of(answer, 400, "validation_error")
        assert error["details"][0]["param"] == "after", query
    async with await history.service.admin() as stranger:
        answer = await stranger.get("/v1/transactions", params={"after": cursor})
        error_of(answer, 400, "validation_error")


async def test_rows_of_one_instant_appear_once_each_while_new_ones_arrive(clocked: ClockedService):
    """A batch shares its `createdAt`, so only the id orders it; what comes meanwhile shifts
    nothing."""
    async with await clocked.admin() as client:
        policy = {"dailyCap": "1000", "approvalThreshold": "1"}
        agents = [(await new_agent(client, policy=policy))["id"] for _ in range(2)]
        for agent_id in agents:
            await clocked.fund(agent_id, "1000")
        now = await clocked.advance(timedelta(days=1))
        made = await asyncio.gather(
            *(spend(client, agents[n % 2], "2" if n % 3 else "1") for n in range(60))
        )
        assert {row["createdAt"] for row in made} == {iso(now)}
        for query in ({}, {"status": "pending"}, {"agentId": agents[0]}):
            there = [row["id"] for row in made if not query or keeps(query)(row)]
            seen: list[tuple[str, str]] = []
            after: str | None = None
            while True:
                got = await page(client, limit=7, after=after, **query)
                seen += [(row["createdAt"], row["id"]) for row in got["data"]]
                after = got["nextCursor"]
                # Some at the very same instant, some later.
                await asyncio.gather(*(spend(client, agents[n], "1.5") for n in range(2)))
                await clocked.advance(MILLISECOND)
                await spend(client, agents[0], "1.5")
                await clocked.set_clock(now)
                if after is None:
                    break
            assert seen == sorted(seen, reverse=True)
            assert len(set(seen)) == len(seen)
            assert set(there) <= {spend_id for _, spend_id in seen}


async def test_a_row_that_still_matches_is_not_lost_when_others_move_on(clocked: ClockedService):
    async with await clocked.admin() as client:
        policy = {"dailyCap": "1000", "approvalThreshold": "1"}
        agent = await new_agent(client, policy=policy)
        await clocked.fund(agent["id"], "1000")
        made = await asyncio.gather(*(spend(client, agent["id"], "2") for _ in range(20)))
        order = sorted((row["id"] for row in made), reverse=True)
        got = await page(client, status="pending", limit=5)
        # Those that were just shown, and the very one the cursor points at, move on.
        for spend_id in [*order[:5], order[7]]:
            await client.post(f"/v1/transactions/{spend_id}/deny")
        rest = await page(client, status="pending", limit=50, after=got["nextCursor"])
        assert [row["id"] for row in rest["data"]] == [*order[5:7], *order[8:]]


async def test_an_agent_key_reads_only_its_own(history: History, clocked: ClockedService):
    account = new_account()
    async with await clocked.admin(account=account) as admin:
        agents = [(await new_agent(admin))["id"] for _ in range(2)]
        made = [await spend(admin, agent_id, "1") for agent_id in agents]
        key = await clocked.key(account=account, scope="agent", agent_id=agents[0])
        async with clocked.client(key) as client:
            own, foreign = agents
            assert (await page(client))["data"] == [made[0]]
            assert (await page(client, agentId=own))["data"] == [made[0]]
            for other in (foreign, history.agents[0], "nobody"):
                assert (await page(client, agentId=other))["data"] == []
                stats = await statistics(client, agentId=other)
                assert stats["transactionCount"] == 0
                lines = await exported(client, agentId=other)
                assert len(lines) == 1
            assert (await statistics(client))["transactionCount"] == 1
            assert [line[0] for line in await exported(client)] == ["id", made[0]["id"]]
            for spend_id in (made[1]["id"], history.spends[0]["id"], "stats2"):
                answer = await client.get(f"/v1/transactions/{spend_id}")
                error_of(answer, 404, "not_found")


# Statistics ---------------------------------------------------------------------------------------


async def statistics(client: httpx.AsyncClient, **query: str | None) -> dict[str, Any]:
    params = {name: value for name, value in query.items() if value is not None}
    answer = await client.get("/v1/transactions/stats", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def micros(text: str) -> int:
    whole, _, places = text.partition(".")
    assert len(places) == 6
    return int(whole + places)


def recount(rows: list[Spend]) -> dict[str, Any]:
    settled: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["status"] == "settled":
            settled[row["recipient"]] += micros(row["amount"])
    total = sum(settled.values())
    largest = sorted(settled.items(), key=lambda item: (-item[1], item[0]))[:10]
    return {
        "totalSpent": f"{total // 10**6}.{total % 10**6:06}",
        "transactionCount": len(rows),
        "rejectedCount": sum(row["status"] == "rejected" for row in rows),
        "topRecipients": [
            {"hostname": name, "totalUsdc": f"{cents // 100}.{cents % 100:02}"}
            for name, exact in largest
            for cents in [(exact + 5_000) // 10_000]
        ],
    }


async def test_statistics_equal_a_recount_for_every_filter_combination(history: History):
    """Whole days come from running totals, pieces of days from the rows: every mix agrees."""
    for agent_id in (None, *history.agents, "ag_" + "0" * 26, "nobody"):
        for start, end in ranges():
            query = {"agentId": agent_id, "from": start, "to": end}
            rows = list(filter(keeps(query), history.spends))
            assert await statistics(history.client, **query) == recount(rows), (
                f"{query}, seed {SEED}"
            )


async def test_nothing_in_the_filter_gives_zeros(clocked: ClockedService):
    nothing = {
        "totalSpent": "0.000000", "transactionCount": 0, "rejectedCount": 0, "topRecipients": []
    }  # fmt: skip
    async with await clocked.admin() as client:
        assert await statistics(client) == nothing
        assert await statistics(client, agentId="nobody") == nothing
        assert await statistics(client, agentId="ag_" + "0" * 26) == nothing
        assert await statistics(client, **{"from": "2026-01-01T01:00"}) == nothing
        error_of(
            await client.get("/v1/transactions/stats", params={"status": "settled"}),
            400,
            "validation_error",
        )


async def test_top_recipients_are_ten_by_exact_total_then_by_name(clocked: ClockedService):
    """Ranked by micro-units, shown in cents, half up."""
    paid = [
        ("j.example.com", "0.004999", "0.00"),
        ("i.example.com", "0.005000", "0.01"),
        ("h.example.com", "0.014999", "0.01"),
        ("g.example.com", "0.015000", "0.02"),
        # The same to the cent, not the same: the name does not decide.
        ("f.example.com", "1.001000", "1.00"),
        ("z.example.com", "1.004000", "1.00"),
        # The same: it does.
        ("e.example.com", "2.000000", "2.00"),
        ("d.example.com", "2.000000", "2.00"),
        (ON_CURVE, "2.000000", "2.00"),
        ("c.example.com", "2.995000", "3.00"),
        ("b.example.com", "0.004998", "0.00"),
        ("a.example.com", "0.000001", "0.00"),
    ]
    async with await clocked.admin() as client:
        agent = await new_agent(client, policy={"allowlist": ["*"]})
        await clocked.fund(agent["id"], "50")
        for name, amount, _ in paid:
            made = await spend(client, agent["id"], amount, recipient=name)
            await settle(clocked.db, made["id"])
        # More, but not settled.
        await spend(client, agent["id"], "9", recipient="a.example.com")
        shown = {name: cents for name, _, cents in paid}
        order = ["c.example.com", ON_CURVE, "d.example.com", "e.example.com", "z.example.com",
                 "f.example.com", "g.example.com", "h.example.com", "i.example.com",
                 "j.example.com"]  # fmt: skip
        stats = await statistics(client)
        assert stats["topRecipients"] == [
            {"hostname": name, "totalUsdc": shown[name]} for name in order
        ]
        assert stats["totalSpent"] == "11.044997"
        assert (stats["transactionCount"], stats["rejectedCount"]) == (13, 0)


# Export -------------------------------------------------------------------------------------------

HEADER: Final = [
    "id", "agentId", "amount", "currency", "recipient", "status", "signature", "blockTime",
    "rejectCode", "createdAt", "settledAt", "payTo", "memo", "policyVersion", "purchaseId",
    "createdBy", "decidedBy", "decidedAt", "decisionReason", "feeLamports", "rentLamports",
]  # fmt: skip


async def exported(client: httpx.AsyncClient, **query: str | None) -> list[list[str]]:
    params = {name: value for name, value in query.items() if value is not None}
    answer = await client.get("/v1/transactions/export", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    assert answer.content.endswith(b"\r\n")
    return list(csv.reader(io.StringIO(answer.text, newline=""), strict=True))


def line_of(row: Spend) -> list[str]:
    return ["" if row[name] is None else str(row[name]) for name in HEADER]


async def test_the_export_is_the_list_as_csv(history: History):
    assert await exported(history.client) == [HEADER, *map(line_of, history.spends)]


async def test_every_filter_applies_to_the_export(history: History):
    queries: list[dict[str, str | None]] = [
        {"agentId": history.agents[1]},
        {"agentId": "nobody"},
        {"status": "settled"},
        {"status": "all", "recipient": "B.example.com."},
        {"from": "2026-11-02", "to": "2026-11-02T12:00:00"},
        {"settledFrom": "2026-11-02", "settledTo": "20261103"},
        {"agentId": history.agents[0], "status": "rejected", "from": "20261103"},
    ]
    for query in queries:
        plain = {**query}
        if "recipient" in plain:
            plain["recipient"] = "b.example.com"
        rows = list(filter(keeps(plain), history.spends))
        assert await exported(history.client, **query) == [HEADER, *map(line_of, rows)], query
    answer = await history.client.get("/v1/transactions/export", params={"limit": "5"})
    error_of(answer, 400, "validation_error")


async def test_cells_survive_a_reader_and_none_is_run_as_a_formula(clocked: ClockedService):
    plain = ["", "a,b", 'say "hi"', '"', "two\nlines", "two\r\nlines", "a\rb", "é 漢 🙂", "a=1",
             "'x", " =1", "1,5;2", "x\t"]  # fmt: skip
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("x","y")', "=",
                '=cmd|" /C calc"!A0', "-2+3,4"]  # fmt: skip
    async with await clocked.admin() as client:
        agent = await new_agent(client)
        written: dict[str, str] = {}
        for memo in (*plain, *formulas):
            written[(await spend(client, agent["id"], "1", memo=memo))["id"]] = memo
        header, *lines = await exported(client)
        read = {line[0]: line[header.index("memo")] for line in lines}
        for spend_id, memo in written.items():
            assert read[spend_id] == (f"'{memo}" if memo in formulas else memo)
        assert all(len(line) == len(header) for line in lines)


@pytest.fixture(scope="module")
async def archive(clocked: ClockedService) -> AsyncGenerator[httpx.AsyncClient]:
    """A tenant with 2,000 spends on 1 January 2027 and 12,000 on the day after."""
    async with await clocked.admin() as client:
        agent = await new_agent(client)
        made = await spend(client, agent["id"], "1", memo="x" * 200)
        for day, count in (("2027-01-01", 2_000), ("2027-01-02", 12_000)):
            async with clocked.db.transaction() as tx:
                # Copies of a real row, that only what reads rows can see.
                await tx.execute(
                    "INSERT INTO spend (id, realm_id, agent_id, amount_micros, recipient, pay_to,"
                    " status, reject_code, memo, policy_version, verdict, terms, used, network,"
                    " created_by, created_at, updated_at, decision_number)"
                    " SELECT 'txn_' || md5($2::text || n), realm_id, agent_id, amount_micros,"
                    " recipient, pay_to, status, reject_code, memo, policy_version, verdict,"
                    " terms, used, network, created_by, $2::text::timestamptz, updated_at, $4 + n"
                    " FROM spend s, generate_series(1, $3) AS n WHERE id = $1",
                    made["id"],
                    day,
                    count,
                    1_000_000 + count,
                )
        yield client


async def test_a_large_export_needs_no_more_memory_than_a_small_one(archive: httpx.AsyncClient):
    """The service runs in this process, so what it holds while it streams is counted here."""

    async def lines_and_bytes(day: str) -> tuple[int, int]:
        lines = size = 0
        params = {"from": day, "to": day}
        async with archive.stream("GET", "/v1/transactions/export", params=params) as got:
            assert got.status_code == 200
            async for piece in got.aiter_raw():
                lines += piece.count(b"\r\n")
                size += len(piece)
        return lines - 1, size

    peaks: list[int] = []
    # What the first export leaves behind in caches is not the question.
    await lines_and_bytes("2027-01-01")
    for day, count in (("2027-01-01", 2_000), ("2027-01-02", 12_000)):
        tracemalloc.start()
        try:
            lines, size = await lines_and_bytes(day)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert lines == count
    few, many = peaks
    assert many < 1.5 * few
    # Page by page: the file as a whole, let alone its rows, was never there.
    assert many < size


async def test_an_export_that_cannot_begin_is_an_error_not_an_empty_file(
    clocked: ClockedService, archive: httpx.AsyncClient
):
    await rename(clocked, "spend", "spend_away")
    try:
        answer = await archive.get("/v1/transactions/export")
    finally:
        await rename(clocked, "spend_away", "spend")
    error_of(answer, 500, "internal_error")


async def test_an_export_that_breaks_off_is_not_taken_for_the_whole(
    clocked: ClockedService, archive: httpx.AsyncClient
):
    async with archive.stream("GET", "/v1/transactions/export") as got:
        assert got.status_code == 200
        pieces = got.aiter_raw()
        await anext(pieces)
        await rename(clocked, "spend", "spend_away")
        try:
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in pieces:
                    pass
        finally:
            await rename(clocked, "spend_away", "spend")


async def rename(service: ClockedService, table: str, to: str) -> None:
    async with service.db.connection() as tx:
        await tx.execute(f"ALTER TABLE {table} RENAME TO {to}")
