"""Transactions: spends that were decided, and what people decide about them."""

from typing import Literal

from bursar.client.codec import When, when_text
from bursar.client.endpoint import (
    Carrier,
    Request,
    Resource,
    download,
    listing,
    operation,
    present,
)
from bursar.client.model import Statistics, Transaction, TransactionStatus
from bursar.client.waiting import waiting


class Transactions(Resource[Carrier]):
    @listing("GET /v1/transactions", Transaction)
    def list(
        self,
        *,
        agent_id: str | None = None,
        status: TransactionStatus | Literal["all"] | None = None,
        recipient: str | None = None,
        from_: When | None = None,
        to: When | None = None,
        settled_from: When | None = None,
        settled_to: When | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Request:
        """Transactions, newest first. `from_` is included, `to` is not, but a bare date is whole.

        `limit` is the size of a page, at most 200; all pages are read as you go.
        """
        filters = _filters(agent_id, status, recipient, from_, to, settled_from, settled_to)
        return Request(query={**filters, "limit": limit, "after": after})

    @operation("GET /v1/transactions/:id", Transaction)
    def get(self, transaction_id: str, *, wait: int | None = None) -> Request:
        """One transaction, as it stands; with `wait` (at most 30 seconds) once it is settled or
        rejected, or as it stands after that."""
        return Request(path={"id": transaction_id}, wait=wait)

    @waiting(
        "GET /v1/transactions/:id",
        Transaction,
        lambda spend: spend.status in ("settled", "rejected"),
    )
    def wait(self, transaction_id: str, *, seconds: int = 60) -> Request:
        """One transaction once it is settled or rejected, or as it stands after so many seconds:
        read `status`. One that is `pending` waits for a person, who may take hours."""
        return Request(path={"id": transaction_id}, wait=seconds)

    @operation("GET /v1/transactions/stats", Statistics)
    def stats(
        self,
        *,
        agent_id: str | None = None,
        from_: When | None = None,
        to: When | None = None,
    ) -> Request:
        """Totals, counts and the ten largest recipients."""
        dates = {"from": _when(from_), "to": _when(to)}
        return Request(query={"agentId": agent_id, **dates})

    @download("GET /v1/transactions/export")
    def export(
        self,
        *,
        agent_id: str | None = None,
        status: TransactionStatus | Literal["all"] | None = None,
        recipient: str | None = None,
        from_: When | None = None,
        to: When | None = None,
        settled_from: When | None = None,
        settled_to: When | None = None,
    ) -> Request:
        """The same transactions as CSV with a header line: bytes, piece by piece."""
        return Request(
            query=_filters(agent_id, status, recipient, from_, to, settled_from, settled_to)
        )

    @operation("POST /v1/transactions/:id/approve", Transaction)
    def approve(
        self,
        transaction_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Let a pending spend be paid. The policy as it is now is checked again first."""
        return Request(
            path={"id": transaction_id},
            body=present(reason=reason),
            idempotency_key=idempotency_key,
        )

    @operation("POST /v1/transactions/:id/deny", Transaction)
    def deny(
        self,
        transaction_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Refuse a pending spend; its funds are available again."""
        return Request(
            path={"id": transaction_id},
            body=present(reason=reason),
            idempotency_key=idempotency_key,
        )

    @operation("POST /v1/transactions/:id/cancel", Transaction)
    def cancel(
        self,
        transaction_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Call off a pending spend that this key asked for, or any with a key of scope admin."""
        return Request(
            path={"id": transaction_id},
            body=present(reason=reason),
            idempotency_key=idempotency_key,
        )


def _filters(
    agent_id: str | None,
    status: str | None,
    recipient: str | None,
    from_: When | None,
    to: When | None,
    settled_from: When | None,
    settled_to: When | None,
) -> dict[str, object]:
    return {
        "agentId": agent_id,
        "status": status,
        "recipient": recipient,
        "from": _when(from_),
        "to": _when(to),
        "settledFrom": _when(settled_from),
        "settledTo": _when(settled_to),
    }


def _when(moment: When | None) -> str | None:
    return None if moment is None else when_text(moment)
