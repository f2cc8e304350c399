"""Budgets: ceilings that agents share."""

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from bursar.client.codec import Amount, amount_text
from bursar.client.endpoint import (
    UNSET,
    Carrier,
    Request,
    Resource,
    Unset,
    given,
    listing,
    operation,
    present,
)
from bursar.client.model import SharedBudget, Window


class _Window(TypedDict):
    window: Window


class NewLimit(_Window, total=False):
    """So much (`amount`), so many spends (`count`), or both, in a UTC calendar window; of a policy
    also for one `recipient` entry. One that stands keeps what it has counted by its `id`."""

    id: str
    amount: Amount | None
    count: int | None
    recipient: str | None


class Budgets(Resource[Carrier]):
    @operation("POST /v1/budgets", SharedBudget)
    def create(
        self,
        name: str,
        *,
        limits: Iterable[NewLimit],
        parent_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Make a budget. Put agents under it with `budget_id`; a spend must pass every budget above
        its agent, up to four deep."""
        body = present(name=name, limits=limits_json(limits), parentId=parent_id)
        return Request(body=body, idempotency_key=idempotency_key)

    @listing("GET /v1/budgets", SharedBudget)
    def list(
        self, *, parent_id: str | None = None, limit: int | None = None, after: str | None = None
    ) -> Request:
        """Newest first, with what was used in each window that is running."""
        return Request(query={"parentId": parent_id, "limit": limit, "after": after})

    @operation("GET /v1/budgets/:id", SharedBudget)
    def get(self, budget_id: str) -> Request:
        """One budget."""
        return Request(path={"id": budget_id})

    @operation("PATCH /v1/budgets/:id", SharedBudget)
    def update(
        self,
        budget_id: str,
        *,
        name: str | Unset = UNSET,
        limits: Iterable[NewLimit] | Unset = UNSET,
        frozen: bool | Unset = UNSET,
    ) -> Request:
        """Change what is given, in force for every spend requested afterwards. Limits are replaced
        whole."""
        changed = limits if isinstance(limits, Unset) else limits_json(limits)
        return Request(path={"id": budget_id}, body=given(name=name, limits=changed, frozen=frozen))

    @operation("DELETE /v1/budgets/:id", type(None))
    def delete(self, budget_id: str) -> Request:
        """Remove a budget that nothing is under; InvalidState otherwise."""
        return Request(path={"id": budget_id})


def limits_json(limits: Iterable[NewLimit]) -> list[dict[str, Any]]:
    return [_limit(limit) for limit in limits]


def _limit(limit: Mapping[str, Any]) -> dict[str, Any]:
    amount = limit.get("amount")
    return {
        **limit,
        **({} if amount is None else {"amount": amount_text(amount)}),
    }
