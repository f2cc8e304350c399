"""What a refused spend costs: the largest one takes little of the disk."""

from typing import Final

from tests.support import Service, new_agent, spend

# What a caller may send along with a spend, and what the decision adds.
MOST_BYTES: Final = 10 * 1024


async def test_the_largest_refused_spend_takes_little_of_the_disk(service: Service):
    """Goal: an agent key cannot fill the disk with refusals in hours."""
    async with await service.admin() as client:
        agent = (await new_agent(client))["id"]
        # Letters that no compression makes less of.
        values = [chr(0x4E00 + 97 * n % 20_000) for n in range(50_000)]
        metadata = {f"{n:040}": "".join(values[n * 500 : n * 500 + 500]) for n in range(50)}
        body = {"agentId": agent, "amount": "1", "recipient": "x.example.com", "memo": "ü" * 200}
        while True:
            answer = await client.post(
                "/v1/spend/authorise",
                json={**body, "metadata": metadata},
                headers={"Idempotency-Key": "k" * 255},
            )
            if answer.status_code == 201:
                break
            assert "8192 bytes" in answer.json()["error"]["message"], answer.text
            metadata.popitem()
        assert metadata
        assert answer.json()["data"]["status"] == "rejected"
        async with service.db.connection() as tx:
            taken = await tx.fetchval(
                "SELECT (SELECT sum(pg_column_size(s.*)) FROM spend s WHERE agent_id = $1)"
                " + (SELECT sum(pg_column_size(t.*)) FROM total_delta t WHERE agent_id = $1)"
                " + (SELECT coalesce(sum(pg_column_size(e.*)), 0) FROM event e"
                "     WHERE agent_id = $1 AND type LIKE 'transaction.%')",
                agent,
            )
        assert taken < MOST_BYTES
        assert (await spend(client, agent, "1"))["metadata"] == {}
