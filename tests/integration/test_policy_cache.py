"""Policies in memory: bounded in bytes, and there for who asked, whoever else asks meanwhile."""

import asyncio
from collections.abc import Sequence

from bursar.ledger import lock
from bursar.policy.cache import PolicyCache
from bursar.policy.model import PolicyKey
from tests.support import Service, new_agent


async def keys_of(service: Service, count: int, entries: int = 1) -> list[PolicyKey]:
    allowlist = [f"host-{number}.example.com" for number in range(entries)]
    async with await service.admin() as client:
        agents = [
            (await new_agent(client, policy={"allowlist": allowlist}))["id"] for _ in range(count)
        ]
    async with service.db.connection() as tx:
        realm_id = await tx.fetchval("SELECT realm_id FROM agent WHERE id = $1", agents[0])
        found = [await lock.read_agent(tx, agent, realm_id) for agent in agents]
    return [agent.policy_key for agent in found if agent is not None]


async def test_what_others_push_out_meanwhile_is_still_given_to_who_asked(service: Service):
    """Goal: no request fails because the cache was emptied while it waited for the database."""
    keys = await keys_of(service, 6)
    cache = PolicyCache(most_bytes=1)

    async def ask(wanted: Sequence[PolicyKey]) -> None:
        async with service.db.connection() as tx:
            for _ in range(5):
                assert set(await cache.get(tx, wanted)) == set(wanted)

    await asyncio.gather(*(ask(keys[start:] + keys[:start]) for start in range(len(keys))))


async def test_the_cache_is_bounded_by_the_size_of_policies(service: Service):
    """Goal: long lists are remembered in smaller number, so that they cannot fill the memory."""
    short, long = await keys_of(service, 8), await keys_of(service, 8, entries=900)
    cache = PolicyCache(most_bytes=1_000_000)
    async with service.db.connection() as tx:
        await cache.get(tx, short)
        assert len(cache) == 8
        for key in long:
            await cache.get(tx, [key])
        assert 0 < cache.bytes_used <= 1_000_000
        assert 1 <= len(cache) < 8
        # The newest is there: it is not read again.
        assert long[-1] in cache
