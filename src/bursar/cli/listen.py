"""`bursar listen`: see events as they happen, and have them sent to a receiver on your machine."""

import json
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bursar.cli.connection import find_connection
from bursar.clock import iso, unix_milliseconds
from bursar.errors import CommandFailed, ConfigError
from bursar.webhook.signature import new_secret, signed_headers

if TYPE_CHECKING:
    import httpx

# Well within the rate limit of the endpoint, which is 60 a minute for live keys.
_POLL_SECONDS: Final = 2.0
# Events are written before they are committed, so one may show up behind newer ones.
_OVERLAP: Final = timedelta(seconds=30)
_FORWARD_SECONDS: Final = 15.0
_PAGE: Final = 100


def listen(
    forward_to: Annotated[
        str | None, typer.Option(help="Where to POST the events, e.g. http://localhost:3000/hook.")
    ] = None,
    events: Annotated[str, typer.Option(help="Types to show, with commas between them.")] = "*",
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", "--key", help="A key, not of scope agent. [BURSAR_API_KEY]"),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", "--url", help="Where the service is. [BURSAR_BASE_URL]"),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A saved connection, see `bursar login`. [BURSAR_PROFILE]")
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="Sign with this secret; without it a new one is printed.")
    ] = None,
) -> None:
    """Print events live and forward them, signed as webhooks are. Ends with Ctrl-C."""
    import httpx

    connection = find_connection(api_key=api_key, base_url=base_url, profile=profile)
    key, url = connection.api_key, connection.base_url
    if not key:
        raise ConfigError("BURSAR_API_KEY", "is not set; set it, or give --api-key")
    wanted = {name.strip() for name in events.split(",")}
    signing = secret or new_secret()
    headers = {"Authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=url, headers=headers, timeout=_FORWARD_SECONDS) as api,
        # Another client: the key is for Bursar alone.
        httpx.Client(timeout=_FORWARD_SECONDS, trust_env=False) as receiver,
    ):
        feed = _Feed(api)
        typer.echo(f"Listening to {url}. Ctrl-C ends it.")
        if forward_to is not None:
            typer.echo(f"Forwarding to {forward_to}. The secret it is signed with: {signing}")
        while True:
            for event in feed.news():
                if wanted & {"*", event["type"]}:
                    answer = forward_to and _post(receiver, forward_to, signing, event)
                    _show(event, answer)
            time.sleep(_POLL_SECONDS)


class _Feed:
    """Events that were not there at the last look, the oldest first.

    Goes by the moments of the events themselves: this machine's clock may be off.
    """

    def __init__(self, api: "httpx.Client") -> None:
        self._api = api
        newest = self._get({"limit": 1})["data"]
        self._newest: str | None = newest[0]["createdAt"] if newest else None
        self._seen = {event["id"] for event in self._look()} if newest else set[str]()

    def news(self) -> list[dict[str, Any]]:
        found = self._look()
        fresh = [event for event in found if event["id"] not in self._seen]
        self._seen = {event["id"] for event in found}
        self._newest = max((event["createdAt"] for event in found), default=self._newest)
        return sorted(fresh, key=lambda event: (event["createdAt"], event["id"]))

    def _look(self) -> list[dict[str, Any]]:
        query: dict[str, Any] = {"limit": _PAGE}
        if self._newest is not None:
            query["from"] = iso(datetime.fromisoformat(self._newest) - _OVERLAP)
        return self._all(query)

    def _all(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = self._get(query)
            found += page["data"]
            if not page["hasMore"]:
                return found
            query["after"] = page["nextCursor"]

    def _get(self, query: dict[str, Any]) -> dict[str, Any]:
        """Waits when the service asks for it or is away; gives up only when it says no."""
        import httpx

        while True:
            try:
                answer = self._api.get("/v1/events", params=query)
            except httpx.TransportError as problem:
                typer.echo(f"The service cannot be reached ({type(problem).__name__}).", err=True)
                time.sleep(_POLL_SECONDS)
                continue
            if answer.status_code == 200:
                return answer.json()
            if answer.status_code not in (429, 503):
                raise CommandFailed(_message(answer))
            time.sleep(float(answer.headers.get("retry-after", _POLL_SECONDS)))


def _message(answer: "httpx.Response") -> str:
    try:
        return answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"The service answered {answer.status_code}. Is --base-url right?"


def _post(receiver: "httpx.Client", url: str, secret: str, event: dict[str, Any]) -> str:
    import httpx

    body = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
    headers = signed_headers([secret], event["id"], unix_milliseconds() // 1000, body)
    headers["Content-Type"] = "application/json"
    try:
        return str(receiver.post(url, content=body, headers=headers).status_code)
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        return type(problem).__name__


def _show(event: dict[str, Any], answer: str | None) -> None:
    subject = event["data"].get("id") or event["data"].get("agentId") or ""
    line = f"{event['createdAt']}  {event['type']:<22} {event['id']}  {subject}"
    typer.echo(line if answer is None else f"{line}  -> {answer}")
