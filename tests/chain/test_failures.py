"""Goal: whatever a node does wrong, the answer is "unknown" and never a wrong answer."""

import asyncio
from typing import Any

import pytest
from solders.keypair import Keypair

from bursar.chain.message import token_account
from bursar.chain.port import ChainOutOfReach, RefusalKind, Refused, SendResult, Sent, Unknown
from bursar.chain.solana import Solana
from tests.chain.conftest import OpenChain, OpenProxy
from tests.chain.support import MINT, Payer, new_address, new_payer
from tests.localnet.support import Rpc
from tests.machine import Watch

SIGNATURE = str(Keypair().sign_message(b"never sent"))
NOWHERE = "http://127.0.0.1:1"
# So long that only what a test delays itself is too late.
PATIENCE = 30.0


async def ask_everything(chain: Solana, signature: str = SIGNATURE) -> None:
    """Every read; each must say that it does not know."""
    address = new_address()
    questions: dict[str, Any] = {
        "genesis_hash": chain.genesis_hash,
        "mint": lambda: chain.mint(MINT),
        "latest_blockhash": chain.latest_blockhash,
        "finalized": chain.finalized,
        "statuses": lambda: chain.statuses([signature]),
        "signatures_of": lambda: chain.signatures_of(address),
        "transaction": lambda: chain.transaction(signature),
        "accounts": lambda: chain.accounts([MINT]),
        "look": lambda: chain.look([MINT]),
        "token_balances": lambda: chain.token_balances([address], MINT),
    }
    answers = await asyncio.gather(*(ask() for ask in questions.values()), return_exceptions=True)
    for name, answer in zip(questions, answers, strict=True):
        assert isinstance(answer, ChainOutOfReach), (name, answer)
        assert "127.0.0.1" in str(answer), name


# Reading -----------------------------------------------------------------------------------------


async def test_nobody_there(open_chain: OpenChain):
    await ask_everything(open_chain(NOWHERE))


async def test_time_is_bounded(rpc: Rpc, open_chain: OpenChain):
    """Goal: a node that hangs costs the timeout for each try, and nothing more."""
    await rpc("bursar_faults", {"rules": [{"action": "delay", "ms": 5_000}]})
    watch = Watch()
    with pytest.raises(ChainOutOfReach, match="Timeout"):
        await open_chain(rpc.url, timeout=0.2).finalized()
    assert watch.wall_seconds >= 0.4
    assert watch.seconds < 1.5


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "drop"},
        {"action": "fail"},
        {"action": "fail", "code": -32603, "message": "Internal error"},
        {"action": "fail", "code": -32016, "message": "Minimum context slot"},
        {"action": "fail", "httpStatus": 429},
        {"action": "fail", "httpStatus": 500},
        {"action": "fail", "httpStatus": 503},
        {"action": "fail", "httpStatus": 302},
    ],
    ids=str,
)
async def test_a_node_in_trouble(rpc: Rpc, chain: Solana, rule: dict[str, Any]):
    await rpc("bursar_faults", {"rules": [rule]})
    await ask_everything(chain)


GARBAGE: list[Any] = [
    b"",
    b"null",
    b"[]",
    b"<html>gateway</html>",
    b'{"jsonrpc":"2.0"',
    b"\xff\xfe",
    b"[" * 100_000,
    {},
    {"id": 1, "jsonrpc": "2.0"},
    {"id": 10**9, "result": "ok"},
    {"id": "1", "result": "ok"},
    {"error": "boom", "id": 1},
    {"error": {"code": "x", "message": 3}, "id": 1},
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda value: str(value)[:30])
async def test_an_answer_that_is_none(open_proxy: OpenProxy, open_chain: OpenChain, garbage: Any):
    proxy = await open_proxy()
    proxy.twist = lambda _method, _answer: garbage
    await ask_everything(open_chain(proxy.url))


@pytest.mark.parametrize(
    "result",
    [None, 0, -1, 2**64, 1.5, True, "x", "1" * 44, [], [None], [{}], {}, {"value": None},
     {"context": {}, "value": []}, {"context": {"slot": 1}, "value": [{}]},
     {"context": {"slot": "1"}, "value": {}}, {"absoluteSlot": 1, "blockHeight": 2}],
    ids=str,
)  # fmt: skip
async def test_a_result_of_the_wrong_shape(
    open_proxy: OpenProxy, open_chain: OpenChain, result: Any
):
    """Goal: a shape that fits another question is refused too. (Null is an answer to
    `transaction`, an empty list to `signatures_of`.)"""
    proxy = await open_proxy()
    allowed = {"getTransaction": [None], "getSignaturesForAddress": [[]]}
    instead = {"getTransaction": "x", "getSignaturesForAddress": "x"}

    def twist(method: str, answer: dict[str, Any]) -> Any:
        twisted = instead[method] if result in allowed.get(method, ()) else result
        return {**answer, "result": twisted}

    proxy.twist = twist
    await ask_everything(open_chain(proxy.url))


async def test_an_answer_too_large(open_proxy: OpenProxy, open_chain: OpenChain):
    proxy = await open_proxy()
    proxy.twist = lambda _method, answer: b'{"id":1,"result":"' + b"x" * 9_000_000 + b'"}'
    with pytest.raises(ChainOutOfReach, match="ValueError"):
        await open_chain(proxy.url).genesis_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"err": "missing"},
        {"err": 1},
        {"err": []},
        {"slot": None},
        {"confirmationStatus": None},
        {"confirmationStatus": "settled"},
        {"status": {"Err": "AccountInUse"}},
        {"err": "AccountInUse"},
    ],
    ids=str,
)
async def test_a_status_that_is_not_clear(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain, change: dict[str, Any]
):
    """Goal: a missing error is not "no error", and a contradiction is no answer."""
    signature = await rpc("requestAirdrop", new_address(), 1_000_000)
    proxy = await open_proxy()

    def twist(_method: str, answer: dict[str, Any]) -> dict[str, Any]:
        status = answer["result"]["value"][0]
        status.update(change)
        if change == {"err": "missing"}:
            del status["err"]
        return answer

    chain = open_chain(proxy.url)
    assert (await chain.statuses([signature])).found[signature] is not None
    proxy.twist = twist
    with pytest.raises(ChainOutOfReach):
        await chain.statuses([signature])


async def test_a_transaction_that_is_not_clear(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: nothing of a deposit is guessed."""
    signature = await rpc("bursar_faucet", new_address(), 5)
    other = await rpc("bursar_faucet", new_address(), 6)
    another = await rpc("getTransaction", other, {"maxSupportedTransactionVersion": 0})
    proxy = await open_proxy()
    chain = open_chain(proxy.url)

    def damages(answer: dict[str, Any]) -> list[Any]:
        result = answer["result"]
        meta = result["meta"]
        balance = meta["postTokenBalances"][0]
        amount = balance["uiTokenAmount"]
        return [
            another,
            {**result, "meta": None},
            {**result, "meta": {k: v for k, v in meta.items() if k != "err"}},
            {**result, "meta": {k: v for k, v in meta.items() if k != "postTokenBalances"}},
            {**result, "meta": {**meta, "postTokenBalances": [balance, balance]}},
            *(
                {**result, "meta": {**meta, "postTokenBalances": [wrong]}}
                for wrong in (
                    {**balance, "accountIndex": 99},
                    {**balance, "accountIndex": -1},
                    {**balance, "owner": "me"},
                    {**balance, "uiTokenAmount": {**amount, "amount": "-5"}},
                    {**balance, "uiTokenAmount": {**amount, "amount": 5}},
                    {**balance, "uiTokenAmount": {**amount, "amount": "5.0"}},
                    {**balance, "uiTokenAmount": {**amount, "amount": "9" * 5_000}},
                )
            ),
        ]

    config = {"maxSupportedTransactionVersion": 0, "encoding": "json"}
    whole = {"result": await rpc("getTransaction", signature, config)}
    for damaged in damages(whole):
        proxy.result("getTransaction", damaged)
        with pytest.raises(ChainOutOfReach):
            await chain.transaction(signature)
    proxy.twist = None
    assert await chain.transaction(signature) is not None


# Failover ----------------------------------------------------------------------------------------


async def test_the_next_address_is_asked(rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain):
    """Goal: dead, garbled and wrong addresses do not stop what one good one can answer; and the
    one that answered is asked first from then on."""
    garbled = await open_proxy()
    garbled.twist = lambda _method, _answer: b"<html>"
    chain = open_chain(NOWHERE, garbled.url, rpc.url)
    await chain.finalized()
    assert garbled.methods == ["getEpochInfo"]
    await chain.genesis_hash()
    await chain.statuses([SIGNATURE])
    assert garbled.methods == ["getEpochInfo"]
    # Only how far the chain is each of them is asked, and one that does not say is left alone then.
    for _ in range(2):
        await chain.latest_blockhash()
    assert garbled.methods == ["getEpochInfo", "getEpochInfo"]
    await rpc("bursar_faults", {"rules": [{"action": "drop", "count": 1}]})
    garbled.twist = None
    await chain.finalized()
    assert garbled.methods == ["getEpochInfo"] * 3, "the good one failed: round the others again"


async def test_a_look_by_one_request_or_by_three(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: what a node that takes no batches, or is gone, does not tell at once is asked one by
    one. (The proxy reads one question at a time.)"""
    proxy = await open_proxy()
    address = new_address()
    for addresses in ([proxy.url], [NOWHERE, proxy.url], [rpc.url]):
        proxy.methods.clear()
        seen = await open_chain(*addresses).look([MINT, address])
        assert seen.accounts[address] is None
        assert seen.accounts[MINT] is not None
        assert seen.blockhash.last_valid_height > (await open_chain(rpc.url).finalized()).height
        asked = {"getLatestBlockhash", "getEpochInfo", "getMultipleAccounts"}
        assert set(proxy.methods) == (set() if addresses == [rpc.url] else asked)


async def test_a_hiccup_is_tried_again(rpc: Rpc, chain: Solana):
    """Goal: one lost answer of the only address is not worth an alarm."""
    await rpc("bursar_faults", {"rules": [{"action": "drop", "count": 1}]})
    await chain.finalized()


async def test_each_witness_speaks_for_itself(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: rule 4 hears every address alone: one that denies a payment, one that knows it, and
    one that is silent."""
    payer = await new_payer(rpc)
    liar = await open_proxy()
    chain = open_chain(liar.url, rpc.url, NOWHERE)
    signed = await payer.pay(chain, new_address())
    assert await chain.send(signed.raw) == Sent()

    def deny(method: str, answer: dict[str, Any]) -> dict[str, Any]:
        if method == "getSignatureStatuses":
            answer["result"]["value"] = [None]
        return {**answer, "result": []} if method == "getSignaturesForAddress" else answer

    liar.twist = deny
    denies, knows, silent = chain.witnesses()
    assert (denies.name, knows.name) == (liar.url[7:], rpc.url[7:])
    source = token_account(payer.wallet.address, MINT)
    assert (await denies.statuses([signed.signature])).found[signed.signature] is None
    assert await denies.signatures_of(source) == []
    height = await knows.finalized()
    told = await knows.statuses([signed.signature])
    assert told.found[signed.signature] is not None
    assert told.context_slot >= height.slot
    assert len(await knows.signatures_of(source, from_slot=height.slot)) == 2
    with pytest.raises(ChainOutOfReach):
        await silent.statuses([signed.signature])


async def test_a_node_behind_is_no_witness(rpc: Rpc, chain: Solana):
    """Goal: a history older than the asked slot is refused, not taken for an empty one."""
    slot = await rpc("getSlot")
    with pytest.raises(ChainOutOfReach, match="-32016"):
        await chain.signatures_of(new_address(), from_slot=slot + 1_000)


async def test_a_node_of_another_network_is_never_believed(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: not when reading, not when sending, and not as a witness; the right one is used."""
    stranger = await open_proxy()
    stranger.result("getGenesisHash", "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d")
    payer = await new_payer(rpc)
    chain = open_chain(stranger.url, rpc.url)
    chain.expect(await rpc("getGenesisHash"))
    await chain.finalized()
    assert await chain.send((await payer.pay(chain, new_address())).raw) == Sent()
    alone = open_chain(stranger.url)
    alone.expect(await rpc("getGenesisHash"))
    await ask_everything(alone)
    assert isinstance(await alone.send((await payer.pay(chain, new_address())).raw), Unknown)
    with pytest.raises(ChainOutOfReach, match="another network"):
        await chain.witnesses()[0].statuses([SIGNATURE])
    assert set(stranger.methods) == {"getGenesisHash"}


# Sending -----------------------------------------------------------------------------------------


async def landed(rpc: Rpc, signature: str) -> bool:
    return (await rpc("getSignatureStatuses", [signature]))["value"][0] is not None


@pytest.fixture
async def payer(rpc: Rpc) -> Payer:
    return await new_payer(rpc)


def of_kind(result: SendResult, kind: RefusalKind) -> bool:
    return isinstance(result, Refused) and result.kind == kind


@pytest.mark.parametrize("at", ["request", "answer"])
@pytest.mark.parametrize(
    "rule",
    [
        {"action": "drop"},
        {"action": "fail", "httpStatus": 502},
        {"action": "fail", "code": -32603, "message": "Internal error"},
        {"action": "delay", "ms": 1_000},
    ],
    ids=lambda rule: str(rule["action"]),
)
async def test_a_lost_answer_is_unknown(
    rpc: Rpc, open_chain: OpenChain, payer: Payer, rule: dict[str, Any], at: str
):
    """Goal: whether it arrived or not, the answer is the same: unknown. Sent again, it lands."""
    chain = open_chain(rpc.url, timeout=PATIENCE)
    signed = await payer.pay(chain, new_address())
    await rpc("bursar_faults", {"rules": [{**rule, "at": at, "methods": ["sendTransaction"]}]})
    asked = open_chain(rpc.url, timeout=0.3) if rule["action"] == "delay" else chain
    assert isinstance(await asked.send(signed.raw), Unknown)
    await rpc("bursar_faults", {})
    if rule["action"] != "delay":
        assert await landed(rpc, signed.signature) == (at == "answer")
    assert await chain.send(signed.raw) == Sent()
    assert await landed(rpc, signed.signature)


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "drop"},
        {"action": "drop", "at": "request"},
        {"action": "fail", "httpStatus": 503},
        {"action": "fail", "code": -32005, "count": 3},
        {"action": "delay", "ms": 1_000},
    ],
    ids=str,
)
async def test_of_many_what_was_not_taken_is_told(
    rpc: Rpc, open_chain: OpenChain, payer: Payer, rule: dict[str, Any]
):
    """Goal: what one node says that it took has landed; all else is told, to be sent again."""
    chain = open_chain(rpc.url, timeout=PATIENCE)
    signed = [await payer.sign(await payer.payment(chain, new_address(), 1)) for _ in range(30)]
    raws = [each.raw for each in signed]
    await rpc("bursar_faults", {"rules": [{**rule, "methods": ["sendTransaction"]}]})
    asked = open_chain(rpc.url, timeout=0.3) if rule["action"] == "delay" else chain
    left = await asked.send_many(raws)
    await rpc("bursar_faults", {})
    assert left == raws if rule.get("count") is None else len(left) == rule["count"]
    for each in signed:
        assert await landed(rpc, each.signature) or each.raw in left
    assert [await chain.send(raw) for raw in left] == [Sent()] * len(left)
    for each in signed:
        assert await landed(rpc, each.signature)


async def test_many_to_a_node_that_takes_no_batches(
    rpc: Rpc, open_chain: OpenChain, open_proxy: OpenProxy, payer: Payer
):
    """Goal: nothing is lost but the request. (The proxy reads one question at a time.)"""
    chain = open_chain((await open_proxy()).url)
    raws = [(await payer.pay(chain, new_address())).raw for _ in range(2)]
    assert await chain.send_many(raws) == raws


@pytest.mark.parametrize(
    "rule",
    [{"code": -32005}, {"code": -32016}, {"code": -32004}, {"code": -32014}, {"httpStatus": 429}],
    ids=str,
)
async def test_a_busy_node(rpc: Rpc, chain: Solana, payer: Payer, rule: dict[str, Any]):
    signed = await payer.pay(chain, new_address())
    fault = {"action": "fail", "at": "request", "methods": ["sendTransaction"], **rule}
    await rpc("bursar_faults", {"rules": [fault]})
    assert of_kind(await chain.send(signed.raw), RefusalKind.BUSY)


async def test_an_expired_blockhash(rpc: Rpc, chain: Solana, payer: Payer):
    signed = await payer.pay(chain, new_address())
    await rpc("bursar_expireBlockhashes")
    assert of_kind(await chain.send(signed.raw), RefusalKind.BLOCKHASH)


async def test_a_transaction_no_node_takes(chain: Solana, payer: Payer):
    """Goal: a bug of ours is told from a node's trouble."""
    signed = await payer.pay(chain, new_address())
    forged = signed.raw[:1] + bytes(64) + signed.raw[65:]
    assert of_kind(await chain.send(forged), RefusalKind.BUG)
    assert of_kind(await chain.send(signed.raw[:-3]), RefusalKind.BUG)


async def test_a_frozen_account_is_the_payments_fault(
    chain: Solana, payer: Payer, rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: the token program's refusal (0x11) is final for the payment, after the expiry rule."""
    proxy = await open_proxy()
    err = {"InstructionError": [3, {"Custom": 17}]}
    proxy.twist = lambda method, answer: {
        "id": answer["id"],
        "error": {"code": -32002, "message": "Transaction simulation failed", "data": {"err": err}},
    }
    signed = await payer.pay(chain, new_address())
    result = await open_chain(proxy.url).send(signed.raw)
    assert of_kind(result, RefusalKind.PAYMENT)


async def test_another_signature_is_no_confirmation(
    chain: Solana, payer: Payer, open_proxy: OpenProxy, open_chain: OpenChain
):
    proxy = await open_proxy()
    for lie in (SIGNATURE, None, 7, [SIGNATURE]):
        signed = await payer.pay(chain, new_address())
        proxy.result("sendTransaction", lie)
        assert isinstance(await open_chain(proxy.url).send(signed.raw), Unknown)


async def test_a_preflight_failure_without_a_reason_is_unknown(
    chain: Solana, payer: Payer, open_proxy: OpenProxy, open_chain: OpenChain
):
    proxy = await open_proxy()
    signed = await payer.pay(chain, new_address())
    for data in ({}, {"data": None}, {"data": "x"}, {"data": {"err": None}}):
        proxy.twist = lambda _method, answer, data=data: {
            "id": answer["id"],
            "error": {"code": -32002, "message": "simulation failed", **data},
        }
        assert isinstance(await open_chain(proxy.url).send(signed.raw), Unknown)


async def test_sending_fails_over_and_the_weakest_conclusion_wins(
    rpc: Rpc, open_proxy: OpenProxy, open_chain: OpenChain, payer: Payer
):
    """Goal: one that takes it is enough; after a lost answer no refusal of another counts; nodes
    that are down or busy say nothing about the payment."""
    mute = await open_proxy()
    mute.closed = True
    first = open_chain(NOWHERE, rpc.url)
    signed = await payer.pay(first, new_address())
    assert await first.send(signed.raw) == Sent()

    poor = await payer.pay(first, new_address(), 10**15)
    assert of_kind(await first.send(poor.raw), RefusalKind.PAYMENT)
    assert isinstance(await open_chain(mute.url, rpc.url).send(poor.raw), Unknown)
    assert isinstance(await open_chain(rpc.url, mute.url).send(poor.raw), Unknown)

    busy = await open_proxy()
    busy.status = 429
    assert of_kind(await open_chain(rpc.url, busy.url).send(poor.raw), RefusalKind.PAYMENT)
    assert of_kind(await open_chain(NOWHERE, busy.url).send(poor.raw), RefusalKind.BUSY)
    await rpc("bursar_expireBlockhashes")
    assert of_kind(await open_chain(busy.url, rpc.url).send(poor.raw), RefusalKind.BLOCKHASH)


async def test_nobody_to_send_to(chain: Solana, payer: Payer, open_chain: OpenChain):
    signed = await payer.pay(chain, new_address())
    assert isinstance(await open_chain(NOWHERE).send(signed.raw), Unknown)


# Lies --------------------------------------------------------------------------------------------


async def test_lies_about_statuses_are_passed_on_as_told(rpc: Rpc, chain: Solana, payer: Payer):
    """Goal: the adapter believes one node; asking a second is the caller's rule, and possible."""
    signed = await payer.pay(chain, new_address())
    await chain.send(signed.raw)
    for claim in ("absent", "failed", "landed"):
        rule = {"action": "lie", "claim": claim, "methods": ["getSignatureStatuses"]}
        await rpc("bursar_faults", {"rules": [rule]})
        status = (await chain.statuses([signed.signature])).found[signed.signature]
        assert (status is None) == (claim == "absent")
        assert (status is not None and status.error is not None) == (claim == "failed")
    # `transaction` is what a lie has to pass too.
    assert await chain.transaction(signed.signature) is not None


async def test_names_hold_no_token(open_chain: OpenChain):
    """Goal: an address with an access token is in no name, no exception and no repr."""
    chain = open_chain("http://user:hunter2@127.0.0.1:1/hunter3?key=hunter4")
    with pytest.raises(ChainOutOfReach) as problem:
        await chain.finalized()
    shown = [chain.name, repr(chain), str(problem.value), repr(problem.value)]
    assert not any("hunter" in text for text in shown)
    assert problem.value.__cause__ is None
    assert problem.value.__suppress_context__
