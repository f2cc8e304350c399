"""Events: everything that happened, whether or not a webhook was sent it."""

from bursar.client.codec import When, when_text
from bursar.client.endpoint import Carrier, Request, Resource, listing, operation, present
from bursar.client.model import Event, Redelivery


class Events(Resource[Carrier]):
    @listing("GET /v1/events", Event)
    def list(
        self,
        *,
        event_type: str | None = None,
        agent_id: str | None = None,
        from_: When | None = None,
        to: When | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Request:
        """Events, newest first. They are kept 90 days."""
        return Request(
            query={
                "type": event_type,
                "agentId": agent_id,
                "from": None if from_ is None else when_text(from_),
                "to": None if to is None else when_text(to),
                "limit": limit,
                "after": after,
            }
        )

    @operation("GET /v1/events/:id", Event)
    def get(self, event_id: str) -> Request:
        """One event."""
        return Request(path={"id": event_id})

    @operation("POST /v1/events/:id/redeliver", Redelivery)
    def redeliver(
        self,
        event_id: str,
        *,
        webhook_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Send it again, to one webhook or to all that ask for its type."""
        return Request(
            path={"id": event_id},
            body=present(webhookId=webhook_id),
            idempotency_key=idempotency_key,
        )
