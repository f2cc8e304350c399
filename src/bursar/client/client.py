"""`Bursar` and `AsyncBursar`: one client each, with a resource for every part of the API."""

import os
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Generic, Self

from bursar.client.account import Account
from bursar.client.address import check_address
from bursar.client.agents import Agents
from bursar.client.audit_log import AuditLog
from bursar.client.backtests import Backtests, Drafts
from bursar.client.budgets import Budgets
from bursar.client.codec import Amount
from bursar.client.endpoint import Carrier
from bursar.client.errors import RequestFailed
from bursar.client.events import Events
from bursar.client.fetch import Bought, fetching
from bursar.client.keys import Keys
from bursar.client.purchases import Pins, Purchases
from bursar.client.recipients import Recipients
from bursar.client.spend import Spend
from bursar.client.transactions import Transactions
from bursar.client.transport import RETRIES_MOST, AsyncTransport, Retries, Service, Transport
from bursar.client.variables import API_KEY, BASE_URL, DEFAULT_BASE_URL
from bursar.client.wallets import Wallets
from bursar.client.webhooks import Webhooks
from bursar.errors import ConfigError

DEFAULT_TIMEOUT_SECONDS: Final = 30.0


class _Client(Generic[Carrier]):
    """A resource for every part of the API."""

    def __init__(self, transport: Carrier) -> None:
        self._transport = transport
        self.agents = Agents(transport)
        self.wallets = Wallets(transport)
        self.spend = Spend(transport)
        self.budgets = Budgets(transport)
        self.backtests = Backtests(transport)
        self.drafts = Drafts(transport)
        self.purchases = Purchases(transport)
        self.pins = Pins(transport)
        self.transactions = Transactions(transport)
        self.webhooks = Webhooks(transport)
        self.events = Events(transport)
        self.keys = Keys(transport)
        self.recipients = Recipients(transport)
        self.audit_log = AuditLog(transport)
        self.account = Account(transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._transport.base_url}>"


class Bursar(_Client[Transport]):
    """The blocking client. Threads may share one; `with` closes its connections.

    `api_key` and `base_url` are taken from BURSAR_API_KEY and BURSAR_BASE_URL when not given.
    `timeout`: seconds without a sign of the service. A 429 is tried again at most `max_retries`
    times, after 0.5 s, 1 s and 2 s (plus up to 0.2 s); with `honour_retry_after` as long as the
    service asks, where that is longer. With `retry_connections` a GET or a POST whose connection
    broke is tried again too: those happen once. Every other error is raised at once.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_retries: int = RETRIES_MOST,
        honour_retry_after: bool = False,
        retry_connections: bool = False,
    ) -> None:
        retries = _retries(max_retries, honour_retry_after, retry_connections)
        super().__init__(Transport(_service(api_key, base_url, timeout, retries)))

    def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: str | bytes | None = None,
        json: Any = None,
        agent_id: str | None = None,
        max_amount: Amount | None = None,
        memo: str | None = None,
        metadata: Mapping[str, str] | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
    ) -> Bought:
        """Fetch a URL, and pay what it costs if the policy allows it: an httpx response, with the
        `purchase`. What costs nothing is fetched alike.

        A seller that stumbles after it was paid is shown the same payment again, a few times;
        nothing is paid twice. Where there is no answer of the seller it raises PurchaseRefused,
        PurchasePending, PurchaseFailed or PurchaseUnanswered.
        """
        steps = fetching(
            self,
            url,
            method=method,
            headers=headers,
            content=content,
            json_=json,
            agent_id=agent_id,
            max_amount=max_amount,
            memo=memo,
            metadata=metadata,
            wait=wait,
            idempotency_key=idempotency_key,
        )
        step = next(steps)
        try:
            while True:
                try:
                    found = step()
                except RequestFailed as problem:
                    step = steps.throw(problem)
                else:
                    step = steps.send(found)
        except StopIteration as done:
            return done.value

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncBursar(_Client[AsyncTransport]):
    """The client for asyncio: the same arguments and methods as `Bursar`, to be awaited.

    Lists are read with `async for`; `async with` closes the connections.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_retries: int = RETRIES_MOST,
        honour_retry_after: bool = False,
        retry_connections: bool = False,
    ) -> None:
        retries = _retries(max_retries, honour_retry_after, retry_connections)
        super().__init__(AsyncTransport(_service(api_key, base_url, timeout, retries)))

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: str | bytes | None = None,
        json: Any = None,
        agent_id: str | None = None,
        max_amount: Amount | None = None,
        memo: str | None = None,
        metadata: Mapping[str, str] | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
    ) -> Bought:
        """The same as `Bursar.fetch`, without blocking."""
        steps = fetching(
            self,
            url,
            method=method,
            headers=headers,
            content=content,
            json_=json,
            agent_id=agent_id,
            max_amount=max_amount,
            memo=memo,
            metadata=metadata,
            wait=wait,
            idempotency_key=idempotency_key,
        )
        step = next(steps)
        try:
            while True:
                try:
                    found = await step()
                except RequestFailed as problem:
                    step = steps.throw(problem)
                else:
                    step = steps.send(found)
        except StopIteration as done:
            return done.value

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _retries(most: int, honour_retry_after: bool, broken_connections: bool) -> Retries:
    return Retries(
        most=most, honour_retry_after=honour_retry_after, broken_connections=broken_connections
    )


def _service(
    api_key: str | None, base_url: str | None, timeout: float, retries: Retries
) -> Service:
    key = api_key or os.environ.get(API_KEY, "")
    if not key:
        raise ConfigError(API_KEY, "is not set; set it, or give api_key")
    # Refused here: an invalid header value would appear in an error message further down.
    if re.fullmatch(r"[!-~]+", key) is None:
        raise ConfigError(API_KEY, "is not an API key: it holds a space or another odd character")
    url = base_url or os.environ.get(BASE_URL) or DEFAULT_BASE_URL
    if not url.startswith(("http://", "https://")):
        raise ConfigError(BASE_URL, f"must begin with http:// or https://, not {url!r}")
    check_address(key, url)
    return Service.of(key, url.rstrip("/"), timeout, retries)
