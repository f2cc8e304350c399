"""Agents, and the policies that bound them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bursar.client.budgets import NewLimit, limits_json
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
from bursar.client.model import Agent, AgentStatus, Budget, BulkChange, Payees, PolicyVersion


class Agents(Resource[Carrier]):
    @operation("POST /v1/agents", Agent)
    def create(
        self,
        name: str,
        *,
        daily_cap: Amount,
        allowlist: Iterable[str],
        blocklist: Iterable[str] = (),
        per_transaction_cap: Amount | None = None,
        approval_threshold: Amount | None = None,
        daily_network_lamports: int | None = None,
        payees: Payees | None = None,
        limits: Iterable[NewLimit] = (),
        budget_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Request:
        """Make an agent, version 1 of its policy and its wallet.

        `allowlist`: `api.example.com` exactly that host, `*.example.com` any host below it, a
        base58 address, or `*` for anyone. Spends above `approval_threshold` wait for a person.
        `daily_network_lamports` is what the agent's payments may cost the network in a day.
        """
        policy = present(
            dailyCap=amount_text(daily_cap),
            allowlist=_entries(allowlist),
            blocklist=_entries(blocklist) or None,
            perTransactionCap=_cap(per_transaction_cap),
            approvalThreshold=_cap(approval_threshold),
            dailyNetworkLamports=daily_network_lamports,
            payees=payees,
            limits=limits_json(limits) or None,
        )
        return Request(
            body=present(name=name, policy=policy, metadata=metadata, budgetId=budget_id),
            idempotency_key=idempotency_key,
        )

    @listing("GET /v1/agents", Agent)
    def list(
        self,
        *,
        status: AgentStatus | Literal["all"] | None = None,
        budget_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Request:
        """Agents, newest first; with `metadata`, those that have all these pairs, with
        `budget_id`, those directly under that budget.

        `limit` is the size of a page, at most 100; all pages are read as you go.
        """
        return Request(
            query={
                "status": status,
                "budgetId": budget_id,
                "metadata": _pairs(metadata),
                "limit": limit,
                "after": after,
            }
        )

    @operation("GET /v1/agents/:id", Agent)
    def get(self, agent_id: str) -> Request:
        """One agent, with its policy in force and a summary of its wallet."""
        return Request(path={"id": agent_id})

    @operation("PATCH /v1/agents/:id", Agent)
    def update(
        self,
        agent_id: str,
        *,
        name: str | Unset = UNSET,
        status: Literal["active", "paused"] | Unset = UNSET,
        metadata: Mapping[str, str] | Unset = UNSET,
        daily_cap: Amount | Unset = UNSET,
        allowlist: Iterable[str] | Unset = UNSET,
        blocklist: Iterable[str] | Unset = UNSET,
        per_transaction_cap: Amount | Unset | None = UNSET,
        approval_threshold: Amount | Unset | None = UNSET,
        daily_network_lamports: int | Unset | None = UNSET,
        payees: Payees | Unset = UNSET,
        limits: Iterable[NewLimit] | Unset = UNSET,
        budget_id: str | Unset | None = UNSET,
        frozen: bool | Unset = UNSET,
        policy_version: int | Unset = UNSET,
    ) -> Request:
        """Change what is given, all or nothing, in force for every spend requested afterwards.

        `policy_version` is the version you last saw: if somebody changed the policy since,
        nothing changes and PolicyVersionConflict is raised. Lists and metadata are replaced whole;
        None removes a cap or threshold.
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
            version=policy_version,
        )
        changes = given(
            name=name,
            status=status,
            metadata=metadata,
            budgetId=budget_id,
            policy=policy or UNSET,
        )
        return Request(path={"id": agent_id}, body=changes)

    @operation("PATCH /v1/agents", BulkChange)
    def update_many(
        self,
        *,
        where_status: Literal["active", "paused", "all"] | None = None,
        where_budget_id: str | None = None,
        where_metadata: Mapping[str, str] | None = None,
        name: str | Unset = UNSET,
        status: Literal["active", "paused"] | Unset = UNSET,
        metadata: Mapping[str, str] | Unset = UNSET,
        daily_cap: Amount | Unset = UNSET,
        allowlist: Iterable[str] | Unset = UNSET,
        blocklist: Iterable[str] | Unset = UNSET,
        per_transaction_cap: Amount | Unset | None = UNSET,
        approval_threshold: Amount | Unset | None = UNSET,
        daily_network_lamports: int | Unset | None = UNSET,
        payees: Payees | Unset = UNSET,
        limits: Iterable[NewLimit] | Unset = UNSET,
        budget_id: str | Unset | None = UNSET,
        frozen: bool | Unset = UNSET,
        policy_version: int | Unset = UNSET,
    ) -> Request:
        """The same change of every agent that matches and is not terminated, all or nothing.

        At least one of `where_status`, `where_budget_id` and `where_metadata` says which; at most
        1,000 may match.
        """
        changes = Agents.update.describe(
            self,
            "",
            name=name,
            status=status,
            metadata=metadata,
            daily_cap=daily_cap,
            allowlist=allowlist,
            blocklist=blocklist,
            per_transaction_cap=per_transaction_cap,
            approval_threshold=approval_threshold,
            daily_network_lamports=daily_network_lamports,
            payees=payees,
            limits=limits,
            budget_id=budget_id,
            frozen=frozen,
            policy_version=policy_version,
        ).body
        return Request(
            query={
                "status": where_status,
                "budgetId": where_budget_id,
                "metadata": _pairs(where_metadata),
            },
            body=changes,
        )

    @operation("PATCH /v1/agents/:id", Agent)
    def pause(self, agent_id: str) -> Request:
        """Refuse all new spends until the agent is resumed. Approved ones are still paid."""
        return Request(path={"id": agent_id}, body={"status": "paused"})

    @operation("PATCH /v1/agents/:id", Agent)
    def resume(self, agent_id: str) -> Request:
        """Undo `pause`."""
        return Request(path={"id": agent_id}, body={"status": "active"})

    @operation("PATCH /v1/agents/:id", Agent)
    def freeze(self, agent_id: str) -> Request:
        """Refuse all new spends by the policy, as a new version of it."""
        return Request(path={"id": agent_id}, body={"policy": {"frozen": True}})

    @operation("PATCH /v1/agents/:id", Agent)
    def unfreeze(self, agent_id: str) -> Request:
        """Undo `freeze`."""
        return Request(path={"id": agent_id}, body={"policy": {"frozen": False}})

    @operation("DELETE /v1/agents/:id", Agent)
    def terminate(self, agent_id: str) -> Request:
        """End the agent, for good. Its wallet can still be withdrawn from."""
        return Request(path={"id": agent_id})

    @listing("GET /v1/agents/:id/policies", PolicyVersion)
    def policies(
        self, agent_id: str, *, limit: int | None = None, after: str | None = None
    ) -> Request:
        """Every version of the policy, newest first."""
        return Request(path={"id": agent_id}, query={"limit": limit, "after": after})

    @operation("GET /v1/agents/:id/budget", Budget)
    def budget(self, agent_id: str) -> Request:
        """What the agent may spend now: what it asks before it spends."""
        return Request(path={"id": agent_id})


def policy_json(
    *,
    daily_cap: Amount | Unset,
    allowlist: Iterable[str] | Unset,
    blocklist: Iterable[str] | Unset,
    per_transaction_cap: Amount | Unset | None,
    approval_threshold: Amount | Unset | None,
    daily_network_lamports: int | Unset | None,
    payees: Payees | Unset,
    limits: Iterable[NewLimit] | Unset,
    frozen: bool | Unset,
    version: int | Unset = UNSET,
) -> dict[str, Any]:
    """The change of a policy, with what is given."""
    return given(
        dailyCap=_cap(daily_cap),
        allowlist=allowlist if isinstance(allowlist, Unset) else _entries(allowlist),
        blocklist=blocklist if isinstance(blocklist, Unset) else _entries(blocklist),
        perTransactionCap=_cap(per_transaction_cap),
        approvalThreshold=_cap(approval_threshold),
        dailyNetworkLamports=daily_network_lamports,
        payees=payees,
        limits=limits if isinstance(limits, Unset) else limits_json(limits),
        frozen=frozen,
        version=version,
    )


def _pairs(metadata: Mapping[str, str] | None) -> str | None:
    return None if metadata is None else json.dumps(dict(metadata), ensure_ascii=False)


def _cap(cap: Amount | Unset | None) -> str | Unset | None:
    return cap if cap is None or isinstance(cap, Unset) else amount_text(cap)


def _entries(entries: Iterable[str]) -> list[str]:
    # A string is also an iterable of strings, but never meant as a list of letters.
    if isinstance(entries, str):
        raise TypeError("Give a list of recipients, not one string.")
    return [*entries]
