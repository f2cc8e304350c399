"""/v1/keys and /v1/me."""

from typing import Any

from bursar.access import issue, store
from bursar.access.limits import Category
from bursar.access.model import Caller, CategoryLimit, CreatedKey, Key, KeyRow, Me, Scope
from bursar.access.trail import leave_trail
from bursar.clock import iso, iso_or_none
from bursar.errors import Fault
from bursar.http.call import Answer, Call, data, page, page_fields, page_start
from bursar.http.codec import Choice, Field, Moment, Record, Text

PAGE_DEFAULT, PAGE_MOST = 20, 100
LIST_QUERY = page_fields(PAGE_DEFAULT, PAGE_MOST)
NEW_KEY = Record(
    "NewKey",
    (
        Field("name", Text(1, 100, trim=True), "What the key is for.", required=True),
        Field("scope", Choice(tuple(Scope)), "What the key may do.", required=True),
        Field(
            "agentId",
            Text(1, 100),
            "The agent that a key of scope `agent` is bound to.",
            nullable=True,
        ),
        Field("expiresAt", Moment(), "When it stops working; null: never.", nullable=True),
    ),
)


def agent_fault(caller: Caller, body: dict[str, Any]) -> list[Fault]:
    """Scope and agentId have to agree; told together with what else is wrong."""
    del caller
    scope, agent_id = body.get("scope"), body.get("agentId")
    if scope not in list(Scope) or not isinstance(agent_id, str | None):
        return []  # the fields themselves are at fault
    return [issue.AGENT_FAULT] if (scope == Scope.AGENT) != (agent_id is not None) else []


async def create(call: Call) -> Answer:
    made = await issue.issue_key(
        call.tx,
        realm_id=call.caller.realm_id,
        mode=call.caller.mode,
        scope=Scope(call.body["scope"]),
        agent_id=call.body.get("agentId"),
        name=call.body["name"],
        expires_at=call.body.get("expiresAt"),
    )
    await _trail(call, "key.created", made.row.id, after=_show(made.row))
    return data(
        CreatedKey(**_fields(made.row), key=made.secret),
        201,
        replay=CreatedKey(**_fields(made.row), key=None),
    )


async def list_(call: Call) -> Answer:
    limit = call.query.get("limit", PAGE_DEFAULT)
    rows = await store.list_keys(call.tx, call.caller.realm_id, page_start(call), limit + 1)
    return page(call, rows, limit, lambda row: (row.created_at, row.id), _show)


async def revoke(call: Call) -> Answer:
    key_id = call.params["id"]
    await issue.revoke_key(call.tx, call.caller.realm_id, key_id)
    await _trail(call, "key.revoked", key_id)
    call.after_commit.append(lambda: call.services.guard.forget(key_id))
    return Answer(204)


async def me(call: Call) -> Answer:
    row = await issue.get_key(call.tx, call.caller.realm_id, call.caller.key_id)
    limits = [
        CategoryLimit(category=category.label, requests_per_minute=category.limit(call.caller.mode))
        for category in Category
    ]
    return data(Me(**_fields(row), account=call.caller.account_name, limits=limits))


def _show(row: KeyRow) -> Key:
    return Key(**_fields(row))


def _fields(row: KeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "scope": row.scope,
        "agent_id": row.agent_id,
        "mode": row.mode,
        "created_at": iso(row.created_at),
        "expires_at": iso_or_none(row.expires_at),
        "last_used_at": iso_or_none(row.last_used_at),
        "revoked_at": iso_or_none(row.revoked_at),
    }


async def _trail(call: Call, action: str, key_id: str, after: Key | None = None) -> None:
    await leave_trail(
        call.tx,
        realm_id=call.caller.realm_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
        action=action,
        subject=key_id,
        after=after,
    )
