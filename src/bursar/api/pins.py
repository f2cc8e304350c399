"""/v1/pins: where origins are paid, as they said themselves. Purchases only."""

from functools import partial

import msgspec

from bursar.access.limits import Category
from bursar.access.model import ADMIN, PEOPLE
from bursar.api.call import Answer, Call, Resource, data, page, page_fields
from bursar.api.notice import emit_in_call
from bursar.errors import ErrorCode, not_found
from bursar.event.catalog import EventType
from bursar.form.kinds import Address, Text
from bursar.form.record import Field, Record
from bursar.purchase import pin_store
from bursar.purchase.model import PinRow
from bursar.purchase.view import Pin, PinAccepted, PinForgotten, show_pin
from bursar.trail.trail import leave_trail

endpoints = Resource("Pins", Category.AGENT_MANAGEMENT, reads=Category.AGENT_READS)

_ORIGIN = Field(
    "origin",
    Text(8, 300),
    "Scheme, host and port, as the list shows it: `https://api.example.com:443`.",
    required=True,
)
ACCEPT = Record(
    "AcceptPin",
    (_ORIGIN, Field("address", Address(), "The address that it names since.", required=True)),
)
FORGET = Record("ForgetPin", (_ORIGIN,))


@endpoints.get(
    "/v1/pins",
    "List pins",
    description="Where the origins that this account bought from are paid; newest first.",
    scopes=PEOPLE,
    query=page_fields(),
    data=Pin,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    read = partial(pin_store.list_pins, call.tx, call.caller.realm_id)
    return await page(call, read, show_pin, lambda row: (row.created_at, row.origin))


@endpoints.post(
    "/v1/pins/accept",
    "Accept a seller's new payee",
    description=(
        "An origin that names another payee than before is refused (`payee_changed`) until an admin"
        " accepts the new one. `address` must be the one in `offered`."
    ),
    scopes=ADMIN,
    body=ACCEPT,
    data=Pin,
    errors=(ErrorCode.NOT_FOUND,),
)
async def accept(call: Call) -> Answer:
    realm_id, origin = call.caller.realm_id, call.body["origin"]
    before = await pin_store.lock_pin(call.tx, realm_id, origin)
    row = await pin_store.accept(
        call.tx, realm_id, origin, call.body["address"], call.caller.key_id
    )
    if before is None or row is None:
        raise not_found("pin with this offered address")
    event = PinAccepted(**msgspec.structs.asdict(show_pin(row)), previous_address=before.address)
    await emit_in_call(call, EventType.PIN_ACCEPTED, event)
    await _changed(call, "pin.accepted", origin, show_pin(before), row)
    return data(show_pin(row))


@endpoints.post(
    "/v1/pins/forget",
    "Forget a pin",
    description="The next purchase from this origin pins what it says then.",
    scopes=ADMIN,
    body=FORGET,
    status=204,
    errors=(ErrorCode.NOT_FOUND,),
)
async def forget(call: Call) -> Answer:
    realm_id, origin = call.caller.realm_id, call.body["origin"]
    before = await pin_store.lock_pin(call.tx, realm_id, origin)
    if before is None:
        raise not_found("pin")
    await pin_store.forget(call.tx, realm_id, origin)
    shown = msgspec.structs.asdict(show_pin(before))
    event = PinForgotten(**shown, forgotten_by=call.caller.key_id)
    await emit_in_call(call, EventType.PIN_FORGOTTEN, event)
    await _changed(call, "pin.forgotten", origin, show_pin(before), None)
    return Answer(204)


async def _changed(
    call: Call, action: str, origin: str, before: Pin | None, after: PinRow | None
) -> None:
    await leave_trail(
        call.tx,
        realm_id=call.caller.realm_id,
        actor=call.caller.key_id,
        request_id=call.request_id,
        action=action,
        subject=origin,
        before=before,
        after=None if after is None else show_pin(after),
    )
