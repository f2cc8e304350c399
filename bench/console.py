"""How long each page of the console takes at the server, with 10,000 agents and a million
transactions. `python -m bench.console` measures it alone; `make bench` has its slowest page."""

import asyncio
import http.client
import re
import shutil
import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import asyncpg

from bench.books import MANY, Books, agent_id, make_books, terms, transaction_id
from bench.rows import Row, table, within
from bench.service import running
from bursar.config import Config, load_config
from bursar.migrations.migrate import migrate
from bursar.service.postgres import ADMIN_ROLE, EmbeddedPostgres, running_postgres

AGENTS: Final = 10_000
MOST_MS: Final = 300.0
_ROUNDS: Final = 7
_AGENT: Final = agent_id(7)
_SPEND: Final = transaction_id(7)
# Some of the newest spends wait for a person, and some are of today: the busiest pages show them.
_TODAY: Final = (
    "SET session_replication_role = replica",
    f"""UPDATE spend SET status = 'pending', verdict = 'pending', terms = '{terms(threshold=0)}',
                         expires_at = moment() + interval '1 day'
         WHERE id IN (SELECT id FROM spend WHERE status = 'approved'
                       ORDER BY created_at DESC LIMIT 2000)""",
    "DELETE FROM payment WHERE id IN (SELECT id FROM spend WHERE status = 'pending')",
    """UPDATE wallet w SET pending_count = p.spends
         FROM (SELECT agent_id, count(*) AS spends FROM spend WHERE status = 'pending'
                GROUP BY 1) AS p
        WHERE p.agent_id = w.agent_id""",
    "SELECT close_windows(array_agg(agent_id::text), NULL) FROM wallet",
    "UPDATE wallet SET day_micros = 9000000000000",
    # Budgets in a tree of three levels, all near their limits.
    """INSERT INTO meter (id, realm_id, created_at, windows_at, decisions, day_micros, day_count)
       SELECT 'bud_' || lpad(n::text, 26, '0'), (SELECT realm_id FROM agent LIMIT 1), moment(),
              moment(), 9, 9000000, 9
         FROM generate_series(1, 200) AS n""",
    """INSERT INTO budget (id, realm_id, name, parent_id, level, limits, created_by, created_at,
                           updated_at)
       SELECT m.id, m.realm_id, 'team ' || n,
              CASE WHEN n > 10 THEN 'bud_' || lpad((n / 10)::text, 26, '0') END,
              CASE WHEN n > 109 THEN 3 WHEN n > 10 THEN 2 ELSE 1 END,
              '[["lim_' || lpad(n::text, 26, '0') || '","day",10000000,20,null]]', 'bench',
              moment(), moment()
         FROM generate_series(1, 200) AS n
         JOIN meter m ON m.id = 'bud_' || lpad(n::text, 26, '0')""",
    """UPDATE agent
          SET budget_id = 'bud_' || lpad((1 + right(id, 6)::int % 200)::text, 26, '0')""",
    """INSERT INTO webhook (id, realm_id, url, events, created_at)
       SELECT 'wh_' || lpad(n::text, 26, '0'), (SELECT realm_id FROM agent LIMIT 1),
              'https://example.com/' || n, '{*}', moment() FROM generate_series(1, 100) AS n""",
    """INSERT INTO delivery (id, webhook_id, event_id, status, next_attempt_at, created_at)
       SELECT 'dlv_' || substr(e.id, 5) || w.id, w.id, e.id, 'pending', e.created_at, e.created_at
         FROM (SELECT * FROM event ORDER BY created_at DESC LIMIT 1000) AS e,
              (SELECT id FROM webhook ORDER BY id LIMIT 20) AS w""",
    "VACUUM (ANALYZE)",
)
PAGES: Final = {
    "overview": "",
    "agents": "/agents",
    "agents, a search that finds nothing": "/agents?q=nobody+is+called+so",
    "agents, a search that finds all": "/agents?q=agent",
    "agents, by state": "/agents?status=active",
    "agents, suggested by name": "/agents/names?q=agent",
    "agents of a budget": f"/agents?budgetId=bud_{7:026d}",
    "search, a name that all have": "/search?q=agent",
    "search, a host": "/search?q=api7.example.com",
    "budgets": "/budgets",
    "budgets, a search that finds all": "/budgets?q=team",
    "budgets, the last of them": "/budgets?from=150",
    "budget": f"/budgets/bud_{7:026d}",
    "budget of an agent": f"/agents/{_AGENT}/budget",
    "agent": f"/agents/{_AGENT}",
    "policy": f"/agents/{_AGENT}/policy",
    "approvals": "/approvals",
    "transactions": "/transactions",
    "transactions of an agent": f"/transactions?agentId={_AGENT}&status=rejected",
    "transactions to a recipient": "/transactions?recipient=api7.example.com",
    "transaction": f"/transactions/{_SPEND}",
    "webhooks": "/webhooks",
    "webhook": f"/webhooks/wh_{1:026d}",
    "keys": "/keys",
    "sessions": "/sessions",
}


async def milliseconds(
    server: EmbeddedPostgres, config: Config, folder: Path, books: Books, tries: int = 1
) -> dict[str, float]:
    """The median of a few visits to each page, after the first; of several tries the best."""
    connection = await asyncpg.connect(server.dsn_for(books.name, ADMIN_ROLE))
    for statement in _TODAY:
        await connection.execute(statement)
    await connection.close()
    settings = {"DATABASE_URL": books.dsn, "RATE_LIMITS": "off"}
    with (
        running("api", config.data_dir, folder / "console.log", **settings) as api,
        closing(_Visitor(api.port, books.admins[0])) as visitor,
    ):
        return {
            name: min(visitor.milliseconds(f"/console{path}") for _ in range(tries))
            for name, path in PAGES.items()
        }


async def rows(server: EmbeddedPostgres, config: Config, folder: Path, books: Books) -> list[Row]:
    taken = await milliseconds(server, config, folder, books)
    slowest = max(taken, key=lambda name: taken[name])
    title = (
        f"the console's slowest page ({slowest}), {books.agents:,} agents,"
        f" {books.size:,} transactions"
    )
    return [within(title, taken[slowest], "ms", MOST_MS)]


class _Visitor:
    """A browser that is signed in and reads one page after the other."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        _, page, cookie = self._ask("GET", "/console/sign-in")
        token = re.search(r'name="form_token" value="(\w+)"', page)
        assert token is not None
        self._cookie = cookie
        form = urlencode({"form_token": token[1], "key": key})
        status, _, self._cookie = self._ask("POST", "/console/sign-in", form)
        assert status == 303

    _cookie = ""

    def close(self) -> None:
        self._connection.close()

    def milliseconds(self, path: str) -> float:
        times: list[float] = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            status, page, _ = self._ask("GET", path)
            times.append((time.perf_counter() - started) * 1000)
            assert status == 200, (path, status, page[:500])
        return statistics.median(times[1:])

    def _ask(self, method: str, path: str, form: str | None = None) -> tuple[int, str, str]:
        headers = {"Cookie": self._cookie} if self._cookie else {}
        self._connection.request(method, path, form, headers)
        answer = self._connection.getresponse()
        cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        return answer.status, answer.read().decode(), cookie


async def _alone() -> None:
    folder = Path(__file__).parents[1] / "build/console"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        async with running_postgres(folder / "data", max_connections=28) as server:
            await migrate(server.dsn)
            config = replace(load_config({}, data_dir=folder / "data"), database_url=server.dsn)
            books = await make_books(server, config, MANY, AGENTS)
            taken = await milliseconds(server, config, folder, books)
        print(table([within(name, value, "ms", MOST_MS) for name, value in taken.items()]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(_alone())
