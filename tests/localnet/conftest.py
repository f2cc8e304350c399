"""Nodes for tests: inside this process where a test needs no kill, each in a folder of its own."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bursar.clock import SystemClock
from bursar_localnet.rpc import Settings, serve
from tests.localnet.support import Rpc

OpenNode = Callable[..., Any]


@pytest.fixture
async def open_node(tmp_path: Path) -> AsyncGenerator[OpenNode]:
    """`await open_node(slot_ms=…, lag=…)` starts one and hands back a client for it."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def start(clock: Any = None, **changes: Any) -> Rpc:
            settings = replace(Settings(tmp_path / "chain", port=0), **changes)
            node = await stack.enter_async_context(serve(settings, clock or SystemClock()))
            return Rpc(node.port, session)

        yield start


@pytest.fixture
async def rpc(open_node: OpenNode) -> Rpc:
    return await open_node()
