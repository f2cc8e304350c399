"""A database's schema as text, to compare two of them."""

import asyncio
import re
from typing import Final

from bursar.service.programs import binary

# What depends on the day, the version of pg_dump or the session, and says nothing of the schema.
_NOISE: Final = re.compile(r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)$")


async def dump_schema(dsn: str, *without: str) -> str:
    """All of it but the tables named in `without`."""
    process = await asyncio.create_subprocess_exec(
        str(binary("pg_dump")),
        *("--schema-only", "--no-owner", "--no-privileges", "--dbname", dsn),
        *(f"--exclude-table={table}" for table in without),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, "pg_dump failed"
    kept = [line.rstrip() for line in out.decode().splitlines() if not _NOISE.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
