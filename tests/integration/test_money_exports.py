"""Deposits and withdrawals as CSV: of the whole account or one agent, and of nobody else."""

import csv
import io

import httpx

from tests.support import ON_CURVE, Service, new_account, new_agent


async def _rows(client: httpx.AsyncClient, what: str, **query: str) -> list[dict[str, str]]:
    answer = await client.get(f"/v1/{what}/export", params=query)
    assert answer.status_code == 200, answer.text
    assert f'filename="{what}.csv"' in answer.headers["content-disposition"]
    return list(csv.DictReader(io.StringIO(answer.text, newline=""), strict=True))


async def test_what_came_in_and_what_went_out(service: Service):
    """Goal: newest first, every field of the list in it, narrowed by agent and day; an agent's key
    gets its own, a stranger nothing."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agents = [await new_agent(admin) for _ in range(2)]
        for agent, amount in zip(agents, ("5", "7"), strict=True):
            await service.fund(agent["id"], amount)
            body = {"amount": "1.5", "destination": ON_CURVE, "memo": "=1+1"}
            await admin.post(f"/v1/wallets/{agent['id']}/withdraw", json=body)
        first, second = (agent["id"] for agent in agents)
        came, went = await _rows(admin, "deposits"), await _rows(admin, "withdrawals")
        assert [(row["agentId"], row["amount"]) for row in came] == [
            (second, "7.000000"),
            (first, "5.000000"),
        ]
        (listed,) = (await admin.get(f"/v1/wallets/{first}/withdrawals")).json()["data"]
        assert [row["agentId"] for row in went] == [second, first]
        assert went[1]["memo"] == "'=1+1"
        for name in ("id", "amount", "destination", "status", "createdBy", "createdAt", "network"):
            assert went[1][name] == listed[name]
        for what, everything in (("deposits", came), ("withdrawals", went)):
            assert await _rows(admin, what, agentId=first) == everything[1:]
            day = everything[0]["createdAt"][:10]
            assert await _rows(admin, what, **{"from": day}) == everything
            for nothing in ({"to": "2020-01-01"}, {"agentId": "nobody"}):
                assert await _rows(admin, what, **nothing) == []
    key = await service.key(account=account, scope="agent", agent_id=first)
    async with service.client(key) as own, await service.admin() as stranger:
        for what, everything in (("deposits", came), ("withdrawals", went)):
            assert await _rows(own, what) == everything[1:]
            assert await _rows(own, what, agentId=second) == []
            assert await _rows(stranger, what) == []
            assert await _rows(stranger, what, agentId=first) == []
