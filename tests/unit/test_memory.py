"""What a process remembers of agents: recipients that an agent's rules see alike share it."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from bursar.db import quoted
from bursar.policy.cache import PolicyCache
from bursar.policy.limits import Limit
from bursar.policy.model import Bounds, Policy
from bursar.recipient.resolve import Directory
from bursar.spend.memory import Known, Memory, Remembered

OWN: Final = "So11111111111111111111111111111111111111112"
ALIKE: Final = (
    "7EqQdEULxWcraVx3mXKFjc84LhCkMGZCkRvDpvcMwJeK",
    "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS",
)
LIMITED: Final = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
BLOCKED: Final = "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL"


def learned() -> dict[str, Known]:
    """How the rules of one agent see all of them."""
    policy = Policy(
        cap_micros_daily=100_000_000,
        allowlist=("*",),
        blocklist=(BLOCKED,),
        limits=(Limit("lim_1", "day", 10_000_000, None, LIMITED),),
    )
    bounds = Bounds(
        pending_max=4,
        agent_network_lamports=100_000,
        account_network_lamports=0,
        payment_lamports=10_000,
    )
    agent = Remembered(
        agent_id="agt_1",
        realm_id=1,
        wallet_address=OWN,
        stopped=False,
        agent_status="active",
        policy=policy,
        policy_key=("agt_1", 1, ""),
        directory_epoch="",
        rules=1,
        realm_rules=1,
        life="",
        hour=datetime(2026, 10, 31, 23, tzinfo=UTC),
        hour_runs=True,
        spent_micros=0,
        available_micros=0,
        network_lamports=0,
        pending_count=0,
    )
    memory = Memory(PolicyCache(), Directory(), bounds)
    for recipient in (*ALIKE, LIMITED, BLOCKED, OWN):
        # Nobody knows yet whether they have a token account.
        assert not memory.knows(agent, recipient)
    return agent.recipients


def test_recipients_that_rules_see_alike_share_what_is_kept_but_for_the_address():
    known = learned()
    first, second = (known[recipient] for recipient in ALIKE)
    assert first.terms is second.terms
    assert first.stored_terms is second.stored_terms
    assert (first.pay_to, second.pay_to) == ALIKE


def test_a_recipient_that_rules_see_otherwise_shares_nothing_with_them():
    known = learned()
    assert len({each.stored_terms for each in known.values()}) == 4
    assert [limit.id for limit in known[LIMITED].terms.limits] == ["lim_1"]
    assert not known[ALIKE[0]].terms.limits
    assert known[BLOCKED].terms.lists == "fpp"
    assert known[OWN].terms.lists == "pfp"


def test_what_a_spend_keeps_of_the_terms_says_all_of_them():
    for recipient, known in learned().items():
        assert quoted(msgspec.json.encode(known.terms).decode()) == known.stored_terms, recipient
