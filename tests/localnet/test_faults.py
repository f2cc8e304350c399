"""Goal: each fault switch does what it says, repeatably, and none exists unless allowed."""

import asyncio
import time

import aiohttp
import pytest
from solders.keypair import Keypair

from bursar_localnet.rpc import is_loopback
from tests.localnet.conftest import OpenNode
from tests.localnet.support import LAMPORTS_PER_SOL, Rpc, RpcFailed, payment, sol_transfer


@pytest.fixture
async def faulty(open_node: OpenNode) -> Rpc:
    return await open_node(faults=True)


async def landed(rpc: Rpc, signature: str) -> bool:
    return (await rpc("getSignatureStatuses", [signature]))["value"][0] is not None


async def test_there_are_no_switches_unless_allowed(rpc: Rpc) -> None:
    for method in ("bursar_faults", "bursar_expireBlockhashes", "bursar_fork", "bursar_freeze"):
        with pytest.raises(RpcFailed, match="Method not found"):
            await rpc(method)


@pytest.mark.parametrize(
    ("remote", "allowed"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("192.0.2.1", False), (None, False)],
)
def test_switches_are_for_this_machine(remote: str | None, allowed: bool) -> None:
    assert is_loopback(remote) == allowed


async def test_a_switch_that_is_none_is_refused(faulty: Rpc) -> None:
    for wrong in (
        {"rules": [{"action": "explode"}]},
        {"rules": [{"action": "drop", "percent": 101}]},
        {"rulez": []},
        {"rules": [{}]},
    ):
        with pytest.raises(RpcFailed) as failure:
            await faulty("bursar_faults", wrong)
        assert failure.value.code == -32602


@pytest.mark.parametrize(("at", "happened"), [("request", False), ("answer", True)])
async def test_drop(faulty: Rpc, at: str, happened: bool) -> None:
    payer = await faulty.wallet()
    signed = sol_transfer(payer, Keypair().pubkey(), 1_000_000, await faulty.blockhash())
    rule = {"action": "drop", "methods": ["sendTransaction"], "at": at, "count": 1}
    await faulty("bursar_faults", {"rules": [rule]})
    with pytest.raises(aiohttp.ClientError):
        await faulty.send(signed)
    assert await landed(faulty, str(signed.signatures[0])) == happened
    # The count is used up: the next one is answered.
    if not happened:
        await faulty.send(signed)


async def test_delay(faulty: Rpc) -> None:
    await faulty("bursar_faults", {"rules": [{"action": "delay", "ms": 200, "count": 1}]})
    begin = time.perf_counter()
    await faulty("getHealth")
    assert time.perf_counter() - begin >= 0.2
    begin = time.perf_counter()
    await faulty("getHealth")
    assert time.perf_counter() - begin < 0.2


async def test_duplicate(faulty: Rpc) -> None:
    payer, to = await faulty.wallet(), Keypair().pubkey()
    rule = {"action": "duplicate", "methods": ["sendTransaction"]}
    await faulty("bursar_faults", {"rules": [rule]})
    with pytest.raises(RpcFailed) as failure:
        await faulty.send(sol_transfer(payer, to, LAMPORTS_PER_SOL, await faulty.blockhash()))
    assert failure.value.data["err"] == "AlreadyProcessed"
    assert (await faulty("getBalance", str(to)))["value"] == LAMPORTS_PER_SOL


async def test_fail(faulty: Rpc) -> None:
    await faulty("bursar_faults", {"rules": [{"action": "fail", "methods": ["getSlot"]}]})
    with pytest.raises(RpcFailed) as failure:
        await faulty("getSlot")
    assert (failure.value.code, failure.value.data) == (-32005, {"numSlotsBehind": 42})
    rule = {"action": "fail", "methods": ["getSlot"], "code": -32603, "message": "Internal error"}
    await faulty("bursar_faults", {"rules": [rule]})
    with pytest.raises(RpcFailed, match="Internal error"):
        await faulty("getSlot")
    await faulty("bursar_faults", {"rules": [{"action": "fail", "httpStatus": 503}]})
    async with faulty.session.post(
        faulty.url, json={"jsonrpc": "2.0", "id": 1, "method": "getHealth"}
    ) as response:
        assert response.status == 503
    await faulty("bursar_faults", {})
    assert await faulty("getHealth") == "ok"


async def test_fail_after_it_happened(faulty: Rpc) -> None:
    payer = await faulty.wallet()
    await faulty("bursar_faults", {"rules": [{"action": "fail", "methods": ["sendTransaction"]}]})
    signed = sol_transfer(payer, Keypair().pubkey(), 1_000_000, await faulty.blockhash())
    with pytest.raises(RpcFailed, match="Node is unhealthy"):
        await faulty.send(signed)
    assert await landed(faulty, str(signed.signatures[0]))


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ("absent", None),
        ("failed", {"InstructionError": [0, {"Custom": 1}]}),
        ("landed", None),
    ],
)
async def test_lie_about_a_status(faulty: Rpc, claim: str, told: object) -> None:
    signature = await faulty("requestAirdrop", str(Keypair().pubkey()), 1_000_000)
    nothing = str(Keypair().sign_message(b"never sent"))
    rule = {"action": "lie", "claim": claim}
    await faulty("bursar_faults", {"rules": [{**rule, "methods": ["getSignatureStatuses"]}]})
    statuses = (await faulty("getSignatureStatuses", [signature, nothing]))["value"]
    if claim == "absent":
        assert statuses == [None, None]
    else:
        assert [status["err"] for status in statuses] == [told, told]
        assert {status["confirmationStatus"] for status in statuses} == {"finalized"}
    await faulty("bursar_faults", {"rules": [{**rule, "methods": ["getTransaction"]}]})
    assert (await faulty("getTransaction", signature) is None) == (claim == "absent")


async def test_lag_a_level(faulty: Rpc) -> None:
    before = await faulty("getSlot")
    await faulty("bursar_faults", {"lag": {"confirmed": 0, "finalized": 1_000}})
    signature = await faulty("requestAirdrop", str(Keypair().pubkey()), 1_000_000)
    await faulty("bursar_expireBlockhashes")
    status = (await faulty("getSignatureStatuses", [signature]))["value"][0]
    assert status["confirmationStatus"] == "confirmed"
    assert await faulty("getSlot") - before <= 2
    await faulty("bursar_faults", {})
    status = (await faulty("getSignatureStatuses", [signature]))["value"][0]
    assert status["confirmationStatus"] == "finalized"


async def test_expire_blockhashes(faulty: Rpc) -> None:
    payer = await faulty.wallet()
    latest = (await faulty("getLatestBlockhash"))["value"]
    signed = sol_transfer(payer, Keypair().pubkey(), 1_000_000, await faulty.blockhash())
    height = await faulty("bursar_expireBlockhashes")
    assert height > latest["lastValidBlockHeight"]
    with pytest.raises(RpcFailed, match="Blockhash not found"):
        await faulty.send(signed)
    await faulty.send(sol_transfer(payer, Keypair().pubkey(), 1_000_000, await faulty.blockhash()))


async def test_the_same_seed_gives_the_same_faults(faulty: Rpc) -> None:
    async def pattern(seed: int) -> list[bool]:
        rule = {"action": "fail", "percent": 50, "methods": ["getSlot"]}
        await faulty("bursar_faults", {"seed": seed, "rules": [rule]})
        body = {"jsonrpc": "2.0", "id": 1, "method": "getSlot"}
        return ["error" in await faulty.post(body) for _ in range(64)]

    first = await pattern(7)
    assert first == await pattern(7) != await pattern(8)
    assert 10 < sum(first) < 54
    struck = sum(await pattern(9))
    assert (await faulty("bursar_faults"))["struck"] == {"fail": struck}


async def test_notifications_can_be_dropped_and_doubled(faulty: Rpc) -> None:
    async with faulty.session.ws_connect(faulty.url) as socket:
        await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "slotSubscribe"})
        await socket.receive_json()
        rule = {"action": "duplicate", "methods": ["slotNotification"]}
        await faulty("bursar_faults", {"rules": [rule]})
        first, second = await socket.receive_json(timeout=60), await socket.receive_json(timeout=60)
        while first != second:
            first, second = second, await socket.receive_json(timeout=60)
        await faulty("bursar_faults", {"rules": [{**rule, "action": "drop"}]})
        with pytest.raises(asyncio.TimeoutError):
            await socket.receive_json(timeout=1.5)


async def test_freeze_and_thaw(faulty: Rpc) -> None:
    """Goal: the issuer's switch, by real transactions: frozen nothing moves, thawed it does."""
    payer, payee = await faulty.wallet(micros=10), Keypair().pubkey()
    await faulty("bursar_freeze", str(payer.pubkey()))
    with pytest.raises(RpcFailed, match="frozen"):
        await faulty("bursar_freeze", str(payer.pubkey()))
    with pytest.raises(RpcFailed, match="custom program error: 0x11"):
        await faulty.send(payment(payer, payee, 4, await faulty.blockhash(), "frozen"))
    await faulty("bursar_thaw", str(payer.pubkey()))
    await faulty.send(payment(payer, payee, 4, await faulty.blockhash(), "thawed"))
    assert await faulty.tokens(payee) == 4
