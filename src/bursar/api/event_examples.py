"""One example of each event, for the docs and OpenAPI."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bursar.access.model import Scope
from bursar.access.view import KeyChanged
from bursar.agent.view import Agent, AgentPolicyUpdated, AgentResumed
from bursar.event.catalog import EventType
from bursar.event.view import Event
from bursar.policy.engine import Decision, RejectCode, Used, decide, purchase_terms, terms_of
from bursar.policy.model import Bounds, Policy
from bursar.policy.view import PolicyView
from bursar.purchase.view import PinAccepted, PinForgotten, Purchase
from bursar.recipient.view import RecipientDeleted, RecipientSet
from bursar.spend.view import Transaction, show_decision
from bursar.stop.view import Resumed, Stopped
from bursar.wallet.view import Wallet, WalletSummary
from bursar.webhook.view import WebhookChanged, WebhookSummary
from bursar.withdrawal.view import Withdrawal

_NOW: Final = "2026-11-15T09:30:00.123Z"
_EARLIER: Final = "2026-11-15T09:29:58.004Z"
_UNIX: Final = 1_794_994_200
_AGENT: Final = "ag_01kbfqx2m7e8v9s0t1w2x3y4z5"
_POLICY: Final = "pol_01kbfqx2m8a1b2c3d4e5f6g7h8"
_KEY: Final = "key_01kbfqw9rk5m6n7p8q9r0s1t2v"
_PURCHASE: Final = "pur_01kbfqz4t4b5c6d7e8f9g0h1j2"
_ADDRESS: Final = "7EqQdEULxWcraVx3mXKFjc84LhCkMGZCkRvDpvcMwJeK"
_PAYEE: Final = "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"
_MINT: Final = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
_SIGNATURE: Final = (
    "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"
)


def example(type_: EventType) -> Event:
    data: Any = msgspec.to_builtins(_DATA[type_])
    return Event(
        id="evt_01kbfqz4t6g7h8j9k0m1n2p3q4", type=type_, created_at=_NOW, mode="test", data=data
    )


def view(type_: EventType) -> type:
    """The struct of an event's `data`, by its type."""
    return type(_DATA[type_])


def _decided(amount_micros: int, *, bought: bool = False) -> Decision:
    policy = Policy(
        version=2,
        cap_micros_daily=50_000_000,
        cap_micros_per_transaction=None,
        approval_threshold_micros=20_000_000,
        allowlist=("api.example.com",),
        blocklist=(),
        frozen=False,
    )
    recipient = "api.example.com"
    terms = terms_of(
        policy,
        Bounds(
            pending_max=100,
            agent_network_lamports=100_000_000,
            account_network_lamports=1_000_000_000,
            payment_lamports=111_667,
        ),
        stopped=False,
        agent_status="active",
        wallet_address=_ADDRESS,
        recipient=recipient,
        pay_to=_PAYEE,
        pays_blocked_host=False,
    )
    if bought:
        terms = purchase_terms(terms, (), 10_000)
    used = Used(
        spent_today_micros=0,
        available_micros=42_500_000,
        network_today_lamports=0,
        # The seller pays what a purchase costs on the chain.
        network_cost_lamports=0 if bought else 111_667,
        pending_count=0,
        transfers=1,
    )
    resets_at = datetime(2026, 11, 16, tzinfo=UTC)
    return decide(terms, used, amount_micros, recipient, _PAYEE, resets_at)


def _policy(version: int, cap: str) -> PolicyView:
    return PolicyView(
        id=_POLICY,
        version=version,
        daily_cap=cap,
        allowlist=["api.example.com"],
        blocklist=[],
        payees="pinned",
        limits=[],
        per_transaction_cap=None,
        approval_threshold="20.00",
        daily_network_lamports=None,
        frozen=False,
    )


_AGENT_FIELDS: Final[dict[str, Any]] = {
    "id": _AGENT,
    "name": "research",
    "wallet": WalletSummary(address=_ADDRESS, balance="42.500000", status="funded"),
    "policy": _policy(2, "50.00"),
    "metadata": {"team": "search"},
    "budget_id": None,
    "created_at": "2026-11-01T08:00:00.000Z",
    "updated_at": _NOW,
}


def _transaction(**fields: Any) -> Transaction:
    approved: dict[str, Any] = {
        "id": "txn_01kbfqz4t5c6d7e8f9g0h1j2k3",
        "agent_id": _AGENT,
        "amount": "12.500000",
        "currency": "USDC",
        "recipient": "api.example.com",
        "status": "approved",
        "signature": None,
        "block_time": None,
        "reject_code": None,
        "created_at": _EARLIER,
        "settled_at": None,
        "pay_to": _PAYEE,
        "memo": "invoice 7",
        "metadata": {},
        "policy_version": 2,
        "created_by": _KEY,
        "decided_by": None,
        "decided_at": None,
        "decision_reason": None,
        "expires_at": None,
        "network": "localnet",
        "fee_lamports": None,
        "rent_lamports": None,
        "updated_at": _NOW,
        "purchase_id": None,
        "decision": show_decision(_decided(12_500_000)),
    }
    return Transaction(**approved | fields)


def _purchase(transaction: Transaction | None, **fields: Any) -> Purchase:
    made: dict[str, Any] = {
        "id": _PURCHASE,
        "agent_id": _AGENT,
        "url": "https://api.example.com/weather?city=Lisbon",
        "method": "GET",
        "host": "api.example.com",
        "reject_code": None,
        "failure_code": None,
        "problem": None,
        "decision": None,
        "protocol": None,
        "amount": None,
        "pay_to": None,
        "transaction_id": None,
        "transaction": transaction,
        "header": None,
        "response": None,
        "memo": None,
        "metadata": {},
        "created_by": _KEY,
        "created_at": _EARLIER,
        "updated_at": _NOW,
    }
    if transaction is not None:
        made |= {
            "decision": transaction.decision,
            "protocol": "x402",
            "amount": transaction.amount,
            "pay_to": transaction.pay_to,
            "transaction_id": transaction.id,
        }
    return Purchase(**made | fields)


def _wallet(balance: str, status: Any) -> Wallet:
    return Wallet(
        agent_id=_AGENT,
        address=_ADDRESS,
        balance=balance,
        reserved="0.000000",
        available=balance,
        mint=_MINT,
        status=status,
        last_funded_at=_EARLIER,
    )


def _withdrawal(**fields: Any) -> Withdrawal:
    made: dict[str, Any] = {
        "id": "wdr_01kbfqz4t9m1n2p3q4r5s6t7v8",
        "agent_id": _AGENT,
        "amount": "30.000000",
        "currency": "USDC",
        "destination": _PAYEE,
        "signature": None,
        "fee_lamports": None,
        "rent_lamports": None,
        "block_time": None,
        "failure_code": None,
        "memo": None,
        "metadata": {},
        "network": "localnet",
        "created_by": _KEY,
        "created_at": _EARLIER,
        "settled_at": None,
    }
    return Withdrawal(**made | fields)


_ON_CHAIN: Final[dict[str, Any]] = {
    "status": "settled",
    "signature": _SIGNATURE,
    "block_time": _UNIX,
    "settled_at": _NOW,
}
_BOUGHT: Final[dict[str, Any]] = {
    "amount": "0.001000",
    "memo": None,
    "purchase_id": _PURCHASE,
    "decision": show_decision(_decided(1_000, bought=True)),
}
_STOP: Final[dict[str, Any]] = {
    "stopped_at": _EARLIER,
    "stopped_by": _KEY,
    "reason": "an agent pays the wrong host",
    "also_unsigned": True,
}
_ENTRY: Final[dict[str, Any]] = {
    "hostname": "api.example.com",
    "address": _PAYEE,
    "created_by": _KEY,
    "created_at": _EARLIER,
    "updated_by": _KEY,
    "updated_at": _NOW,
}
_PIN: Final[dict[str, Any]] = {
    "origin": "https://api.example.com:443",
    "address": _PAYEE,
    "offered": None,
    "offered_at": None,
    "created_by": _KEY,
    "created_at": _EARLIER,
    "updated_at": _NOW,
}
_NEW_KEY: Final[dict[str, Any]] = {
    "id": "key_01kbfqz5a1b2c3d4e5f6g7h8j9",
    "name": "research agent",
    "scope": Scope.AGENT,
    "agent_id": _AGENT,
    "mode": "test",
    "created_at": _EARLIER,
    "expires_at": None,
    "last_used_at": None,
    "changed_by": _KEY,
}
_WEBHOOK: Final[dict[str, Any]] = {
    "id": "wh_01kbfqy7d2n3p4q5r6s7t8v9w0",
    "origin": "https://example.com",
    "events": ["transaction.settled", "wallet.low_balance"],
    "status": "enabled",
    "disabled_reason": None,
    "created_at": _EARLIER,
}


def _webhook_changed(previous_origin: str | None = None) -> WebhookChanged:
    return WebhookChanged(
        **_WEBHOOK,
        changed_by=_KEY,
        url_changed=previous_origin is not None,
        previous_origin=previous_origin,
    )


_DATA: Final[dict[EventType, msgspec.Struct]] = {
    EventType.TRANSACTION_SETTLED: _transaction(**_ON_CHAIN, fee_lamports=10_000, rent_lamports=0),
    EventType.TRANSACTION_REJECTED: _transaction(
        amount="60.000000",
        status="rejected",
        reject_code=RejectCode.DAILY_CAP_EXCEEDED,
        decision=show_decision(_decided(60_000_000)),
    ),
    EventType.WALLET_LOW_BALANCE: _wallet("4.999999", "funded"),
    EventType.WALLET_DEPLETED: _wallet("0.000000", "depleted"),
    EventType.AGENT_POLICY_UPDATED: AgentPolicyUpdated(
        **_AGENT_FIELDS,
        status="active",
        terminated_at=None,
        previous_policy=_policy(1, "25.00"),
        changed_by=_KEY,
    ),
    EventType.AGENT_THAWED: Agent(**_AGENT_FIELDS, status="active", terminated_at=None),
    EventType.AGENT_PAUSED: Agent(**_AGENT_FIELDS, status="paused", terminated_at=None),
    EventType.AGENT_RESUMED: AgentResumed(
        **_AGENT_FIELDS, status="active", terminated_at=None, changed_by=_KEY
    ),
    EventType.AGENT_TERMINATED: Agent(**_AGENT_FIELDS, status="terminated", terminated_at=_NOW),
    EventType.ACCOUNT_STOPPED: Stopped(**_STOP),
    EventType.ACCOUNT_RESUMED: Resumed(
        **_STOP, resumed_at=_NOW, resumed_by=_KEY, unsigned="cancel", cancelled=3
    ),
    EventType.TRANSACTION_PENDING: _transaction(
        amount="25.000000",
        status="pending",
        expires_at="2026-11-16T09:29:58.004Z",
        decision=show_decision(_decided(25_000_000)),
    ),
    EventType.TRANSACTION_APPROVED: _transaction(),
    EventType.WALLET_FUNDED: _wallet("100.000000", "funded"),
    EventType.WITHDRAWAL_SETTLED: _withdrawal(
        **_ON_CHAIN, fee_lamports=10_000, rent_lamports=2_039_280
    ),
    EventType.WITHDRAWAL_FAILED: _withdrawal(status="failed", failure_code="destination_invalid"),
    EventType.PURCHASE_PAID: _purchase(_transaction(**_BOUGHT | _ON_CHAIN), status="paid"),
    EventType.PURCHASE_UNPAID: _purchase(
        _transaction(**_BOUGHT, status="rejected", reject_code=RejectCode.PURCHASE_EXPIRED),
        status="unpaid",
    ),
    EventType.PURCHASE_FAILED: _purchase(
        None,
        status="failed",
        failure_code="seller_unreachable",
        problem="the seller did not answer in time",
    ),
    EventType.RECIPIENT_SET: RecipientSet(**_ENTRY, previous_address=_ADDRESS),
    EventType.RECIPIENT_DELETED: RecipientDeleted(**_ENTRY, deleted_by=_KEY),
    EventType.PIN_ACCEPTED: PinAccepted(**_PIN, previous_address=_ADDRESS),
    EventType.PIN_FORGOTTEN: PinForgotten(**_PIN, forgotten_by=_KEY),
    EventType.KEY_CREATED: KeyChanged(**_NEW_KEY, revoked_at=None),
    EventType.KEY_REVOKED: KeyChanged(**_NEW_KEY, revoked_at=_NOW),
    EventType.WEBHOOK_CREATED: _webhook_changed(),
    EventType.WEBHOOK_CHANGED: _webhook_changed("https://old.example.com"),
    EventType.WEBHOOK_SECRET_ROTATED: _webhook_changed(),
    EventType.WEBHOOK_DELETED: _webhook_changed(),
    EventType.WEBHOOK_TEST: WebhookSummary(**_WEBHOOK),
}
