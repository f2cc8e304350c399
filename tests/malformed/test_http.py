"""What is around the body: size, type, path, method, ids, the order of the checks, raw bytes."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from bursar.api.call import Route
from bursar.api.routes import ROUTES
from tests.malformed.support import AGENT, KIB, NO_AGENT, body_of, route_id
from tests.support import Service, error_of, new_account, new_agent

# Size and content type ---------------------------------------------------------------------------


async def chunks(content: bytes, size: int = 64 * KIB) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def test_a_body_may_have_512_kib_and_not_a_byte_more(service: Service):
    """Goal: counted exactly, with a declared length and without one."""
    most = AGENT.encode().ljust(512 * KIB)
    async with await service.admin() as client:
        for content in (most, chunks(most)):
            answer = await client.post("/v1/agents", content=content)
            assert answer.status_code == 201, answer.text
        for content in (most + b" ", chunks(most + b" "), chunks(most + b" ", 1_000)):
            answer = await client.post("/v1/agents", content=content)
            assert "512 KiB" in error_of(answer, 413, "payload_too_large")["message"]
        for content in (b" " * 5_000_000, chunks(b" " * 5_000_000)):
            answer = await client.post("/v1/agents", content=content)
            error_of(answer, 413, "payload_too_large")
        assert len((await client.get("/v1/agents")).json()["data"]) == 2


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/json;charset=UTF-8", True),
        ("Application/JSON", True),
        ("application/merge-patch+json", True),
        ("application/vnd.api+json", True),
        (None, True),
        ("text/plain", False),
        ("text/json", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("application/jsonx", False),
        ("application/json, text/plain", False),
        ("json", False),
        ("", False),
        ("*/*", False),
        ("application/xml; x=application/json", False),
    ],
)
async def test_a_declared_body_has_to_be_json(
    service: Service, content_type: str | None, taken: bool
):
    """Goal: a wrong Content-Type on a body is 415 and shows the header to send."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    async with await service.admin() as client:
        answer = await client.post("/v1/agents", content=AGENT.encode(), headers=headers)
        if taken:
            assert answer.status_code == 201, answer.text
        else:
            error = error_of(answer, 415, "unsupported_media_type")
            assert "Content-Type: application/json" in error["message"]


async def test_a_content_type_without_a_body_is_ignored(service: Service):
    """Goal: clients that always send the header are not refused for it."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        headers = {"Content-Type": "text/plain"}
        path = f"/v1/agents/{agent['id']}"
        assert (await client.get(path, headers=headers)).status_code == 200
        assert (await client.delete(path, headers=headers)).status_code == 200
        answer = await client.post("/v1/agents", headers=headers)
        error_of(answer, 400, "validation_error")


async def test_a_body_where_none_belongs(service: Service):
    """Goal: fields that nothing would read are refused, an empty object is harmless."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        path = f"/v1/agents/{agent['id']}"
        assert (await client.request("GET", path, json={})).status_code == 200
        answer = await client.request("DELETE", path, json={"reason": "x"})
        assert error_of(answer, 400, "validation_error")["param"] == "reason"
        assert (await client.get(path)).json()["data"]["status"] == "active"


# Paths and methods -------------------------------------------------------------------------------

UNKNOWN_PATHS = [
    "/v1",
    "/v1/",
    "/v1/agents/",
    "/v1/agents//",
    "//v1/agents",
    "/v1//agents",
    "/V1/agents",
    "/v1/Agents",
    "/v2/agents",
    "/v1/agents/x/y/z",
    "/v1/nothing",
    "/v1/agents%00",
    "/v1/agents%20",
    "/v1/./agents/.",
    "/v1/agents;x=1",
    "/healthz/",
    "/docs/",
    "/openapi.yaml",
    "/.env",
    "/v1/keys/x/",
    f"/v1/agents/{NO_AGENT}/",
    f"/v1/wallets/{NO_AGENT}/balance/",
    "/%ff",
    "/v1/%C0%AF",
    "/v1/agents/..%2f..%2fetc",
    "/" + "a" * 8_000,
]


@pytest.mark.parametrize("path", UNKNOWN_PATHS, ids=[path[:40] for path in UNKNOWN_PATHS])
async def test_an_unknown_path_is_not_found(service: Service, path: str):
    """Goal: 404 in the error shape, with or without a key; a trailing slash is another path."""
    async with await service.admin() as client, service.client(None) as nobody:
        for caller in (client, nobody):
            assert (await raw(caller, "GET", path))[0] == 404
            assert (await raw(caller, "POST", path))[0] == 404


ODD_IDS = [
    "x",
    "ag_",
    "AG_00000000000000000000000000",
    "ag_0000000000000000000000000u",
    "%00",
    "%20",
    "ag_00000000000000000000000000%00",
    "ag_00000000000000000000000000%0A",
    "%F0%9F%98%80",
    "%ff",
    "'%20OR%201=1--",
    "..",
    ".",
    "%2e%2e",
    "*",
    "null",
    "a" * 5_000,
    "key_1",
    "😀",
]


BY_ID = [r for r in ROUTES if ":id" in r.path or ":agentId" in r.path]


@pytest.mark.parametrize("route", BY_ID, ids=route_id)
async def test_an_id_of_the_wrong_form_is_simply_not_found(service: Service, route: Route):
    """Goal: NUL, wrong letters, wrong length, another kind's prefix: 404 `not_found`."""
    content = b"" if route.body is None else json.dumps(body_of(route.body)).encode()
    async with await service.admin() as client:
        for text in ODD_IDS:
            quoted = text if text.isascii() else httpx.URL(f"http://h/{text}").raw_path.decode()[1:]
            path = route.path.replace(":id", quoted).replace(":agentId", quoted)
            status, _, body = await raw(client, route.method, path, content)
            assert status == 404, (text, body)
            assert json.loads(body)["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
async def test_a_wrong_method_names_the_right_ones(service: Service, path: str):
    """Goal: 405 with `Allow` on every known path, before anybody asks for a key."""
    allowed = sorted(route.method for route in ROUTES if route.path == path)
    target = path.replace(":hostname", "a.example.com").replace(":agentId", "x").replace(":id", "x")
    async with service.client(None) as nobody:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"):
            if method in allowed:
                continue
            answer = await nobody.request(method, target)
            error = error_of(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == ", ".join(allowed)
            assert all(name in error["message"] for name in allowed)
        head = await nobody.head(target)
        assert (head.status_code, head.content) == (405, b"")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/", "/docs"])
async def test_the_services_own_pages_are_read_only(service: Service, path: str):
    """Goal: they answer GET and HEAD without a key, and 405 to anything else, like every path."""
    async with service.client(None) as nobody:
        page = await nobody.get(path, headers={"X-Request-Id": "mine"})
        assert page.status_code == 200
        assert page.headers["x-request-id"] == "mine"
        assert "ratelimit-limit" not in page.headers
        head = await nobody.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            answer = await nobody.request(method, path)
            error_of(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == "GET, HEAD"


# Request ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("my-request.1:2_3", True),
        ("a", True),
        ("x" * 100, True),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", True),
        ("x" * 101, False),
        ("", False),
        ("two words", False),
        ('"quoted"', False),
        ("a{b}", False),
        ("<script>", False),
        ("a,b", False),
        ("a/b", False),
        ("ü", False),
        ("a\tb", False),
        ("%0d%0aSet-Cookie:x", False),
    ],
)
async def test_a_request_id_is_kept_if_it_is_well_formed(service: Service, given: str, kept: bool):
    """Goal: the caller's id comes back in header and error, or a fresh one of ours does."""
    async with await service.admin() as client:
        headers = {b"X-Request-Id": given.encode("latin-1")}
        good = await client.get("/v1/me", headers=headers)
        bad = await client.get("/v1/agents/x", headers=headers)
        error_of(bad, 404, "not_found")
        for answer in (good, bad):
            shown = answer.headers["x-request-id"]
            assert shown == given if kept else shown.startswith("req_")
        assert kept or good.headers["x-request-id"] != bad.headers["x-request-id"]


# Order -------------------------------------------------------------------------------------------


async def test_checks_come_in_the_order_of_the_contract(service: Service):
    """Goal: 404/405, 401, 429, 403, 413/415/400, idempotency, 404 of the object, 409."""
    account, stranger = new_account(), new_account()
    admin = await service.key(account=account, mode="live")
    read = await service.key(account=account, mode="live", scope="read")
    approver = await service.key(account=account, mode="live", scope="approver")
    bad_key = admin[:-1] + ("0" if admin[-1] != "0" else "1")
    async with (
        service.client(bad_key) as unknown,
        service.client(admin) as client,
        service.client(read) as reader,
        service.client(approver) as stopper,
        await service.admin(account=stranger) as other,
    ):
        agent = await new_agent(client)
        path = f"/v1/agents/{agent['id']}"
        foreign = f"/v1/agents/{(await new_agent(other))['id']}"
        await client.delete(path)

        # The route before the key
        error_of(await unknown.post("/v1/nothing", content=b"{"), 404, "not_found")
        error_of(await unknown.put("/v1/agents", content=b"{"), 405, "method_not_allowed")
        # The key before scope, size, type, body and object
        for content in (b"{", b" " * (512 * KIB + 1)):
            answer = await unknown.post("/v1/agents?x=1", content=content)
            error_of(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "ratelimit-limit" not in answer.headers
        error_of(await unknown.get(f"/v1/agents/{NO_AGENT}"), 401, "unauthorized")
        # The scope before size, type and body
        for content in (b"{", b'{"x":1}', b" " * (512 * KIB + 1)):
            headers = {"Content-Type": "text/plain"}
            answer = await reader.post("/v1/agents?x=1", content=content, headers=headers)
            assert "admin" in error_of(answer, 403, "forbidden")["message"]
        error_of(await reader.delete(f"/v1/agents/{NO_AGENT}"), 403, "forbidden")
        answer = await stopper.patch(f"/v1/agents/{NO_AGENT}?x=1", json={"name": 7})
        error_of(answer, 403, "forbidden")
        # Size before type before body
        big = b"{" * (512 * KIB + 1)
        headers = {"Content-Type": "text/plain"}
        answer = await client.post("/v1/agents?x=1", content=big, headers=headers)
        error_of(answer, 413, "payload_too_large")
        answer = await client.post("/v1/agents?x=1", content=b"{", headers=headers)
        error_of(answer, 415, "unsupported_media_type")
        error_of(await client.post("/v1/agents?x=1", content=b"{"), 400, "invalid_json")
        # The body before idempotency
        key = {"Idempotency-Key": "one"}
        made = await client.post("/v1/keys", json={"name": "a", "scope": "read"}, headers=key)
        assert made.status_code == 201
        answer = await client.post("/v1/keys", json={"name": 1, "scope": "read"}, headers=key)
        error_of(answer, 400, "validation_error")
        # Idempotency before the object
        body = {"name": "a", "scope": "agent", "agentId": NO_AGENT}
        answer = await client.post("/v1/keys", json=body, headers=key)
        error_of(answer, 422, "idempotency_key_reused")
        # The body before the object
        error_of(
            await client.patch(f"/v1/agents/{NO_AGENT}", json={"name": 7}), 400, "validation_error"
        )
        body = {"name": "a", "scope": "agent", "agentId": NO_AGENT}
        past = {**body, "expiresAt": "2001-01-01T00:00:00Z"}
        answer = await client.post("/v1/keys", json=past)
        assert error_of(answer, 400, "validation_error")["param"] == "expiresAt"
        error_of(await client.post("/v1/keys", json=body), 404, "not_found")
        error_of(await client.patch(path, json={"name": 7}), 400, "validation_error")
        # The object before its state
        error_of(await client.patch(foreign, json={"name": "x"}), 404, "not_found")
        error_of(await client.patch(path, json={"name": "x"}), 409, "agent_terminated")
        # The limit before the scope: refused requests count, up to the limit
        left = int((await reader.delete(path)).headers["ratelimit-remaining"])
        refused = await asyncio.gather(*(reader.delete(path) for _ in range(left)))
        assert {answer.status_code for answer in refused} == {403}
        error_of(await reader.post("/v1/agents", content=b"{"), 429, "rate_limit_exceeded")
        error_of(await reader.put("/v1/agents"), 405, "method_not_allowed")


# Below HTTP clients ------------------------------------------------------------------------------


async def raw(
    client: httpx.AsyncClient, method: str, path: str, content: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """A request whose path is sent byte for byte, which HTTP clients tidy up."""
    where = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines.append(f"Content-Length: {len(content)}")
        if "authorization" in client.headers:
            lines.append(f"Authorization: {client.headers['authorization']}")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        await writer.drain()
        async with asyncio.timeout(10):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *others = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (o.partition(":") for o in others)}
    return int(first.split(" ")[1]), headers, body


async def test_hypertext_that_no_client_sends_is_no_5xx(service: Service):
    """Goal: broken requests are refused or dropped, and the service goes on answering."""
    key = await service.key(account=new_account())
    auth = f"Authorization: Bearer {key}\r\n"
    requests = [
        b"GET /v1/me\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1/me HTTP/9.9\r\nHost: x\r\n\r\n",
        f"GET /v1/agents?limit=\x00 HTTP/1.1\r\nHost: x\r\n{auth}\r\n".encode(),
        f"GET /v1/\x00 HTTP/1.1\r\nHost: x\r\n{auth}\r\n".encode(),
        f"GET /v1/agents?a=\xff HTTP/1.1\r\nHost: x\r\n{auth}\r\n".encode("latin-1"),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: x\r\n\r\n".encode(),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: -1\r\n\r\n".encode(),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Transfer-Encoding: chunked\r\n\r\n"
        "zz\r\n".encode(),
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 9\r\n"
        "Content-Length: 10\r\n\r\n".encode(),
        # A body that breaks off, although what came of it is an object.
        f"POST /v1/agents HTTP/1.1\r\nHost: x\r\n{auth}Content-Length: 999\r\n\r\n{AGENT}".encode(),
        f"GET /v1/me HTTP/1.1\r\nHost: x\r\n{auth}X: {'x' * 100_000}\r\n\r\n".encode(),
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization\r\n\r\n",
    ]
    where = urlsplit(service.url)
    for request in requests:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(request)
            await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(10):
                answer = await reader.read()
        except OSError:
            answer = b""  # it hung up
        finally:
            writer.close()
        assert not answer or answer.split(b" ")[1].startswith(b"4"), (request[:60], answer[:200])
    async with service.client(key) as client:
        assert (await client.get("/v1/agents")).json()["data"] == []


async def test_every_kind_of_bad_key_looks_alike(service: Service):
    """Goal: missing, malformed, mistyped, unknown and revoked keys give one and the same 401."""
    account = new_account()
    good = await service.key(account=account)
    revoked = await service.key(account=account)
    async with service.client(good) as client:
        for row in (await client.get("/v1/keys")).json()["data"]:
            if row["lastUsedAt"] is None:
                await client.delete(f"/v1/keys/{row['id']}")
                break
    values = [
        None,
        "",
        "Bearer",
        "Basic eDp5",
        good,
        f"Basic {good}",
        f"Bearer {good}x",
        f"Bearer {good[:-1]}",
        "Bearer bur_test_" + "0" * 38,
        f"Bearer {revoked}",
        f"Bearer {good} {good}",
        "Bearer " + "x" * 5_000,
    ]
    bodies: set[str] = set()
    async with service.client(None) as nobody:
        for value, path in itertools.product(values, ("/v1/me", f"/v1/agents/{NO_AGENT}")):
            headers = {} if value is None else {"Authorization": value}
            answer = await nobody.get(path, headers={**headers, "X-Request-Id": "same"})
            error_of(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            bodies.add(answer.text)
    assert len(bodies) == 1
