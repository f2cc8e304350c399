"""Node programs with packages from npm, for clients that exist only there."""

import asyncio
from pathlib import Path

from tests.parts import program


async def install_kit(folder: Path) -> None:
    """What the folder's lock names; once, until the lock changes."""
    program("nodejs", "node")
    program("npm", "npm")
    installed = folder / "node_modules" / ".package-lock.json"
    lock = folder / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        await run(folder, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")


async def run(folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == 0, complained.decode()
    return said.decode()
