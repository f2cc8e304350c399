"""/v1/audit-log: who did what, for those whom it concerns."""

import csv
import io
import json

from bursar import AsyncBursar
from tests.support import ADDRESS, Service, new_account, new_agent


async def test_every_change_has_its_line(service: Service):
    """Goal: an admin reads who did what to what, newest first, as it was shown at the time."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent = await new_agent(admin)
        await admin.patch(f"/v1/agents/{agent['id']}", json={"name": "other"})
        await admin.put(
            "/v1/recipients/api.example.com", json={"address": ADDRESS, "allowOffCurve": True}
        )
        me = (await admin.get("/v1/me")).json()["data"]
        answer = await admin.get("/v1/audit-log")
        lines = answer.json()["data"]
        assert answer.headers["ratelimit-limit"] == str(
            next(x["requestsPerMinute"] for x in me["limits"] if x["category"] == "Agent Reads")
        )
    actions = [line["action"] for line in lines]
    assert actions[:3] == ["recipient.set", "agent.changed", "agent.created"]
    assert "key.created" in actions
    changed = lines[1]
    assert (changed["actor"], changed["subject"]) == (me["id"], agent["id"])
    assert changed["requestId"].startswith("req_")
    assert (changed["before"]["name"], changed["after"]["name"]) == (agent["name"], "other")
    assert len({line["id"] for line in lines}) == len(lines)
    assert not any(line["id"].removeprefix("log_").isdecimal() for line in lines)


async def test_it_is_filtered_and_paged(service: Service):
    """Goal: filters by key, action, subject and time; each line once, however small the pages."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        for number in range(5):
            await admin.put(
                f"/v1/recipients/h{number}.example.com",
                json={"address": ADDRESS, "allowOffCurve": True},
            )
        me = (await admin.get("/v1/me")).json()["data"]["id"]

        async def ids(**query: str) -> list[str]:
            answer = await admin.get("/v1/audit-log", params=query)
            assert answer.status_code == 200, answer.text
            return [line["id"] for line in answer.json()["data"]]

        every = await ids()
        paged: list[str] = []
        cursor, page = {"limit": "2"}, {"hasMore": True}
        while page["hasMore"]:
            page = (await admin.get("/v1/audit-log", params=cursor)).json()
            paged += [line["id"] for line in page["data"]]
            cursor = {"limit": "2", "after": page["nextCursor"] or cursor["after"]}
        assert paged == every
        assert await ids(actor=me) == await ids(action="recipient.set") == every[:5]
        assert await ids(subject="h3.example.com") == [every[1]]
        assert await ids(to="2020-01-01") == await ids(actor="key_nobody") == []
        assert await ids(**{"from": "2020-01-01"}) == every
        elsewhere = await admin.get("/v1/audit-log", params={**cursor, "actor": me})
        assert elsewhere.status_code == 400


async def test_only_admins_see_the_lines_about_keys(service: Service):
    """Goal: approver and read keys have every GET but keys, through this door too; agent keys and
    other accounts see nothing."""
    account = new_account()
    async with await service.admin(account=account) as admin:
        agent = await new_agent(admin)
    for scope in ("approver", "read"):
        async with service.client(await service.key(account=account, scope=scope)) as client:
            lines = (await client.get("/v1/audit-log")).json()["data"]
            assert [line["action"] for line in lines] == ["agent.created"]
            exported = (await client.get("/v1/audit-log/export")).text
            assert "agent.created" in exported
            assert "key.created" not in exported
    key = await service.key(account=account, scope="agent", agent_id=agent["id"])
    async with service.client(key) as client:
        assert (await client.get("/v1/audit-log")).status_code == 403
        assert (await client.get("/v1/audit-log/export")).status_code == 403
    async with await service.admin(account=new_account()) as stranger:
        lines = (await stranger.get("/v1/audit-log")).json()["data"]
        assert {line["action"] for line in lines} == {"key.created"}
        assert agent["id"] not in json.dumps(lines)


async def test_it_is_exported(service: Service):
    """Goal: the same lines as CSV, through the SDK, harmless to a spreadsheet."""
    key = await service.key(account=new_account())
    async with service.client(key) as admin:
        await new_agent(admin, name="=1+1")
    async with AsyncBursar(key, service.url) as client:
        pieces = [piece async for piece in client.audit_log.export(action="agent.created")]
        (listed,) = [line async for line in client.audit_log.list(action="agent.created")]
    text = b"".join(pieces).decode()
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["id"], row["action"], row["subject"]) == (
        listed.id,
        "agent.created",
        listed.subject,
    )
    assert row["before"] == ""
    assert json.loads(row["after"])["name"] == "=1+1"
