"""A command that moves money and ends without an answer says how to do it once."""

import asyncio
import json
import re
import signal

import pytest

from bursar.cli.exits import ExitCode
from bursar.cli.show import plain  # pyright: ignore[reportPrivateUsage]
from tests.cli.console import COMMAND, Console
from tests.processes import until
from tests.sdk.scripted import ScriptedServer
from tests.support import ON_CURVE

FUND = ("fund", "ag_1", "1")
_ADVISED = re.compile(r"--idempotency-key\s+([0-9a-f]{32})")


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("page", ExitCode.UNAVAILABLE),
        ("nonsense", ExitCode.UNAVAILABLE),
        ("reset", ExitCode.UNAVAILABLE),
        ("cut", ExitCode.UNAVAILABLE),
        ("internal_error", ExitCode.UNAVAILABLE),
        ("unavailable", ExitCode.UNAVAILABLE),
        ("idempotency_in_progress", ExitCode.UNAVAILABLE),
        ("redirect", ExitCode.FAILED),
    ],
)
async def test_the_key_of_an_open_outcome_is_printed(
    scripted: Console, server: ScriptedServer, step: str, code: ExitCode
):
    """Goal: whoever gives the same command again, with what it printed, does it once."""
    server.script = [step, "ok"]
    done = await scripted(*FUND)
    assert done.code == code
    advised = _ADVISED.search(done.err)
    assert advised is not None, done.err
    again = await scripted(*FUND, "--idempotency-key", advised[1])
    assert again.code == ExitCode.DONE
    assert {request.headers["idempotency-key"] for request in server.requests} == {advised[1]}


@pytest.mark.parametrize("step", ["validation_error", "insufficient_funds", "forbidden"])
async def test_aplain_no_has_no_such_advice(scripted: Console, server: ScriptedServer, step: str):
    server.script = [step]
    done = await scripted("withdraw", "ag_1", "1", ON_CURVE, "--yes")
    assert done.code in (ExitCode.FAILED, ExitCode.NOT_ALLOWED)
    assert "--idempotency-key" not in done.err


async def test_what_was_never_sent_has_no_such_advice(scripted: Console):
    done = await scripted(*FUND, BURSAR_BASE_URL="http://127.0.0.1:1")
    assert done.code == ExitCode.UNAVAILABLE
    assert "nothing was sent" in done.err
    assert "--idempotency-key" not in done.err


async def test_with_json_a_problem_is_json(scripted: Console, server: ScriptedServer):
    """Goal: a script that reads answers as JSON reads what went wrong alike."""
    server.script = ["insufficient_funds"]
    done = await scripted("withdraw", "ag_1", "1", ON_CURVE, "--yes", "--json")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert json.loads(done.err)["error"]["code"] == "insufficient_funds"


async def test_a_command_without_the_option_does_not_advise_it(
    scripted: Console, server: ScriptedServer
):
    server.script = ["unavailable"]
    done = await scripted("approvals", "approve", "txn_1")
    assert done.code == ExitCode.UNAVAILABLE
    assert "--idempotency-key" not in done.err


async def test_ctrl_c_prints_the_key_too(scripted: Console, server: ScriptedServer):
    """Goal: what was sent before somebody lost patience can be found again."""
    server.script = ["silence"]
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *FUND,
        env=scripted.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    async def sent() -> bool:
        return bool(server.requests)

    await until(sent, seconds=60)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == ExitCode.INTERRUPTED
    advised = _ADVISED.search(err.decode())
    assert advised is not None, err
    assert advised[1] == server.requests[0].headers["idempotency-key"]


def test_names_are_as_harmless_as_values():
    """Goal: an agent's metadata writes nothing but its text on an operator's terminal."""
    assert plain({"\x1b]0;owned\x07": "\x1b[2J"}) == " ]0;owned = [2J"
