"""/v1/keys and /v1/me."""

from functools import partial
from typing import Any

from bursar.access import issue, store
from bursar.access.limits import Category
from bursar.access.model import ADMIN, ANYONE, Caller, Scope
from bursar.access.view import CategoryLimit, CreatedKey, Key, Me, key_fields, show_key
from bursar.api.call import Answer, Call, Resource, Services, data, page, page_fields
from bursar.errors import ErrorCode, Fault
from bursar.form.kinds import ID, Choice, Text
from bursar.form.moments import Moment
from bursar.form.record import Field, Record
from bursar.stop import store as stop_store
from bursar.stop.view import show_stop_or_none

endpoints = Resource("Keys", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

LIST_QUERY = page_fields()
NEW_KEY = Record(
    "NewKey",
    (
        Field(
            "name",
            Text(1, 100, trim=True),
            "What the key is for, in 1 to 100 characters.",
            required=True,
        ),
        Field("scope", Choice(tuple(Scope)), "What the key may do.", required=True),
        Field(
            "agentId",
            ID,
            "The agent that a key of scope `agent` is bound to.",
            nullable=True,
        ),
        Field("expiresAt", Moment(), "When it stops working; null: never.", nullable=True),
    ),
)


def faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
    """Faults between fields, and an expiry that is in the past."""
    del caller
    scope, agent_id = body.get("scope"), body.get("agentId")
    # A value that is not a string is reported by its own field.
    known = scope in tuple(Scope) and (agent_id is None or isinstance(agent_id, str))
    return issue.key_faults(
        Scope(scope) if known else None,
        agent_id,
        Moment().parse(body.get("expiresAt"), "expiresAt", []),
        services.clock.now(),
    )


@endpoints.post(
    "/v1/keys",
    "Make an API key",
    description="`key` is shown this once; a replay of the request shows null.",
    scopes=ADMIN,
    body=NEW_KEY,
    faults=faults,
    status=201,
    data=CreatedKey,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.AGENT_TERMINATED),
)
async def create(call: Call) -> Answer:
    made = await issue.issue_key(
        call.tx,
        realm_id=call.caller.realm_id,
        mode=call.caller.mode,
        scope=Scope(call.body["scope"]),
        agent_id=call.body.get("agentId"),
        name=call.body["name"],
        expires_at=call.body.get("expiresAt"),
        actor=call.caller.key_id,
        request_id=call.request_id,
    )
    shown = key_fields(made.row)
    return data(CreatedKey(**shown, key=made.secret), 201, replay=CreatedKey(**shown, key=None))


@endpoints.get(
    "/v1/keys",
    "List API keys",
    scopes=ADMIN,
    query=LIST_QUERY,
    data=Key,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    return await page(call, partial(store.list_keys, call.tx, call.caller.realm_id), show_key)


@endpoints.delete(
    "/v1/keys/:id",
    "Revoke an API key",
    description="It stops working in every process within a second.",
    scopes=ADMIN,
    status=204,
)
async def revoke(call: Call) -> Answer:
    key_id = call.params["id"]
    await issue.revoke_key(
        call.tx,
        call.caller.realm_id,
        key_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
    )
    call.after_commit.append(lambda: call.services.guard.forget(key_id))
    return Answer(204)


@endpoints.get(
    "/v1/me",
    "Who am I",
    description="The calling key, its rate limits, and the stop of its account, if there is one.",
    scopes=ANYONE,
    data=Me,
)
async def me(call: Call) -> Answer:
    row = await issue.get_key(call.tx, call.caller.realm_id, call.caller.key_id)
    limits = [
        CategoryLimit(category=category.label, requests_per_minute=category.limit(call.caller.mode))
        for category in Category
    ]
    stop = await stop_store.get_stop(call.tx, call.caller.realm_id)
    return data(
        Me(
            **key_fields(row),
            account=call.caller.account_name,
            limits=limits,
            stop=show_stop_or_none(stop),
        )
    )
