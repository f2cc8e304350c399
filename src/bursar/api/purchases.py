"""/v1/purchases: buying from sellers that answer 402."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from bursar.access import idempotency
from bursar.access.limits import Category
from bursar.access.model import ANYONE, SPENDERS, Caller, Scope
from bursar.api.agent_filter import wanted_agent
from bursar.api.call import Answer, Call, DatabaseUse, Resource, Services, data, page, page_fields
from bursar.api.spends import MEMO_CHARACTERS
from bursar.errors import ErrorCode, Fault, not_found, present
from bursar.form.cursor import Place
from bursar.form.kind import Schema, json_name
from bursar.form.kinds import ID, Amount, Choice, Metadata, Recipient, Text, Whole
from bursar.form.moments import Boundary
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.purchase import secret_store, store
from bursar.purchase.buy import PAYMENT_REQUIRED, Bought, PurchaseRequest
from bursar.purchase.model import ENDED, PurchaseFilter, PurchaseRow, PurchaseStatus
from bursar.purchase.order import ORDER_FIELDS, Order, order_faults, purchase_targets, read_order
from bursar.purchase.seller import SellerAnswer
from bursar.purchase.view import Purchase, show_purchase
from bursar.spend.wait import MAX_SECONDS, wanted_seconds

endpoints = Resource("Purchases", Category.SPEND_AUTHORISE, reads=Category.TRANSACTIONS)

_MOST_HEADERS: Final = 100
_MOST_BROUGHT: Final = 128 * 1024
_MOST_SAME_SECONDS: Final = 86_400
_SAME = re.compile(r"\bsame-within\s*=\s*\"?(\d{1,6})\"?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BroughtHeaders:
    """The headers of an answer that the caller got: names to strings."""

    def parse(self, value: Any, path: str, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            faults.append(
                Fault(path, f"{path} must be an object of string values, not {json_name(value)}.")
            )
            return ()
        pairs = cast("dict[str, Any]", value)
        if len(pairs) > _MOST_HEADERS:
            faults.append(Fault(path, f"{path} may hold at most {_MOST_HEADERS} headers."))
            return ()
        for name, item in pairs.items():
            if not isinstance(item, str):
                where = f"{path}.{name[:100]}"
                faults.append(Fault(where, f"{where} must be a string, not {json_name(item)}."))
        return tuple(pairs.items())

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": _MOST_HEADERS,
            "additionalProperties": {"type": "string"},
            "examples": [{"PAYMENT-REQUIRED": "eyJ4NDAyVmVyc2lvbiI6Mn0="}],
        }


BROUGHT = Record(
    "PaymentRequired",
    (
        Field("status", Whole(PAYMENT_REQUIRED, PAYMENT_REQUIRED), "402.", required=True),
        Field("headers", BroughtHeaders(), "The headers that came with it.", required=True),
        Field("body", Text(0, _MOST_BROUGHT), "Its body, if it had one.", nullable=True),
    ),
)
_PAYMENT_REQUIRED = Field(
    "paymentRequired",
    BROUGHT,
    "The 402 that you got from the seller yourself. Then the service fetches nothing, and `header`"
    " of the answer is what to send with your request.",
)
PURCHASE = Record(
    "NewPurchase",
    (
        Field(
            "agentId",
            ID,
            "The agent that buys. Required, but a key of scope `agent` may omit it.",
        ),
        *ORDER_FIELDS,
        Field("maxAmount", Amount(), "The most that you would pay for it.", nullable=True),
        _PAYMENT_REQUIRED,
        Field("memo", Text(0, MEMO_CHARACTERS), "A note of yours.", nullable=True),
        Field("metadata", Metadata(), "Up to 50 pairs of your own, string values, 8 KiB in all."),
    ),
)
CONTINUE = Record("Continue", (_PAYMENT_REQUIRED,))
PREFER = Field(
    "Prefer",
    Text(0, 1_000),
    f"`wait=N`: answer when it is paid, unpaid, free, failed or rejected, or after N seconds as it"
    f" stands then; more than {MAX_SECONDS} counts as {MAX_SECONDS}. `same-within=N`: where no"
    " `Idempotency-Key` is given, a purchase of the same method, URL, body and credentials"
    " (`Authorization`, `Cookie`), and with or without `paymentRequired` alike, by this agent"
    " within the last N seconds is this one, unless it came to nothing. 409 if it may cost more"
    " than this `maxAmount`.",
)
FILTERS = (
    Field("agentId", ID, "Only this agent's."),
    Field(
        "status",
        Choice(("all", *get_args(PurchaseStatus))),
        "Only those in this state; `all` is the default.",
    ),
    Field("host", Recipient(), "Only those from this host."),
    Field("from", Boundary(), "Created at or after this date or time."),
    Field("to", Boundary(), "Created before this time; a bare date includes that whole day."),
)


def _faults(services: Services, caller: Caller, body: dict[str, Any]) -> list[Fault]:
    faults = order_faults(body, purchase_targets(services.config, caller.mode))
    if caller.agent_id is None and "agentId" not in body:
        faults.append(Fault("agentId", f"agentId is required.{PURCHASE.accepted()}"))
    return faults


@endpoints.post(
    "/v1/purchases",
    "Buy",
    description=(
        "Asks the seller, decides its price under the agent's policy, signs the payment once, ever,"
        " and presents it. **A refusal is an answer, not an error**: read `data.status`. The"
        " `Idempotency-Key` finds the purchase as it stands and never fetches or signs again."
    ),
    scopes=SPENDERS,
    database=DatabaseUse.OWN,
    headers=(PREFER,),
    body=PURCHASE,
    faults=_faults,
    status=201,
    data=Purchase,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_STATE),
)
async def buy(call: Call) -> Answer:
    request = _request(call)
    bought, found = await call.services.buyer.buy(request)
    shown = await _waited(call, bought)
    return Answer(201, {"data": shown}, headers={"Idempotent-Replayed": "true"} if found else {})


@endpoints.post(
    "/v1/purchases/:id/retry",
    "Present the payment of a purchase again",
    description=(
        "Sends the same bytes to the same URL, to get the goods whose answer was lost. Nothing is"
        " signed, so nothing can be paid twice. 409 unless it was presented or paid."
    ),
    scopes=SPENDERS,
    database=DatabaseUse.OWN,
    headers=(PREFER,),
    data=Purchase,
    errors=(ErrorCode.INVALID_STATE,),
)
async def retry(call: Call) -> Answer:
    purchase = await _existing(call, call.params["id"])
    return await _once(call, lambda: call.services.buyer.retry(purchase))


@endpoints.post(
    "/v1/purchases/:id/continue",
    "Continue a purchase that was approved",
    description=(
        "Asks the seller again and goes on if amount and payee are still the approved ones;"
        " otherwise it fails with `terms_changed`, and the amount is given back. 409 while nobody"
        " has approved it, and for a `paymentRequired` unless the purchase was made with one: any"
        " other the service asks for itself."
    ),
    scopes=SPENDERS,
    database=DatabaseUse.OWN,
    headers=(PREFER,),
    body=CONTINUE,
    data=Purchase,
    errors=(ErrorCode.INVALID_STATE,),
)
async def continue_(call: Call) -> Answer:
    purchase = await _existing(call, call.params["id"])
    order = Order(purchase.url, purchase.method, (), b"")
    return await _once(call, lambda: call.services.buyer.resume(purchase, _brought(call, order)))


@endpoints.get(
    "/v1/purchases",
    "List purchases",
    description="Newest first. What was sent and what came back is shown by the purchase itself.",
    scopes=ANYONE,
    query=(*FILTERS, *page_fields(50, 200)),
    data=Purchase,
    is_list=True,
)
async def list_(call: Call) -> Answer:
    async def read(start: Place | None, limit: int) -> Sequence[tuple[PurchaseRow, Purchase]]:
        rows = await store.list_purchases(call.tx, _filters(call), start, limit)
        spends = await store.spends_of(call.tx, rows)
        return [(row, show_purchase(row, spends.get(row.spend_id or ""))) for row in rows]

    return await page(
        call, read, lambda pair: pair[1], lambda pair: (pair[0].created_at, pair[0].id)
    )


@endpoints.get(
    "/v1/purchases/:id",
    "Get a purchase",
    scopes=ANYONE,
    database=DatabaseUse.OWN,
    data=Purchase,
)
async def get(call: Call) -> Answer:
    return data(await _shown(call, await _existing(call, call.params["id"])))


def _request(call: Call) -> PurchaseRequest:
    # Removed from the body, because the body is part of the idempotency key's fingerprint: naming
    # the agent or leaving it to the key is the same request.
    agent_id: str = present(
        call.body.pop("agentId", call.caller.agent_id),
        "a body without an agent comes only from an agent key",
    )
    if not is_id("ag", agent_id) or not call.caller.may_see_agent(agent_id):
        raise not_found("agent")
    order = read_order(call.body)
    return PurchaseRequest(
        realm_id=call.caller.realm_id,
        mode=call.caller.mode,
        agent_id=agent_id,
        order=order,
        brought=_brought(call, order),
        max_micros=call.body.get("maxAmount"),
        memo=call.body.get("memo"),
        metadata=call.body.get("metadata", {}),
        created_by=call.caller.key_id,
        key=call.idempotency_key(agent_id),
        same_within=_same_within(call.prefer),
    )


def _brought(call: Call, order: Order) -> SellerAnswer | None:
    given = call.body.get("paymentRequired")
    if given is None:
        return None
    body = (given.get("body") or "").encode()
    return SellerAnswer(given["status"], given["headers"], body, False, order)


def _same_within(prefer: str | None) -> int:
    match = None if prefer is None else _SAME.search(prefer)
    return 0 if match is None else min(int(match[1]), _MOST_SAME_SECONDS)


async def _existing(call: Call, purchase_id: str) -> PurchaseRow:
    row = None
    if is_id("pur", purchase_id):
        async with call.services.db.connection() as tx:
            row = await store.get_purchase(tx, call.caller.realm_id, purchase_id)
    if row is None or not call.caller.may_see_agent(row.agent_id):
        raise not_found("purchase")
    return row


async def _once(call: Call, work: Callable[[], Awaitable[PurchaseRow]]) -> Answer:
    """With the key of an earlier request the purchase is shown as it stands, and nothing done."""

    async def run() -> tuple[int, dict[str, str]]:
        return 200, {"id": (await work()).id}

    _, _, replayed = await call.services.once.answer(call.idempotency_key(), run)
    shown = await _waited(call, Bought(await _existing(call, call.params["id"])))
    headers = {"Idempotent-Replayed": "true"} if replayed else {}
    return Answer(200, {"data": shown}, headers=headers)


async def _waited(call: Call, bought: Bought) -> Purchase:
    """As it is now, or once it has ended if the caller prefers to wait: a purchase that has a price
    ends in the commit of its spend."""
    seconds, purchase = float(wanted_seconds(call.prefer)), bought.purchase
    if seconds and purchase.status == "open":
        # Another request is making it.
        began = call.services.clock.monotonic_ns()
        made = await call.services.purchase_waiter.wait(purchase.id, seconds)
        purchase = made or await _existing(call, purchase.id)
        bought = Bought(purchase)
        seconds = max(0.0, seconds - (call.services.clock.monotonic_ns() - began) / 1e9)
    if seconds and purchase.spend_id is not None and purchase.status not in ENDED:
        await call.services.waiter.wait(purchase.spend_id, seconds)
        return await _shown(call, await _existing(call, purchase.id))
    if bought.spend is not None:
        secret = bought if _may_read_secrets(call) else Bought(purchase)
        return show_purchase(purchase, bought.spend, secret.header, secret.response)
    return await _shown(call, purchase)


async def _shown(call: Call, purchase: PurchaseRow) -> Purchase:
    """With what only the asking agent and admins may read."""
    async with call.services.db.connection() as tx:
        spends = await store.spends_of(tx, [purchase])
        secrets = secret_store.Secrets()
        if _may_read_secrets(call):
            secrets = await secret_store.open_secrets(tx, call.services.vault, purchase.id)
    if secrets.header is not None and purchase.status not in ENDED:
        # Whoever has the header can have it paid. A standby that takes over has to know that it was
        # signed, and the commit of that may have given up waiting for one.
        async with call.services.db.transaction() as tx:
            await idempotency.wait_for_standbys(tx)
    return show_purchase(
        purchase, spends.get(purchase.spend_id or ""), secrets.header, secrets.response
    )


def _may_read_secrets(call: Call) -> bool:
    return call.caller.scope in (Scope.ADMIN, Scope.AGENT)


def _filters(call: Call) -> PurchaseFilter:
    query = call.query
    status = query.get("status", "all")
    return PurchaseFilter(
        realm_id=call.caller.realm_id,
        agent_id=wanted_agent(call),
        status=None if status == "all" else status,
        host=query.get("host"),
        created_from=query["from"].start if "from" in query else None,
        created_to=query["to"].end if "to" in query else None,
    )
