"""/v1/wallets."""

from datetime import datetime

from bursar.errors import not_found
from bursar.http.call import Answer, Call, data
from bursar.ids import is_id
from bursar.wallet import store
from bursar.wallet.model import WalletRow, show_balance, show_wallet


async def get(call: Call) -> Answer:
    row, _ = await _visible_wallet(call)
    return data(show_wallet(row))


async def balance(call: Call) -> Answer:
    return data(show_balance(*await _visible_wallet(call)))


async def _visible_wallet(call: Call) -> tuple[WalletRow, datetime]:
    agent_id = call.params["agentId"]
    found = None
    if is_id("ag", agent_id) and call.caller.may_see_agent(agent_id):
        found = await store.get_wallet(call.tx, call.caller.realm_id, agent_id)
    if found is None:
        raise not_found("agent")
    return found
