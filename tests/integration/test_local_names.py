"""`localhost` and addresses as recipients: in test mode, if BURSAR_PURCHASES_ALLOW lists them."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from bursar.clock import SystemClock
from bursar.config import Mode
from bursar.recipient.resolve import test_address as sandbox_address
from bursar.service.api import Api
from tests.support import ON_CURVE, POLICY, Service, error_of, new_agent, spend

ALLOW = ("localhost", "shop", "127.0.0.0/8", "::1")
# As written, and in canonical form.
LISTED = [
    ("LocalHost", "localhost"),
    ("localhost.", "localhost"),
    ("shop", "shop"),
    ("127.0.0.1", "127.0.0.1"),
    ("0:0:0:0:0:0:0:1", "::1"),
]
OTHERS = ["intranet", "10.0.0.1", "fe80::1", "::1%lo", "[::1]", "127.1", "2130706433", "127.0.0.1."]


@pytest.fixture(scope="module")
async def open_service(service: Service) -> AsyncGenerator[Service]:
    """On the same database, with the setting."""
    config = replace(service.config, purchases_allow=ALLOW)
    api = await Api.start(config, SystemClock())
    yield Service(f"http://127.0.0.1:{api.port}", config, service.db)
    await api.stop()


async def test_they_stand_in_lists_and_are_paid(open_service: Service):
    async with await open_service.admin() as client:
        policy = {"allowlist": [written for written, _ in LISTED]}
        agent = await new_agent(client, policy=policy)
        names = list(dict.fromkeys(name for _, name in LISTED))
        assert agent["policy"]["allowlist"] == names
        await open_service.fund(agent["id"], "50")
        for written, name in LISTED:
            made = await spend(client, agent["id"], "1", recipient=written)
            assert (made["status"], made["recipient"]) == ("approved", name)
            assert made["payTo"] == sandbox_address(name)
        found = await client.get("/v1/transactions", params={"recipient": "LOCALHOST"})
        assert [row["recipient"] for row in found.json()["data"]] == ["localhost"] * 2


async def test_a_blocked_one_is_blocked_by_its_address_too(open_service: Service):
    async with await open_service.admin() as client:
        policy = {"allowlist": ["*"], "blocklist": ["localhost", "::1"]}
        agent = await new_agent(client, policy=policy)
        await open_service.fund(agent["id"], "50")
        for name in ("localhost", "::1"):
            for recipient in (name, sandbox_address(name)):
                made = await spend(client, agent["id"], "1", recipient=recipient)
                assert made["rejectCode"] == "recipient_blocked", recipient


@pytest.mark.parametrize(("written", "name"), LISTED)
async def test_they_stand_in_the_directory(open_service: Service, written: str, name: str):
    async with await open_service.admin() as client:
        put = await client.put(f"/v1/recipients/{written}", json={"address": ON_CURVE})
        assert (put.status_code, put.json()["data"]["hostname"]) == (200, name)
        agent = await new_agent(client, policy={"allowlist": ["*"]})
        await open_service.fund(agent["id"], "50")
        assert (await spend(client, agent["id"], "1", recipient=written))["payTo"] == ON_CURVE
        assert (await client.get(f"/v1/recipients/{written}")).status_code == 200
        assert (await client.delete(f"/v1/recipients/{name}")).status_code == 204
        assert (await client.get(f"/v1/recipients/{written}")).status_code == 404


@pytest.mark.parametrize("entry", [*OTHERS, "*.localhost", "*.127.0.0.1", "*.::1"])
async def test_what_is_not_listed_is_refused(open_service: Service, entry: str):
    async with await open_service.admin() as client:
        policy = {**POLICY, "blocklist": ["localhost", entry]}
        answer = await client.post("/v1/agents", json={"name": "a", "policy": policy})
        assert error_of(answer, 400, "validation_error")["param"] == "policy.blocklist[1]"


async def test_live_mode_and_a_service_without_the_setting_take_none(
    service: Service, open_service: Service
):
    modes: list[tuple[Service, Mode]] = [(open_service, "live"), (service, "test")]
    for place, mode in modes:
        async with await place.admin(mode=mode) as client:
            for written, _ in LISTED:
                policy = {**POLICY, "allowlist": [written]}
                answer = await client.post("/v1/agents", json={"name": "a", "policy": policy})
                assert error_of(answer, 400, "validation_error")["param"] == "policy.allowlist[0]"
                put = await client.put(f"/v1/recipients/{written}", json={"address": ON_CURVE})
                assert error_of(put, 400, "validation_error")["param"] == "hostname"
                listed = await client.get("/v1/transactions", params={"recipient": written})
                assert error_of(listed, 400, "validation_error")["param"] == "recipient"
