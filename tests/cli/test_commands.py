"""Everything an operator does by hand, through the command itself, against a whole service."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from bursar.cli.budgets import read_limits
from bursar.cli.exits import ExitCode
from bursar.cli.main import app
from bursar.errors import CommandFailed
from tests.cli.console import Console
from tests.processes import until
from tests.sellers.served import selling
from tests.support import ON_CURVE, Service

# These run a service or work on its database, and have tests of their own.
ELSEWHERE = {
    "serve",
    "api",
    "worker",
    "database",
    "localnet",
    "audit",
    "adopt",
    "deposits",
    "mcp",
    "listen",
    "backup",
    "restore",
}
ELSEWHERE_TOO = {("keys", "rotate-master"), ("version",)}
# In test_profiles.py, test_doctor.py and test_demo.py.
OTHER_FILES = {("login",), ("logout",), ("profiles",), ("doctor",), ("demo",), ("demo", "shop")}


async def test_a_day_at_the_desk(console: Console, served: Service):
    """Goal: every command of the tree works, and says what it did in its exit code too."""
    agent = await console.ok("agents", "create", "shopper", "--daily-cap", "20")
    assert re.fullmatch(r"ag_[a-z0-9]+", agent)
    for part in (_agents, _money, _approvals, _policy, _stop, _directory, _budgets, _events, _keys):
        await part(console, agent)
    async with selling(served, "other payee") as seller:
        await _purchases(console, seller.url)
    ended = await console("agents", "terminate", agent)
    assert ended.code == ExitCode.USAGE
    assert "--yes" in ended.err
    assert "terminated" in await console.ok("agents", "terminate", agent, "--yes")
    tree = {path for path in paths() if path not in OTHER_FILES}
    assert tree - console.ran == set()


async def test_what_payments_may_cost_the_network(console: Console):
    """Goal: the budget for fees and token accounts is set, changed and left to the service."""
    lamports = "--daily-network-lamports"
    made = await console.json("agents", "create", "x", "--daily-cap", "1", lamports, "5000000")
    assert made["policy"]["dailyNetworkLamports"] == 5_000_000
    for said, kept in (("0", 0), ("7000000", 7_000_000), ("none", None)):
        policy = await console.json("policy", "set", made["id"], lamports, said)
        assert policy["dailyNetworkLamports"] == kept
    for wrong in ("-1", "1.5", "much"):
        refused = await console("policy", "set", made["id"], lamports, wrong)
        assert refused.code == ExitCode.USAGE
        assert "lamports" in refused.err.lower()


async def test_limits_of_one_recipient_are_not_replaced_unseen(console: Console, served: Service):
    """Goal: `--limit` cannot name a recipient, so it refuses to replace limits that do."""
    limits = [{"window": "day", "amount": "5.00", "recipient": "api.example.com"}]
    async with served.client(console.variables["BURSAR_API_KEY"]) as client:
        policy = {"dailyCap": "20", "allowlist": [], "limits": limits}
        made = await client.post("/v1/agents", json={"name": "x", "policy": policy})
        agent = made.json()["data"]["id"]
        for said in ("day=1", "none"):
            refused = await console("policy", "set", agent, "--limit", said)
            assert refused.code == ExitCode.USAGE, refused
            assert "limits of one recipient" in refused.err
        kept = (await client.get(f"/v1/agents/{agent}")).json()["data"]["policy"]["limits"]
    assert [limit["recipient"] for limit in kept] == ["api.example.com"]


async def _agents(console: Console, agent: str) -> None:
    allow = ("--allow", "api.example.com", "--allow", "*.example.org", "--block", "x.example.org")
    policy = await console.json("policy", "set", agent, *allow, "--approval-threshold", "5")
    assert policy["version"] == 2
    assert policy["allowlist"] == ["api.example.com", "*.example.org"]
    policy = await console.json(
        *("policy", "set", agent, "--disallow", "*.example.org", "--unblock", "x.example.org"),
        *("--daily-cap", "25", "--approval-threshold", "none", "--per-transaction-cap", "9"),
    )
    assert (policy["allowlist"], policy["blocklist"]) == (["api.example.com"], [])
    assert (policy["dailyCap"], policy["approvalThreshold"]) == ("25.00", None)
    missing = await console("policy", "set", agent, "--disallow", "no.example.org")
    assert (missing.code, "--disallow" in missing.err) == (ExitCode.USAGE, True)
    assert "daily cap\t25.00" in await console.ok("policy", "show", agent)
    history = (await console.ok("policy", "history", agent)).splitlines()
    assert [line.split("\t")[0] for line in history] == ["version", "3", "2", "1"]
    changed = await console.json(
        "agents", "update", agent, "--name", "buyer", "--metadata", "team=search"
    )
    assert (changed["name"], changed["metadata"]) == ("buyer", {"team": "search"})
    listed = await console.json("agents", "list", "--metadata", "team=search")
    assert [row["id"] for row in listed] == [agent]
    assert await console.json("agents", "list", "--status", "paused") == []
    assert "paused" in await console.ok("agents", "pause", agent)
    assert "active" in await console.ok("agents", "resume", agent)
    assert "frozen" in await console.ok("agents", "freeze", agent)
    assert "not frozen" in await console.ok("agents", "unfreeze", agent)
    assert "name\tbuyer" in await console.ok("agents", "show", agent)
    for number in range(2):
        await console.ok("agents", "create", f"extra {number}", "--daily-cap", "1")
    few = await console("agents", "list", "--limit", "2")
    assert len(few.out.splitlines()) == 3
    assert "--all" in few.err
    every = await console("agents", "list", "--all")
    assert (len(every.out.splitlines()), every.err) == (4, "")


async def _money(console: Console, agent: str) -> None:
    assert "20.000000 USDC credited" in await console.ok("fund", agent, "20")
    assert (await console.json("agents", "budget", agent))["maxAmountNow"] == "9.000000"
    would = await console("preview", agent, "10", "api.example.com")
    assert would.code == ExitCode.REFUSED
    assert "per_transaction_cap_exceeded" in would.out
    assert "What would pass now: 9.000000" in would.err
    stranger = await console("preview", agent, "1", "shop.example.net")
    assert f"bursar policy set {agent} --allow shop.example.net" in stranger.err
    made = await console.json("spend", agent, "3.50", "api.example.com", "--memo", "a book")
    assert (made["status"], made["amount"]) == ("settled", "3.500000")
    again = await console.json(
        *("spend", agent, "1", "api.example.com", "--wait", "0", "--idempotency-key", "order-1")
    )
    same = await console.json(
        *("spend", agent, "1", "api.example.com", "--wait", "0", "--idempotency-key", "order-1")
    )
    assert again["id"] == same["id"]
    refused = await console.json("spend", agent, "1", "evil.example.net", code=ExitCode.REFUSED)
    assert refused["rejectCode"] == "recipient_not_allowed"
    table = (await console.ok("transactions", "list", "--agent", agent)).splitlines()
    assert table[0].split("\t")[:2] == ["id", "created"]
    assert len(table) == 4
    rows = await console.json("transactions", "list", "--status", "settled", "--from", "2020-01-01")
    assert made["id"] in [row["id"] for row in rows]
    written = await console.ok("transactions", "list", "--csv", "--status", "rejected")
    assert [row["id"] for row in csv.DictReader(io.StringIO(written))] == [refused["id"]]
    both = await console("transactions", "list", "--csv", "--json")
    assert both.code == ExitCode.USAGE
    shown = await console.ok("transactions", "show", refused["id"])
    assert "reject code\trecipient_not_allowed" in shown
    assert "decision checks\tallowlist fail evil.example.net" in shown
    stats = await console.json("transactions", "stats", "--agent", agent)
    assert (stats["transactionCount"], stats["rejectedCount"]) == (3, 1)
    assert "status\tfunded" in await console.ok("wallets", "show", agent)
    assert len((await console.ok("wallets", "deposits", agent)).splitlines()) == 2
    asked = await console("withdraw", agent, "2", ON_CURVE)
    assert asked.code == ExitCode.USAGE
    taken = await console.json("withdraw", agent, "2", ON_CURVE, "--yes", "--memo", "home")

    async def settled() -> bool:
        row = await console.json("wallets", "withdrawal", taken["id"])
        return row["status"] == "settled"

    await until(settled, seconds=60)
    assert taken["id"] in await console.ok("wallets", "withdrawals", agent)
    assert taken["id"] in await console.ok("wallets", "withdrawals", "--csv")
    too_much = await console("withdraw", agent, "2000", ON_CURVE, "--yes")
    assert (too_much.code, "insufficient_funds" in too_much.err) == (ExitCode.FAILED, True)


async def _purchases(console: Console, url: str) -> None:
    agent = await console.ok("agents", "create", "buyer", "--daily-cap", "1", "--allow", "*")
    await console.ok("fund", agent, "1")
    bought = await console("buy", url, "--agent", agent, "--max-amount", "0.01", "-H", "A: b")
    assert (bought.code, json.loads(bought.out)) == (ExitCode.DONE, {"weather": "fair"})
    assert "0.001000 USDC to 127.0.0.1" in bought.err
    refused = await console("buy", url, "--agent", agent)
    assert (refused.code, refused.out) == (ExitCode.REFUSED, "")
    assert "bursar pins accept ORIGIN ADDRESS" in refused.err
    rows = await console.json("purchases", "list", "--agent", agent, "--seller", "127.0.0.1")
    assert [row["rejectCode"] for row in rows] == ["payee_changed", None]
    first = rows[1]["id"]
    assert (await console("purchases", "retry", first)).out == bought.out
    assert f"url\t{url}" in await console.ok("purchases", "show", first)
    assert (await console("purchases", "continue", first)).code == ExitCode.FAILED
    (pin,) = await console.json("pins", "list")
    asked = await console("pins", "accept", pin["origin"], pin["offered"])
    assert (asked.code, "--yes" in asked.err) == (ExitCode.USAGE, True)
    accepted = await console.json("pins", "accept", pin["origin"], pin["offered"], "--yes")
    assert accepted["address"] == pin["offered"]
    assert "forgotten" in await console.ok("pins", "forget", pin["origin"], "--yes")
    await console.ok("policy", "set", agent, "--approval-threshold", "0", "--payees", "pinned")
    waits = await console.json("buy", url, "--agent", agent, code=ExitCode.WAITING)
    await console("buy", url, "--agent", agent)
    await console.ok("approvals", "approve", waits["transactionId"])
    went_on = await console("purchases", "continue", waits["id"])
    assert (went_on.code, went_on.out) == (ExitCode.DONE, bought.out)
    for wrong in (("-H", "no colon"), ("-d", "@/no/such/file")):
        assert (await console("buy", url, *wrong)).code == ExitCode.USAGE


async def _approvals(console: Console, agent: str) -> None:
    await console.ok("policy", "set", agent, "--approval-threshold", "0")
    asked = [
        await console.json("spend", agent, "1", "api.example.com", code=ExitCode.WAITING)
        for _ in range(3)
    ]
    cancelled = await console.json("transactions", "cancel", asked.pop()["id"])
    assert cancelled["rejectCode"] == "cancelled"
    listed = await console.json("approvals", "list")
    assert [row["id"] for row in listed] == [row["id"] for row in reversed(asked)]
    assert "is approved" in await console.ok("approvals", "approve", asked[0]["id"])
    denied = await console.json("approvals", "deny", asked[1]["id"], "--reason", "no need")
    assert (denied["rejectCode"], denied["decisionReason"]) == ("approval_denied", "no need")


async def _budgets(console: Console, agent: str) -> None:
    budget = await console.ok("budgets", "create", "team", "--limit", "week=5.00,9x")
    assert re.fullmatch(r"bud_[a-z0-9]+", budget)
    assert (await console.json("budgets", "show", budget))["limits"][0]["count"] == 9
    assert "is frozen" in await console.ok("budgets", "freeze", budget)
    assert "is thawed" in await console.ok("budgets", "thaw", budget)
    shown = await console.ok("budgets", "show", budget)
    assert "limits\tweek=5.00,9x\n" in shown
    assert "used, week\t0.000000 USDC, 0 spends\n" in shown
    changed = await console.ok("budgets", "set", budget, "--name", "crew", "--limit", "day=3x")
    assert "crew is changed; its limits: day=3x." in changed
    listed = (await console.ok("budgets", "list")).splitlines()
    assert listed[1].split("\t")[1:3] == ["crew", "day 0x of 3x"]
    moved = await console.json("agents", "update", agent, "--budget", budget)
    assert moved["budgetId"] == budget
    await console.ok("budgets", "set", budget, "--limit", "day=0.50")
    refused = await console("preview", agent, "1", "api.example.com")
    assert refused.code == ExitCode.REFUSED
    assert f"  budget {budget} lim_" in refused.err
    assert "limits: none" in await console.ok("budgets", "set", budget, "--limit", "none")
    assert (await console.json("agents", "update", agent, "--budget", "none"))["budgetId"] is None
    assert await console.json("agents", "list", "--budget", budget) == []
    under = await console.json("agents", "update-many", "--under", budget, "--status", "paused")
    assert under == {"matched": 0, "changed": 0}
    assert "is removed" in await console.ok("budgets", "remove", budget)


async def _policy(console: Console, agent: str) -> None:
    tried = await console.json("policy", "try", agent, "--daily-cap", "0.01")
    assert tried["reproduced"]["same"] == tried["reproduced"]["of"] > 0
    assert tried["draft"]["rejected"] > tried["current"]["rejected"]
    said = await console.ok("policy", "try", agent, "--per-transaction-cap", "0.01", "--days", "1")
    assert "draft: 0 approved" in said
    assert "daily_cap" in {change["rule"] for change in tried["changed"]}
    assert "Drafted on version" in await console.ok("policy", "draft", agent, "--daily-cap", "9")
    assert (await console.json("policy", "show", "--draft", agent))["policy"]["dailyCap"] == "9.00"
    assert "dropped" in await console.ok("policy", "drop", agent)
    drafted = await console.json("policy", "draft", agent, "--daily-cap", "24")
    promoted = await console.json("policy", "promote", agent)
    assert promoted["version"] == drafted["baseVersion"] + 1


async def _stop(console: Console, agent: str) -> None:
    assert "say what to change" in (await console("agents", "update-many", "--in", "active")).err
    unchanged = await console.json("agents", "update-many", "--in", "active", "--unfreeze")
    assert unchanged["changed"] == 0 < unchanged["matched"]
    stopped = await console.ok("stop", "a look at the books", "--also-unsigned")
    assert "What is approved and not signed waits" in stopped
    assert (await console.json("whoami"))["stop"]["reason"] == "a look at the books"
    refused = await console("spend", agent, "1", "api.example.com")
    assert refused.code == ExitCode.REFUSED
    assert "bursar resume" in refused.err
    assert "may spend again" in await console.ok("resume", "--unsigned", "cancel")


async def _directory(console: Console, agent: str) -> None:
    del agent
    assert ON_CURVE in await console.ok("recipients", "set", "pay.example.com", ON_CURVE)
    assert (await console.json("recipients", "show", "pay.example.com"))["address"] == ON_CURVE
    assert len(await console.json("recipients", "list")) == 1
    assert "no longer" in await console.ok("recipients", "remove", "pay.example.com")
    gone = await console("recipients", "show", "pay.example.com")
    assert gone.code == ExitCode.NOT_FOUND


async def _events(console: Console, agent: str) -> None:
    made = await console.json("webhooks", "create", "http://127.0.0.1:1/hook")
    assert (made["events"], made["secret"][:6]) == (["*"], "whsec_")
    hook = made["id"]
    changed = await console.json("webhooks", "update", hook, "--event", "agent.paused")
    assert changed["events"] == ["agent.paused"]
    assert len(await console.json("webhooks", "list")) == 1
    assert "status\tenabled" in await console.ok("webhooks", "show", hook)
    rotated = await console.json("webhooks", "rotate-secret", hook)
    assert rotated["secret"] != made["secret"]
    assert "on its way" in await console.ok("webhooks", "test", hook)
    assert "webhook.test" in await console.ok("webhooks", "deliveries", hook)
    found = await console.json("events", "list", "--type", "agent.paused", "--agent", agent)
    assert [event["data"]["id"] for event in found] == [agent]
    event = found[0]["id"]
    assert "type\tagent.paused" in await console.ok("events", "show", event)
    assert "1 webhook" in await console.ok("events", "redeliver", event, "--webhook", hook)
    assert "deleted" in await console.ok("webhooks", "delete", hook)


async def _keys(console: Console, agent: str) -> None:
    me = await console.json("whoami")
    assert me["scope"] == "admin"
    made = await console.json(
        *("keys", "create", "--scope", "agent", "--agent", agent, "--expires-in", "2")
    )
    assert (made["agentId"], made["mode"]) == (agent, "test")
    plain = await console("keys", "create", "--scope", "read", "--name", "reports")
    assert re.fullmatch(r"bur_test_\w{38}\n", plain.out)
    denied = await console("agents", "pause", agent, BURSAR_API_KEY=plain.out.strip())
    assert (denied.code, "admin" in denied.err) == (ExitCode.NOT_ALLOWED, True)
    listed = await console.json("keys", "list")
    assert len(listed) == 3
    assert plain.out.strip() not in json.dumps(listed)
    assert "revoked" in await console.ok("keys", "revoke", made["id"])
    lines = await console.json("log", "--actor", me["id"], "--limit", "3")
    assert [line["action"] for line in lines] == ["key.revoked", "key.created", "key.created"]
    assert lines[0]["subject"] == made["id"]
    table = csv.DictReader(io.StringIO(await console.ok("log", "--action", "key.revoked", "--csv")))
    assert [row["subject"] for row in table] == [made["id"]]
    both = await console("log", "--csv", "--json")
    assert both.code == ExitCode.USAGE


def paths() -> set[tuple[str, ...]]:
    """Every command of the tree that is not tested elsewhere."""
    root: Any = typer.main.get_command(app)
    found: set[tuple[str, ...]] = set()
    for name, command in root.commands.items():
        below = getattr(command, "commands", None)
        if name not in ELSEWHERE:
            found |= {(name, inner) for inner in below} if below else {(name,)}
    return found - ELSEWHERE_TOO


# What goes wrong ----------------------------------------------------------------------------------


async def test_exit_codes_tell_scripts_what_happened(console: Console):
    """Goal: each kind of failure has its code, one sentence, and nothing on standard output."""
    cases: list[tuple[tuple[str, ...], dict[str, str], ExitCode, str]] = [
        (("agents", "show", "ag_1"), {}, ExitCode.NOT_FOUND, "req_"),
        (("agents", "list"), {"BURSAR_API_KEY": "bur_x"}, ExitCode.NOT_ALLOWED, "unauthorized"),
        (("agents", "list"), {"BURSAR_API_KEY": ""}, ExitCode.USAGE, "bursar login"),
        (("agents", "list"), {"BURSAR_BASE_URL": "nowhere"}, ExitCode.USAGE, "BURSAR_BASE_URL"),
        (
            ("fund", "ag_1", "1"),
            {"BURSAR_BASE_URL": "http://127.0.0.1:1"},
            ExitCode.UNAVAILABLE,
            "nothing was sent",
        ),
        (("agents", "list", "--limit", "0"), {}, ExitCode.USAGE, "--limit"),
        (("agents", "list", "--metadata", "x"), {}, ExitCode.USAGE, "KEY=VALUE"),
        (("agents", "create", "x", "--daily-cap", "1.005"), {}, ExitCode.FAILED, "policy.dailyCap"),
        (("agents", "nonsense"), {}, ExitCode.USAGE, "nonsense"),
    ]
    for words, variables, code, word in cases:
        done = await console(*words, **variables)
        assert (done.code, done.out) == (code, ""), (words, done)
        assert word in done.err, (words, done)


async def test_a_terminal_gets_tables_and_colours(console: Console):
    """Goal: people see a table, scripts see tabs; NO_COLOR is heard."""
    agent = await console.ok("agents", "create", "shopper", "--daily-cap", "20")
    seen = await console.on_terminal("agents", "list")
    assert seen.code == 0
    assert agent in seen.out
    assert "─" in seen.out
    assert "\x1b[32mactive" in seen.out
    plain = await console.on_terminal("agents", "list", NO_COLOR="1")
    assert "\x1b[32m" not in plain.out
    narrow = await console.on_terminal("agents", "list", COLUMNS="80")
    assert agent in narrow.out
    assert "\x1b[32mactive" in narrow.out
    assert "No room for: created." in narrow.out
    piped = await console("agents", "list")
    assert "\x1b" not in piped.out + piped.err
    assert "\t" in piped.out
    asked = await console.on_terminal("agents", "terminate", agent, question="[y/N]", typed="n\n")
    assert (asked.code, "Nothing was done" in asked.out) == (ExitCode.FAILED, True)
    asked = await console.on_terminal("agents", "terminate", agent, question="[y/N]", typed="y\n")
    assert (asked.code, "is terminated" in asked.out) == (0, True)


async def test_hostile_text_cannot_write_to_the_terminal(console: Console):
    """Goal: a memo or name with control characters or markup is shown, not obeyed."""
    await console.ok("agents", "create", "[red]a\tb\x1b[2J", "--daily-cap", "1")
    piped = await console.ok("agents", "list")
    assert "[red]a b [2J" in piped
    seen = await console.on_terminal("agents", "list")
    assert "[red]a b [2J" in seen.out
    assert "\x1b[2J" not in seen.out


# Clears the screen (twice: U+009B is the same in one sign), renames the window, turns the text.
HOSTILE_NAME = "evil\x1b[2J\x9b2J\x1b]0;owned\x07\u202e\nbursar: all is well"


async def test_no_command_passes_a_tenants_name_on_raw(console: Console, served: Service):
    """Goal: sentences, JSON, exports and the list of all keys are shown too, not obeyed."""
    async with served.client(console.variables["BURSAR_API_KEY"]) as client:
        answer = await client.post(
            "/v1/agents", json={"name": HOSTILE_NAME, "policy": {"dailyCap": "1", "allowlist": []}}
        )
        agent = answer.json()["data"]["id"]
        await client.post("/v1/keys", json={"name": HOSTILE_NAME, "scope": "read"})
        await client.post(
            "/v1/spend/authorise",
            json={
                "agentId": agent,
                "amount": "1",
                "recipient": "api.example.com",
                "memo": HOSTILE_NAME,
            },
        )
    database = {"BURSAR_DATA_DIR": str(served.config.data_dir)}
    for words in (
        ("agents", "pause", agent),
        ("agents", "show", agent, "--json"),
        ("transactions", "list", "--csv"),
        ("keys", "list"),
        ("keys", "list", "--local"),
        ("keys", "list", "--local", "--json"),
    ):
        seen = await console.on_terminal(*words, **database)
        assert (seen.code, "evil" in seen.out) == (0, True), (words, seen)
        for character in ("\x1b[2J", "\x1b]", "\x9b", "\x07", "\u202e"):
            assert character not in seen.out, (words, seen.out)
        if "--csv" not in words:
            assert "\nbursar: all is well" not in seen.out, words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell: str):
    """Goal: the completion script is there, and completes commands and choices."""
    program = str(Path(sys.executable).with_name("bursar"))
    script = subprocess.run(
        [program, "--show-completion", shell],
        # The one named here, not the one that the tests happen to be started from.
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert script.returncode == 0, script.stderr
    assert f"_BURSAR_COMPLETE=complete_{shell}" in script.stdout


def test_commands_and_choices_are_completed():
    def completed(line: str) -> set[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        done = subprocess.run(
            [sys.executable, "-m", "bursar.cli.main"],
            env=os.environ | words | {"_BURSAR_COMPLETE": "complete_bash"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return set(done.stdout.split())

    assert {"agents", "approvals"} <= completed("bursar a")
    assert "settled" in completed("bursar transactions list --status ")


def test_limits_are_written_as_window_and_measure():
    """Goal: amounts, counts and both; anything else is told how."""
    assert read_limits(["week=250.00", "day=100x", "hour=5,3x"]) == [
        {"window": "week", "amount": "250.00"},
        {"window": "day", "count": 100},
        {"window": "hour", "amount": "5", "count": 3},
    ]
    for wrong in ("week", "week=", "year=5", "day=5x3", "hour=,3x", "day=-1"):
        with pytest.raises(CommandFailed, match="is no limit"):
            read_limits([wrong])
