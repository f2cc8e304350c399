"""Goal: `bursar doctor --live` names what would go wrong with real money, and changes nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bursar.chain.networks import MAINNET_GENESIS
from bursar.cli.finding import Finding
from bursar.cli.live import Told, Wanted, ask_nodes, judge
from tests.chain.conftest import OpenChain, OpenProxy
from tests.chain.support import MINT, new_address
from tests.localnet.support import LAMPORTS_PER_SOL, Rpc

NOBODY = "http://127.0.0.1:1"


def wanted(genesis: str, fee_payer: str | None = None, mint: str = MINT) -> Wanted:
    return Wanted(
        mint=mint, genesis=genesis, fee_payer=fee_payer, fee_payer_low_lamports=LAMPORTS_PER_SOL
    )


def faults(findings: Sequence[Finding]) -> dict[str, str]:
    """What is not well, with what was found."""
    assert all(bool(finding.fix) == (finding.state != "ok") for finding in findings)
    return {finding.what: finding.found for finding in findings if finding.state != "ok"}


def now() -> datetime:
    return datetime.now(UTC)


async def test_all_is_well_and_nothing_is_sent(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    fee_payer = new_address()
    await rpc("requestAirdrop", fee_payer, 2 * LAMPORTS_PER_SOL)
    goal = wanted(await rpc("getGenesisHash"), fee_payer)
    one, two = await open_proxy(), await open_proxy()
    findings = list(judge(await ask_nodes(open_chain(one.url, two.url), goal), goal, now()))
    assert faults(findings) == {}
    assert {finding.what.split()[0] for finding in findings} == {
        *("node", "genesis", "USDC", "heights", "fee", "clock"),
    }
    assert f"fee payer {fee_payer}" in {finding.what for finding in findings}
    for asked in (one.methods, two.methods):
        assert all(method.startswith("get") or method == "isBlockhashValid" for method in asked)


async def test_a_network_that_is_not_as_it_should_be(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: wrong genesis, no such token, a fee payer without SOL, one node only: all at once."""
    goal = wanted(MAINNET_GENESIS, new_address(), mint=new_address())
    (told,) = await ask_nodes(open_chain(rpc.url), goal)
    found = faults(list(judge([told], goal, now())))
    assert MAINNET_GENESIS in found["genesis"]
    assert "no such token" in found[f"USDC {goal.mint}"]
    assert found[f"fee payer {goal.fee_payer}"] == "has no SOL"
    assert "one" in found["two nodes"]
    assert len(found) == 4


async def test_nodes_that_disagree(rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain):
    """Goal: a node of another network, one that lags, and one that is out of reach are named."""
    goal = wanted(await rpc("getGenesisHash"))
    proxy = await open_proxy()
    proxy.result("getGenesisHash", MAINNET_GENESIS)
    answers = await ask_nodes(open_chain(rpc.url, proxy.url), goal)
    name = proxy.url.removeprefix("http://")
    assert name in faults(list(judge(answers, goal, now())))["genesis"]

    epoch = await rpc("getEpochInfo", {"commitment": "finalized"})
    ahead = {"absoluteSlot": epoch["absoluteSlot"] + 1_000}
    proxy.result("getEpochInfo", epoch | ahead)
    answers = await ask_nodes(open_chain(rpc.url, proxy.url), goal)
    assert f"slots behind {name}" in faults(list(judge(answers, goal, now())))["heights"]

    answers = await ask_nodes(open_chain(rpc.url, NOBODY), goal)
    found = faults(list(judge(answers, goal, now())))
    assert found.keys() == {"node 127.0.0.1:1", "fee payer"}
    # A fault of the real node: it answers every request with an error.
    await rpc("bursar_faults", {"rules": [{"action": "fail"}]})
    answers = await ask_nodes(open_chain(rpc.url, NOBODY), goal)
    assert len(faults(list(judge(answers, goal, now())))) == 2


async def test_the_clock(rpc: Rpc, open_chain: OpenChain):
    """Goal: a machine whose clock is off is told so; a node that does not say the time is none."""
    goal = wanted(await rpc("getGenesisHash"))
    (told,) = await ask_nodes(open_chain(rpc.url), goal)
    assert isinstance(told, Told)
    for off in (timedelta(minutes=10), timedelta(minutes=-10)):
        found = faults(list(judge([told], goal, now() + off)))
        assert "seconds old" in found["clock"]
    assert "clock" not in faults(list(judge([told], goal, now())))
