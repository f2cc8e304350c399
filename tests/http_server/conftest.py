import asyncio

import pytest
import uvloop

from tests.http_server.raw import Loop


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Loop:
    """What the service runs on, and what most tests of it run on."""
    return request.param
