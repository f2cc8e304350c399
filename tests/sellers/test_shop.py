"""Goal: the shop of `bursar demo shop` sells for exactly its price; its facilitator signs nothing
else."""

import asyncio
import base64
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from bursar.chain.sponsored import Sponsored, build_sponsored
from bursar_localnet.genesis import TEST_MINT
from bursar_shop.facilitator import Facilitator, Price, Unacceptable
from bursar_shop.rpc import Node
from bursar_shop.shop import PRICE_MICROS, Shop, ShopFailed, open_shop
from tests.localnet.support import SOURCE, Rpc
from tests.sellers.buyer import Buyer
from tests.sellers.chain import transfers


@pytest.fixture
async def shop(chain: Rpc) -> AsyncGenerator[Shop]:
    async with open_shop(chain.url, "127.0.0.1", 0) as opened:
        yield opened


async def test_it_sells_once_for_each_payment(chain: Rpc, buyer: Buyer, shop: Shop):
    """Goal: the same payment again gets the goods again, and moves nothing."""
    header, answer = await buyer.buy(shop.url)
    again = await buyer.present(shop.url, header)
    for one in (answer, again):
        assert one.status == 200
        assert json.loads(one.body)["sky"] == "clear"
        assert one.claim is not None
        assert one.claim.success
    assert await transfers(chain, buyer.wallet.pubkey(), shop.price.payee) == [PRICE_MICROS]
    assert answer.claim == again.claim


async def test_it_has_the_same_addresses_again(chain: Rpc, shop: Shop):
    """Goal: buyers that remember whom they paid are not alarmed by a restart."""
    async with open_shop(chain.url, "127.0.0.1", 0) as other:
        assert other.accepted == shop.accepted


@pytest.mark.parametrize(
    "header",
    ["", "no", base64.b64encode(b"[]").decode(), base64.b64encode(b"{}").decode()],
)
async def test_what_is_no_payment_is_asked_for_one(buyer: Buyer, shop: Shop, header: str):
    assert (await buyer.present(shop.url, ("PAYMENT-SIGNATURE", header))).status == 402


async def test_a_wallet_without_money_gets_nothing(chain: Rpc, shop: Shop):
    poor = Buyer(chain, Keypair())
    _, answer = await poor.buy(shop.url)
    assert answer.status == 402
    assert answer.claim is not None
    assert (answer.claim.success, answer.claim.reason) == (False, "transaction_failed")


async def test_it_says_what_is_wrong_with_its_chain(chain: Rpc):
    with pytest.raises(ShopFailed, match="No localnet answers"):
        async with open_shop("http://127.0.0.1:1", "127.0.0.1", 0):
            pass
    with pytest.raises(ShopFailed, match="Cannot listen"):
        async with open_shop(chain.url, "127.0.0.1", chain.port):
            pass


KEY, WALLET = Keypair(), Keypair()
PRICE = Price(TEST_MINT, str(Keypair().pubkey()), 1_000)
PURCHASE = Sponsored(
    amount_micros=1_000,
    source=str(WALLET.pubkey()),
    destination=PRICE.payee,
    mint=TEST_MINT,
    decimals=6,
    blockhash="11111111111111111111111111111111",
    fee_payer=str(KEY.pubkey()),
    memo=None,
    variation=0,
)


def payment(message: MessageV0, signer: Keypair = WALLET) -> str:
    ours = signer.sign_message(to_bytes_versioned(message))
    signed = VersionedTransaction.populate(message, [Signature.default(), ours])
    return base64.b64encode(bytes(signed)).decode()


def compiled(*instructions: Instruction) -> MessageV0:
    budget = [set_compute_unit_limit(60_000), set_compute_unit_price(1)]
    blockhash = build_sponsored(PURCHASE).recent_blockhash
    return MessageV0.try_compile(KEY.pubkey(), [*budget, *instructions], [], blockhash)


@pytest.fixture
async def facilitator(chain: Rpc) -> Facilitator:
    return Facilitator(Node(chain.session, chain.url), KEY)


async def test_a_payment_as_asked_for_is_signed(facilitator: Facilitator):
    for memo in (None, "thanks"):
        made = payment(build_sponsored(replace(PURCHASE, memo=memo)))
        signed = facilitator.sign(facilitator.check(PRICE, made))
        assert signed.verify_with_results() == [True, True]
    asked = replace(PRICE, memo="thanks")
    facilitator.check(asked, payment(build_sponsored(replace(PURCHASE, memo="thanks"))))


@pytest.mark.parametrize(
    "change",
    [
        {"amount_micros": 999},
        {"amount_micros": 1_001},
        {"destination": str(Keypair().pubkey())},
        {"mint": str(Keypair().pubkey())},
        {"decimals": 9},
        {"fee_payer": str(Keypair().pubkey())},
    ],
)
async def test_another_payment_is_not_signed(facilitator: Facilitator, change: dict[str, Any]):
    with pytest.raises(Unacceptable):
        facilitator.check(PRICE, payment(build_sponsored(replace(PURCHASE, **change))))


async def test_another_memo_is_not_signed(facilitator: Facilitator):
    asked = replace(PRICE, memo="thanks")
    for memo in (None, "other"):
        with pytest.raises(Unacceptable, match="memo"):
            facilitator.check(asked, payment(build_sponsored(replace(PURCHASE, memo=memo))))


async def test_a_payment_that_the_payer_did_not_sign_is_not_signed(facilitator: Facilitator):
    with pytest.raises(Unacceptable, match="did not sign"):
        facilitator.check(PRICE, payment(build_sponsored(PURCHASE), signer=Keypair()))


async def test_the_fee_payer_gives_nothing_away(facilitator: Facilitator):
    """Goal: its signature cannot be had for a transaction that takes its own money."""

    def takes(to: Pubkey) -> Instruction:
        return transfer(TransferParams(from_pubkey=KEY.pubkey(), to_pubkey=to, lamports=5))

    for message in (
        compiled(takes(WALLET.pubkey())),
        compiled(takes(WALLET.pubkey()), takes(WALLET.pubkey())),
        compiled(),
    ):
        with pytest.raises(Unacceptable):
            facilitator.check(PRICE, payment(message))


@pytest.mark.parametrize("text", ["", "no", "AAAA", "é", base64.b64encode(b"\x01" * 99).decode()])
async def test_what_is_no_transaction_is_not_signed(facilitator: Facilitator, text: str):
    with pytest.raises(Unacceptable):
        facilitator.check(PRICE, text)


async def test_the_command_opens_it(chain: Rpc, buyer: Buyer, tmp_path: Path):
    """Goal: `bursar demo shop` says where it sells, sells, and closes at Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bursar.cli.main", "demo", "shop"),
        *("--shop-port", "0", "--rpc", chain.url),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "BURSAR_DATA_DIR": str(tmp_path)},
    )
    assert process.stdout is not None
    said = await asyncio.wait_for(process.stdout.readuntil(b"Payee"), 30)
    found = re.search(rb"Sells\s+(\S+)", said)
    assert found is not None
    assert b"0.001000 USDC" in said
    _, answer = await buyer.buy(found[1].decode())
    assert answer.status == 200
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 10) == 0
