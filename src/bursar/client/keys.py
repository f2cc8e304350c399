"""API keys of the account."""

from bursar.client.codec import When, when_text
from bursar.client.endpoint import Carrier, Request, Resource, listing, operation, present
from bursar.client.model import CreatedKey, Key, Me, Scope


class Keys(Resource[Carrier]):
    @operation("POST /v1/keys", CreatedKey)
    def create(
        self,
        name: str,
        *,
        scope: Scope,
        agent_id: str | None = None,
        expires_at: When | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Make a key of this key's account and mode. `key` is shown this once.

        Scope `agent` is bound to one agent and needs `agent_id`.
        """
        body = present(
            name=name,
            scope=scope,
            agentId=agent_id,
            expiresAt=None if expires_at is None else when_text(expires_at),
        )
        return Request(body=body, idempotency_key=idempotency_key)

    @listing("GET /v1/keys", Key)
    def list(self, *, limit: int | None = None, after: str | None = None) -> Request:
        """Keys, newest first, without their secrets."""
        return Request(query={"limit": limit, "after": after})

    @operation("DELETE /v1/keys/:id", type(None))
    def revoke(self, key_id: str) -> Request:
        """Stop a key, everywhere within a second."""
        return Request(path={"id": key_id})

    @operation("GET /v1/me", Me)
    def me(self) -> Request:
        """The calling key and its rate limits."""
        return Request()
