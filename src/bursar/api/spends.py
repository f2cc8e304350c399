"""/v1/spend and /v1/transactions."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bursar.access.model import Caller
from bursar.api.call import Answer, Call, Services, Stream, data, page, page_fields
from bursar.chain.networks import network_name
from bursar.clock import iso
from bursar.errors import Fault, not_found, present
from bursar.form.cursor import Place
from bursar.form.kinds import ID, Amount, Choice, Metadata, Recipient, Text
from bursar.form.moments import Boundary
from bursar.form.record import Field, Record
from bursar.http.export import csv_of
from bursar.ids import is_id
from bursar.ledger import store as ledger_store
from bursar.money import format_cents, format_micros
from bursar.policy.engine import Facts
from bursar.policy.engine import budget as budget_of
from bursar.recipient.model import ALLOW_OFF_CURVE, curve_faults
from bursar.spend import approve as approvals
from bursar.spend import stats, store
from bursar.spend.approve import Approver
from bursar.spend.authorise import SpendRequest
from bursar.spend.model import SpendRow, bounds_of, midnight_after
from bursar.spend.store import SpendFilter
from bursar.spend.view import Budget, Preview, Transaction, show_decision, show_spend
from bursar.spend.wait import MAX_SECONDS, wanted_seconds

PAGE_DEFAULT, PAGE_MOST = 50, 200
# An agent id that no agent has.
_NOBODY = "nobody"
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
    Text(1, 1_000),
    f"`wait=N`: answer when the spend is settled or rejected, or after N seconds as it stands then;"
    f" more than {MAX_SECONDS} counts as {MAX_SECONDS}. It is decided at once all the same.",
)
REASON = Record("Reason", (Field("reason", Text(0, 500), "Why, for the books.", nullable=True),))
_DATES = (
    Field("from", Boundary(), "Created at or after this date or time."),
    Field(
        "to",
        Boundary(),
        "Created before this time; a bare date includes that whole day.",
    ),
)
FILTERS = (
    Field("agentId", ID, "Only this agent's."),
    Field(
        "status",
        Choice(("all", "pending", "approved", "settled", "rejected")),
        "Only those in this state; `all` is the default.",
    ),
    *_DATES,
    Field("recipient", Recipient(), "Only those to this hostname or address."),
    Field("settledFrom", Boundary(), "Settled at or after this date or time."),
    Field("settledTo", Boundary(), "Settled before this time; a bare date is included."),
)
LIST_QUERY = (*FILTERS, *page_fields(PAGE_DEFAULT, PAGE_MOST))
STATS_QUERY = (FILTERS[0], *_DATES)

_CSV_COLUMNS = (
    "id", "agentId", "amount", "currency", "recipient", "status", "signature", "blockTime",
    "rejectCode", "createdAt", "settledAt", "payTo", "memo", "policyVersion",
)  # fmt: skip

_decode_transaction = msgspec.json.Decoder(dict[str, Transaction]).decode


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


async def preview(call: Call) -> Answer:
    request = _request(call)
    policy, decision = await call.services.authoriser.preview(call.tx, request)
    return data(
        Preview(
            status=decision.status,
            reject_code=decision.reject_code,
            policy_version=policy.version,
            pay_to=decision.pay_to,
            decision=show_decision(decision),
        )
    )


async def approve(call: Call) -> Answer:
    spend = await approvals.approve_spend(
        call.tx,
        call.services.policies,
        call.services.directory,
        bounds_of(call.services.config),
        _approver(call),
        call.params["id"],
        call.body.get("reason"),
    )
    return data(show_spend(spend))


async def deny(call: Call) -> Answer:
    spend = await approvals.deny_spend(
        call.tx, _approver(call), call.params["id"], call.body.get("reason")
    )
    return data(show_spend(spend))


async def list_(call: Call) -> Answer:
    filters = _filters(call)
    limit = call.query.get("limit", PAGE_DEFAULT)
    rows = await store.list_spends(call.tx, filters, call.start, limit + 1)
    return page(call, rows, limit, lambda row: (row.created_at, row.id), show_spend)


async def get(call: Call) -> Answer:
    spend_id = call.params["id"]
    row = None
    if is_id("txn", spend_id):
        row = await store.get_spend(call.tx, call.caller.realm_id, spend_id)
    if row is None or not call.caller.may_see_agent(row.agent_id):
        raise not_found("transaction")
    return data(show_spend(row))


async def statistics(call: Call) -> Answer:
    return data(await stats.statistics(call.tx, _filters(call)))


async def export(call: Call) -> Stream:
    filters = _filters(call)

    async def read(start: Place | None, limit: int) -> Sequence[SpendRow]:
        async with call.services.db.read() as tx:
            return await store.list_spends(tx, filters, start, limit)

    rows = csv_of(_CSV_COLUMNS, read, lambda row: (row.created_at, row.id), show_spend)
    return Stream("text/csv; charset=utf-8", "transactions.csv", rows)


async def budget(call: Call) -> Answer:
    agent_id = call.params["id"]
    found = None
    if is_id("ag", agent_id) and call.caller.may_see_agent(agent_id):
        found = await ledger_store.read_agent(call.tx, agent_id, call.caller.realm_id)
    if found is None:
        raise not_found("agent")
    policies = await call.services.policies.get(call.tx, [found.policy_key])
    policy = policies[found.policy_key]
    resets_at = midnight_after(found.account.now)
    bounds = bounds_of(call.services.config)
    facts = Facts(
        agent_status=found.agent_status,
        wallet_address=found.account.address,
        pay_to=None,
        pays_blocked_host=False,
        spent_today_micros=found.spent_today_micros,
        available_micros=found.account.available_micros,
        network_today_lamports=found.network_today_lamports,
        network_cost_lamports=0,
        pending_count=found.pending_count,
        bounds=bounds,
        resets_at=resets_at,
    )
    remaining, most = budget_of(policy, facts)
    return data(
        Budget(
            daily_cap=format_cents(policy.cap_micros_daily),
            spent_today=format_micros(found.spent_today_micros),
            remaining_today=format_micros(remaining),
            available=format_micros(found.account.available_micros),
            max_amount_now=format_micros(most),
            resets_at=iso(resets_at),
            status=found.agent_status,
            frozen=policy.frozen,
            policy_version=policy.version,
            daily_network_lamports=policy.network_budget(bounds),
            network_lamports_today=found.network_today_lamports,
        )
    )


def _request(call: Call) -> SpendRequest:
    """Whose spend it is: the body's agent, or the one an agent key is bound to."""
    # Out of the body, which is part of the idempotency key's fingerprint below: the same spend is
    # the same whether the agent was named or is the key's own.
    agent_id: str = present(
        call.body.pop("agentId", call.caller.agent_id),
        "a body without an agent comes only from an agent key",
    )
    # There is only one, so that naming it makes no other request.
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


def spend_faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
    """Only an agent key may leave out whose spend it is."""
    del services
    faults = curve_faults(body, "recipient")
    if caller.agent_id is None and "agentId" not in body:
        faults.append(Fault("agentId", f"agentId is required.{SPEND.accepted()}"))
    return faults


async def _as_it_stands(call: Call, spend_id: str) -> Transaction:
    async with call.services.db.read() as tx:
        row = await store.get_spend(tx, call.caller.realm_id, spend_id)
    if row is None:
        raise not_found("transaction")
    return show_spend(row)


def _approver(call: Call) -> Approver:
    caller = call.caller
    approves_own = caller.mode == "test" and call.services.config.test_self_approval
    return Approver(caller.realm_id, caller.mode, caller.key_id, call.request_id, approves_own)


def _filters(call: Call) -> SpendFilter:
    query = call.query
    wanted: str | None = query.get("agentId")
    own = call.caller.agent_id
    agent_id = own if wanted is None else wanted
    # What no agent is called, and another agent's to an agent key, are as good as none.
    if agent_id is not None and not (is_id("ag", agent_id) and call.caller.may_see_agent(agent_id)):
        agent_id = _NOBODY
    status = query.get("status", "all")
    return SpendFilter(
        realm_id=call.caller.realm_id,
        agent_id=agent_id,
        status=None if status == "all" else status,
        created_from=query["from"].start if "from" in query else None,
        created_to=query["to"].end if "to" in query else None,
        settled_from=query["settledFrom"].start if "settledFrom" in query else None,
        settled_to=query["settledTo"].end if "settledTo" in query else None,
        recipient=query.get("recipient"),
    )
