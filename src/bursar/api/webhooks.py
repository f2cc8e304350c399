"""/v1/webhooks."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE, Caller, Scope
from bursar.api.call import Answer, Call, Resource, Services, data, page, page_fields
from bursar.api.notice import emit_in_call
from bursar.db import moment
from bursar.errors import ApiError, ErrorCode, Fault, not_found, present
from bursar.event.catalog import EVERYTHING, SUBSCRIBABLE, EventType
from bursar.event.outbox import NewEvent, emit_to
from bursar.form.kind import Schema
from bursar.form.kinds import Choice, Text
from bursar.form.record import Field, Record
from bursar.ids import is_id, new_id
from bursar.outbound.target import MAX_URL, TargetRefused, parse_target
from bursar.signature import new_secret
from bursar.trail.trail import leave_trail
from bursar.webhook import store
from bursar.webhook.model import DisabledReason, WebhookRow, WebhookStatus
from bursar.webhook.send import webhook_targets
from bursar.webhook.view import (
    CreatedWebhook,
    Delivery,
    Webhook,
    show_changed,
    show_created,
    show_delivery,
    show_summary,
    show_webhook,
)

endpoints = Resource("Webhooks", Category.WEBHOOK_MANAGEMENT)

MOST_WEBHOOKS: Final = 100
OVERLAP_SECONDS: Final = 24 * 3600
# How many secrets sign at once, however often they are rotated: each adds to the header.
_MOST_SECRETS: Final = 5
_NAMES: Final = (*SUBSCRIBABLE, EVERYTHING)


@dataclass(frozen=True, slots=True)
class EventTypes:
    """The event types to send. Repeats are removed; with `*` the others are dropped."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, list) or not value:
            faults.append(
                Fault(path, f"{path} must be an array of event types: {', '.join(_NAMES)}.")
            )
            return None
        items = cast("list[Any]", value)
        choice = Choice(_NAMES)
        # A list longer than there are types holds repeats or wrong ones; one fault is enough.
        for index, item in enumerate(items[: 2 * len(_NAMES)]):
            choice.parse(item, f"{path}[{index}]", faults)
        if len(items) > 2 * len(_NAMES):
            faults.append(Fault(path, f"{path} may hold at most {2 * len(_NAMES)} entries."))
            return None
        known = [item for item in items if item in _NAMES]
        return [EVERYTHING] if EVERYTHING in known else list(dict.fromkeys(known))

    def schema(self) -> Schema:
        return {
            "type": "array",
            "minItems": 1,
            "maxItems": 2 * len(_NAMES),
            "items": {"type": "string", "enum": list(_NAMES)},
            "examples": [["transaction.settled", "wallet.low_balance"]],
        }


@dataclass(frozen=True, slots=True)
class Url:
    """Checks only that it is a string; `url_faults`, which knows the settings, checks where it
    leads."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        return Text(1, MAX_URL).parse(value, path, faults)

    def schema(self) -> Schema:
        return {
            "type": "string",
            "format": "uri",
            "minLength": 1,
            "maxLength": MAX_URL,
            "examples": ["https://example.com/hooks/bursar"],
        }


_URL: Final = Url()
_URL_DOC: Final = "Where events are sent: https, a public host, no user info, no fragment."
_EVENTS_DOC: Final = "The types that are sent; `*` for all."
NEW_WEBHOOK = Record(
    "NewWebhook",
    (
        Field("url", _URL, _URL_DOC, required=True),
        Field("events", EventTypes(), _EVENTS_DOC, required=True),
    ),
)
WEBHOOK_CHANGE = Record(
    "WebhookChange",
    (
        Field("url", _URL, _URL_DOC),
        Field("events", EventTypes(), _EVENTS_DOC),
        Field(
            "status",
            Choice(("enabled", "disabled")),
            "`disabled` holds deliveries back and makes no new ones; `enabled` lets them go on.",
        ),
    ),
)
LIST_QUERY = page_fields()


def url_faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
    """Why events may not be sent to this URL, judged by its text alone."""
    del caller
    url: Any = body.get("url")
    if not isinstance(url, str) or not 1 <= len(url) <= MAX_URL:
        return []
    try:
        _target(services, url)
    except TargetRefused as problem:
        return [Fault("url", f"url {problem}.")]
    return []


@endpoints.post(
    "/v1/webhooks",
    "Register a webhook",
    description="Beta. `secret` is shown this once; a replay of the request shows null.",
    scopes=ADMIN,
    body=NEW_WEBHOOK,
    faults=url_faults,
    status=201,
    data=CreatedWebhook,
    errors=(ErrorCode.LIMIT_REACHED,),
)
async def create(call: Call) -> Answer:
    url = _target(call.services, call.body["url"])
    realm_id = call.caller.realm_id
    if await store.count_webhooks(call.tx, realm_id) >= MOST_WEBHOOKS:
        raise ApiError(
            ErrorCode.LIMIT_REACHED,
            f"An account has at most {MOST_WEBHOOKS} webhooks in each mode. Delete one first.",
        )
    row = await store.insert_webhook(call.tx, new_id("wh"), realm_id, url, call.body["events"])
    secret = await _new_secret(call, row.id, 1)
    await _changed(call, EventType.WEBHOOK_CREATED, None, row)
    return data(show_created(row, secret), 201, replay=show_created(row, None))


@endpoints.get(
    "/v1/webhooks",
    "List webhooks",
    scopes=PEOPLE,
    query=LIST_QUERY,
    data=Webhook,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    read = partial(store.list_webhooks, call.tx, call.caller.realm_id)
    return await page(call, read, show_webhook)


@endpoints.get(
    "/v1/webhooks/:id",
    "Get a webhook",
    scopes=PEOPLE,
    data=Webhook,
)
async def get(call: Call) -> Answer:
    return data(show_webhook(await _existing(call)))


@endpoints.patch(
    "/v1/webhooks/:id",
    "Change a webhook",
    scopes=ADMIN,
    body=WEBHOOK_CHANGE,
    faults=url_faults,
    data=Webhook,
)
async def change(call: Call) -> Answer:
    body = call.body
    url = _target(call.services, body["url"]) if "url" in body else None
    before = await _existing(call, for_update=True)
    status: WebhookStatus = body.get("status", before.status)
    reason: DisabledReason | None = before.disabled_reason
    if status != before.status:
        reason = "requested" if status == "disabled" else None
    wanted = (url or before.url, body.get("events", before.events), status)
    if wanted == (before.url, before.events, before.status):
        return data(show_webhook(before))
    row = await store.update_webhook(
        call.tx,
        before.id,
        url=wanted[0],
        events=wanted[1],
        status=status,
        disabled_reason=reason,
    )
    await _changed(call, EventType.WEBHOOK_CHANGED, before, row)
    return data(show_webhook(row))


@endpoints.delete(
    "/v1/webhooks/:id",
    "Delete a webhook",
    description="What waits for it is dropped.",
    scopes=ADMIN,
    status=204,
)
async def delete(call: Call) -> Answer:
    row = await _existing(call, for_update=True)
    await store.delete_webhook(call.tx, row.id)
    await _changed(call, EventType.WEBHOOK_DELETED, row, None)
    return Answer(204)


@endpoints.post(
    "/v1/webhooks/:id/rotate-secret",
    "Give a webhook a new secret",
    description="Shown this once. The old one signs along for 24 hours.",
    scopes=ADMIN,
    data=CreatedWebhook,
)
async def rotate_secret(call: Call) -> Answer:
    row = await _existing(call, for_update=True)
    number = await store.newest_secret_number(call.tx, row.id) + 1
    await store.retire_secrets(call.tx, row.id, OVERLAP_SECONDS, _MOST_SECRETS - 1)
    secret = await _new_secret(call, row.id, number)
    await _changed(call, EventType.WEBHOOK_SECRET_ROTATED, row, row)
    return data(show_created(row, secret), replay=show_created(row, None))


@endpoints.post(
    "/v1/webhooks/:id/test",
    "Send a test event",
    description="A `webhook.test` event, to this webhook only.",
    scopes=ADMIN,
    data=Delivery,
    errors=(ErrorCode.INVALID_STATE,),
)
async def test(call: Call) -> Answer:
    row = await enabled_webhook(call, call.params["id"])
    event = NewEvent(
        row.realm_id,
        EventType.WEBHOOK_TEST,
        None,
        show_summary(row),
        await moment(call.tx),
    )
    delivery_id = await emit_to(call.tx, event, row.id)
    (made,) = await store.get_deliveries(call.tx, [delivery_id])
    return data(show_delivery(made))


@endpoints.get(
    "/v1/webhooks/:id/deliveries",
    "List a webhook's deliveries",
    description="With every attempt. Kept 90 days. Only an admin key sees those about keys.",
    scopes=PEOPLE,
    query=LIST_QUERY,
    data=Delivery,
    is_list=True,
)
async def deliveries(call: Call) -> Answer:
    row = await _existing(call)
    with_keys = call.caller.scope is Scope.ADMIN
    read = partial(store.list_deliveries, call.tx, row.id, with_keys)
    return await page(call, read, show_delivery)


def _target(services: Services, url: str) -> str:
    """The URL in its canonical form; raises TargetRefused."""
    return parse_target(url, webhook_targets(services.config)).url


async def enabled_webhook(call: Call, webhook_id: str) -> WebhookRow:
    row = await _find(call, webhook_id)
    if row.status != "enabled":
        raise ApiError(
            ErrorCode.INVALID_STATE,
            'This webhook is disabled. Enable it first: PATCH it with status "enabled".',
        )
    return row


async def _new_secret(call: Call, webhook_id: str, number: int) -> str:
    secret = new_secret()
    owner = f"{webhook_id}:{number}"
    sealed = call.services.vault.seal_secret(owner, secret.encode())
    await store.insert_secret(call.tx, webhook_id, number, sealed)
    return secret


async def _existing(call: Call, *, for_update: bool = False) -> WebhookRow:
    return await _find(call, call.params["id"], for_update=for_update)


async def _find(call: Call, webhook_id: str, *, for_update: bool = False) -> WebhookRow:
    row = None
    if is_id("wh", webhook_id):
        row = await store.get_webhook(
            call.tx, call.caller.realm_id, webhook_id, for_update=for_update
        )
    if row is None:
        raise not_found("webhook")
    return row


async def _changed(
    call: Call, type_: EventType, before: WebhookRow | None, after: WebhookRow | None
) -> None:
    """Tells the others, and the audit log."""
    subject = present(after or before, "a webhook was there before or is there now")
    event = show_changed(subject, (before or subject).url, call.caller.key_id)
    await emit_in_call(call, type_, event, but=subject.id if before is None else None)
    await leave_trail(
        call.tx,
        realm_id=call.caller.realm_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
        action=type_.value,
        subject=subject.id,
        before=None if before is None else show_webhook(before),
        after=None if after is None else show_webhook(after),
    )
