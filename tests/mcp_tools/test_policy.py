"""The agent's policy as a resource, over every transport."""

import json

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import TextResourceContents

from tests.mcp_tools.conftest import Connect, Spender
from tests.support import Service


async def test_a_client_reads_the_policy(connect: Connect, service: Service, spender: Spender):
    """Goal: it is listed, and read as the API shows it to this key, as it is now."""
    async with (
        await service.admin(account=spender.account) as admin,
        connect(spender.key) as client,
    ):
        (listed,) = (await client.list_resources()).resources
        assert (listed.uri, listed.mime_type) == ("bursar://policy", "application/json")
        assert listed.description
        path = f"/v1/agents/{spender.agent_id}"
        for version in (1, 2):
            (read,) = (await client.read_resource(listed.uri)).contents
            assert isinstance(read, TextResourceContents)
            policy = json.loads(read.text)
            assert policy == (await admin.get(path)).json()["data"]["policy"]
            assert policy["version"] == version
            await admin.patch(path, json={"policy": {"perTransactionCap": "4.00"}})


async def test_there_is_nothing_else_to_read(connect: Connect, spender: Spender):
    async with connect(spender.key) as client:
        for uri in ("bursar://policy/", "bursar://keys", "file:///etc/passwd", ""):
            with pytest.raises(MCPError, match="There is: bursar://policy"):
                await client.read_resource(uri)
