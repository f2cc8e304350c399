"""The whole account: stop every agent at once, and let them go on."""

from bursar.client.endpoint import Carrier, Request, Resource, operation, present
from bursar.client.model import Resumed, Stopped, Unsigned


class Account(Resource[Carrier]):
    @operation("POST /v1/stop", Stopped)
    def stop(
        self,
        reason: str,
        *,
        also_unsigned: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Refuse every new spend and approval of every agent, from the answer on.

        `also_unsigned` also holds what is approved and not yet signed. Never rate-limited.
        """
        return Request(
            body=present(reason=reason, alsoUnsigned=also_unsigned),
            idempotency_key=idempotency_key,
        )

    @operation("POST /v1/resume", Resumed)
    def resume(self, *, unsigned: Unsigned, idempotency_key: str | None = None) -> Request:
        """Undo `stop`. `unsigned` says what becomes of spends that it held."""
        return Request(body={"unsigned": unsigned}, idempotency_key=idempotency_key)
