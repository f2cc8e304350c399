"""`bursar webhooks` and `bursar events`: what happened, and who is told."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bursar.cli.remote import All, Limit, Remote, remote, row_limit
from bursar.cli.show import ROWS, Columns
from bursar.errors import ConfigError

if TYPE_CHECKING:
    from bursar.client.model import Delivery, Event, Webhook

app = typer.Typer(no_args_is_help=True, help="Register, test and repair webhooks.")
events = typer.Typer(no_args_is_help=True, help="See what happened, and send it again.")

_WEBHOOKS: "Columns[Webhook]" = {
    "id": lambda webhook: webhook.id,
    "url": lambda webhook: webhook.url,
    "events": lambda webhook: webhook.events,
    "status": lambda webhook: webhook.status,
    "disabled because": lambda webhook: webhook.disabled_reason,
}
_DELIVERIES: "Columns[Delivery]" = {
    "id": lambda delivery: delivery.id,
    "event": lambda delivery: delivery.event_id,
    "type": lambda delivery: delivery.event_type,
    "status": lambda delivery: delivery.status,
    "attempts": lambda delivery: len(delivery.attempts),
    "last": lambda delivery: _last(delivery),
    "next": lambda delivery: delivery.next_attempt_at,
}
_EVENTS: "Columns[Event]" = {
    "id": lambda event: event.id,
    "created": lambda event: event.created_at,
    "type": lambda event: event.type,
    "about": lambda event: event.data.get("id") or event.data.get("agentId"),
}

_WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id, wh_….")]
_EventId = Annotated[str, typer.Argument(metavar="EVENT", help="Its id, evt_….")]


@app.command()
@remote
def create(
    to: Remote,
    url: Annotated[str, typer.Argument(help="Where to send events: https://….")],
    event: Annotated[
        list[str] | None,
        typer.Option("--event", help="A type to send; repeatable. Without it: all."),
    ] = None,
) -> None:
    """Register a webhook. Its secret is shown only now."""
    to.out.one(to.client.webhooks.create(url=url, events=event or ["*"]))
    to.out.note("The secret is shown only now; keep it safe.")


@app.command("list")
@remote
def list_(to: Remote, limit: Limit = ROWS, every: All = False) -> None:
    """List webhooks, newest first."""
    to.out.rows(to.client.webhooks.list(), _WEBHOOKS, most=row_limit(limit, every))


@app.command()
@remote
def show(to: Remote, webhook_id: _WebhookId) -> None:
    """Show a webhook."""
    to.out.one(to.client.webhooks.get(webhook_id))


@app.command()
@remote
def update(
    to: Remote,
    webhook_id: _WebhookId,
    url: Annotated[str | None, typer.Option(help="Where to send events.")] = None,
    event: Annotated[
        list[str] | None, typer.Option("--event", help="A type, or *; repeatable.")
    ] = None,
    status: Annotated[
        Literal["enabled", "disabled"] | None, typer.Option(help="Whether events are sent to it.")
    ] = None,
) -> None:
    """Change a webhook; `--status enabled` also after it was disabled for failing."""
    changes: dict[str, Any] = {"url": url, "events": event or None, "status": status}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise ConfigError("--url, --event or --status", "say what to change")
    to.out.one(to.client.webhooks.update(webhook_id, **changes))


@app.command()
@remote
def delete(to: Remote, webhook_id: _WebhookId) -> None:
    """Remove a webhook. What waits for it is dropped."""
    to.client.webhooks.delete(webhook_id)
    to.out.done(f"{webhook_id} is deleted.")


@app.command("rotate-secret")
@remote
def rotate_secret(to: Remote, webhook_id: _WebhookId) -> None:
    """Give a webhook a new secret. The old one signs along for 24 hours."""
    to.out.one(to.client.webhooks.rotate_secret(webhook_id))
    to.out.note("The secret is shown only now; keep it safe.")


@app.command()
@remote
def test(to: Remote, webhook_id: _WebhookId) -> None:
    """Send a webhook a test event."""
    sent = to.client.webhooks.test(webhook_id)
    to.out.done(f"{sent.event_id} is on its way; see: bursar webhooks deliveries", sent)


@app.command()
@remote
def deliveries(to: Remote, webhook_id: _WebhookId, limit: Limit = ROWS, every: All = False) -> None:
    """List what was sent to a webhook, newest first."""
    found = to.client.webhooks.deliveries(webhook_id)
    to.out.rows(found, _DELIVERIES, most=row_limit(limit, every))


# Events -------------------------------------------------------------------------------------------


@events.command("list")
@remote
def list_events(
    to: Remote,
    event_type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only about this agent.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="From this date or time on.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Before this time.")] = None,
    limit: Limit = ROWS,
    every: All = False,
) -> None:
    """List events, newest first. Live: `bursar listen`."""
    found = to.client.events.list(event_type=event_type, agent_id=agent, from_=from_, to=until)
    to.out.rows(found, _EVENTS, most=row_limit(limit, every))


@events.command("show")
@remote
def show_event(to: Remote, event_id: _EventId) -> None:
    """Show an event with its data."""
    to.out.one(to.client.events.get(event_id))


@events.command()
@remote
def redeliver(
    to: Remote,
    event_id: _EventId,
    webhook: Annotated[str | None, typer.Option(help="Only to this webhook.")] = None,
) -> None:
    """Send an event again."""
    again = to.client.events.redeliver(event_id, webhook_id=webhook)
    to.out.done(f"{event_id} is sent again to {len(again.deliveries)} webhook(s).", again)


def _last(delivery: "Delivery") -> str | None:
    if not delivery.attempts:
        return None
    attempt = delivery.attempts[-1]
    return str(attempt.status) if attempt.status is not None else attempt.error
