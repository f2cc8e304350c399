"""The API of a service that runs elsewhere, as the tools call it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import httpx

from bursar.client.address import check_address, past_proxies
from bursar.errors import ApiError, ErrorCode, present, unavailable
from bursar.mcp.tool import CONSOLE, WAIT_SECONDS, ApiAnswer, ApiRequest

# A purchase may wait for its turn, and its seller may take its time, twice.
_TIMEOUT: Final = httpx.Timeout(15, read=WAIT_SECONDS + 135)


@asynccontextmanager
async def reaching(base_url: str, key: str) -> AsyncGenerator["OverHttp"]:
    """The API for one agent key, while the context is open."""
    async with http_client(base_url, key) as client:
        yield OverHttp(client)


def http_client(base_url: str, key: str) -> httpx.AsyncClient:
    check_address(key, base_url)
    return httpx.AsyncClient(
        base_url=base_url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=_TIMEOUT,
        mounts=past_proxies(base_url),
    )


class OverHttp:
    """The API of a running service, for one agent key."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._agent_id: str | None = None

    @property
    def console(self) -> str:
        return f"{str(self._client.base_url).rstrip('/')}{CONSOLE}"

    async def agent_id(self) -> str | ApiAnswer:
        """Looked up at the first tool call, so that a client may start before the service."""
        if self._agent_id is None:
            answer = await self.send(ApiRequest("GET", "/v1/me"))
            if answer.status != 200:
                return answer
            me = answer.body["data"]
            if me["scope"] != "agent":
                raise ApiError(
                    ErrorCode.FORBIDDEN,
                    "This needs a key of scope agent; this key has scope"
                    f" {me['scope']}. Ask your operator for one.",
                )
            self._agent_id = me["agentId"]
        return present(self._agent_id, "a key of scope agent has one")

    async def send(self, request: ApiRequest) -> ApiAnswer:
        try:
            answer = await self._client.request(
                request.method,
                request.path,
                params=request.query,
                json=request.body,
                headers=request.headers,
            )
            return _understood(answer)
        except (httpx.RequestError, ValueError):
            raise unavailable(
                f"There is no answer from Bursar at {self._client.base_url}. If this was a spend"
                " or a purchase, call again with the same idempotencyKey: it is paid once."
            ) from None


def _understood(answer: httpx.Response) -> ApiAnswer:
    """The answer, if it is Bursar's. Raises ValueError if something in between answered, such as a
    proxy."""
    match answer.json():
        case {"data": _} as body if answer.is_success:
            pass
        case {"error": {"code": str(), "message": str()}} as body if answer.is_error:
            pass
        case _:
            raise ValueError("not one of Bursar's")
    return ApiAnswer(answer.status_code, answer.headers, body)
