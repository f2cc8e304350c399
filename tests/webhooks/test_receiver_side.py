"""What receivers rely on: `bursar.webhooks.verify`, the page's receiver and its test vector."""

import asyncio
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import standardwebhooks
import stripe

from bursar.clock import unix_milliseconds
from bursar.service.ports import free_port
from bursar.signature import new_secret, service_signature, signed_headers
from bursar.webhooks import InvalidSignature, verify
from tests.processes import until

PAGE = (Path(__file__).parents[2] / "docs/webhooks.md").read_text("utf-8")
BODY = '{"id":"evt_1","type":"agent.paused","data":{"name":"ünlike"}}'.encode()
SECRET = new_secret()


def _now() -> int:
    return unix_milliseconds() // 1000


def _header(timestamp: int | None = None, body: bytes = BODY, secret: str = SECRET) -> str:
    at = _now() if timestamp is None else timestamp
    return signed_headers([secret], "evt_1", at, body)["service-signature"]


def test_the_vector_is_right():
    """Goal: the page's numbers are what the code computes, and what other packages compute."""
    (block,) = [b for b in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "SERVICE" not in b]
    vector = json.loads(block)
    body = vector["body"].encode()
    made = signed_headers([vector["secret"]], vector["id"], vector["timestamp"], body)
    assert made["service-signature"] == vector["service-signature"]
    assert made["webhook-signature"] == vector["webhook-signature"]
    verify(body, vector["service-signature"], vector["secret"], tolerance=10**10)
    stripe.WebhookSignature.verify_header(
        vector["body"], vector["service-signature"], vector["secret"], tolerance=None
    )
    at = datetime.datetime.fromtimestamp(vector["timestamp"], datetime.UTC)
    signed = standardwebhooks.Webhook(vector["secret"]).sign(vector["id"], at, vector["body"])
    assert signed == vector["webhook-signature"]


def test_a_good_signature_gives_the_event():
    """Goal: the event, also when older secrets sign along."""
    assert verify(BODY, _header(), SECRET)["data"] == {"name": "ünlike"}
    both = signed_headers([new_secret(), SECRET], "evt_1", _now(), BODY)["service-signature"]
    assert verify(BODY, both, SECRET)["id"] == "evt_1"
    assert verify(BODY, _header(_now() - 290), SECRET)
    assert verify(BODY, _header(_now() - 400), SECRET, tolerance=500)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "nonsense", "t=1", "v1=abc", "t=,v1=abc", "t=x,v1=abc", "t=-1,v1=abc", "=,=",
        "t=１,v1=a", f"t={'9' * 5000},v1=a", f"t={_now()},v1=", f"t={_now()},v1=\ud800",
        f"t={_now()},v0={service_signature(SECRET, _now(), BODY)}",
        f"t={_now()},t={_now()},v1={service_signature(SECRET, _now(), BODY)}",
    ],
    ids=map(str, range(15)),
)  # fmt: skip
def test_a_malformed_header_is_refused(header: str | None):
    """Goal: whatever comes in the header, nothing but InvalidSignature comes out."""
    with pytest.raises(InvalidSignature):
        verify(BODY, header, SECRET)


@pytest.mark.parametrize(
    ("body", "header", "secret"),
    [
        (BODY + b" ", _header(), SECRET),
        (BODY.replace(b"paused", b"Paused"), _header(), SECRET),
        (BODY, _header(), new_secret()),
        (BODY, _header(), SECRET.removeprefix("whsec_")),
        (BODY, _header(1_700_000_000), SECRET),
        (BODY, _header(_now() + 10_000), SECRET),
        (b"[]", _header(body=b"[]"), SECRET),
        (b"{", _header(body=b"{"), SECRET),
    ],
    ids=map(str, range(8)),
)
def test_a_forgery_is_refused(body: bytes, header: str, secret: str):
    """Goal: a changed byte, another secret, another time, or no event."""
    # The headers are as old as the collection of the tests; that must not be what is refused.
    with pytest.raises(InvalidSignature):
        verify(body, header, secret, tolerance=3_600)


def test_verifying_needs_no_server():
    """Goal: `pip install bursar-wallet` is enough: nothing of the service is loaded."""
    code = (
        "import sys, bursar.webhooks; bad = {'msgspec', 'asyncpg', 'aiohttp', 'solders',"
        " 'cryptography', 'httptools', 'structlog'} & set(sys.modules);"
        " sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_the_pages_receiver_runs(tmp_path: Path):
    """Goal: copied as it is, it answers 200 to a real delivery and 400 to anything else."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script = tmp_path / "receiver.py"
    script.write_text(block)
    port = free_port("127.0.0.1", 0)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env={**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        async with httpx.AsyncClient(verify=False) as client:

            async def up() -> bool:
                try:
                    return (await client.post(url, content=b"{}")).status_code == 400
                except httpx.TransportError:
                    return False

            await until(up, seconds=20)
            good = {"service-signature": _header()}
            assert (await client.post(url, content=BODY, headers=good)).status_code == 200
            assert (await client.post(url, content=BODY + b" ", headers=good)).status_code == 400
        assert process.stdout is not None
        assert b"agent.paused" in await asyncio.wait_for(process.stdout.readline(), 10)
    finally:
        process.kill()
        await process.wait()
