"""A real Redis for the length of a test: ours alone, on a port of its own, nothing kept on disk
unless a test asks for it."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from bursar.service.ports import free_port
from tests.parts import redis_program
from tests.processes import until


class RedisServer:
    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port("127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._program = redis_program()
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
            *("--daemonize", "no", "--loglevel", "warning"),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )

        async def answers() -> bool:
            assert self._process is not None
            assert self._process.returncode is None, "redis-server ended early"
            client = self.client()
            try:
                return bool(await client.ping())
            except (RedisError, OSError):
                return False
            finally:
                await client.aclose()

        await until(answers, seconds=60)

    def client(self) -> Any:
        return Redis.from_url(self.url)

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP makes it silent, as a cut cable would; SIGCONT brings it back."""
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        self._process = None
