"""Goal: every question of the port is answered truly by a real node."""

import base64

import pytest
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from bursar.chain.message import token_account
from bursar.chain.port import Chain, RefusalKind, Refused, Sent
from bursar.chain.solana import Solana
from bursar.errors import InvariantBroken
from bursar_localnet import programs
from tests.chain.conftest import FEE_MAX_LAMPORTS, OpenChain, OpenProxy
from tests.chain.support import MINT, new_address, new_payer
from tests.localnet.support import LAMPORTS_PER_SOL, Rpc, sign
from tests.localnet.support import MINT as MINT_KEY
from tests.localnet.support import payment as plain_payment

MEMO_PROGRAM = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"


async def test_the_adapter_is_a_chain(chain: Solana):
    """Goal: what the worker is given has every method of the port (checked by the type checker)."""
    port: Chain = chain
    assert port.name == chain.name


async def test_genesis_and_mint(rpc: Rpc, chain: Solana):
    assert await chain.genesis_hash() == await rpc("getGenesisHash")
    assert await chain.mint(MINT) == 6
    assert await chain.mint(new_address()) is None
    holder = await rpc.wallet(micros=1)
    assert await chain.mint(str(holder.pubkey())) is None
    assert await chain.mint(token_account(str(holder.pubkey()), MINT)) is None


async def test_blockhash_and_height(rpc: Rpc, chain: Solana):
    """Goal: the blockhash is at `confirmed` and the height at `finalized`, which lags behind."""
    await rpc("bursar_faults", {"lag": {"confirmed": 5, "finalized": 40}})
    await rpc("bursar_expireBlockhashes")  # the chain may be younger than the lag
    latest, height = await chain.latest_blockhash(), await chain.finalized()
    confirmed = await rpc("getSlot", {"commitment": "confirmed"})
    assert Hash.from_string(latest.hash)
    assert confirmed - 2 <= latest.last_valid_height - 150 <= confirmed
    assert 33 <= confirmed - height.slot <= 37
    assert height.height == height.slot


async def test_a_payment_lands(rpc: Rpc, chain: Solana):
    """Goal: sent, finalized, and its transaction tells who paid whom what, and for which id."""
    payer, to = await new_payer(rpc), new_address()
    wanted = await payer.payment(chain, to, 1_500_000)
    signed = await payer.sign(wanted)
    assert await chain.transaction(signed.signature) is None
    before = await chain.statuses([signed.signature])
    assert before.found == {signed.signature: None}

    assert await chain.send(signed.raw) == Sent()
    assert await chain.send(signed.raw) == Sent(), "AlreadyProcessed is as good"

    after = await chain.statuses([signed.signature])
    status = after.found[signed.signature]
    assert status is not None
    assert status.finalized
    assert status.error is None
    assert before.context_slot <= status.slot <= after.context_slot

    landed = await chain.transaction(signed.signature)
    assert landed is not None
    assert (landed.slot, landed.error, landed.memos) == (status.slot, None, (wanted.id,))
    assert landed.block_time is not None
    # Two signatures, and 1,000 micro-lamports for each of the 60,001 units of the first attempt.
    assert landed.fee_lamports == 10_000 + 61
    source, target = token_account(payer.wallet.address, MINT), token_account(to, MINT)
    moved = {(m.token_account, m.owner, m.mint): m.delta_micros for m in landed.movements}
    assert moved == {
        (source, payer.wallet.address, MINT): -1_500_000,
        (target, to, MINT): 1_500_000,
    }
    assert landed.senders(MINT) == (payer.wallet.address,)
    assert landed.moved(target, MINT) == 1_500_000
    assert landed.moved(source, MINT) == -1_500_000
    assert landed.moved(target, new_address()) == 0


async def test_many_payments_land(rpc: Rpc, chain: Solana):
    """Goal: also more than one request holds; sent once more, they are as good as taken."""
    payer = await new_payer(rpc)
    signed = [await payer.sign(await payer.payment(chain, new_address(), 1)) for _ in range(60)]
    raws = [each.raw for each in signed]
    assert await chain.send_many(raws) == []
    statuses = await chain.statuses([each.signature for each in signed])
    assert all(status is not None for status in statuses.found.values())


async def test_a_failed_transaction_tells_its_error(rpc: Rpc, chain: Solana):
    """Goal: included but failed is neither landed nor absent; nothing moved, a fee was paid."""
    payer = await new_payer(rpc, micros=5)
    signed = await payer.pay(chain, new_address(), 6)
    await rpc(
        "sendTransaction",
        base64.b64encode(signed.raw).decode(),
        {"encoding": "base64", "skipPreflight": True},
    )
    status = (await chain.statuses([signed.signature])).found[signed.signature]
    assert status is not None
    assert status.finalized
    assert status.error == '{"InstructionError":[3,{"Custom":1}]}'
    landed = await chain.transaction(signed.signature)
    assert landed is not None
    assert landed.error == status.error
    assert landed.movements == ()
    assert landed.fee_lamports > 0


async def test_confirmed_is_not_finalized(rpc: Rpc, chain: Solana):
    """Goal: nothing counts before it is final; a fork takes it away again."""
    payer = await new_payer(rpc)
    await rpc("bursar_faults", {"lag": {"confirmed": 0, "finalized": 10_000}})
    signed = await payer.pay(chain, new_address())
    assert await chain.send(signed.raw) == Sent()
    status = (await chain.statuses([signed.signature])).found[signed.signature]
    assert status is not None
    assert not status.finalized
    assert await chain.transaction(signed.signature) is None
    source = token_account(payer.wallet.address, MINT)
    assert signed.signature not in [m.signature for m in await chain.signatures_of(source)]
    await rpc("bursar_fork", signed.signature)
    assert (await chain.statuses([signed.signature])).found == {signed.signature: None}


async def test_statuses_in_batches(rpc: Rpc, chain: Solana):
    """Goal: more than a node takes at once, each signature with its own answer."""
    landed = [await rpc("requestAirdrop", new_address(), 1_000_000) for _ in range(3)]
    absent = [str(Keypair().sign_message(bytes([n % 256, n // 256]))) for n in range(600)]
    asked = [*absent[:200], landed[0], *absent[200:500], landed[1], *absent[500:], landed[2]]
    found = (await chain.statuses(asked)).found
    assert list(found) == asked
    assert {s for s, status in found.items() if status is not None} == set(landed)


async def test_history(rpc: Rpc, chain: Solana):
    """Goal: newest first, bounded by cursors on both sides, with the memos of each."""
    wallet = await rpc.wallet(micros=10_000_000)
    account = token_account(str(wallet.pubkey()), MINT)
    memos = ["first", "", "zwei; [3] abc", "x" * 300]
    for memo in memos:
        signed = plain_payment(wallet, Keypair().pubkey(), 1, await rpc.blockhash(), memo)
        await rpc.send(signed)
    newest = await chain.signatures_of(account)
    told = [m.memos for m in newest]
    assert told[:-1] == [(memo,) for memo in reversed(memos)], "the last is the faucet's own"
    assert all(m.error is None and m.block_time is not None for m in newest)
    assert await chain.signatures_of(account, limit=2) == newest[:2]
    assert await chain.signatures_of(account, before=newest[1].signature) == newest[2:]
    assert await chain.signatures_of(account, until=newest[2].signature) == newest[:2]
    assert (
        await chain.signatures_of(
            account, before=newest[0].signature, until=newest[3].signature, limit=1
        )
        == newest[1:2]
    )
    assert await chain.signatures_of(new_address()) == []


async def test_two_deposits_in_one_transaction(rpc: Rpc, chain: Solana):
    """Goal: movements are per token account, so each wallet is credited its own."""
    sender, first, second = await rpc.wallet(micros=100), Keypair().pubkey(), Keypair().pubkey()
    source = Pubkey.from_string(token_account(str(sender.pubkey()), MINT))
    instructions: list[Instruction] = []
    for to, micros in ((first, 10), (second, 20), (first, 5)):
        target = Pubkey.from_string(token_account(str(to), MINT))
        instructions += [
            programs.create_token_account(sender.pubkey(), to, MINT_KEY),
            Instruction(
                programs.TOKEN,
                b"\x03" + micros.to_bytes(8, "little"),
                [
                    AccountMeta(source, False, True),
                    AccountMeta(target, False, True),
                    AccountMeta(sender.pubkey(), True, False),
                ],
            ),
        ]
    signature = await rpc.send(sign(instructions, sender, await rpc.blockhash()))
    landed = await chain.transaction(signature)
    assert landed is not None
    assert landed.moved(token_account(str(first), MINT), MINT) == 15
    assert landed.moved(token_account(str(second), MINT), MINT) == 20
    assert landed.senders(MINT) == (str(sender.pubkey()),)


async def test_minted_money_has_no_sender(rpc: Rpc, chain: Solana):
    owner = new_address()
    landed = await chain.transaction(await chain.mint_test_money(owner, 7_000_000))
    assert landed is not None
    assert landed.senders(MINT) == ()
    assert landed.moved(token_account(owner, MINT), MINT) == 7_000_000


async def test_what_a_destination_is(rpc: Rpc, chain: Solana):
    """Goal: the destination rule can tell a wallet from a token account, a mint and a program."""
    wallet = await rpc.wallet(sol=3, micros=4)
    person, absent = str(wallet.pubkey()), new_address()
    holding, program = token_account(person, MINT), MEMO_PROGRAM
    off_curve, _ = Pubkey.find_program_address([b"vault"], Pubkey.from_string(MEMO_PROGRAM))
    asked = [person, absent, holding, program, MINT, str(off_curve)]
    found = await chain.accounts(asked)
    assert list(found) == asked
    system = str(Pubkey.default())

    assert found[absent] is None
    assert found[str(off_curve)] is None
    assert not off_curve.is_on_curve()
    known = found[person]
    assert known is not None
    assert (known.owner, known.executable, known.token) == (system, False, None)
    assert known.lamports == 3 * LAMPORTS_PER_SOL
    account = found[holding]
    assert account is not None
    assert account.token is not None
    assert (account.token.mint, account.token.amount_micros) == (MINT, 4)
    code = found[program]
    assert code is not None
    assert code.executable
    mint = found[MINT]
    assert mint is not None
    assert mint.token is None
    assert mint.owner == account.owner != system


async def test_balances_of_many(
    rpc: Rpc, chain: Solana, open_proxy: OpenProxy, open_chain: OpenChain
):
    """Goal: 100 accounts a request, in order, zero where there is none."""
    rich = {str((await rpc.wallet(sol=1, micros=n)).pubkey()): n for n in (1, 22, 333)}
    poor = [new_address() for _ in range(247)]
    owners = [*poor[:120], *rich, *poor[120:]]
    proxy = await open_proxy()
    balances = await open_chain(proxy.url).token_balances(owners, MINT)
    assert proxy.methods == ["getMultipleAccounts"] * 3
    assert balances.micros == {owner: rich.get(owner, 0) for owner in owners}
    assert list(balances.micros) == owners
    assert 0 < balances.slot <= await rpc("getSlot")
    # Of another token they have none.
    other = await chain.token_balances(list(rich), new_address())
    assert set(other.micros.values()) == {0}


async def test_the_priority_fee_follows_the_network_within_the_cap(
    chain: Solana, open_proxy: OpenProxy, open_chain: OpenChain
):
    accounts = [new_address()]
    assert await chain.priority_fee(accounts) == 0
    proxy = await open_proxy()
    busy = open_chain(proxy.url)
    fees = [{"slot": n, "prioritizationFee": n * 100} for n in range(100)]
    proxy.result("getRecentPrioritizationFees", fees)
    assert await busy.priority_fee(accounts) == 7_500
    proxy.result("getRecentPrioritizationFees", [{"slot": 1, "prioritizationFee": 2**63 - 1}])
    cap = await busy.priority_fee(accounts)
    assert cap * 60_000 // 1_000_000 <= FEE_MAX_LAMPORTS < (cap + 2) * 60_000 // 1_000_000 + 1
    proxy.result("getRecentPrioritizationFees", [])
    assert await busy.priority_fee(accounts) == 0
    # A node without the method holds nothing up.
    proxy.result("getRecentPrioritizationFees", "what?")
    assert await busy.priority_fee(accounts) == 0


async def test_questions_that_make_no_sense(chain: Solana):
    """Goal: a bug of the caller is not taken for an answer of the chain."""
    with pytest.raises(InvariantBroken):
        await chain.statuses([])
    with pytest.raises(InvariantBroken):
        await chain.accounts([])
    with pytest.raises(InvariantBroken):
        await chain.signatures_of(new_address(), limit=1_001)


async def test_a_recipient_without_a_token_account_gets_one_once(rpc: Rpc, chain: Solana):
    """Goal: the fee payer pays its rent at the first payment and nothing at the second."""
    payer, to = await new_payer(rpc), new_address()
    spent: list[int] = []
    for _ in range(2):
        address = payer.fee_payer.address
        before = (await chain.accounts([address]))[address]
        assert await chain.send((await payer.pay(chain, to)).raw) == Sent()
        after = (await chain.accounts([address]))[address]
        assert before is not None
        assert after is not None
        spent.append(before.lamports - after.lamports)
    assert spent == [2_039_280 + 10_061, 10_061]
    assert (await chain.token_balances([to], MINT)).micros == {to: 2_000_000}


async def test_an_empty_fee_payer_is_not_the_payments_fault(rpc: Rpc, chain: Solana):
    """Goal: no SOL at all, and enough for the fee but not for the rent of a token account."""
    payer = await new_payer(rpc, sol=0)
    result = await chain.send((await payer.pay(chain, new_address())).raw)
    assert isinstance(result, Refused)
    assert result.kind == RefusalKind.FEE_PAYER
    await rpc("requestAirdrop", payer.fee_payer.address, 1_500_000)
    result = await chain.send((await payer.pay(chain, new_address())).raw)
    assert isinstance(result, Refused)
    assert result.kind == RefusalKind.FEE_PAYER
    await rpc("requestAirdrop", payer.fee_payer.address, 5_000_000)
    assert await chain.send((await payer.pay(chain, new_address())).raw) == Sent()


async def test_too_few_tokens_is_the_payments_own_fault(rpc: Rpc, chain: Solana):
    payer = await new_payer(rpc, micros=5)
    result = await chain.send((await payer.pay(chain, new_address(), 6)).raw)
    assert isinstance(result, Refused)
    assert result.kind == RefusalKind.PAYMENT
    assert result.reason == '{"InstructionError":[3,{"Custom":1}]}'
