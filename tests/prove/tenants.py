"""The tenants of a campaign, made before anything goes wrong."""

import asyncio
from typing import Any, Final

from tests.prove.journal import Journal
from tests.prove.stage import Stage
from tests.prove.workload import (
    AGENTS_OF_A_TENANT,
    CLIENTS_OF_A_TENANT,
    SHOP,
    Agent,
    Tenant,
    keep_rules,
)
from tests.simulation.wire import Connection

POLICIES: Final[dict[str, dict[str, Any]]] = {
    "open": {"dailyCap": "1000000.00", "perTransactionCap": "5.00", "approvalThreshold": "0.50"},
    # Passed within minutes, if it can be passed at all.
    "tight": {"dailyCap": "3.00"},
    "poor": {"dailyCap": "1000000.00"},
}
FUNDS: Final = {"open": "100000", "tight": "50", "poor": "1"}
EVENTS: Final = ("transaction.settled", "transaction.approved", "withdrawal.settled")


async def make_tenant(stage: Stage, journal: Journal, number: int) -> Tenant:
    """Every other one has a webhook."""
    name = f"tenant{number}"
    service = stage.service
    keys = [await service.key(account=name) for _ in range(CLIENTS_OF_A_TENANT)]
    approver = await service.key(account=name, scope="approver")
    tenant = Tenant(name, keys, approver, [], hooked=number % 2 == 0)
    connection = Connection(stage.urls[number % len(stage.urls)], keys[0])
    try:
        for kind in AGENTS_OF_A_TENANT:
            policy = {"allowlist": [SHOP], **POLICIES[kind]}
            body = {"name": kind, "policy": policy}
            made = (await connection.request("POST", "/v1/agents", body)).data
            keep_rules(journal, made["id"], made["policy"])
            tenant.agents.append(Agent(made["id"], made["wallet"]["address"], kind))
            path = f"/v1/test/wallets/{made['id']}/fund"
            funded = (await connection.request("POST", path, {"amount": FUNDS[kind]})).data
            assert funded["status"] == "credited", funded
            journal.deposits[funded["signature"]] = made["id"]
        if tenant.hooked:
            body = {"url": stage.receiver.url(name), "events": list(EVENTS)}
            made = (await connection.request("POST", "/v1/webhooks", body)).data
            stage.receiver.secrets[name] = made["secret"]
    finally:
        connection.close()
    return tenant


async def make_tenants(stage: Stage, journal: Journal, count: int) -> list[Tenant]:
    return await asyncio.gather(*(make_tenant(stage, journal, n) for n in range(count)))
