"""The whole road with nothing but `bursar serve` and a client: create, fund, authorise, settled."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from solders.keypair import Keypair

from bursar.service.first_key import FIRST_KEY_FILE
from bursar.service.ports import free_port
from bursar_localnet.genesis import TEST_MINT
from tests.machine import Watch
from tests.processes import bursar, clean_environment
from tests.settlement.stage import get, token_account_of

READY_SECONDS = 60.0


@asynccontextmanager
async def serving(data_dir: Path, **settings: str) -> AsyncGenerator[tuple[str, str]]:
    """`bursar serve` with a port for everything; gives its address and the first key."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bursar.cli.main", "serve"),
        env=clean_environment()
        | {"BURSAR_DATA_DIR": str(data_dir)}
        | {f"BURSAR_{name.upper()}": value for name, value in settings.items()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        said = ""
        async with asyncio.timeout(READY_SECONDS):
            # There is no terminal, so that is in a file.
            while FIRST_KEY_FILE not in said:
                line = await process.stdout.readline()
                assert line, f"ended early: {said}"
                said += line.decode()
        key = (data_dir / FIRST_KEY_FILE).read_text("ascii").strip()
        yield f"http://127.0.0.1:{settings['port']}", key
    finally:
        if process.returncode is None:
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), 30)


async def rpc(port: str, method: str, *params: Any) -> Any:
    async with httpx.AsyncClient() as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await client.post(f"http://127.0.0.1:{port}", json=body)).json()["result"]


async def test_settled_within_two_seconds(tmp_path: Path):
    """Goal: the transaction on the localnet's port has the right amount, mint, recipient and memo;
    a withdrawal follows; the audit is clean. Another chain under the same data refuses to start."""
    port, chain_port = str(free_port("127.0.0.1", 0)), str(free_port("127.0.0.1", 0))
    data_dir = tmp_path / "data"
    settings = {"port": port, "localnet_port": chain_port}
    async with serving(data_dir, **settings) as (url, key):
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
            policy = {"dailyCap": "25.00", "allowlist": ["api.example.com"]}
            answer = await client.post("/v1/agents", json={"name": "a", "policy": policy})
            agent = answer.json()["data"]
            answer = await client.post(
                f"/v1/test/wallets/{agent['id']}/fund", json={"amount": "10"}
            )
            assert answer.json()["data"]["status"] == "credited"
            # The very first one: nothing is warm yet but the worker.
            answer = await client.post(
                "/v1/spend/authorise",
                json={"agentId": agent["id"], "amount": "3.5", "recipient": "api.example.com"},
                headers={"Prefer": "wait=30"},
            )
            assert answer.json()["data"]["status"] == "settled", answer.text

            watch = Watch()
            answer = await client.post(
                "/v1/spend/authorise",
                json={"agentId": agent["id"], "amount": "1.25", "recipient": "api.example.com"},
                headers={"Prefer": "wait=30"},
            )
            spend = answer.json()["data"]
            assert spend["status"] == "settled"
            assert watch.seconds < 2
            await _check_on_chain(chain_port, agent, spend)

            answer = await client.post(
                f"/v1/wallets/{agent['id']}/withdraw",
                json={"amount": "2", "destination": str(Keypair().pubkey())},
            )
            withdrawal = answer.json()["data"]
            async with asyncio.timeout(10):
                while withdrawal["status"] == "pending":
                    withdrawal = await get(client, f"/v1/withdrawals/{withdrawal['id']}")
            assert withdrawal["status"] == "settled"
            wallet = await get(client, f"/v1/wallets/{agent['id']}")
            assert (wallet["balance"], wallet["reserved"]) == ("3.250000", "0.000000")
            metrics = (await client.get("/metrics")).text
            ended = 'bursar_payments_ended_total{end="settled",mode="test"}'
            assert f"{ended} 3.0" in metrics
        # It finds the chain by the data folder alone, whatever port that is on.
        audit = await bursar("audit", data_dir=str(data_dir))
        assert audit.code == 0, audit.out + audit.err
    (data_dir / "localnet-test").rename(data_dir / "localnet-old")
    refused = await bursar("serve", data_dir=str(data_dir), **settings)
    assert refused.code == 1
    told = refused.err.splitlines()[-1]
    assert told.startswith("bursar: This database's test mode belongs to the network with genesis")


async def _check_on_chain(port: str, agent: dict[str, Any], spend: dict[str, Any]) -> None:
    config = {"encoding": "jsonParsed", "maxSupportedTransactionVersion": 0}
    shown = await rpc(port, "getTransaction", spend["signature"], config)
    assert shown["meta"]["err"] is None
    assert shown["blockTime"] == spend["blockTime"]
    assert shown["meta"]["fee"] == spend["feeLamports"]
    instructions = shown["transaction"]["message"]["instructions"]
    parsed = [i["parsed"] for i in instructions if "parsed" in i]
    (transfer,) = [
        p["info"] for p in parsed if isinstance(p, dict) and p["type"] == "transferChecked"
    ]
    assert transfer["tokenAmount"]["amount"] == "1250000"
    assert transfer["mint"] == TEST_MINT
    assert transfer["source"] == token_account_of(agent["wallet"]["address"])
    assert transfer["authority"] == agent["wallet"]["address"]
    assert transfer["destination"] == token_account_of(spend["payTo"])
    assert [p for p in parsed if isinstance(p, str)] == [spend["id"]]
    after = {b["owner"]: b["uiTokenAmount"]["amount"] for b in shown["meta"]["postTokenBalances"]}
    assert after[agent["wallet"]["address"]] == "5250000"
