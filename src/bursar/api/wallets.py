"""/v1/wallets, /v1/withdrawals and the test faucet."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from bursar.access.limits import Category
from bursar.access.model import ADMIN, ANYONE, IdempotencyKey
from bursar.api.agent_filter import wanted_agent
from bursar.api.call import Answer, Call, DatabaseUse, Resource, Stream, data, page, page_fields
from bursar.api.export import export_csv
from bursar.api.off_curve import ALLOW_OFF_CURVE, curve_faults
from bursar.chain.networks import network_name
from bursar.db import Tx
from bursar.errors import ApiError, ErrorCode, not_found
from bursar.form.cursor import Place
from bursar.form.kinds import ID, Address, Amount, Metadata, Text
from bursar.form.moments import Boundary
from bursar.form.record import Field, Record
from bursar.ids import is_id
from bursar.settlement import faucet
from bursar.wallet import store
from bursar.wallet.model import DepositRow, Moved, WalletRow
from bursar.wallet.view import Balance, Deposit, Wallet, show_balance, show_deposit, show_wallet
from bursar.withdrawal import store as withdrawal_store
from bursar.withdrawal import withdraw as withdrawals
from bursar.withdrawal.model import WithdrawalRow
from bursar.withdrawal.view import Withdrawal, show_withdrawal

endpoints = Resource("Wallets", Category.WALLET_OPERATIONS)

LIST_QUERY = page_fields()
EXPORT_QUERY = (
    Field("agentId", ID, "Only this agent's."),
    Field("from", Boundary(), "Created at or after this date or time."),
    Field("to", Boundary(), "Created before this time; a bare date includes that whole day."),
)
_WITHDRAWAL_COLUMNS = (
    "id", "agentId", "amount", "currency", "destination", "status", "signature", "blockTime",
    "failureCode", "createdAt", "settledAt", "memo", "createdBy", "feeLamports", "rentLamports",
    "network",
)  # fmt: skip
_DEPOSIT_COLUMNS = (
    "id", "agentId", "amount", "currency", "sender", "status", "signature", "blockTime",
    "createdAt", "creditedAt",
)  # fmt: skip
WITHDRAWAL = Record(
    "NewWithdrawal",
    (
        Field("amount", Amount(), "How much, at most what is available.", required=True),
        Field("destination", Address(), "The address that is paid, base58.", required=True),
        ALLOW_OFF_CURVE,
        Field("memo", Text(0, 200), "A note of yours.", nullable=True),
        Field("metadata", Metadata(), "Up to 50 pairs of your own, string values, 8 KiB in all."),
    ),
)
FUNDING = Record(
    "Funding",
    (
        Field(
            "amount",
            Amount(most_micros=faucet.MOST_MICROS),
            "Test USDC to mint, at most 1,000,000 a call.",
            required=True,
        ),
    ),
)


@endpoints.get(
    "/v1/wallets/:agentId",
    "Get an agent's wallet",
    scopes=ANYONE,
    data=Wallet,
)
async def get(call: Call) -> Answer:
    row, _ = await _visible_wallet(call)
    return data(show_wallet(row))


@endpoints.get(
    "/v1/wallets/:agentId/balance",
    "Get a wallet's balance",
    scopes=ANYONE,
    data=Balance,
)
async def balance(call: Call) -> Answer:
    return data(show_balance(*await _visible_wallet(call)))


@endpoints.post(
    "/v1/wallets/:agentId/withdraw",
    "Withdraw from a wallet",
    description=(
        "Reserves at once and pays on the chain. Counts towards no cap and needs no allowlist"
        " entry; limited only by what is available."
    ),
    scopes=ADMIN,
    body=WITHDRAWAL,
    faults=curve_faults("destination"),
    status=201,
    data=Withdrawal,
    errors=(ErrorCode.INSUFFICIENT_FUNDS,),
)
async def withdraw(call: Call) -> Answer:
    row, _ = await _visible_wallet(call)
    made = await withdrawals.withdraw(
        call.tx,
        realm_id=call.caller.realm_id,
        agent_id=row.agent_id,
        amount_micros=call.body["amount"],
        destination=call.body["destination"],
        memo=call.body.get("memo"),
        metadata=call.body.get("metadata", {}),
        network=network_name(call.services.config, call.caller.mode),
        created_by=call.caller.key_id,
        request_id=call.request_id,
    )
    return data(show_withdrawal(made), 201)


@endpoints.get(
    "/v1/wallets/:agentId/withdrawals",
    "List a wallet's withdrawals",
    scopes=ANYONE,
    query=LIST_QUERY,
    data=Withdrawal,
    is_list=True,
)
async def list_withdrawals(call: Call) -> Answer:
    wallet, _ = await _visible_wallet(call)
    read = partial(withdrawal_store.list_withdrawals, call.tx, wallet.agent_id)
    return await page(call, read, show_withdrawal)


@endpoints.get(
    "/v1/withdrawals/export",
    "Export withdrawals as CSV",
    description="Of all wallets or one; cells that a spreadsheet would run are quoted.",
    scopes=ANYONE,
    database=DatabaseUse.OWN,
    query=EXPORT_QUERY,
    content_type="text/csv",
)
async def export_withdrawals(call: Call) -> Stream:
    async def read(tx: Tx, start: Place | None, limit: int) -> Sequence[WithdrawalRow]:
        return await withdrawal_store.list_all_withdrawals(tx, _moved(call), start, limit)

    return export_csv(call, "withdrawals.csv", _WITHDRAWAL_COLUMNS, read, show_withdrawal)


@endpoints.get(
    "/v1/withdrawals/:id",
    "Get a withdrawal",
    scopes=ANYONE,
    data=Withdrawal,
)
async def get_withdrawal(call: Call) -> Answer:
    withdrawal_id = call.params["id"]
    row = None
    if is_id("wdr", withdrawal_id):
        row = await withdrawal_store.get_withdrawal(call.tx, call.caller.realm_id, withdrawal_id)
    if row is None or not call.caller.may_see_agent(row.agent_id):
        raise not_found("withdrawal")
    return data(show_withdrawal(row))


@endpoints.get(
    "/v1/wallets/:agentId/deposits",
    "List a wallet's deposits",
    scopes=ANYONE,
    query=LIST_QUERY,
    data=Deposit,
    is_list=True,
)
async def list_deposits(call: Call) -> Answer:
    wallet, _ = await _visible_wallet(call)
    return await page(call, partial(store.list_deposits, call.tx, wallet.agent_id), show_deposit)


@endpoints.get(
    "/v1/deposits/export",
    "Export deposits as CSV",
    description="Of all wallets or one; cells that a spreadsheet would run are quoted.",
    scopes=ANYONE,
    database=DatabaseUse.OWN,
    query=EXPORT_QUERY,
    content_type="text/csv",
)
async def export_deposits(call: Call) -> Stream:
    async def read(tx: Tx, start: Place | None, limit: int) -> Sequence[DepositRow]:
        return await store.list_all_deposits(tx, _moved(call), start, limit)

    return export_csv(call, "deposits.csv", _DEPOSIT_COLUMNS, read, show_deposit)


@endpoints.post(
    "/v1/test/wallets/:agentId/fund",
    "Fund a test wallet",
    description=(
        "Mints test USDC on the test chain; answers when the deposit is credited, or after"
        " 10 s as it stands. Test keys only."
    ),
    scopes=ADMIN,
    database=DatabaseUse.OWN,
    body=FUNDING,
    status=201,
    data=Deposit,
)
async def fund(call: Call) -> Answer:
    """Mints on the chain, so it runs outside any transaction; `Once` makes it idempotent."""
    key = call.idempotency_key()

    async def work() -> tuple[int, Any]:
        return 201, {"data": show_deposit(await _funded(call, key))}

    status, body, replayed = await call.services.once.answer(key, work)
    return Answer(status, body, headers={"Idempotent-Replayed": "true"} if replayed else {})


async def _funded(call: Call, key: IdempotencyKey | None) -> DepositRow:
    if call.caller.mode != "test":
        raise ApiError(ErrorCode.NOT_FOUND, "Only test wallets can be funded here.")
    services = call.services
    if services.test_funds is None:
        raise ApiError(
            ErrorCode.NOT_FOUND,
            "The test network is not the localnet, so there is no faucet: send USDC to the wallet.",
        )
    async with services.db.connection() as tx:
        call.use(tx)
        wallet, _ = await _visible_wallet(call)
    return await faucet.fund(
        services.db,
        services.test_funds,
        call.caller.realm_id,
        wallet,
        call.body["amount"],
        key,
    )


def _moved(call: Call) -> Moved:
    query = call.query
    return Moved(
        realm_id=call.caller.realm_id,
        agent_id=wanted_agent(call),
        made_from=query["from"].start if "from" in query else None,
        made_to=query["to"].end if "to" in query else None,
    )


async def _visible_wallet(call: Call) -> tuple[WalletRow, datetime]:
    agent_id = call.params["agentId"]
    found = None
    if is_id("ag", agent_id) and call.caller.may_see_agent(agent_id):
        found = await store.get_wallet(call.tx, call.caller.realm_id, agent_id)
    if found is None:
        raise not_found("agent")
    return found
