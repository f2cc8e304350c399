"""What payments cost in SOL: a payee that takes the rent each time costs what the policy allows."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from bursar.chain.message import TOKEN_ACCOUNT_LAMPORTS
from bursar.cost.model import MOST_OPENINGS
from bursar.service.postgres import EmbeddedPostgres
from bursar.settlement.worker import Settler
from bursar_localnet import programs
from tests.localnet.support import MINT, sign
from tests.settlement.stage import Stage, get, running_stage, token_account_of
from tests.support import spend

SPENDS = 200 if os.environ.get("BURSAR_LONG") else 20
FEE = 10_000


@pytest.fixture(scope="module")
async def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Stage]:
    async with running_stage(postgres, tmp_path_factory.mktemp("rent")) as running:
        yield running


async def test_a_payee_that_closes_its_account_each_time_drains_nothing(stage: Stage):
    """Goal: its agent loses a bounded part of its own budget, and every other agent still pays."""
    async with await stage.service.admin() as client:
        attacker = await stage.funded_agent(client, "10", policy=_anyone())
        payee = await stage.rpc.wallet()
        before = await _sol(stage)
        ends: Counter[str] = Counter()
        rent = 0
        for _ in range(SPENDS):
            made = await _paid(stage, client, attacker, str(payee.pubkey()))
            ends[made["rejectCode"] or made["status"]] += 1
            if made["status"] == "settled":
                rent += made["rentLamports"]
                assert made["feeLamports"] == FEE
                await _close(stage, payee)
        lost = before - await _sol(stage)
        assert ends == {
            "settled": MOST_OPENINGS,
            "network_cost_exceeded": SPENDS - MOST_OPENINGS,
        }
        assert lost == MOST_OPENINGS * (TOKEN_ACCOUNT_LAMPORTS + FEE)
        assert rent == MOST_OPENINGS * TOKEN_ACCOUNT_LAMPORTS
        budget = await get(client, f"/v1/agents/{attacker['id']}/budget")
        assert budget["networkLamportsToday"] == lost <= budget["dailyNetworkLamports"]
        # Whoever was refused got the money back.
        wallet = await stage.wallet(client, attacker["id"])
        assert (wallet["reserved"], wallet["balance"]) == ("0.000000", "9.999997")
        other = await stage.funded_agent(client, "10", policy=_anyone())
        assert (await _paid(stage, client, other, _somebody()))["status"] == "settled"
        assert await stage.differences() == []


async def test_new_payees_cost_no_more_than_the_agents_budget(stage: Stage):
    """Goal: as many fresh addresses as the budget has rents for; the rest is refused when it is
    asked, nothing is reserved for it, and another agent of the same account pays on."""
    async with await stage.service.admin() as client:
        budget = 2 * TOKEN_ACCOUNT_LAMPORTS + 600_000
        agent = await stage.funded_agent(client, "10", policy=_anyone(dailyNetworkLamports=budget))
        before = await _sol(stage)
        made = [await _paid(stage, client, agent, _somebody()) for _ in range(5)]
        assert [one["rejectCode"] for one in made] == [None] * 2 + ["network_cost_exceeded"] * 3
        assert before - await _sol(stage) == 2 * (TOKEN_ACCOUNT_LAMPORTS + FEE) <= budget
        refused = made[-1]["decision"]
        (check,) = [c for c in refused["checks"] if c["rule"] == "network_cost"]
        assert (check["outcome"], check["limit"]) == ("fail", str(budget))
        assert int(check["observed"]) > budget
        assert refused["retryAt"] is not None
        # Somebody who has a token account still costs next to nothing.
        again = await _paid(stage, client, agent, made[0]["recipient"])
        assert (again["status"], again["rentLamports"]) == ("settled", 0)
        other = await stage.funded_agent(client, "10", policy=_anyone())
        assert (await _paid(stage, client, other, _somebody()))["status"] == "settled"


async def test_under_concurrency_the_network_budget_is_exact(stage: Stage):
    """Goal: of many at once to as many new payees, exactly those fit that fit one after another."""
    async with await stage.service.admin() as client:
        room = 3
        each = TOKEN_ACCOUNT_LAMPORTS + stage.settler.bounds.payment_lamports
        policy = _anyone(dailyNetworkLamports=room * each)
        agent = await stage.funded_agent(client, "10", policy=policy)
        asked = (spend(client, agent["id"], "0.01", recipient=_somebody()) for _ in range(20))
        made = await asyncio.gather(*asked)
        assert Counter(one["rejectCode"] for one in made) == {
            None: room,
            "network_cost_exceeded": 20 - room,
        }
        budget = await get(client, f"/v1/agents/{agent['id']}/budget")
        assert budget["networkLamportsToday"] == room * each
        assert budget["maxAmountNow"] == "0.000000"
        for one in made:
            if one["status"] == "approved":
                assert (await stage.ended(client, one["id"]))["status"] == "settled"
        budget = await get(client, f"/v1/agents/{agent['id']}/budget")
        assert budget["networkLamportsToday"] == room * (TOKEN_ACCOUNT_LAMPORTS + FEE)


async def test_many_spends_to_one_new_payee_hold_its_rent_once(stage: Stage):
    """Goal: one account is opened, by one of them, and all are paid."""
    async with await stage.service.admin() as client:
        policy = _anyone(dailyNetworkLamports=2 * TOKEN_ACCOUNT_LAMPORTS)
        agent = await stage.funded_agent(client, "10", policy=policy)
        payee = _somebody()
        asked = (spend(client, agent["id"], "0.01", recipient=payee) for _ in range(8))
        made = await asyncio.gather(*asked)
        assert {one["status"] for one in made} == {"approved"}
        ended = [await stage.ended(client, one["id"]) for one in made]
        assert Counter(one["rentLamports"] for one in ended) == {TOKEN_ACCOUNT_LAMPORTS: 1, 0: 7}
        assert await stage.tokens(payee) == 80_000


async def test_what_is_refused_gives_its_part_of_the_budget_back(stage: Stage):
    """Goal: a denied spend held the rent; the next one has it again."""
    async with await stage.service.admin() as client:
        policy = _anyone(dailyNetworkLamports=2_500_000, approvalThreshold="0.00")
        agent = await stage.funded_agent(client, "10", policy=policy)
        for _ in range(2):
            held = await spend(client, agent["id"], "1", recipient=_somebody())
            assert held["status"] == "pending"
            over = await spend(client, agent["id"], "1", recipient=_somebody())
            assert over["rejectCode"] == "network_cost_exceeded"
            answer = await client.post(f"/v1/transactions/{held['id']}/deny")
            assert answer.status_code == 200
            budget = await get(client, f"/v1/agents/{agent['id']}/budget")
            assert budget["networkLamportsToday"] == 0


async def test_an_account_closed_on_the_way_is_charged_or_not_opened(stage: Stage):
    """Goal: a known payee whose account is gone when it is paid is opened again out of the budget;
    when that has no room, the spend ends rejected with its funds back, and nothing was lost."""
    async with await stage.service.admin() as client:
        payee = await stage.rpc.wallet()
        rich = await stage.funded_agent(client, "10", policy=_anyone())
        poor = await stage.funded_agent(
            client, "10", policy=_anyone(dailyNetworkLamports=TOKEN_ACCOUNT_LAMPORTS)
        )
        assert (await _paid(stage, client, rich, str(payee.pubkey())))["status"] == "settled"
        await _close(stage, payee)
        before = await _sol(stage)
        made = await spend(client, poor["id"], "0.000001", recipient=str(payee.pubkey()))
        assert made["status"] == "approved"  # the payee is known, so no rent is held
        ended = await stage.ended(client, made["id"])
        assert (ended["status"], ended["rejectCode"]) == ("rejected", "network_cost_exceeded")
        assert await _sol(stage) == before
        wallet = await stage.wallet(client, poor["id"])
        assert (wallet["reserved"], wallet["balance"]) == ("0.000000", "10.000000")
        again = await _paid(stage, client, rich, str(payee.pubkey()))
        assert (again["status"], again["rentLamports"]) == ("settled", TOKEN_ACCOUNT_LAMPORTS)


async def test_an_account_that_used_its_share_stops_nobody_else(stage: Stage):
    """Goal: what one account may cost a day is a bound on spends and withdrawals together; another
    account does not notice."""
    bounds = stage.settler.bounds
    each = TOKEN_ACCOUNT_LAMPORTS + FEE
    small = replace(
        stage, settler=_with(stage.settler, bounds, account_network_lamports=2 * each + FEE)
    )
    async with await stage.service.admin() as greedy, await stage.service.admin() as other:
        agent = await small.funded_agent(greedy, "10", policy=_anyone())
        assert (await _paid(small, greedy, agent, _somebody()))["status"] == "settled"
        first = await small.withdraw(greedy, agent["id"], "1", _somebody())
        settled = await small.ended(greedy, first["id"])
        assert (settled["feeLamports"], settled["rentLamports"]) == (FEE, TOKEN_ACCOUNT_LAMPORTS)
        refused = await _paid(small, greedy, agent, _somebody())
        assert refused["rejectCode"] == "network_cost_exceeded"
        second = await small.withdraw(greedy, agent["id"], "1", _somebody())
        failed = await small.ended(greedy, second["id"])
        assert (failed["status"], failed["failureCode"]) == ("failed", "network_cost_exceeded")
        assert (await small.wallet(greedy, agent["id"]))["reserved"] == "0.000000"
        neighbour = await small.funded_agent(other, "10", policy=_anyone())
        assert (await _paid(small, other, neighbour, _somebody()))["status"] == "settled"


def _with(settler: Settler, bounds: Any, **changes: int) -> Settler:
    return replace(settler, bounds=type(bounds)(**{**_fields(bounds), **changes}))


def _fields(bounds: Any) -> dict[str, int]:
    return {name: getattr(bounds, name) for name in bounds.__struct_fields__}


def _anyone(**fields: Any) -> dict[str, Any]:
    return {"dailyCap": "1000.00", "allowlist": ["*"], **fields}


def _somebody() -> str:
    return str(Keypair().pubkey())


async def _paid(
    stage: Stage, client: httpx.AsyncClient, agent: dict[str, Any], to: str
) -> dict[str, Any]:
    """A spend of the smallest amount, as it ends."""
    made = await spend(client, agent["id"], "0.000001", recipient=to)
    return made if made["status"] == "rejected" else await stage.ended(client, made["id"])


async def _sol(stage: Stage) -> int:
    account = (await stage.chain.accounts([stage.fee_payer]))[stage.fee_payer]
    assert account is not None
    return account.lamports


async def _close(stage: Stage, owner: Keypair) -> None:
    """The payee burns what it has and closes its token account: the rent is its own now."""
    tokens = Pubkey.from_string(token_account_of(str(owner.pubkey())))
    held = await stage.tokens(str(owner.pubkey()))
    signer = AccountMeta(owner.pubkey(), is_signer=True, is_writable=True)
    written = AccountMeta(tokens, is_signer=False, is_writable=True)
    mint = AccountMeta(MINT, is_signer=False, is_writable=True)
    burn = Instruction(
        programs.TOKEN, b"\x08" + held.to_bytes(8, "little"), [written, mint, signer]
    )
    close = Instruction(programs.TOKEN, b"\x09", [written, signer, signer])
    # Never twice the same transaction, however often it is closed within one blockhash.
    once = programs.memo(_somebody())
    await stage.rpc.send(sign([burn, close, once], owner, await stage.rpc.blockhash()))
    assert (await stage.chain.accounts([str(tokens)]))[str(tokens)] is None
