"""`bursar listen`: see events as they happen, and have them sent to a receiver on your machine."""

import json
import time
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bursar.cli.connection import find_connection
from bursar.cli.exits import ExitCode, exit_code
from bursar.cli.remote import ApiKey, BaseUrl, ProfileName, Remote
from bursar.cli.show import Output, plain, say
from bursar.clock import iso, unix_milliseconds
from bursar.signature import new_secret, signed_headers

if TYPE_CHECKING:
    import httpx

    from bursar.client.client import Bursar
    from bursar.client.model import Event

# Well within the endpoint's rate limit of 60 a minute for live keys.
_POLL_SECONDS: Final = 2.0
# An event gets its time before its commit, so it may appear after newer ones.
_OVERLAP: Final = timedelta(seconds=30)
_FORWARD_SECONDS: Final = 15.0
_PAGE: Final = 100


def listen(
    forward_to: Annotated[
        str | None, typer.Option(help="Where to POST the events, e.g. http://localhost:3000/hook.")
    ] = None,
    events: Annotated[str, typer.Option(help="Types to show, with commas between them.")] = "*",
    api_key: ApiKey = None,
    base_url: BaseUrl = None,
    profile: ProfileName = None,
    secret: Annotated[
        str | None, typer.Option(help="Sign with this secret; without it a new one is printed.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event whole, one JSON object a line.")
    ] = False,
) -> None:
    """Print events live and forward them, signed as webhooks are. Ends with Ctrl-C.

    Any key will do but an agent's.
    """
    import httpx

    connection = find_connection(api_key=api_key, base_url=base_url, profile=profile)
    wanted = {name.strip() for name in events.split(",")}
    signing = secret or new_secret()
    out = Output(as_json=as_json)
    with (
        Remote(connection, out).client as client,
        # A client of its own, without the key, which only Bursar may get.
        httpx.Client(timeout=_FORWARD_SECONDS, trust_env=False) as receiver,
    ):
        feed = _Feed(client)
        # A script that reads events gets nothing else on standard output.
        say(f"Listening to {connection.base_url}. Ctrl-C ends it.", err=as_json)
        if forward_to is not None:
            said = f"Forwarding to {forward_to}. The secret it is signed with: {signing}"
            say(said, err=as_json)
        while True:
            for event in feed.news():
                if wanted & {"*", event.type}:
                    answer = forward_to and _post(receiver, forward_to, signing, event)
                    if as_json:
                        out.line(event)
                    else:
                        _show(event, answer)
            time.sleep(_POLL_SECONDS)


class _Feed:
    """Events that are new since the last poll, oldest first.

    Uses the times of the events themselves, because this machine's clock may be wrong.
    """

    def __init__(self, client: "Bursar") -> None:
        self._client = client
        self._newest: datetime | None = None
        self._seen = set[str]()
        if newest := self._events(limit=1, most=1):
            self._newest = newest[0].created_at
            self.news()

    def news(self) -> "list[Event]":
        since = None if self._newest is None else self._newest - _OVERLAP
        found = self._events(limit=_PAGE, from_=since)
        fresh = [event for event in found if event.id not in self._seen]
        self._seen = {event.id for event in found}
        self._newest = max((event.created_at for event in found), default=self._newest)
        return sorted(fresh, key=lambda event: (event.created_at, event.id))

    def _events(
        self, *, limit: int, from_: datetime | None = None, most: int | None = None
    ) -> "list[Event]":
        """Waits when the service asks for it or is away; gives up only when the service refuses."""
        from bursar.client.errors import RequestFailed

        while True:
            try:
                return list(islice(self._client.events.list(limit=limit, from_=from_), most))
            except RequestFailed as problem:
                if exit_code(problem) is not ExitCode.UNAVAILABLE:
                    raise
                say(str(problem), err=True)
                time.sleep(getattr(problem, "retry_after", None) or _POLL_SECONDS)


def _post(receiver: "httpx.Client", url: str, secret: str, event: "Event") -> str:
    import httpx

    from bursar.client.codec import write

    body = json.dumps(write(event), separators=(",", ":"), ensure_ascii=False).encode()
    headers = signed_headers([secret], event.id, unix_milliseconds() // 1000, body)
    headers["Content-Type"] = "application/json"
    try:
        return str(receiver.post(url, content=body, headers=headers).status_code)
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        return type(problem).__name__


def _show(event: "Event", answer: str | None) -> None:
    subject = plain(event.data.get("id") or event.data.get("agentId"))
    line = f"{iso(event.created_at)}  {plain(event.type):<22} {plain(event.id)}  {subject}"
    say(line if answer is None else f"{line}  -> {answer}")
