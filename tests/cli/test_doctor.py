"""`bursar doctor` names what is wrong, and what to do about it."""

import json
from pathlib import Path

from bursar.cli.exits import ExitCode
from bursar.service.datadir import let_others_pass
from bursar.service.postgres import EmbeddedPostgres
from tests.cli.console import Console
from tests.support import Service


async def test_all_is_well(console: Console, served: Service):
    """Goal: a healthy service and a good key pass, checks of the service's own included."""
    done = await console("doctor", "--data-dir", str(served.config.data_dir))
    assert done.code == 0, done.out
    for word in ("database: ok", "test network: ok", "rate limits: ok", "clocks: agree"):
        assert word in done.out
    assert "master.key: mode 0600" in done.out
    assert done.out.endswith("All is well.\n")
    findings = await console.json("doctor")
    assert {finding["state"] for finding in findings} == {"ok"}


async def test_nobody_there(console: Console):
    done = await console("doctor", BURSAR_BASE_URL="http://127.0.0.1:1")
    assert done.code == ExitCode.FAILED
    assert "bursar serve" in done.out
    assert "All is well" not in done.out
    assert "API key" not in done.out, "nobody said what it is worth"


async def test_a_wrong_key_and_a_disabled_webhook(console: Console):
    done = await console("doctor", BURSAR_API_KEY="bur_test_wrong")
    assert done.code == ExitCode.FAILED
    assert "bursar keys create --mode test" in done.out
    hook = await console.json("webhooks", "create", "http://127.0.0.1:1/hook")
    await console.ok("webhooks", "update", hook["id"], "--status", "disabled")
    done = await console("doctor")
    assert done.code == 0, "a warning is no failure"
    assert f"bursar webhooks update {hook['id']} --status enabled" in done.out


async def test_a_wallet_whose_outflows_are_unknown(console: Console, served: Service):
    """Goal: why a wallet buys nothing after a failover is not only in the log."""
    agent = await console.json("agents", "create", "waits", "--daily-cap", "1")
    words = ("doctor", "--data-dir", str(served.config.data_dir))
    async with served.db.connection() as tx:
        await tx.execute(
            "INSERT INTO outflows_known (agent_id, mode, problem, next_look_at)"
            # The worker would find at once that all is well.
            " VALUES ($1, 'test', $2, clock_timestamp() + interval '1 hour')",
            agent["id"],
            "a transaction is not in the books",
        )
    done = await console(*words)
    async with served.db.connection() as tx:
        await tx.execute("DELETE FROM outflows_known WHERE agent_id = $1", agent["id"])
    assert done.code == 0, "a warning is no failure"
    assert f"purchases of {agent['id']}: none is signed" in done.out
    assert "a transaction is not in the books" in done.out


async def test_a_folder_that_others_may_read(console: Console, tmp_path: Path):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    done = await console("doctor", "--data-dir", str(folder), "--json")
    assert done.code == ExitCode.FAILED
    (wrong,) = [finding for finding in json.loads(done.out) if finding["state"] == "wrong"]
    assert wrong["fix"].endswith(f"chmod 700 {folder}")


async def test_a_port_in_the_open(console: Console, tmp_path: Path):
    """Goal: a service that others reach without TLS is warned of, unless a proxy is said to be
    there."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    words = ("doctor", "--data-dir", str(folder))
    assert "BURSAR_TLS_IN_FRONT=on" in (await console(*words, BURSAR_HOST="0.0.0.0")).out
    silenced = await console(*words, BURSAR_HOST="0.0.0.0", BURSAR_TLS_IN_FRONT="on")
    assert "plain text" not in silenced.out


async def test_settings_that_every_terminal_shares(console: Console, served: Service):
    """Goal: with bursar.toml in the data folder a command in another terminal needs no variable;
    doctor names what is set there without its value, and what the environment overrules; a slip
    in it is named."""
    folder = console.home / ".bursar"
    folder.mkdir(mode=0o700)
    file = folder / "bursar.toml"
    file.touch(mode=0o600)
    dsn = EmbeddedPostgres(served.config.data_dir).dsn
    file.write_text(f'database_url = "{dsn}"\nport = 9001\n')
    done = await console("doctor", BURSAR_PORT="9002")
    assert f"settings: environment: port; {file}: database_url\n" in done.out
    assert "unset BURSAR_PORT" in done.out
    assert "unset" not in (await console("doctor", BURSAR_PORT="9001")).out
    assert dsn not in done.out
    assert (await console("keys", "list", "--local")).code == 0
    file.write_text("prot = 9001\n")
    done = await console("keys", "list", "--local")
    assert done.code == ExitCode.USAGE
    assert f"prot in {file}: there is no such setting" in done.err


async def test_the_live_network(console: Console, served: Service, tmp_path: Path):
    """Goal: the list to go through before real money, on a rehearsal, before the first start, and
    where nothing is set; tests/chain/test_live_check.py has its faults."""
    words = ("doctor", "--live", "--data-dir")
    rehearsed = await console(*words, str(served.config.data_dir), BURSAR_LIVE_NETWORK="localnet")
    for ticked in ("a localnet, to rehearse on", ": answers", "fee payer ", "6 decimals", "clock"):
        assert ticked in rehearsed.out
    assert rehearsed.code == 0, rehearsed.out
    unset = await console(*words, str(tmp_path / "new"))
    assert unset.code == ExitCode.FAILED
    assert "BURSAR_LIVE_NETWORK" in unset.out
    node = served.config.rpc_addresses("live")[0]
    wrong = await console(*words, str(tmp_path / "new"), BURSAR_LIVE_NETWORK=node)
    assert wrong.code == ExitCode.FAILED
    assert "is on another network" in wrong.out
    assert "made at the first start" in wrong.out


async def test_a_folder_that_postgresql_passes_through(console: Console, tmp_path: Path):
    """Goal: the mode that `serve` itself sets when PostgreSQL runs as another user is fine; for the
    master key it is not."""
    folder = tmp_path / "data"
    folder.mkdir()
    let_others_pass(folder)
    assert (await console("doctor", "--data-dir", str(folder))).code == 0
    key = folder / "master.key"
    key.touch()
    key.chmod(0o711)
    done = await console("doctor", "--data-dir", str(folder), "--json")
    (wrong,) = [finding for finding in json.loads(done.out) if finding["state"] == "wrong"]
    assert wrong["fix"].endswith(f"chmod 600 {key}")
