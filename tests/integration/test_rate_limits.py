"""Rate limits over HTTP, in real time: what counts, what is told, and that waiting helps."""

import asyncio

import httpx

from tests.support import Service, error_of, new_account

UNKNOWN_KEY = "/v1/keys/key_00000000000000000000000000"


def remaining(answer: httpx.Response) -> int:
    return int(answer.headers["ratelimit-remaining"])


async def test_what_counts_and_what_does_not(service: Service):
    """Goal: every authenticated request to a known route counts, whatever its answer is."""
    account = new_account()
    key = await service.key(account=account, mode="live")
    async with service.client(key) as client, service.client(None) as nobody:
        left = 120
        for answer, status in (
            (await client.delete(UNKNOWN_KEY), 404),
            (await client.post("/v1/agents", content=b"{"), 400),
            (await client.post("/v1/agents", json={}), 400),
            (await client.post("/v1/agents", content=b"x", headers={"Content-Type": "a/b"}), 415),
            (await client.post("/v1/agents", content=b" " * 600_000), 413),
            (await client.post("/v1/keys", json={"name": "k", "scope": "read"}), 201),
        ):
            left -= 1
            assert answer.status_code == status
            assert answer.headers["ratelimit-limit"] == "120"
            assert remaining(answer) == left
            assert 1 <= int(answer.headers["ratelimit-reset"]) <= 60
        # Nobody to count against, or nothing to count.
        for answer, status in (
            (await client.put("/v1/agents", json={}), 405),
            (await client.post("/v1/agents/", json={}), 404),
            (await client.post("/v1/nothing", json={}), 404),
            (await nobody.post("/v1/agents", json={}), 401),
            (await client.get("/healthz"), 200),
        ):
            assert answer.status_code == status
            assert not [name for name in answer.headers if name.startswith("ratelimit")]
        assert remaining(await client.delete(UNKNOWN_KEY)) == left - 1


async def test_forbidden_requests_count_too(service: Service):
    """Goal: a key without the scope cannot knock for ever."""
    key = await service.key(account=new_account(), mode="live", scope="read")
    async with service.client(key) as client:
        for left in (119, 118, 117):
            answer = await client.delete(UNKNOWN_KEY)
            error_of(answer, 403, "forbidden")
            assert remaining(answer) == left


async def test_categories_keys_and_modes_are_counted_apart(service: Service):
    """Goal: each key has the whole limit of each category, with the numbers of its mode."""
    account = new_account()
    async with (
        await service.admin(account=account, mode="live") as first,
        await service.admin(account=account, mode="live") as second,
        await service.admin(account=account, mode="test") as test,
    ):
        await asyncio.gather(*(first.delete(UNKNOWN_KEY) for _ in range(10)))
        assert remaining(await first.delete(UNKNOWN_KEY)) == 109
        assert remaining(await second.delete(UNKNOWN_KEY)) == 119
        assert remaining(await test.delete(UNKNOWN_KEY)) == 299
        for client, (reads, wallets) in ((first, (600, 300)), (test, (1200, 600))):
            assert remaining(await client.get("/v1/me")) == reads - 1
            assert remaining(await client.get("/v1/agents")) == reads - 2
            assert remaining(await client.get("/v1/wallets/x")) == wallets - 1
            limits = (await client.get("/v1/me")).json()["data"]["limits"]
            assert {row["category"]: row["requestsPerMinute"] for row in limits}["Agent Reads"] == (
                reads
            )


async def test_the_request_after_the_limit_waits_as_long_as_it_is_told(service: Service):
    """Goal: 120 pass, the next is 429, none passes early, and after `Retry-After` one does."""
    loop = asyncio.get_running_loop()
    account = new_account()
    async with (
        await service.admin(account=account, mode="live") as client,
        await service.admin(account=account, mode="live") as other,
    ):
        started = loop.time()
        answers = await asyncio.gather(*(client.delete(UNKNOWN_KEY) for _ in range(120)))
        assert {answer.status_code for answer in answers} == {404}
        assert sorted(map(remaining, answers)) == list(range(120))

        refused = await client.delete(UNKNOWN_KEY)
        seen = loop.time()
        error = error_of(refused, 429, "rate_limit_exceeded")
        assert error["retryable"] is True
        assert "120" in error["message"]
        assert refused.headers["ratelimit-limit"] == "120"
        assert refused.headers["ratelimit-remaining"] == "0"
        assert refused.headers["ratelimit-reset"] == refused.headers["retry-after"]
        promised = int(refused.headers["retry-after"])
        assert 1 <= promised <= 60

        # Others go on meanwhile, and asking again neither helps nor harms.
        assert (await client.get("/v1/me")).status_code == 200
        assert (await other.delete(UNKNOWN_KEY)).status_code == 404
        while loop.time() < started + 58:
            early = await client.delete(UNKNOWN_KEY)
            error_of(early, 429, "rate_limit_exceeded")
            assert loop.time() + int(early.headers["retry-after"]) <= seen + promised + 2
            await asyncio.sleep(4)

        await asyncio.sleep(seen + promised - loop.time())
        passed = await client.delete(UNKNOWN_KEY)
        assert passed.status_code == 404, passed.text
        assert loop.time() - started >= 60, "no span of 60 s holds 121"
