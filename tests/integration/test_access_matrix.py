"""Who may do what: two tenants, two modes, four scopes, every row of the route table.

The expectations are written out by hand from the contract. A route without a row here fails.
"""

import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from bursar.access.model import key_hash, new_secret
from bursar.api.routes import ROUTES
from bursar.chain.networks import MAINNET_USDC
from bursar.config import MODES, Mode
from bursar.ids import new_id
from tests.support import ON_CURVE, POLICY, Service, error_of, new_account, new_agent

SCOPES = ("admin", "agent", "approver", "read")
ALL = "admin agent approver read"
PEOPLE = "admin approver read"
ROUTE_NAMES = [f"{route.method} {route.path}" for route in ROUTES]


@dataclass
class Objects:
    """Ids that a request may name; of one realm, or of nothing at all."""

    agent: str
    key: str
    hostname: str
    transaction: str
    withdrawal: str = "wdr_00000000000000000000000000"
    webhook: str = "wh_00000000000000000000000000"
    event: str = "evt_00000000000000000000000000"
    purchase: str = "pur_00000000000000000000000000"
    origin: str = "https://nobody.example.com:443"
    budget: str = "bud_00000000000000000000000000"
    backtest: str = "bt_00000000000000000000000000"


Body = Callable[[Objects], dict[str, Any]]


@dataclass(frozen=True)
class Expected:
    scopes: str
    # The status for a caller who may, on its own objects.
    status: int = 200
    # The kind of object that the request names, if any: somebody else's is 404.
    names: str | None = None
    body: Body | None = None
    # Whether the request uses up what it names.
    uses_up: bool = False
    # False where the world below holds no such object: the caller who may gets 404.
    exists: bool = True
    modes: tuple[Mode, ...] = MODES


def _spend(objects: Objects) -> dict[str, Any]:
    return {"agentId": objects.agent, "amount": "1", "recipient": "api.example.com"}


def _purchase(objects: Objects) -> dict[str, Any]:
    # Not visited, because its host is not allowed.
    return {"agentId": objects.agent, "url": "https://elsewhere.example.net/"}


def _backtest(objects: Objects) -> dict[str, Any]:
    return {"agentId": objects.agent, "policy": {"dailyCap": "1.00"}}


def _draft(objects: Objects) -> dict[str, Any]:
    del objects
    return {"dailyCap": "1.00"}


def _accept(objects: Objects) -> dict[str, Any]:
    return {"origin": objects.origin, "address": ON_CURVE}


def _agent_key(objects: Objects) -> dict[str, Any]:
    return {"name": "k", "scope": "agent", "agentId": objects.agent}


EXPECTED: dict[str, Expected] = {
    "POST /v1/agents": Expected("admin", 201, body=lambda _: {"name": "x", "policy": POLICY}),
    "GET /v1/agents": Expected(ALL),
    "GET /v1/agents/:id": Expected(ALL, names="agent"),
    "PATCH /v1/agents/:id": Expected(
        "admin approver", names="agent", body=lambda _: {"status": "paused"}, uses_up=True
    ),
    # Without a filter, so that this world goes on.
    "PATCH /v1/agents": Expected("admin approver", 400, body=lambda _: {"status": "paused"}),
    "DELETE /v1/agents/:id": Expected("admin", names="agent", uses_up=True),
    "GET /v1/agents/:id/policies": Expected(ALL, names="agent"),
    "GET /v1/agents/:id/budget": Expected(ALL, names="agent"),
    "GET /v1/wallets/:agentId": Expected(ALL, names="agent"),
    "GET /v1/wallets/:agentId/balance": Expected(ALL, names="agent"),
    "GET /v1/wallets/:agentId/deposits": Expected(ALL, names="agent"),
    "GET /v1/wallets/:agentId/withdrawals": Expected(ALL, names="agent"),
    # An empty wallet has nothing to withdraw.
    "POST /v1/wallets/:agentId/withdraw": Expected(
        "admin", 409, names="agent", body=lambda _: {"amount": "1", "destination": ON_CURVE}
    ),
    "GET /v1/withdrawals/:id": Expected(ALL, names="withdrawal", exists=False),
    "POST /v1/test/wallets/:agentId/fund": Expected(
        "admin", 201, names="agent", body=lambda _: {"amount": "1"}, modes=("test",)
    ),
    "PUT /v1/recipients/:hostname": Expected("admin", body=lambda _: {"address": ON_CURVE}),
    "GET /v1/recipients": Expected(PEOPLE),
    "GET /v1/recipients/:hostname": Expected(PEOPLE, names="hostname"),
    "DELETE /v1/recipients/:hostname": Expected("admin", 204, names="hostname", uses_up=True),
    "POST /v1/keys": Expected("admin", 201, names="agent", body=_agent_key),
    "GET /v1/keys": Expected("admin"),
    "DELETE /v1/keys/:id": Expected("admin", 204, names="key", uses_up=True),
    "GET /v1/me": Expected(ALL),
    # Without a reason, so that this world goes on.
    "POST /v1/stop": Expected("admin approver", 400),
    "POST /v1/resume": Expected("admin", 409, body=lambda _: {"unsigned": "pay"}),
    "GET /v1/audit-log": Expected(PEOPLE),
    "GET /v1/audit-log/export": Expected(PEOPLE),
    "POST /v1/spend/authorise": Expected("admin agent", 201, names="agent", body=_spend),
    "POST /v1/spend/preview": Expected("admin agent", names="agent", body=_spend),
    "GET /v1/transactions": Expected(ALL),
    "GET /v1/transactions/stats": Expected(ALL),
    "GET /v1/transactions/export": Expected(ALL),
    "GET /v1/deposits/export": Expected(ALL),
    "GET /v1/withdrawals/export": Expected(ALL),
    "GET /v1/transactions/:id": Expected(ALL, names="transaction"),
    # The world's transaction is rejected (an empty wallet), so there is nothing left to decide.
    "POST /v1/transactions/:id/approve": Expected("admin approver", 409, names="transaction"),
    "POST /v1/transactions/:id/deny": Expected("admin approver", 409, names="transaction"),
    "POST /v1/transactions/:id/cancel": Expected("admin agent", 409, names="transaction"),
    "POST /v1/purchases": Expected("admin agent", 201, names="agent", body=_purchase),
    "GET /v1/purchases": Expected(ALL),
    "GET /v1/purchases/:id": Expected(ALL, names="purchase"),
    # The world's purchase is rejected: there is nothing to present, and nothing to go on with.
    "POST /v1/purchases/:id/retry": Expected("admin agent", 409, names="purchase"),
    "POST /v1/purchases/:id/continue": Expected("admin agent", 409, names="purchase"),
    "POST /v1/budgets": Expected("admin", 201, body=lambda _: {"name": "x", "limits": []}),
    "GET /v1/budgets": Expected(PEOPLE),
    "GET /v1/budgets/:id": Expected(PEOPLE, names="budget"),
    "PATCH /v1/budgets/:id": Expected("admin", names="budget", body=lambda _: {"name": "y"}),
    "DELETE /v1/budgets/:id": Expected("admin", 204, names="budget", uses_up=True),
    "POST /v1/backtests": Expected("admin", 202, names="agent", body=_backtest),
    "GET /v1/backtests/:id": Expected(PEOPLE, names="backtest"),
    "GET /v1/backtests/:id/export": Expected(PEOPLE, names="backtest"),
    "PUT /v1/agents/:id/policy/draft": Expected("admin", names="agent", body=_draft, uses_up=True),
    "GET /v1/agents/:id/policy/draft": Expected(PEOPLE, names="agent", exists=False),
    "DELETE /v1/agents/:id/policy/draft": Expected("admin", names="agent", exists=False),
    "POST /v1/agents/:id/policy/draft/promote": Expected("admin", names="agent", exists=False),
    "GET /v1/pins": Expected(PEOPLE),
    "POST /v1/pins/accept": Expected("admin", names="origin", body=_accept, uses_up=True),
    "POST /v1/pins/forget": Expected(
        "admin", 204, names="origin", body=lambda objects: {"origin": objects.origin}, uses_up=True
    ),
    "POST /v1/webhooks": Expected(
        "admin", 201, body=lambda _: {"url": "https://example.com/hook", "events": ["*"]}
    ),
    "GET /v1/webhooks": Expected(PEOPLE),
    "GET /v1/webhooks/:id": Expected(PEOPLE, names="webhook", exists=False),
    "PATCH /v1/webhooks/:id": Expected("admin", names="webhook", exists=False),
    "DELETE /v1/webhooks/:id": Expected("admin", names="webhook", exists=False),
    "POST /v1/webhooks/:id/rotate-secret": Expected("admin", names="webhook", exists=False),
    "POST /v1/webhooks/:id/test": Expected("admin", names="webhook", exists=False),
    "GET /v1/webhooks/:id/deliveries": Expected(PEOPLE, names="webhook", exists=False),
    "GET /v1/events": Expected(PEOPLE),
    "GET /v1/events/:id": Expected(PEOPLE, names="event", exists=False),
    "POST /v1/events/:id/redeliver": Expected("admin", names="event", exists=False),
}
# What stands in a path for the kind of object that its parameter names.
PARAMETERS = {
    "/v1/agents/": "agent",
    "/v1/wallets/": "agent",
    "/v1/test/wallets/": "agent",
    "/v1/recipients/": "hostname",
    "/v1/keys/": "key",
    "/v1/transactions/": "transaction",
    "/v1/withdrawals/": "withdrawal",
    "/v1/webhooks/": "webhook",
    "/v1/events/": "event",
    "/v1/purchases/": "purchase",
    "/v1/budgets/": "budget",
    "/v1/backtests/": "backtest",
}


@dataclass
class Realm:
    """One account in one mode, with a client of every scope and some objects."""

    account: str
    mode: Mode
    clients: dict[str, httpx.AsyncClient]
    own: Objects
    # The same kinds of objects, of an agent that the agent key is not bound to.
    other_agent: Objects

    # Another admin, which makes objects: a key has a rate limit.
    admin: httpx.AsyncClient


@dataclass
class World:
    service: Service
    realms: list[Realm]

    def others(self, realm: Realm) -> list[Realm]:
        return [other for other in self.realms if other is not realm]


_hosts = itertools.count(1)


async def _new_objects(service: Service, admin: httpx.AsyncClient) -> Objects:
    agent = (await new_agent(admin))["id"]
    key = await admin.post("/v1/keys", json={"name": "spare", "scope": "read"})
    hostname = f"host-{next(_hosts)}.example.com"
    put = await admin.put(f"/v1/recipients/{hostname}", json={"address": ON_CURVE})
    assert put.status_code == 200
    transaction = "txn_00000000000000000000000000"
    if "POST /v1/spend/authorise" in ROUTE_NAMES:
        spend = {"agentId": agent, "amount": "1", "recipient": "api.example.com"}
        transaction = (await admin.post("/v1/spend/authorise", json=spend)).json()["data"]["id"]
    order = {"agentId": agent, "url": "https://elsewhere.example.net/"}
    purchase = (await admin.post("/v1/purchases", json=order)).json()["data"]["id"]
    origin = f"https://{hostname}:443"
    await service.pin(agent, origin, offered=ON_CURVE)
    made = await admin.post("/v1/budgets", json={"name": "b", "limits": []})
    return Objects(
        agent,
        key.json()["data"]["id"],
        hostname,
        transaction,
        purchase=purchase,
        origin=origin,
        budget=made.json()["data"]["id"],
    )


@pytest.fixture(scope="module")
async def world(service: Service) -> AsyncGenerator[World]:
    realms: list[Realm] = []
    accounts = (new_account(), new_account())
    for account, mode in itertools.product(accounts, MODES):
        admin = await service.admin(account=account, mode=mode)
        own, other = await _new_objects(service, admin), await _new_objects(service, admin)
        for objects in (own, other):
            asked = await admin.post("/v1/backtests", json=_backtest(objects))
            objects.backtest = asked.json()["data"]["id"]
        clients = {"admin": await service.admin(account=account, mode=mode)}
        for scope in SCOPES[1:]:
            agent_id = own.agent if scope == "agent" else None
            key = await service.key(account=account, mode=mode, scope=scope, agent_id=agent_id)
            clients[scope] = service.client(key)
        realms.append(Realm(account, mode, clients, own, other, admin))
    yield World(service, realms)
    for realm in realms:
        for client in (realm.admin, *realm.clients.values()):
            await client.aclose()


async def _send(client: httpx.AsyncClient, name: str, objects: Objects) -> httpx.Response:
    method, _, path = name.partition(" ")
    body = EXPECTED[name].body
    return await client.request(
        method, _fill(path, objects), json=None if body is None else body(objects)
    )


def _fill(path: str, objects: Objects) -> str:
    prefix, colon, rest = path.partition(":")
    if not colon:
        return path
    _, slash, after = rest.partition("/")
    return f"{prefix}{getattr(objects, PARAMETERS[prefix])}{slash}{after}"


def _unsigned(answer: httpx.Response) -> dict[str, Any]:
    """The error without the one thing that differs between two alike."""
    error = dict(answer.json()["error"])
    del error["requestId"]
    return error


def _absent() -> Objects:
    return Objects(
        new_id("ag"),
        new_id("key"),
        f"absent-{next(_hosts)}.example.com",
        new_id("txn"),
        new_id("wdr"),
        new_id("wh"),
        new_id("evt"),
        new_id("pur"),
        f"https://absent-{next(_hosts)}.example.com:443",
    )


def test_every_route_has_an_expectation():
    """Goal: nobody adds an endpoint without saying here who may use it."""
    assert set(ROUTE_NAMES) - set(EXPECTED) == set()
    assert len(ROUTE_NAMES) == len(set(ROUTE_NAMES))


@pytest.mark.parametrize("name", ROUTE_NAMES)
async def test_scopes_decide_over_own_objects(world: World, name: str):
    """Goal: a scope of the table gets its answer, any other 403 that names the scope needed."""
    expected = EXPECTED[name]
    allowed = expected.scopes.split()
    for realm, scope in itertools.product(world.realms, SCOPES):
        client = realm.clients[scope]
        if scope not in allowed:
            error = error_of(await _send(client, name, realm.own), 403, "forbidden")
            assert all(needed in error["message"] for needed in allowed), error
            assert not error["retryable"]
        else:
            objects = realm.own
            if expected.uses_up:
                objects = await _new_objects(world.service, realm.admin)
            answer = await _send(client, name, objects)
            found = expected.exists and realm.mode in expected.modes
            status = expected.status if found else 404
            assert answer.status_code == status, (realm.account, realm.mode, scope, answer.text)


@pytest.mark.parametrize("name", ROUTE_NAMES)
async def test_a_refused_scope_learns_nothing_of_objects(world: World, name: str):
    """Goal: 403 comes before the body and the object are looked at."""
    method, _, path = name.partition(" ")
    for scope in set(SCOPES) - set(EXPECTED[name].scopes.split()):
        client = world.realms[0].clients[scope]
        own = await _send(client, name, world.realms[0].own)
        absent = await client.request(method, _fill(path, _absent()), content=b"{nonsense")
        assert _unsigned(absent) == _unsigned(own)
        assert absent.status_code == 403


@pytest.mark.parametrize(
    "name", [name for name in ROUTE_NAMES if EXPECTED.get(name, Expected("")).names]
)
async def test_what_belongs_to_others_does_not_exist(world: World, name: str):
    """Goal: other account, other mode, other agent and no such id at all look exactly alike."""
    expected = EXPECTED[name]
    for realm, scope in itertools.product(world.realms, expected.scopes.split()):
        client = realm.clients[scope]
        absent = await _send(client, name, _absent())
        error_of(absent, 404, "not_found")
        strangers = [other.own for other in world.others(realm)]
        if scope == "agent":
            strangers.append(realm.other_agent)
        nonsense = Objects(*["nonsense"] * 9)
        for objects in [*strangers, nonsense]:
            answer = await _send(client, name, objects)
            assert answer.status_code == 404, (scope, realm.mode, answer.text)
            assert _unsigned(answer) == _unsigned(absent)
            assert answer.headers.keys() == absent.headers.keys()


@pytest.fixture(scope="module")
async def bad_headers(world: World) -> dict[str, str | None]:
    service, realm = world.service, world.realms[0]

    async def spoilt(statement: str) -> str:
        key = await service.key(account=realm.account)
        async with service.db.transaction() as tx:
            await tx.execute(f"UPDATE api_key SET {statement} WHERE hash = $1", key_hash(key))
        return f"Bearer {key}"

    good = await service.key(account=realm.account)
    mistyped = good[:-1] + ("a" if good[-1] != "a" else "b")
    return {
        "none": None,
        "empty": "",
        "no key": "Bearer",
        "another scheme": f"Basic {good}",
        "no scheme": good,
        "mistyped": f"Bearer {mistyped}",
        "wrong mode": f"Bearer {good.replace('bur_test_', 'bur_live_')}",
        "too long": f"Bearer {good}x",
        "not ascii": f"Bearer {good[:-1]}\xe9",
        "unknown": f"Bearer {new_secret('test')}",
        "unknown live": f"Bearer {new_secret('live')}",
        "revoked": await spoilt("revoked_at = moment()"),
        "expired": await spoilt(
            "created_at = moment() - interval '2 days', expires_at = moment() - interval '1 day'"
        ),
    }


@pytest.mark.parametrize("name", ROUTE_NAMES)
async def test_every_bad_key_looks_alike(
    world: World, bad_headers: dict[str, str | None], name: str
):
    """Goal: 401 with one and the same body, before anything else is looked at."""
    method, _, path = name.partition(" ")
    bodies: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=world.service.url) as client:
        for kind, header in bad_headers.items():
            answer = await client.request(
                method,
                _fill(path, world.realms[0].own),
                headers={} if header is None else {b"Authorization": header.encode("latin-1")},
                content=b"{nonsense",
            )
            error_of(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer", kind
            assert "ratelimit-limit" not in answer.headers
            bodies.append(_unsigned(answer))
    assert all(body == bodies[0] for body in bodies)


async def test_lists_hold_own_rows_only(world: World):
    """Goal: a list shows its realm's rows and no other's; an agent key's list only its agent."""
    for realm in world.realms:
        foreign = {o.own.agent for o in world.others(realm)} | {
            o.other_agent.agent for o in world.others(realm)
        }
        for scope in SCOPES:
            listed = await _all_of(realm.clients[scope], "/v1/agents")
            ids = {row["id"] for row in listed}
            assert not ids & foreign
            if scope == "agent":
                assert ids == {realm.own.agent}
            else:
                assert ids >= {realm.own.agent, realm.other_agent.agent}
        hosts = {row["hostname"] for row in await _all_of(realm.admin, "/v1/recipients")}
        assert realm.own.hostname in hosts
        assert not hosts & {other.own.hostname for other in world.others(realm)}
        keys = await _all_of(realm.admin, "/v1/keys")
        assert realm.own.key in {row["id"] for row in keys}
        assert not {other.own.key for other in world.others(realm)} & {row["id"] for row in keys}
        assert {row["mode"] for row in keys} == {realm.mode}
        assert all("key" not in row for row in keys)


async def test_transactions_statistics_and_export_hold_own_rows_only(world: World):
    """Goal: the three ways to read transactions agree on whose they are; naming a stranger's
    agent gives nothing, as if it did not exist."""
    for realm in world.realms:
        for scope in SCOPES:
            client = realm.clients[scope]
            agents = {realm.own.agent}
            if scope != "agent":
                agents.add(realm.other_agent.agent)
            rows = await _all_of(client, "/v1/transactions")
            seen = {row["agentId"] for row in rows}
            assert seen & _agents_of(world) == agents
            assert {realm.own.transaction} <= {row["id"] for row in rows}
            stats = (await client.get("/v1/transactions/stats")).json()["data"]
            assert stats["transactionCount"] == len(rows)
            exported = (await client.get("/v1/transactions/export")).text.splitlines()
            assert len(exported) == 1 + len(rows)
            for stranger in _agents_of(world) - agents:
                query = {"agentId": stranger}
                assert await _all_of(client, f"/v1/transactions?agentId={stranger}") == []
                none = (await client.get("/v1/transactions/stats", params=query)).json()["data"]
                assert (none["transactionCount"], none["topRecipients"]) == (0, [])
                empty = await client.get("/v1/transactions/export", params=query)
                assert empty.text.splitlines() == exported[:1]


def _agents_of(world: World) -> set[str]:
    return {o.agent for realm in world.realms for o in (realm.own, realm.other_agent)}


async def test_an_agent_key_spends_as_its_own_agent_only(world: World):
    """Goal: without agentId it is its own; with another's there is no such agent."""
    realm = world.realms[0]
    client = realm.clients["agent"]
    body = {"amount": "1", "recipient": "api.example.com"}
    for path, status in (("/v1/spend/authorise", 201), ("/v1/spend/preview", 200)):
        own = await client.post(path, json=body)
        assert own.status_code == status, own.text
        assert own.json()["data"].get("agentId", realm.own.agent) == realm.own.agent
        other = await client.post(path, json={**body, "agentId": realm.other_agent.agent})
        error_of(other, 404, "not_found")
        nobody = await realm.admin.post(path, json=body)
        assert error_of(nobody, 400, "validation_error")["param"] == "agentId"


async def test_an_agent_keys_list_ignores_nothing_it_is_asked(world: World):
    """Goal: filters narrow an agent key's list, they never widen it."""
    client = world.realms[0].clients["agent"]
    assert await _all_of(client, "/v1/agents?status=paused") == []
    assert len(await _all_of(client, "/v1/agents?status=active")) == 1
    assert await _all_of(client, "/v1/agents?metadata[team]=search") == []


async def test_the_same_hostname_is_another_entry_in_another_realm(world: World):
    """Goal: a directory write changes nothing for another account or the other mode."""
    first, *others = world.realms
    path = f"/v1/recipients/{first.own.hostname}"
    before = (await first.admin.get(path)).json()
    for other in others:
        put = await other.admin.put(path, json={"address": MAINNET_USDC})
        assert put.status_code == 200
        assert (await other.admin.delete(path)).status_code == 204
        error_of(await other.admin.get(path), 404, "not_found")
    assert (await first.admin.get(path)).json() == before


async def test_idempotency_keys_of_two_realms_never_meet(world: World):
    """Goal: one tenant's Idempotency-Key neither replays nor blocks another's request."""
    made: set[str] = set()
    for realm in world.realms:
        answer = await realm.admin.post(
            "/v1/agents",
            json={"name": "same", "policy": POLICY},
            headers={"Idempotency-Key": "the same for everyone"},
        )
        assert answer.status_code == 201
        assert "idempotent-replayed" not in answer.headers
        made.add(answer.json()["data"]["id"])
    assert len(made) == len(world.realms)


async def test_a_cursor_of_another_realm_is_refused(world: World):
    """Goal: a cursor is no way to look into, or be steered by, another tenant's list."""
    first, *others = world.realms
    cursor = (await first.admin.get("/v1/agents?limit=1")).json()["nextCursor"]
    for other in others:
        answer = await other.admin.get("/v1/agents", params={"after": cursor})
        assert error_of(answer, 400, "validation_error")["param"] == "after"


STOPS: list[dict[str, Any]] = [
    {},
    {"policy": {}},
    {"status": "paused"},
    {"policy": {"frozen": True}},
    {"policy": {"version": 1}},
    {"policy": {"frozen": True, "version": 1}},
    {"status": "paused", "policy": {"frozen": True}},
    {"status": "paused", "policy": {"frozen": True, "version": 1}},
]
NOT_STOPS: list[dict[str, Any]] = [
    {"status": "active"},
    {"status": "terminated"},
    {"status": None},
    {"status": ["paused"]},
    {"status": "Paused"},
    {"name": "x"},
    {"metadata": {}},
    {"policy": None},
    {"policy": []},
    {"policy": "frozen"},
    {"policy": {"frozen": False}},
    {"policy": {"frozen": None}},
    {"policy": {"frozen": 1}},
    {"policy": {"frozen": "true"}},
    {"policy": {"dailyCap": "0"}},
    {"policy": {"dailyCap": "100.00"}},
    {"policy": {"allowlist": []}},
    {"policy": {"blocklist": ["*"]}},
    {"policy": {"perTransactionCap": "0"}},
    {"policy": {"approvalThreshold": "0"}},
    {"policy": {"frozen": True, "dailyCap": "0"}},
    {"status": "paused", "name": "x"},
    {"status": "paused", "metadata": {"a": "b"}},
    {"status": "paused", "policy": {"frozen": False}},
    {"status": "active", "policy": {"frozen": True}},
    {"status": "paused", "unknown": 1},
    {"policy": {"frozen": True, "unknown": 1}},
]


@pytest.mark.parametrize("body", STOPS, ids=str)
async def test_an_approver_may_stop_an_agent(world: World, body: dict[str, Any]):
    """Goal: pausing and freezing, with or without the version, is all an approver can send."""
    realm = world.realms[0]
    agent = await new_agent(realm.admin)
    answer = await realm.clients["approver"].patch(f"/v1/agents/{agent['id']}", json=body)
    assert answer.status_code == 200, answer.text
    after = answer.json()["data"]
    assert after["status"] == body.get("status", "active")
    assert after["policy"]["frozen"] == body.get("policy", {}).get("frozen", False)


@pytest.mark.parametrize("body", NOT_STOPS, ids=str)
async def test_an_approver_may_do_nothing_else(world: World, body: dict[str, Any]):
    """Goal: anything beyond a stop is 403 and not even the allowed part of it is applied."""
    realm = world.realms[0]
    path = f"/v1/agents/{realm.own.agent}"
    before = (await realm.admin.get(path)).json()
    error = error_of(await realm.clients["approver"].patch(path, json=body), 403, "forbidden")
    assert "admin" in error["message"]
    assert (await realm.admin.get(path)).json() == before


async def test_an_approvers_stale_version_is_a_conflict(world: World):
    """Goal: an approver's freeze obeys policy.version like everyone's."""
    realm = world.realms[0]
    agent = await new_agent(realm.admin)
    path = f"/v1/agents/{agent['id']}"
    await realm.admin.patch(path, json={"policy": {"dailyCap": "7"}})
    answer = await realm.clients["approver"].patch(
        path, json={"status": "paused", "policy": {"frozen": True, "version": 1}}
    )
    error_of(answer, 409, "policy_version_conflict")
    now = (await realm.admin.get(path)).json()["data"]
    assert (now["status"], now["policy"]["frozen"]) == ("active", False)


async def test_the_worlds_objects_outlived_every_refused_request(world: World):
    """Goal: no refused request above changed or ended anybody's objects."""
    for realm in world.realms:
        for objects in (realm.own, realm.other_agent):
            agent = (await realm.admin.get(f"/v1/agents/{objects.agent}")).json()["data"]
            assert (agent["status"], agent["policy"]["version"]) == ("active", 1)
            entry = await realm.admin.get(f"/v1/recipients/{objects.hostname}")
            assert entry.json()["data"]["address"] == ON_CURVE
            keys = {row["id"]: row for row in await _all_of(realm.admin, "/v1/keys")}
            assert keys[objects.key]["revokedAt"] is None


async def _all_of(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(100):
        url = httpx.URL(path).copy_merge_params({"limit": "100"})
        answer = await client.get(url.copy_merge_params({"after": cursor}) if cursor else url)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        rows += page["data"]
        cursor = page["nextCursor"]
        if not page["hasMore"]:
            return rows
    raise AssertionError("the list does not end")
