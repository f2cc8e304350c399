"""/v1/recipients."""

from functools import partial

import msgspec

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE
from bursar.api.call import Answer, Call, Resource, data, page, page_fields
from bursar.api.notice import emit_in_call
from bursar.api.off_curve import ALLOW_OFF_CURVE, curve_faults
from bursar.errors import not_found
from bursar.event.catalog import EventType
from bursar.form.kinds import Address, Hostname, Text
from bursar.form.record import Field, Record
from bursar.hostnames import LocalNameError, RecipientError, canonical_hostname
from bursar.recipient import store
from bursar.recipient.model import RecipientFilter, RecipientRow
from bursar.recipient.view import (
    RecipientDeleted,
    RecipientSet,
    RecipientView,
    show_recipient,
)
from bursar.trail.trail import leave_trail

endpoints = Resource("Recipients", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

LIST_QUERY = (
    Field("hostname", Text(1, 253), "Only hostnames that contain this."),
    Field("address", Address(), "Only those that are paid at this address."),
    *page_fields(),
)
HOSTNAME = Field("hostname", Hostname(), "A bare hostname.", required=True)
RECIPIENT = Record(
    "RecipientAddress",
    (
        Field("address", Address(), "The Solana address to pay, base58.", required=True),
        ALLOW_OFF_CURVE,
    ),
)


@endpoints.put(
    "/v1/recipients/:hostname",
    "Set the address a hostname is paid at",
    description="In force for every spend requested afterwards.",
    scopes=ADMIN,
    path_fields=(HOSTNAME,),
    body=RECIPIENT,
    faults=curve_faults("address"),
    data=RecipientView,
)
async def put(call: Call) -> Answer:
    hostname = call.params["hostname"]
    await store.lock_directory(call.tx, call.caller.realm_id)
    before = await store.get_recipient(call.tx, call.caller.realm_id, hostname)
    if before is not None and before.address == call.body["address"]:
        return data(show_recipient(before))
    row = await store.put_recipient(
        call.tx, call.caller.realm_id, hostname, call.body["address"], call.caller.key_id
    )
    shown = show_recipient(row)
    event = RecipientSet(
        **msgspec.structs.asdict(shown),
        previous_address=None if before is None else before.address,
    )
    await emit_in_call(call, EventType.RECIPIENT_SET, event)
    await _changed(call, "recipient.set", hostname, before, shown)
    return data(shown)


@endpoints.get(
    "/v1/recipients",
    "List the recipients directory",
    scopes=PEOPLE,
    query=LIST_QUERY,
    data=RecipientView,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    hostname: str | None = call.query.get("hostname")
    wanted = RecipientFilter(
        realm_id=call.caller.realm_id,
        hostname=None if hostname is None else hostname.lower(),
        address=call.query.get("address"),
    )
    read = partial(store.list_recipients, call.tx, wanted)
    return await page(call, read, show_recipient, lambda row: (row.created_at, row.hostname))


@endpoints.get(
    "/v1/recipients/:hostname",
    "Get a directory entry",
    scopes=PEOPLE,
    data=RecipientView,
)
async def get(call: Call) -> Answer:
    return data(show_recipient(await _existing(call)))


@endpoints.delete(
    "/v1/recipients/:hostname",
    "Remove a directory entry",
    scopes=ADMIN,
    status=204,
)
async def delete(call: Call) -> Answer:
    await store.lock_directory(call.tx, call.caller.realm_id)
    row = await _existing(call)
    await store.delete_recipient(call.tx, call.caller.realm_id, row.hostname)
    event = RecipientDeleted(
        **msgspec.structs.asdict(show_recipient(row)), deleted_by=call.caller.key_id
    )
    await emit_in_call(call, EventType.RECIPIENT_DELETED, event)
    await _changed(call, "recipient.deleted", row.hostname, row, None)
    return Answer(204)


async def _existing(call: Call) -> RecipientRow:
    try:
        hostname = canonical_hostname(call.params["hostname"])
    except LocalNameError as local:
        hostname = local.name
    except RecipientError:
        raise not_found("recipient") from None
    row = await store.get_recipient(call.tx, call.caller.realm_id, hostname)
    if row is None:
        raise not_found("recipient")
    return row


async def _changed(
    call: Call,
    action: str,
    hostname: str,
    before: RecipientRow | None,
    after: RecipientView | None,
) -> None:
    await leave_trail(
        call.tx,
        realm_id=call.caller.realm_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
        action=action,
        subject=hostname,
        before=None if before is None else show_recipient(before),
        after=after,
    )
