"""What changed and who did it: the directory, the audit log, and the banner for a changed payee."""

import re

import httpx
from solders.keypair import Keypair

from bursar.console.audit_log import differences
from tests.console.support import HOSTILE, Tenant, browser_of, sign_in
from tests.support import new_agent

PAGE = "/console/recipients"


async def test_the_directory_is_read_and_changed(tenant: Tenant):
    """Goal: an entry is made, found by a part of its name, changed and removed, each with the key;
    whoever may only look has no form."""
    first, second = str(Keypair().pubkey()), str(Keypair().pubkey())

    async def put(pay_to: str, status: int = 303) -> httpx.Response:
        fields = {"host": "api.example.com", "payTo": pay_to, "key": tenant.key}
        return await tenant.visitor.post(PAGE, PAGE, status, **fields)

    answer = await put(first)
    assert answer.headers["location"] == f"{PAGE}?hostname=api.example.com&said=paid_at"
    page = (await tenant.visitor.get(answer.headers["location"])).text
    assert first in page
    assert 'aria-label="Changed payees"' not in page, "a host that is new took nobody's place"
    await tenant.visitor.post(PAGE, PAGE, 401, host="b.example.com", payTo=second)
    refused = (await put("nonsense", 400)).text
    assert re.search(r'id="f-payTo"[^>]*value="nonsense"[^>]*aria-invalid', refused)
    await put(second)
    entry = (await tenant.api.get("/v1/recipients/api.example.com")).json()["data"]
    assert entry["address"] == second
    me = (await tenant.api.get("/v1/me")).json()["data"]
    assert entry["updatedBy"] == me["id"]
    made = await tenant.api.post("/v1/keys", json={"name": "x", "scope": "read"})
    async with browser_of(tenant.service) as http:
        reader = await sign_in(http, made.json()["data"]["key"])
        page = (await reader.get(f"{PAGE}?hostname=PI.exam")).text
        assert second in page
        assert 'name="payTo"' not in page
        assert f"<bdi>{me['name']}</bdi>" not in page, "only admins see what keys are called"
        assert second not in (await reader.get(f"{PAGE}?hostname=other")).text
        await reader.get(f"{PAGE}?address={HOSTILE[2:20]}", 400)
    await tenant.visitor.post(f"{PAGE}/remove", PAGE, hostname="api.example.com", key=tenant.key)
    assert "The directory is empty." in (await tenant.visitor.get(PAGE)).text


async def test_a_changed_payee_is_told_on_every_page(tenant: Tenant):
    """Goal: also where the entry was removed and made again, unless with the address that it had;
    an agent's key is not told, and what is left out is said."""
    agent = await new_agent(tenant.api)
    same = {"address": str(Keypair().pubkey())}
    await tenant.api.put("/v1/recipients/same.example.com", json=same)
    await tenant.api.delete("/v1/recipients/same.example.com")
    await tenant.api.put("/v1/recipients/same.example.com", json=same)
    for host in ("moved.example.com", "again.example.com", "new.example.com"):
        await tenant.api.put(f"/v1/recipients/{host}", json={"address": str(Keypair().pubkey())})
    await tenant.api.delete("/v1/recipients/again.example.com")
    for host in ("moved.example.com", "again.example.com"):
        await tenant.api.put(f"/v1/recipients/{host}", json={"address": str(Keypair().pubkey())})
    for path in ("/console", f"/console/agents/{agent['id']}", "/console/keys"):
        page = (await tenant.visitor.get(path)).text
        (banner,) = re.findall(r'aria-label="Changed payees">(.*?)</section>', page, re.DOTALL)
        assert re.findall(r"<bdi>(.*?)</bdi>", banner) == ["again.example.com", "moved.example.com"]
        assert "and others" not in banner
    for host in ("new.example.com", "same.example.com"):
        await tenant.api.put(f"/v1/recipients/{host}", json={"address": str(Keypair().pubkey())})
    page = (await tenant.visitor.get("/console")).text
    (banner,) = re.findall(r'aria-label="Changed payees">(.*?)</section>', page, re.DOTALL)
    assert len(re.findall("<bdi>", banner)) == 3
    assert 'and others: <a href="/console/audit-log' in banner
    body = {"name": "x", "scope": "agent", "agentId": agent["id"]}
    key = (await tenant.api.post("/v1/keys", json=body)).json()["data"]["key"]
    async with browser_of(tenant.service) as http:
        own = await sign_in(http, key)
        page = (await own.get(f"/console/agents/{agent['id']}")).text
        assert "moved.example.com" not in page


async def test_the_log_says_who_changed_what(tenant: Tenant):
    """Goal: filters stay in the address, a line leads to its subject, and the CSV is the list."""
    agent = await new_agent(tenant.api, name="first")
    await tenant.api.patch(f"/v1/agents/{agent['id']}", json={"name": HOSTILE})
    page = (await tenant.visitor.get("/console/audit-log?action=agent.changed")).text
    assert f'href="/console/agents/{agent["id"]}"' in page
    assert "<del><bdi>first</bdi></del>" in page
    assert "<script>alert" not in page
    assert "agent.created" not in page
    assert 'href="/console/audit-log.csv?action=agent.changed"' in page
    rows = (await tenant.visitor.get("/console/audit-log.csv?action=agent.changed")).text
    assert len(rows.splitlines()) == 2
    await tenant.visitor.get("/console/audit-log?from=2026-11-03&to=2026-11-01", 400)


def test_differences_are_told_field_by_field():
    """Goal: what changed is seen however long the value around it is."""
    hosts = [f"host-{number}.example.com" for number in range(100)]
    line = {
        "before": {
            "a": {"b": "1", "c": ["x", "y"]}, "same": 3, "updatedAt": "then",
            "long": hosts, "turned": ["x", "y"], "gone": hosts[:22], "text": "x" * 1_000,
        },
        "after": {
            "a": {"b": "2", "c": ["x"]}, "same": 3, "updatedAt": "now", "new": True,
            "long": [*hosts, "evil.example.com"], "turned": ["y", "x"], "gone": [], "none": [],
            "text": "x" * 1_000 + "!",
        },
    }  # fmt: skip
    told = {found.field: (found.before, found.after) for found in differences(line)}
    gone = f"{', '.join(hosts[:20])} and 2 more, in the CSV"
    assert told == {
        "a.b": ("1", "2"),
        "a.c": ("y", None),
        "new": (None, "true"),
        "long": (None, "evil.example.com"),
        "turned": (None, None),
        "gone": (gone, None),
        "text": (f"…{'x' * 20}", f"…{'x' * 20}!"),
    }


async def test_fields_that_are_left_out_are_counted(tenant: Tenant):
    pairs = {f"pair-{number}": "x" for number in range(20)}
    agent = await new_agent(tenant.api, metadata=pairs)
    others = {f"other-{number}": "x" for number in range(21)}
    await tenant.api.patch(f"/v1/agents/{agent['id']}", json={"metadata": others})
    page = (await tenant.visitor.get("/console/audit-log?action=agent.changed")).text
    assert "41 fields" in page
    assert "and 1 more, in the CSV" in page
