"""What a worker makes of answers that come late, and of a database that takes a change back."""

from pathlib import Path

import pytest

from bursar.config import Config
from bursar.service.postgres import EmbeddedPostgres
from tests.processes import until
from tests.webhooks.conftest import own_hooks, running_worker

SETTINGS = {
    "webhooks_retry_seconds": (1, 1),
    # Longer than any test waits: an attempt ends when its receiver answers.
    "webhooks_timeout_seconds": 60,
    "drain_seconds": 1,
    "live_network": None,
}


@pytest.mark.parametrize("old", ["leave/x", "leave/fail"])
async def test_an_old_url_says_nothing_about_the_new_one(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path, old: str
):
    """Goal: a failure, even a 410, of the URL before a change counts for nothing after it."""
    async with (
        own_hooks(postgres, config, "late", tmp_path, **SETTINGS) as hooks,
        await hooks.service.admin() as client,
        running_worker(hooks.config),
    ):
        webhook = await hooks.register(client, old, "agent.paused")
        path = f"/v1/webhooks/{webhook['id']}"
        await client.post(f"{path}/test")
        await hooks.receiver.wait_for(old)
        await client.patch(path, json={"url": hooks.receiver.url("hang/new")})
        await hooks.receiver.leave()
        # The retry, which hangs, so that nothing that goes well wipes out the failure before it.
        await hooks.receiver.wait_for("hang/new")
        (late,) = await hooks.receiver.received(old)
        assert late.status == (410 if old == "leave/x" else 500)
        async with hooks.service.db.connection() as tx:
            row = await tx.fetchrow("SELECT status, failing_since FROM webhook")
        assert row is not None
        assert (row["status"], row["failing_since"]) == ("enabled", None)


async def test_a_deadlock_costs_a_moment(
    postgres: EmbeddedPostgres, config: Config, localnets: None, tmp_path: Path
):
    """Goal: what the database rolled back is recorded in the next round, by the same worker; no
    result is lost, so nothing is delivered twice."""
    async with (
        own_hooks(postgres, config, "deadlock", tmp_path, **SETTINGS) as hooks,
        await hooks.service.admin() as client,
        running_worker(hooks.config) as worker,
    ):
        async with hooks.service.db.transaction() as tx:
            # The first two results are the victims. A sequence counts what is rolled back too.
            await tx.execute("CREATE SEQUENCE victims")
            await tx.execute(
                "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " IF nextval('victims') <= 2 THEN"
                " RAISE EXCEPTION 'deadlock' USING ERRCODE = 'deadlock_detected'; END IF;"
                " RETURN NEW; END $$"
            )
            await tx.execute(
                "CREATE TRIGGER deadlock BEFORE UPDATE OF attempts ON delivery FOR EACH ROW"
                " EXECUTE FUNCTION deadlock()"
            )
        webhook = await hooks.register(client, "ok/x")
        listed = f"/v1/webhooks/{webhook['id']}/deliveries"
        await client.post(f"/v1/webhooks/{webhook['id']}/test")

        async def recorded() -> bool:
            return (await client.get(listed)).json()["data"][0]["status"] == "delivered"

        await until(recorded, seconds=20)
        async with hooks.service.db.connection() as tx:
            assert await tx.fetchval("SELECT last_value FROM victims") == 3
        assert worker.returncode is None
        assert len(await hooks.receiver.received("ok/x")) == 1
