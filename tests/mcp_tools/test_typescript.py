"""The official TypeScript client: widely used, and stricter than the Python one."""

import json
from pathlib import Path

from tests.mcp_tools.conftest import Spender
from tests.npm import install_kit, run
from tests.support import Service

KIT = Path(__file__).parent / "kit"


async def test_a_strict_client_hands_the_model_every_answer(service: Service, spender: Spender):
    """Goal: a client that knows the output schemas passes on answers and errors alike."""
    await install_kit(KIT)
    calls = [
        ["get_budget", {}],
        ["spend", {"amount": "1", "recipient": "api.example.com"}],
        ["get_transaction", {"id": "txn_" + "0" * 26}],
        ["spend", {"amount": "99", "recipient": "api.example.com", "idempotencyKey": "k"}],
    ]
    said = await run(KIT, "node", "call.mjs", f"{service.url}/mcp", spender.key, json.dumps(calls))
    budget, no_key, missing, refused = json.loads(said)
    assert budget["structuredContent"]["maxAmountNow"] == "10.000000"
    assert refused["structuredContent"]["rejectCode"] == "daily_cap_exceeded"
    for error, code in ((no_key, "validation_error"), (missing, "not_found")):
        assert error["isError"]
        assert "structuredContent" not in error
        assert error["content"][0]["text"].startswith(f"Error {code}: ")
    assert "idempotencyKey" in no_key["content"][0]["text"]
