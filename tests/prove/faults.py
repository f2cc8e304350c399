"""How each fault is struck and mended. When it is over, recovery is up to the product."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import asyncpg
import psutil

from bursar.db import OUT_OF_REACH
from tests.localnet.support import RpcFailed
from tests.parts import FAKETIME
from tests.processes import until
from tests.prove.schedule import BAD_NODES, Fault
from tests.prove.stage import Stage
from tests.prove.wires import Trouble, Wire

# A node that lies does so for so many times as long as others suffer: payments take a while.
_LIES_LONGER: Final = 2.0
# A disk stays full until somebody comes; what is preallocated is soon used up.
_FULL_SECONDS: Final = 3.0
_TRIES: Final = 50
_CLOCKS: Final = ("+3600", "-3600", "+90000", "-90000", "+300", "-300")


class Faults:
    """`mount` is the file system that can be made full; None leaves that fault out."""

    def __init__(self, stage: Stage, mount: Path | None) -> None:
        self._stage = stage
        self._mount = mount
        self._verbs: dict[str, Callable[[Fault, Random], Awaitable[None]]] = {
            "kill api": self._kill,
            "kill worker": self._kill,
            "kill localnet": self._kill,
            "kill redis": self._kill_redis,
            "kill postgres": self._kill_postgres,
            "kill backend": self._kill_backend,
            "kill standby": self._kill_standby,
            "failover": self._failover,
            "freeze": self._freeze,
            "cut": self._trouble,
            "silent": self._trouble,
            "slow": self._trouble,
            "torn": self._trouble,
            "lying node": self._lie,
            "fork": self._fork,
            "lost blocks": self._lose_blocks,
            "clock": self._clock,
            "full disk": self._fill_disk,
        }

    @property
    def impossible(self) -> frozenset[str]:
        """Kinds that this machine cannot do."""
        missing = {"full disk": self._mount is None, "clock": FAKETIME is None}
        return frozenset(kind for kind, is_missing in missing.items() if is_missing)

    async def strike(self, fault: Fault) -> None:
        await self._verbs[fault.kind](fault, Random(fault.seed))

    # Processes --------------------------------------------------------------------------------

    async def _kill(self, fault: Fault, _: Random) -> None:
        """The supervisor starts it again."""
        self._send(fault.target, signal.SIGKILL)

    def _send(self, name: str, number: signal.Signals) -> None:
        pid = self._stage.supervisor.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _freeze(self, fault: Fault, _: Random) -> None:
        """Neither dead nor alive, as a machine that swaps."""
        send = self._stage.redis.send if fault.target == "redis" else self._sender(fault.target)
        send(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        send(signal.SIGCONT)

    def _sender(self, name: str) -> Callable[[signal.Signals], None]:
        return lambda number: self._send(name, number)

    async def _kill_redis(self, fault: Fault, _: Random) -> None:
        await self._stage.redis.stop()
        await asyncio.sleep(fault.seconds)
        await self._stage.redis.start()

    async def _kill_postgres(self, fault: Fault, _: Random) -> None:
        """The primary, all of it; it comes back where it was."""
        primary = self._stage.cluster.primary
        await primary.kill()
        await asyncio.sleep(fault.seconds)
        await primary.start()

    async def _kill_backend(self, _: Fault, chance: Random) -> None:
        """One session's process dies; PostgreSQL then ends all others, and itself."""
        primary = self._stage.cluster.primary
        sessions = [p for p in primary.embedded.processes() if "bursar bursar" in _title(p)]
        chance.choice(sessions).send_signal(signal.SIGKILL)

        async def ended() -> bool:
            return next(primary.embedded.processes(), None) is None

        await until(ended, seconds=30)
        await primary.start()

    async def _kill_standby(self, fault: Fault, chance: Random) -> None:
        standby = chance.choice(self._stage.cluster.standbys)
        await standby.kill()
        await asyncio.sleep(fault.seconds)
        await standby.start()

    async def _failover(self, _: Fault, __: Random) -> None:
        """The primary is gone for good; the better standby takes over, and a new one is made."""
        cluster = self._stage.cluster
        lost = await cluster.fail_over()
        await cluster.join(lost)
        await cluster.until_followed(2)

    # Wires ------------------------------------------------------------------------------------

    async def _trouble(self, fault: Fault, chance: Random) -> None:
        """One wire of the pair; of the nodes' wires to PostgreSQL all of one node, because only
        one of the three servers is asked."""
        wires = self._stage.wires[fault.target]
        if fault.target.endswith("postgres"):
            group = chance.randrange(len(wires) // 3) * 3
            chosen = wires[group : group + 3]
        else:
            chosen = [chance.choice(wires)]
        kind: Trouble = _TROUBLES[fault.kind]
        await asyncio.gather(*(wire.trouble(kind) for wire in chosen))
        await asyncio.sleep(fault.seconds)
        await _mend(chosen)

    # The chain --------------------------------------------------------------------------------

    async def _lie(self, fault: Fault, _: Random) -> None:
        switches = {"seed": fault.seed, "rules": BAD_NODES[fault.target]}
        await self._stage.rpc("bursar_faults", switches)
        await asyncio.sleep(fault.seconds * _LIES_LONGER)
        await until(self._tell_the_truth, seconds=30)

    async def _tell_the_truth(self) -> bool:
        """It may misbehave at this request too."""
        try:
            await self._stage.rpc("bursar_faults", {})
            return not (await self._stage.rpc("bursar_faults"))["rules"]
        except (*FELL_FLAT, TimeoutError):
            return False

    async def _fork(self, _: Fault, __: Random) -> None:
        """A payment that has just landed is gone again."""
        newest = "SELECT signature FROM submission ORDER BY signed_at DESC LIMIT 1"
        try:
            async with self._stage.db.connection() as tx:
                signature = await tx.fetchval(newest)
            await self._stage.rpc("bursar_fork", signature)
        except (RpcFailed, *OUT_OF_REACH, asyncpg.PostgresError):
            return  # it is final already, or there is none

    async def _lose_blocks(self, _: Fault, __: Random) -> None:
        await self._stage.rpc("bursar_expireBlockhashes")

    # The machine ------------------------------------------------------------------------------

    async def _clock(self, fault: Fault, chance: Random) -> None:
        """A node's time of day jumps, and jumps back."""
        file = self._stage.clock_of(fault.target)
        file.write_text(chance.choice(_CLOCKS))
        # It looks at the file once a second.
        await asyncio.sleep(1 + fault.seconds)
        file.write_text("+0")

    async def _fill_disk(self, fault: Fault, chance: Random) -> None:
        """Nothing more can be written; then there is room again, and what ended is started."""
        del chance
        assert self._mount is not None
        size = psutil.disk_usage(str(self._mount)).total
        # Whatever is written meanwhile does not fit any more, and then it is tried again.
        for _ in range(_TRIES):
            if resize(self._mount, psutil.disk_usage(str(self._mount)).used):
                break
        await asyncio.sleep(_FULL_SECONDS + fault.seconds)
        assert resize(self._mount, size), "the disk stays full"
        cluster = self._stage.cluster
        for server in (cluster.primary, *cluster.standbys):
            if not await server.answers():
                await server.kill()
                await server.start()
        await cluster.until_followed(2)


_TROUBLES: Final[dict[str, Trouble]] = {
    "cut": "cut", "silent": "silent", "slow": "slow", "torn": "torn"
}  # fmt: skip


async def _mend(wires: list[Wire]) -> None:
    await asyncio.gather(*(wire.mend() for wire in wires))


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def resize(mount: Path, size: int) -> bool:
    command = ["mount", "-o", f"remount,size={size}", str(mount)]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


# A chain that is being started again does not answer; the fault then falls flat.
FELL_FLAT: Final = (aiohttp.ClientError, RpcFailed)
