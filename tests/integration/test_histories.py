"""A failover may forget a version or an epoch, and its number is then given again."""

import asyncpg

from bursar.ledger.lock import read_agent
from bursar.policy.cache import PolicyCache
from bursar.recipient.resolve import Directory
from bursar.service.postgres import ADMIN_ROLE, EmbeddedPostgres
from tests.support import Service, new_agent

OTHER = "So11111111111111111111111111111111111111112"


async def test_what_is_remembered_belongs_to_one_life(service: Service, postgres: EmbeddedPostgres):
    """Goal: the same version and the same epoch in another life are read again."""
    async with await service.admin() as client:
        agent = await new_agent(client, policy={"dailyCap": "10.00", "allowlist": ["*"]})
    policies, directory = PolicyCache(), Directory()
    async with service.db.connection() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agent["id"])
        found = await read_agent(tx, agent["id"], realm_id)
        assert found is not None
        # The server's start, because a failover and a restore are another server's, and the
        # table's own number, because a dump may be restored beside the database that it was of.
        started = await tx.fetchval("SELECT extract(epoch FROM pg_postmaster_start_time())")
        table = await tx.fetchval("SELECT oid FROM pg_class WHERE relname = 'wallet'")
        assert found.life == f"{started}/{table}"
        assert found.directory_epoch.startswith(f"{found.life}/")
        key = found.policy_key
        assert (await policies.get(tx, [key]))[key].cap_micros_daily == 10_000_000
        names = ["shop.example.com"]
        known = await directory.resolve(tx, "test", realm_id, found.directory_epoch, names)

    # The same numbers with other contents, as only another life can have them.
    database = await _database_of(service)
    admin = await asyncpg.connect(postgres.dsn_for(database, ADMIN_ROLE))
    await admin.execute("SET session_replication_role = replica")
    await admin.execute(
        "UPDATE policy SET cap_micros_daily = 1 * 10000 WHERE agent_id = $1", key[0]
    )
    await admin.execute(
        "INSERT INTO recipient (realm_id, hostname, address, created_by, created_at, updated_by,"
        " updated_at) VALUES ($1, $2, $3, 'test', now(), 'test', now())",
        realm_id,
        names[0],
        OTHER,
    )
    await admin.close()

    async with service.db.connection() as tx:
        later = (key[0], key[1], "0000FFFF")
        assert (await policies.get(tx, [key]))[key].cap_micros_daily == 10_000_000
        assert (await policies.get(tx, [later]))[later].cap_micros_daily == 10_000
        same = await directory.resolve(tx, "test", realm_id, found.directory_epoch, names)
        assert same == known
        assert await directory.resolve(tx, "test", realm_id, "0000FFFF/1", names) == {
            names[0]: OTHER
        }


async def _database_of(service: Service) -> str:
    async with service.db.connection() as tx:
        return await tx.fetchval("SELECT current_database()")
