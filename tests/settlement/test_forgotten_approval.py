"""A failover or a restore forgets that a spend was approved, signed and paid. It waits for approval
again, and is approved again, be it much later."""

from typing import Any

import pytest
from solders.keypair import Keypair

from tests.settlement.support import Stage
from tests.support import new_agent


async def paid_and_forgotten(stage: Stage) -> tuple[dict[str, Any], str]:
    """The chain has what the forgotten approval led to: our bytes, fee payer, memo and payee."""
    agent = await new_agent(
        stage.client,
        policy={"dailyCap": "100000.00", "allowlist": ["*"], "approvalThreshold": "1.00"},
    )
    await stage.client.post(f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "100"})
    body = {"agentId": agent["id"], "amount": "1.5", "recipient": str(Keypair().pubkey())}
    spend = (await stage.client.post("/v1/spend/authorise", json=body)).json()["data"]
    assert spend["status"] == "pending"
    await stage.take_behind_our_back(agent, 1_500_000, memo=spend["id"], destination=spend["payTo"])
    return agent, spend["id"]


# More wallets than this that are short at once are not stopped (`MOST_STOPPED_AT_ONCE`).
@pytest.mark.parametrize("wallets", [1, 11], ids=["frozen", "not frozen"])
async def test_it_is_found_and_not_paid_again(stage: Stage, wallets: int):
    settler = await stage.settler()
    other = await stage.agent("10")
    await stage.spend(other)
    await stage.round(settler, 3)
    (agent, spend), *_ = [await paid_and_forgotten(stage) for _ in range(wallets)]
    await stage.fail_over()
    await stage.next_block()
    await stage.spend(other)
    await stage.round(settler)
    await stage.pass_blocks()
    await stage.round(settler, 2)
    reconciler = await stage.reconciler()
    for _ in range(5):
        await reconciler.sweep()
    assert await stage.frozen(agent) == (wallets == 1)
    await stage.client.patch(f"/v1/agents/{agent['id']}", json={"policy": {"frozen": False}})
    # Payments of the hour after a failover are looked for on the chain first: that hour is over.
    async with stage.db.connection() as tx:
        await tx.execute("UPDATE settlement_watch SET careful_before = clock_timestamp()")
    approved = await stage.client.post(f"/v1/transactions/{spend}/approve")
    assert approved.status_code == 200
    for _ in range(5):
        await stage.round(settler)
        await reconciler.sweep()
    assert await stage.made(agent, spend) == 1
    assert await stage.status(spend) == "settled"
    assert not await stage.frozen(agent)
