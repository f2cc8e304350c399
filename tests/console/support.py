"""A visitor of the console over plain HTTP, without a browser."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from tests.support import Service

# A name, a memo or a token that would act if it were not escaped.
HOSTILE = """"><script>alert(1)</script>'{{ 7*7 }}"""


@dataclass
class Visitor:
    """A browser without a screen: keeps cookies, reads form tokens."""

    http: httpx.AsyncClient

    async def get(self, path: str, status: int = 200, **headers: str) -> httpx.Response:
        answer = await self.http.get(path, headers=headers)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return answer

    async def post(self, path: str, page: str, status: int = 303, **fields: str) -> httpx.Response:
        """Sends a form with the token of a page that has one, and with what else it hides there."""
        shown = await self.get(page)
        hidden = {"form_token": token_of(shown)}
        if 'name="seen"' in shown.text:
            hidden["seen"] = seen_in(shown)
        answer = await self.http.post(path, data={**hidden, **fields})
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return answer


def token_of(answer: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', answer.text)
    assert found is not None, answer.text[:500]
    return found[1]


def seen_in(answer: httpx.Response) -> str:
    """The mark of what a page shows, as its form hides it."""
    found = re.search(r'name="seen" value="([^"]*)"', answer.text)
    assert found is not None, answer.text[:500]
    return found[1]


def browser_of(service: Service) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=service.url, timeout=30, verify=False)


def cookie_of(service: Service) -> str:
    return f"bursar_console_{urlsplit(service.url).port}"


async def sign_in(http: httpx.AsyncClient, key: str) -> Visitor:
    visitor = Visitor(http)
    answer = await visitor.post("/console/sign-in", "/console/sign-in", key=key)
    assert answer.headers["location"] == "/console"
    return visitor


@dataclass
class Tenant:
    service: Service
    account: str
    api: httpx.AsyncClient
    visitor: Visitor

    @property
    def key(self) -> str:
        return self.api.headers["Authorization"].removeprefix("Bearer ")
