"""/v1/stop and /v1/resume: every agent of the account at once."""

from bursar.access.limits import Category
from bursar.access.model import ADMIN, APPROVERS
from bursar.api.call import Answer, Call, Resource, data
from bursar.errors import ErrorCode
from bursar.form.kinds import Choice, Flag, Text
from bursar.form.record import Field, Record
from bursar.stop import store
from bursar.stop.stop import Person, resume_realm, stop_realm
from bursar.stop.view import Resumed, Stopped, show_stop

endpoints = Resource("Stop", Category.AGENT_MANAGEMENT)

STOP = Record(
    "StopRequest",
    (
        Field(
            "reason",
            Text(1, 500, trim=True),
            "Why, for whoever resumes, in 1 to 500 characters.",
            required=True,
        ),
        Field(
            "alsoUnsigned",
            Flag(),
            "True also holds what is approved and not yet signed, until it is resumed.",
        ),
    ),
)
RESUME = Record(
    "ResumeRequest",
    (
        Field(
            "unsigned",
            Choice(("pay", "cancel")),
            "What becomes of spends that the stop held (`alsoUnsigned`): `pay` pays them, `cancel`"
            " rejects them as `cancelled`.",
            required=True,
        ),
    ),
)


@endpoints.post(
    "/v1/stop",
    "Stop every agent",
    description=(
        "Of the account and mode of this key. No spend and no approval that is requested after the"
        " answer passes: spends are rejected with `account_stopped`. Withdrawals go on. Stopping"
        " again changes nothing, except that `alsoUnsigned` can be added. An `Idempotency-Key` that"
        " was used before gives its old answer again and stops nothing: send a new one, or none."
    ),
    scopes=APPROVERS,
    # Whoever needs it must not be told to wait.
    category=None,
    body=STOP,
    data=Stopped,
)
async def stop(call: Call) -> Answer:
    also_unsigned = call.body.get("alsoUnsigned", False)
    made = await stop_realm(
        call.tx, _person(call), call.body["reason"], also_unsigned=also_unsigned
    )
    return data(show_stop(made))


@endpoints.post(
    "/v1/resume",
    "Resume after a stop",
    description=(
        "Spends are decided again. With `cancel` none of the spends that the stop held is paid from"
        " the answer on; each is rejected and its amount given back within moments. One for which"
        " something was signed before the stop goes on."
    ),
    scopes=ADMIN,
    body=RESUME,
    data=Resumed,
    errors=(ErrorCode.INVALID_STATE,),
)
async def resume(call: Call) -> Answer:
    stop = await store.lock_stop(call.tx, call.caller.realm_id)
    if stop is not None:
        call.check_seen(
            stop.mark,
            "Nothing was resumed: another stop stands than the one that the page showed. Read why,"
            " then resume.",
        )
    return data(await resume_realm(call.tx, _person(call), call.body["unsigned"]))


def _person(call: Call) -> Person:
    caller = call.caller
    return Person(caller.realm_id, caller.account_id, caller.mode, caller.key_id, call.request_id)
