"""The API of a service elsewhere, as the tools call it: what is not Bursar's answer is no crash."""

import pytest

from bursar.errors import ApiError, ErrorCode
from bursar.mcp.over_http import reaching
from bursar.mcp.tool import ApiRequest
from tests.sdk.scripted import ScriptedServer

KEY = "bur_test_00000000000000000000000000000000000000"


@pytest.mark.parametrize("answer", ["page", "packed", "redirect", "reset", "cut", "gateway"])
async def test_what_cannot_be_read_leaves_the_outcome_open(answer: str):
    """Goal: whatever came, the agent's run goes on, and it is told how to try again."""
    async with ScriptedServer.running() as server, reaching(server.url, KEY) as api:
        server.script = [answer]
        with pytest.raises(ApiError, match="it is paid once") as unread:
            await api.send(ApiRequest("POST", "/v1/spend", body={}))
    assert unread.value.code is ErrorCode.UNAVAILABLE
    assert len(server.requests) == 1
