"""The OpenAPI document against the running service, and the page that is drawn from it."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi import definitions

from bursar.api.openapi import is_shape
from bursar.api.routes import ROUTES
from bursar.clock import SystemClock
from bursar.errors import ErrorCode
from bursar.service.api import Api
from tests.support import Service, new_account, new_agent, spend

# Checks of schemathesis that our contract contradicts; all others are on.
NOT_MEANT = (
    # Hostnames, cursors, expiry times in the future and keys used once are not in a schema's power.
    # That the document's own examples are accepted is checked apart.
    "positive_data_acceptance",
    # A terminated agent stays readable.
    "use_after_free",
)
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Per operation, besides every boundary value of the coverage phase. `make fuzz` asks for more.
EXAMPLES = os.environ.get("FUZZ_SCHEMATHESIS", "8")
MOST_SECONDS = 900 + 30 * int(EXAMPLES)
pytestmark = pytest.mark.timeout(MOST_SECONDS + 60)


@pytest.fixture(scope="module")
async def unlimited(service: Service) -> AsyncGenerator[Service]:
    """The same service without rate limits, or most answers would be 429."""
    api = await Api.start(replace(service.config, rate_limits=False), SystemClock())
    try:
        yield Service(f"http://127.0.0.1:{api.port}", service.config, service.db)
    finally:
        await api.stop()


@pytest.fixture(scope="module")
async def document(service: Service) -> dict[str, Any]:
    async with service.client(None) as nobody:
        answer = await nobody.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


# A body that is too large is refused before anything else in it is looked at.
REFUSED = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
SETTINGS = f"""
[checks.negative_data_rejection]
expected-statuses = {[*map(str, REFUSED), "5xx"]}

# An agent that was just made has no draft yet. All checks are on by default; to ask for all of them
# on the command line would overrule this.
[[operations]]
include-path = "/v1/agents/{{id}}/policy/draft"
checks.ensure_resource_availability.enabled = false
"""


async def schemathesis(service: Service, folder: Path, *options: str) -> None:
    """Runs it on the live service as a user would; a failure prints its whole report."""
    async with await service.admin() as client:
        agent = await new_agent(client)
        await service.fund(agent["id"], "100")
        await spend(client, agent["id"], "1")
        header = f"Authorization: {client.headers['authorization']}"
        (folder / "schemathesis.toml").write_text(SETTINGS)
        await run_schemathesis(service, folder, "--header", header, *options)
        # It could not have judged anything with a key that stopped working on the way.
        assert (await client.get("/v1/me")).status_code == 200


async def run_schemathesis(service: Service, folder: Path, *options: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        *(f"{service.url}/openapi.json", "--no-color", "--warnings", "off"),
        *("--generation-database", "none", "--request-timeout", "60", *options),
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(MOST_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode(errors="replace")
    return output.decode(errors="replace")


async def test_no_answer_is_a_5xx_or_undocumented(unlimited: Service, tmp_path: Path):
    """Goal: whatever is sent, status, headers, type and body are those of the document."""
    await schemathesis(
        unlimited,
        tmp_path,
        f"--exclude-checks={','.join(NOT_MEANT)}",
        f"--max-examples={EXAMPLES}",
        # It reads the list of keys and would revoke its own; that one goes by itself.
        "--exclude-operation-id=revokeKey",
    )


async def test_revoking_keys_answers_as_documented(unlimited: Service, tmp_path: Path):
    """Goal: the same for the one operation that would pull the rug from under the others."""
    await schemathesis(unlimited, tmp_path, "--include-operation-id=revokeKey")


async def test_the_examples_of_the_document_are_accepted(unlimited: Service, tmp_path: Path):
    """Goal: what the reference shows can be sent as it is."""
    await schemathesis(unlimited, tmp_path, "--phases=examples", "--mode=positive")


async def test_two_tenants_never_meet_in_long_stories(unlimited: Service, tmp_path: Path):
    """Goal: calls that build on each other's answers, by two tenants in turn: every read that one
    of them may make is tried with the other's key, and gives nothing."""
    keys = {name: await unlimited.key(account=new_account()) for name in ("one", "two")}
    auth = [
        {"name": name, "fixedHeaders": [{"name": "Authorization", "value": f"Bearer {key}"}]}
        for name, key in keys.items()
    ]
    (tmp_path / "auth.json").write_text(json.dumps({"auth": auth}))
    (tmp_path / "schemathesis.toml").write_text(
        f'{SETTINGS}\n[auth.wfc]\npath = "auth.json"\npeers = ["one", "two"]\n'
    )
    report = await run_schemathesis(
        unlimited,
        tmp_path,
        f"--exclude-checks={','.join(NOT_MEANT)}",
        "--phases=stateful",
        f"--max-examples={EXAMPLES}",
        "--exclude-operation-id=revokeKey",
    )
    assert "Stateful" in report


def test_the_document_is_valid_openapi(document: dict[str, Any]):
    """Goal: valid by the official schema of OpenAPI 3.1, and every schema in it is one."""
    assert document["openapi"].startswith("3.1")
    errors = list(definitions.OPENAPI_31_VALIDATOR.iter_errors(document))
    assert errors == []
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": DIALECT, **schema})


def test_every_reference_leads_somewhere_and_every_shape_is_used(document: dict[str, Any]):
    """Goal: no dangling reference, and nothing left over."""
    text = json.dumps(document)
    used = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', text))
    assert text.count('"$ref"') == len(re.findall(r'"\$ref": "#/components/schemas/\w+"', text))
    assert used == set(document["components"]["schemas"])


# What may take a while, so that a caller may wait for how it ends.
WAITS = {
    "POST /v1/spend/authorise",
    "GET /v1/transactions/:id",
    "POST /v1/purchases",
    "POST /v1/purchases/:id/retry",
    "POST /v1/purchases/:id/continue",
}
RATE_LIMIT_HEADERS = {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}


def test_every_route_is_documented_and_nothing_else(document: dict[str, Any]):
    """Goal: operations, required fields, scopes, security and answers are those of the table."""
    documented = {
        (method.upper(), re.sub(r"\{(\w+)\}", r":\1", path))
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert documented == {(route.method, route.path) for route in ROUTES}
    assert document["security"] == [{"apiKey": []}]
    for route in ROUTES:
        path = re.sub(r":(\w+)", r"{\1}", route.path)
        operation = document["paths"][path][route.method.lower()]
        assert str(route.status) in operation["responses"]
        assert {"400", "401", "413", "415", "500", "503"} <= set(operation["responses"])
        counted = route.category is not None
        assert ("429" in operation["responses"]) is counted
        assert ("404" in operation["responses"]) or ":" not in route.path
        names = [parameter["name"] for parameter in operation["parameters"]]
        assert names[: len(re.findall(":", route.path))] == re.findall(r":(\w+)", route.path)
        assert {field.name for field in route.query} <= set(names)
        once = route.method == "POST" and route.path != "/v1/spend/preview"
        assert ("Idempotency-Key" in names) is once
        assert ("422" in operation["responses"]) is once
        assert ("Prefer" in names) is (f"{route.method} {route.path}" in WAITS)
        for status, answer in operation["responses"].items():
            headers = set(answer["headers"])
            assert (headers >= RATE_LIMIT_HEADERS) is (counted and status != "401")
            says_when = (
                status in ("429", "503") or "`idempotency_in_progress`" in answer["description"]
            )
            assert ("Retry-After" in headers) is says_when, (route.path, status)
            assert ("Idempotent-Replayed" in headers) is (once and status == str(route.status))
        for scope in route.scopes:
            assert f"`{scope.value}`" in operation["description"]
        assert ("requestBody" in operation) is (route.body is not None)
    operation_ids = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(set(operation_ids)) == len(operation_ids)


class Page(HTMLParser):
    """What a page points to, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "action", "srcset", "data", "poster", "style"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_the_reference_page_shows_everything_and_needs_no_network(
    service: Service, document: dict[str, Any]
):
    """Goal: every operation, shape, parameter and error code; nothing from anywhere else."""
    async with service.client(None) as nobody:
        answer = await nobody.get("/docs")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        page = Page(answer.text)
        style = (await nobody.get("/docs/style.css")).text
        script = (await nobody.get("/docs/reference.js")).text
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                assert operation["operationId"] in page.ids
                assert f"{method.upper()} {path}" in page.text
                assert operation["summary"] in page.text
                for parameter in operation["parameters"]:
                    assert parameter["name"] in page.text
        for name, schema in document["components"]["schemas"].items():
            assert (f"shape-{name}" in page.ids) is is_shape(name)
            for field in schema.get("properties", {}):
                assert field in page.text
        for code in ErrorCode:
            assert code.value in page.text
        # Nothing is loaded from elsewhere, not by its one script either, and every link leads
        # somewhere.
        assert page.tags.count("script") == 1
        assert "/docs/reference.js" in page.links
        assert "http:" not in script
        assert "https:" not in script
        assert len(page.ids) == len(set(page.ids))
        for link in page.links:
            if link.startswith("#"):
                assert link[1:] in page.ids, link
            else:
                assert re.fullmatch(r"/[^/].*", link), link
                assert (await nobody.get(link)).status_code == 200
        for text in (answer.text, style):
            assert "http://" not in text
            # But for the hosts of examples, which are only shown.
            assert "https://" not in re.sub(r"https://(api\.)?example\.com\b", "", text)
            assert "@import" not in text
            assert "url(" not in text
