"""Spends: what an agent asks for."""

from collections.abc import Mapping

from bursar.client.codec import Amount, amount_text
from bursar.client.endpoint import Carrier, Request, Resource, operation, present
from bursar.client.model import Preview, Transaction


class Spend(Resource[Carrier]):
    @operation("POST /v1/spend/authorise", Transaction)
    def authorise(
        self,
        *,
        amount: Amount,
        recipient: str,
        agent_id: str | None = None,
        currency: str | None = None,
        allow_off_curve: bool | None = None,
        memo: str | None = None,
        metadata: Mapping[str, str] | None = None,
        wait: int | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Spend. **A refusal is an answer, not an exception**: read `status` and `reject_code`.

        With `wait` (at most 30 seconds) the answer comes when the spend is settled or rejected, or
        after that time as it stands then. A key of scope `agent` may leave out `agent_id`.
        `allow_off_curve=True` pays an address that no key belongs to, such as a vault.
        """
        return Request(
            body=_spend(amount, recipient, agent_id, currency, allow_off_curve, memo, metadata),
            wait=wait,
            idempotency_key=idempotency_key,
        )

    @operation("POST /v1/spend/preview", Preview)
    def preview(
        self,
        *,
        amount: Amount,
        recipient: str,
        agent_id: str | None = None,
        currency: str | None = None,
        allow_off_curve: bool | None = None,
        memo: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """What `authorise` would answer now. Nothing is stored, reserved or fired."""
        return Request(
            body=_spend(amount, recipient, agent_id, currency, allow_off_curve, memo, metadata),
            idempotency_key=idempotency_key,
        )


def _spend(
    amount: Amount,
    recipient: str,
    agent_id: str | None,
    currency: str | None,
    allow_off_curve: bool | None,
    memo: str | None,
    metadata: Mapping[str, str] | None,
) -> dict[str, object]:
    return present(
        agentId=agent_id,
        amount=amount_text(amount),
        recipient=recipient,
        currency=currency,
        allowOffCurve=allow_off_curve,
        memo=memo,
        metadata=metadata,
    )
