"""Backtests and drafts: what another policy would have decided."""

from collections.abc import Iterable, Mapping

from bursar.client.agents import policy_json
from bursar.client.backtest_model import Backtest, Draft
from bursar.client.budgets import NewLimit, limits_json
from bursar.client.codec import Amount, When, when_text
from bursar.client.endpoint import (
    UNSET,
    Carrier,
    Request,
    Resource,
    Unset,
    download,
    operation,
    present,
)
from bursar.client.model import Agent, Payees


class Backtests(Resource[Carrier]):
    @operation("POST /v1/backtests", Backtest)
    def create(
        self,
        *,
        agent_id: str | None = None,
        budget_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        daily_cap: Amount | Unset = UNSET,
        allowlist: Iterable[str] | Unset = UNSET,
        blocklist: Iterable[str] | Unset = UNSET,
        per_transaction_cap: Amount | Unset | None = UNSET,
        approval_threshold: Amount | Unset | None = UNSET,
        daily_network_lamports: int | Unset | None = UNSET,
        payees: Payees | Unset = UNSET,
        limits: Iterable[NewLimit] | Unset = UNSET,
        frozen: bool | Unset = UNSET,
        budget_limits: Iterable[NewLimit] | None = None,
        from_: When | None = None,
        to: When | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Try a change of policies on what was requested, of the last 30 days if not said
        otherwise. A worker does it: read it with `get` until its status is `done`.

        On whom: `agent_id`, all below `budget_id`, or those with these `metadata`. With
        `budget_limits` it tries other limits of that budget.
        """
        policy = policy_json(
            daily_cap=daily_cap,
            allowlist=allowlist,
            blocklist=blocklist,
            per_transaction_cap=per_transaction_cap,
            approval_threshold=approval_threshold,
            daily_network_lamports=daily_network_lamports,
            payees=payees,
            limits=limits,
            frozen=frozen,
        )
        return Request(
            body=present(
                agentId=agent_id,
                budgetId=budget_id,
                metadata=metadata,
                policy=policy or None,
                limits=None if budget_limits is None else limits_json(budget_limits),
                **{
                    "from": None if from_ is None else when_text(from_),
                    "to": None if to is None else when_text(to),
                },
            ),
            idempotency_key=idempotency_key,
        )

    @operation("GET /v1/backtests/:id", Backtest)
    def get(self, backtest_id: str) -> Request:
        """A backtest as it stands, with its first 1,000 differences."""
        return Request(path={"id": backtest_id})

    @download("GET /v1/backtests/:id/export")
    def export(self, backtest_id: str) -> Request:
        """All its differences as CSV with a header line: bytes, piece by piece."""
        return Request(path={"id": backtest_id})


class Drafts(Resource[Carrier]):
    @operation("PUT /v1/agents/:id/policy/draft", Draft)
    def put(
        self,
        agent_id: str,
        *,
        daily_cap: Amount | Unset = UNSET,
        allowlist: Iterable[str] | Unset = UNSET,
        blocklist: Iterable[str] | Unset = UNSET,
        per_transaction_cap: Amount | Unset | None = UNSET,
        approval_threshold: Amount | Unset | None = UNSET,
        daily_network_lamports: int | Unset | None = UNSET,
        payees: Payees | Unset = UNSET,
        limits: Iterable[NewLimit] | Unset = UNSET,
        frozen: bool | Unset = UNSET,
        policy_version: int | Unset = UNSET,
    ) -> Request:
        """Draft a change of an agent's policy, in place of the draft that it has. It is in force
        nowhere; what it would decide of each request from now on is counted."""
        return Request(
            path={"id": agent_id},
            body=policy_json(
                daily_cap=daily_cap,
                allowlist=allowlist,
                blocklist=blocklist,
                per_transaction_cap=per_transaction_cap,
                approval_threshold=approval_threshold,
                daily_network_lamports=daily_network_lamports,
                payees=payees,
                limits=limits,
                frozen=frozen,
                version=policy_version,
            ),
        )

    @operation("GET /v1/agents/:id/policy/draft", Draft)
    def get(self, agent_id: str) -> Request:
        """The agent's draft, and what it would have decided differently since it was written."""
        return Request(path={"id": agent_id})

    @operation("DELETE /v1/agents/:id/policy/draft", type(None))
    def delete(self, agent_id: str) -> Request:
        """Drop the draft."""
        return Request(path={"id": agent_id})

    @operation("POST /v1/agents/:id/policy/draft/promote", Agent)
    def promote(self, agent_id: str, *, idempotency_key: str | None = None) -> Request:
        """Put the draft in force, as the next version. PolicyVersionConflict when the policy has
        changed since the draft was written."""
        return Request(path={"id": agent_id}, idempotency_key=idempotency_key)
