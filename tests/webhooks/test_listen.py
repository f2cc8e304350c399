"""`bursar listen`: the way to try a receiver on one's own machine."""

import asyncio
import json
import re
import sys

import httpx

from bursar.webhooks import verify
from tests.processes import clean_environment
from tests.support import new_account, new_agent
from tests.webhooks.conftest import Hooks


async def test_events_are_printed_and_forwarded(hooks: Hooks):
    """Goal: what happens from now on is printed, filtered and forwarded, signed with the secret
    that was printed; what was before is not."""
    account = new_account()
    key = await hooks.service.key(account=account, scope="read")
    async with await hooks.service.admin(account=account) as client:
        agent = (await new_agent(client))["id"]
        await _pause(client, agent)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bursar.cli.main", "listen", "--base-url", hooks.service.url),
            *("--forward-to", hooks.receiver.url("ok/listen"), "--events", "agent.paused"),
            env=clean_environment() | {"BURSAR_API_KEY": key, "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        lines = [(await asyncio.wait_for(process.stdout.readline(), 30)).decode() for _ in "12"]
        found = re.search(r"whsec_\S+", lines[1])
        assert found is not None
        await client.patch(f"/v1/agents/{agent}", json={"status": "active", "name": "ünlike"})
        await _pause(client, agent)
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        process.terminate()
        await process.wait()
    (arrived,) = await hooks.receiver.wait_for("ok/listen")
    event = verify(arrived.body, arrived.headers["service-signature"], found[0])
    assert event["type"] == "agent.paused"
    assert event["id"] in line
    assert line.rstrip().endswith("-> 200")
    assert event["data"]["name"] == "ünlike"
    assert json.loads(arrived.body) == event


async def test_with_json_standard_output_is_events_alone(hooks: Hooks):
    """Goal: each line is one event, whole, as the API has it."""
    account = new_account()
    key = await hooks.service.key(account=account, scope="read")
    async with await hooks.service.admin(account=account) as client:
        agent = (await new_agent(client))["id"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bursar.cli.main", "listen", "--base-url", hooks.service.url),
            *("--json", "--events", "agent.paused"),
            env=clean_environment() | {"BURSAR_API_KEY": key, "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"Listening" in await asyncio.wait_for(process.stderr.readline(), 30)
        await _pause(client, agent)
        event = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        process.terminate()
        await process.wait()
        assert event == (await client.get(f"/v1/events/{event['id']}")).json()["data"]


async def test_a_bad_key_ends_it_with_a_sentence(hooks: Hooks):
    """Goal: no key or a wrong one is said, not polled for ever."""
    for key, code in (("", 2), ("bur_test_wrong", 5)):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bursar.cli.main", "listen", "--base-url", hooks.service.url),
            env=clean_environment() | {"BURSAR_API_KEY": key},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == code
        assert err.decode().startswith("bursar: ")


async def _pause(client: httpx.AsyncClient, agent: str) -> None:
    await client.patch(f"/v1/agents/{agent}", json={"status": "paused"})
