"""/v1/spend: asking for a spend, and for what would be decided."""

from typing import Any

import msgspec

from bursar.access.limits import Category
from bursar.access.model import SPENDERS, Caller
from bursar.api.call import Answer, Call, DatabaseUse, Resource, Services, data
from bursar.api.off_curve import ALLOW_OFF_CURVE, curve_faults
from bursar.chain.networks import network_name
from bursar.errors import ErrorCode, Fault, not_found, present
from bursar.form.kinds import ID, Amount, Choice, Metadata, Recipient, Text
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.spend import store
from bursar.spend.deciding import SpendRequest
from bursar.spend.view import Preview, Transaction, show_decision, show_spend
from bursar.spend.wait import MAX_SECONDS, wanted_seconds

endpoints = Resource("Spends", Category.SPEND_AUTHORISE)

MEMO_CHARACTERS = 200

SPEND = Record(
    "Spend",
    (
        Field(
            "agentId",
            ID,
            "The agent that spends. Required, but a key of scope `agent` may omit it.",
        ),
        Field("amount", Amount(), "How much, up to six decimal places.", required=True),
        Field(
            "recipient", Recipient(), "Who is paid: a hostname or a base58 address.", required=True
        ),
        ALLOW_OFF_CURVE,
        Field("currency", Choice(("USDC",)), "Only `USDC`, which is the default."),
        Field("memo", Text(0, MEMO_CHARACTERS), "A note of yours.", nullable=True),
        Field("metadata", Metadata(), "Up to 50 pairs of your own, string values, 8 KiB in all."),
    ),
)
PREFER = Field(
    "Prefer",
    Text(0, 1_000),
    f"`wait=N`: answer when the spend is settled or rejected, or after N seconds as it stands then;"
    f" more than {MAX_SECONDS} counts as {MAX_SECONDS}. It is decided at once all the same.",
)


_recipient_faults = curve_faults("recipient")
_decode_transaction = msgspec.json.Decoder(dict[str, Transaction]).decode


def spend_faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
    """Only an agent key may leave out `agentId`."""
    faults = _recipient_faults(services, caller, body)
    if caller.agent_id is None and "agentId" not in body:
        faults.append(Fault("agentId", f"agentId is required.{SPEND.accepted()}"))
    return faults


@endpoints.post(
    "/v1/spend/authorise",
    "Spend",
    description=(
        "Decides the spend and reserves its amount in one commit. **A refusal is an answer, not"
        " an error**: 201 with `status` `rejected` and a `rejectCode`; read `data.status`."
        " With `Prefer: wait=N` (at most 30) the answer comes when the spend is settled or"
        " rejected, or after N seconds as it stands then."
    ),
    scopes=SPENDERS,
    database=DatabaseUse.OWN,
    headers=(PREFER,),
    body=SPEND,
    faults=spend_faults,
    status=201,
    data=Transaction,
    errors=(ErrorCode.NOT_FOUND,),
)
async def authorise(call: Call) -> Answer:
    request = _request(call)
    made = await call.services.authoriser.authorise(request)
    headers = {"Idempotent-Replayed": "true"} if made.replayed else {}
    seconds = wanted_seconds(call.prefer)
    if seconds:
        transaction = _decode_transaction(made.body)["data"]
        if transaction.status in ("pending", "approved"):
            finished = await call.services.waiter.wait(transaction.id, seconds)
            shown = show_spend(finished) if finished else await _as_it_stands(call, transaction.id)
            return Answer(201, {"data": shown}, headers=headers)
    return Answer(201, msgspec.Raw(made.body), headers=headers)


@endpoints.post(
    "/v1/spend/preview",
    "Preview a spend",
    description=(
        "What authorise would answer now. Nothing is stored, reserved or fired, so an"
        " `Idempotency-Key` is ignored."
    ),
    scopes=SPENDERS,
    database=DatabaseUse.READ,
    body=SPEND,
    faults=spend_faults,
    data=Preview,
    errors=(ErrorCode.NOT_FOUND,),
)
async def preview(call: Call) -> Answer:
    request = _request(call)
    policy, pay_to, decision = await call.services.authoriser.preview(call.tx, request)
    return data(
        Preview(
            status=decision.status,
            reject_code=decision.reject_code,
            policy_version=policy.version,
            pay_to=pay_to,
            decision=show_decision(decision),
        )
    )


def _request(call: Call) -> SpendRequest:
    """The typed request. Its agent is the body's, or the one that an agent key is bound to."""
    # Removed from the body, because the body is part of the idempotency key's fingerprint: naming
    # the agent or leaving it to the key is the same request.
    agent_id: str = present(
        call.body.pop("agentId", call.caller.agent_id),
        "a body without an agent comes only from an agent key",
    )
    # Removed for the same reason: USDC is the only currency, so naming it changes nothing.
    call.body.pop("currency", None)
    if not is_id("ag", agent_id) or not call.caller.may_see_agent(agent_id):
        raise not_found("agent")
    return SpendRequest(
        realm_id=call.caller.realm_id,
        mode=call.caller.mode,
        agent_id=agent_id,
        amount_micros=call.body["amount"],
        recipient=call.body["recipient"],
        memo=call.body.get("memo"),
        metadata=call.body.get("metadata", {}),
        created_by=call.caller.key_id,
        network=network_name(call.services.config, call.caller.mode),
        key=call.idempotency_key(agent_id),
    )


async def _as_it_stands(call: Call, spend_id: str) -> Transaction:
    async with call.services.db.connection() as tx:
        row = await store.get_spend(tx, call.caller.realm_id, spend_id)
    if row is None:
        raise not_found("transaction")
    return show_spend(row)
