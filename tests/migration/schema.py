"""The whole schema in one readable file: what the numbered migrations add up to.

`python -m tests.migration.schema` (or `make schema`) writes it again after a new migration.
"""

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Final

from bursar.migrations.migrate import migrate
from bursar.service.postgres import running_postgres
from bursar.service.programs import binary

SCHEMA_FILE: Final = Path(__file__).parents[2] / "src/bursar/migrations/schema.sql"
_HEADER: Final = """\
-- What the numbered migrations add up to, for reading. Written by `make schema`, never by hand.
"""
# What depends on the day, the version of pg_dump or the session, and says nothing of the schema.
_NOISE: Final = re.compile(r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)$")


async def dump_schema(dsn: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(binary("pg_dump")),
        *("--schema-only", "--no-owner", "--no-privileges", "--dbname", dsn),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, "pg_dump failed"
    kept = [line.rstrip() for line in out.decode().splitlines() if not _NOISE.match(line)]
    text = "\n".join(kept).replace("public.", "")
    return _HEADER + "\n" + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


async def write_schema() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_postgres(Path(folder), durable=False) as server:
            await migrate(server.dsn)
            SCHEMA_FILE.write_text(await dump_schema(server.dsn), "utf-8")


if __name__ == "__main__":
    asyncio.run(write_schema())
