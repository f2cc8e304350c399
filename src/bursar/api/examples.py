"""One example of each body and answer, for OpenAPI. Tests check them against the real types."""

from typing import Any, Final

import msgspec

from bursar.api.event_examples import example
from bursar.event.catalog import EventType

_AGENT_ID: Final = "ag_01m7ems3jh51960tmjz6v129p3"
_ADDRESS: Final = "9WzDXwBbmkg8ZTbNMqUxvQRAyrZzDsGYdLVL9zYtAWWM"
_MINT: Final = "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU"
_KEY_ID: Final = "key_01m7ems24hxjr0ep0p9sv9hm5d"
_SIGNATURE: Final = (
    "4RE1UXJ3kV6jKbUdT53DwZGSs6MSEJBSgTyTbrUgUa9v3Yb6h6MXFrMgoFcGcEu4EHLu9r7zyLJU5CDYwbXh13qf"
)
_ORIGIN: Final = "https://api.example.com:443"
_EVENT: Final[dict[str, Any]] = msgspec.to_builtins(example(EventType.TRANSACTION_SETTLED))
_PURCHASE: Final[dict[str, Any]] = msgspec.to_builtins(example(EventType.PURCHASE_PAID).data)
_WEBHOOK: Final[dict[str, Any]] = msgspec.to_builtins(example(EventType.WEBHOOK_TEST).data)
_AT: Final = "2026-11-15T09:30:00.123Z"

_DIFFERENCE: Final[dict[str, Any]] = {
    "transactionId": "txn_01m7ems408dq8tynzrthx57g28",
    "agentId": _AGENT_ID,
    "amount": "8.000000",
    "was": "approved",
    "would": "rejected",
    "rule": "daily_cap",
}

# By the title of the record.
BODIES: Final[dict[str, Any]] = {
    "NewAgent": {
        "name": "researcher",
        "policy": {
            "dailyCap": "25.00",
            "allowlist": ["api.example.com", "*.example.org"],
            "approvalThreshold": "10.00",
        },
        "metadata": {"team": "search"},
    },
    "NewBudget": {"name": "research", "limits": [{"window": "week", "amount": "250.00"}]},
    "BudgetChange": {"limits": [{"window": "week", "amount": "300.00", "count": 1000}]},
    "NewBacktest": {
        "agentId": _AGENT_ID,
        "policy": {"dailyCap": "20.00"},
        "from": "2026-10-16",
        "to": "2026-11-14",
    },
    "PolicyChange": {"dailyCap": "20.00", "approvalThreshold": "5.00"},
    "AgentChange": {"status": "paused", "policy": {"dailyCap": "50.00", "version": 1}},
    "Spend": {
        "agentId": _AGENT_ID,
        "amount": "3.50",
        "recipient": "api.example.com",
        "memo": "a book",
    },
    "StopRequest": {"reason": "an agent pays the wrong host", "alsoUnsigned": True},
    "ResumeRequest": {"unsigned": "cancel"},
    "Reason": {"reason": "ordered by the team"},
    "NewWithdrawal": {"amount": "10.00", "destination": _ADDRESS},
    "Funding": {"amount": "100.00"},
    "RecipientAddress": {"address": _ADDRESS},
    "NewWebhook": {"url": _WEBHOOK["url"], "events": _WEBHOOK["events"]},
    "WebhookChange": {"status": "disabled"},
    "RedeliveryRequest": {"webhookId": _WEBHOOK["id"]},
    "NewKey": {"name": "the agent's own key", "scope": "agent", "agentId": _AGENT_ID},
    "NewPurchase": {
        "agentId": _AGENT_ID,
        "url": "https://api.example.com/weather?city=Lisbon",
        "maxAmount": "0.05",
    },
    "Continue": {
        "paymentRequired": {
            "status": 402,
            "headers": {"PAYMENT-REQUIRED": "eyJ4NDAyVmVyc2lvbiI6Mn0="},
        }
    },
    "AcceptPin": {"origin": _ORIGIN, "address": _ADDRESS},
    "ForgetPin": {"origin": _ORIGIN},
}

_DELIVERY: Final = {
    "id": "dlv_01m7ems5e4z9y8x7w6v5t4s3r2",
    "webhookId": _WEBHOOK["id"],
    "eventId": _EVENT["id"],
    "eventType": _EVENT["type"],
    "status": "delivered",
    "attempts": [
        {"at": _AT, "status": 200, "latencyMs": 41, "error": None, "response": "ok"},
    ],
    "nextAttemptAt": None,
    "createdAt": _AT,
}
_POLICY: Final = {
    "id": "pol_01m7ems3jh6g4n1d6r6d1y9v0m",
    "dailyCap": "25.00",
    "allowlist": ["api.example.com", "*.example.org"],
    "blocklist": [],
    "payees": "pinned",
    "limits": [],
    "perTransactionCap": None,
    "approvalThreshold": "10.00",
    "dailyNetworkLamports": None,
    "frozen": False,
    "version": 1,
}
_DECISION: Final = {
    "checks": [
        {"rule": "account_stopped", "outcome": "pass", "limit": "false", "observed": "false"},
        {"rule": "agent_status", "outcome": "pass", "limit": "active", "observed": "active"},
        {"rule": "policy_frozen", "outcome": "pass", "limit": "false", "observed": "false"},
        {"rule": "blocklist", "outcome": "pass", "limit": None, "observed": "api.example.com"},
        {"rule": "allowlist", "outcome": "pass", "limit": None, "observed": "api.example.com"},
        {"rule": "recipient_resolved", "outcome": "pass", "limit": None, "observed": _ADDRESS},
        {
            "rule": "per_transaction_cap",
            "outcome": "not_evaluated",
            "limit": None,
            "observed": "3.500000",
        },
        {"rule": "daily_cap", "outcome": "pass", "limit": "25.00", "observed": "3.500000"},
        {
            "rule": "network_cost",
            "outcome": "pass",
            "limit": "100000000",
            "observed": "2150947",
        },
        {"rule": "pending_count", "outcome": "not_evaluated", "limit": "100", "observed": "0"},
        {"rule": "funds", "outcome": "pass", "limit": "100.000000", "observed": "3.500000"},
        {"rule": "approval_threshold", "outcome": "pass", "limit": "10.00", "observed": "3.500000"},
    ],
    "remainingToday": "21.500000",
    "maxAmountNow": "21.500000",
    "retryAt": None,
}
_KEY: Final = {
    "id": _KEY_ID,
    "name": "the agent's own key",
    "scope": "agent",
    "agentId": _AGENT_ID,
    "mode": "test",
    "createdAt": _AT,
    "expiresAt": None,
    "lastUsedAt": None,
    "revokedAt": None,
}

# By the name of the struct that `data` holds.
ANSWERS: Final[dict[str, Any]] = {
    "Agent": {
        "id": _AGENT_ID,
        "name": "researcher",
        "status": "active",
        "wallet": {"address": _ADDRESS, "balance": "0.000000", "status": "provisioned"},
        "policy": _POLICY,
        "metadata": {"team": "search"},
        "budgetId": None,
        "createdAt": _AT,
        "updatedAt": _AT,
        "terminatedAt": None,
    },
    "PolicyVersion": {**_POLICY, "changedBy": _KEY_ID, "changedAt": _AT},
    "Budget": {
        "dailyCap": "25.00",
        "spentToday": "3.500000",
        "remainingToday": "21.500000",
        "available": "96.500000",
        "maxAmountNow": "21.500000",
        "resetsAt": "2026-11-16T00:00:00.000Z",
        "status": "active",
        "frozen": False,
        "accountStopped": False,
        "budgetFrozen": False,
        "policyVersion": 1,
        "dailyNetworkLamports": 100000000,
        "networkLamportsToday": 2049280,
        "limits": [
            {
                "limitId": "lim_01m7ems408dq8tynzrthx57g28",
                "budgetId": "bud_01m7ems408dq8tynzrthx57g28",
                "window": "week",
                "recipient": None,
                "amount": "500.00",
                "count": None,
                "usedAmount": "431.250000",
                "usedCount": 88,
                "resetsAt": "2026-11-16T00:00:00.000Z",
            }
        ],
    },
    "Transaction": {
        "id": "txn_01m7ems408dq8tynzrthx57g28",
        "agentId": _AGENT_ID,
        "amount": "3.500000",
        "currency": "USDC",
        "recipient": "api.example.com",
        "status": "settled",
        "signature": _SIGNATURE,
        "blockTime": 1794735001,
        "rejectCode": None,
        "createdAt": _AT,
        "settledAt": "2026-11-15T09:30:01.456Z",
        "payTo": _ADDRESS,
        "memo": "a book",
        "metadata": {},
        "policyVersion": 1,
        "createdBy": _KEY_ID,
        "decidedBy": None,
        "decidedAt": None,
        "decisionReason": None,
        "expiresAt": None,
        "network": "localnet",
        "feeLamports": 10000,
        "rentLamports": 2039280,
        "updatedAt": "2026-11-15T09:30:01.456Z",
        "purchaseId": None,
        "decision": _DECISION,
    },
    "BudgetView": {
        "id": "bud_01m7ems3jh6g4n1d6r6d1y9v0m",
        "name": "research",
        "parentId": None,
        "limits": [
            {
                "id": "lim_01m7ems3jh6g4n1d6r6d1y9v0n",
                "window": "week",
                "amount": "250.00",
                "count": None,
                "recipient": None,
                "countsFrom": None,
            }
        ],
        "frozen": False,
        "use": {
            "hour": {"amount": "3.500000", "count": 1},
            "day": {"amount": "12.000000", "count": 4},
            "week": {"amount": "96.250000", "count": 31},
            "month": {"amount": "214.000000", "count": 77},
            "lifetime": {"amount": "214.000000", "count": 77},
        },
        "agentCount": 12,
        "createdBy": _KEY_ID,
        "createdAt": _AT,
        "updatedAt": _AT,
    },
    "BacktestView": {
        "id": "bt_01m7ems3jh6g4n1d6r6d1y9v0p",
        "status": "done",
        "progress": 100,
        "problem": None,
        "agentId": _AGENT_ID,
        "budgetId": None,
        "metadata": None,
        "policy": {"dailyCap": "20.00"},
        "limits": None,
        "startsAt": "2026-10-16T00:00:00.000Z",
        "endsAt": "2026-11-15T00:00:00.000Z",
        "assumptions": ["What the draft would newly make pending counts as approved, and as paid."],
        "reproduced": {"of": 3, "same": 3},
        "current": {"approved": 3, "pending": 0, "rejected": 0, "amount": "24.000000"},
        "draft": {"approved": 2, "pending": 0, "rejected": 1, "amount": "16.000000"},
        "others": {"of": 0, "changed": 0},
        "byRule": [{"rule": "daily_cap", "current": 0, "draft": 1}],
        "byDay": [
            {
                "day": "2026-11-14",
                "current": {"approved": 3, "pending": 0, "rejected": 0, "amount": "24.000000"},
                "draft": {"approved": 2, "pending": 0, "rejected": 1, "amount": "16.000000"},
            }
        ],
        "changedCount": 1,
        "changed": [_DIFFERENCE],
        "createdBy": _KEY_ID,
        "createdAt": _AT,
        "finishedAt": "2026-11-15T09:30:02.456Z",
    },
    "DraftView": {
        "agentId": _AGENT_ID,
        "baseVersion": 1,
        "policy": {**_POLICY, "dailyCap": "20.00", "version": 2},
        "since": _AT,
        "followedUntil": "2026-11-15T10:00:00.456Z",
        "decided": 12,
        "differing": 1,
        "differences": [_DIFFERENCE],
        "createdBy": _KEY_ID,
    },
    "Preview": {
        "status": "approved",
        "rejectCode": None,
        "policyVersion": 1,
        "payTo": _ADDRESS,
        "decision": _DECISION,
    },
    "Statistics": {
        "totalSpent": "3.500000",
        "transactionCount": 2,
        "rejectedCount": 1,
        "topRecipients": [{"hostname": "api.example.com", "totalUsdc": "3.50"}],
    },
    "Wallet": {
        "agentId": _AGENT_ID,
        "address": _ADDRESS,
        "balance": "100.000000",
        "reserved": "3.500000",
        "available": "96.500000",
        "mint": _MINT,
        "status": "funded",
        "lastFundedAt": _AT,
    },
    "Balance": {
        "agentId": _AGENT_ID,
        "balance": "100.000000",
        "reserved": "3.500000",
        "available": "96.500000",
        "currency": "USDC",
        "asOf": _AT,
    },
    "Withdrawal": {
        "id": "wdr_01m7ems408dq8tynzrthx57g28",
        "agentId": _AGENT_ID,
        "amount": "10.000000",
        "currency": "USDC",
        "destination": _ADDRESS,
        "status": "pending",
        "signature": None,
        "blockTime": None,
        "failureCode": None,
        "memo": None,
        "metadata": {},
        "network": "localnet",
        "createdBy": _KEY_ID,
        "createdAt": _AT,
        "settledAt": None,
        "feeLamports": None,
        "rentLamports": None,
    },
    "Deposit": {
        "id": "dep_01m7ems3ycd1embc7f2906ehyb",
        "agentId": _AGENT_ID,
        "amount": "100.000000",
        "currency": "USDC",
        "sender": None,
        "signature": _SIGNATURE,
        "blockTime": 1794735000,
        "status": "credited",
        "createdAt": _AT,
        "creditedAt": _AT,
    },
    "Purchase": {
        **_PURCHASE,
        "response": {
            "status": 200,
            "headers": {"content-type": "application/json"},
            "body": '{"sky":"clear"}',
            "encoding": "text",
            "truncated": False,
        },
    },
    "Pin": {
        "origin": _ORIGIN,
        "address": _ADDRESS,
        "offered": None,
        "offeredAt": None,
        "createdBy": _KEY_ID,
        "createdAt": _AT,
        "updatedAt": _AT,
    },
    "RecipientView": {
        "hostname": "api.example.com",
        "address": _ADDRESS,
        "createdBy": _KEY_ID,
        "createdAt": _AT,
        "updatedAt": _AT,
    },
    "Webhook": _WEBHOOK,
    "CreatedWebhook": {**_WEBHOOK, "secret": "whsec_… (shown only now)"},
    "Delivery": _DELIVERY,
    "Event": _EVENT,
    "Redelivery": {"eventId": _EVENT["id"], "deliveries": [_DELIVERY]},
    "Key": _KEY,
    "CreatedKey": {**_KEY, "key": "bur_test_… (shown only now)"},
    "Me": {
        **_KEY,
        "account": "default",
        "limits": [{"category": "Spend Authorise", "requestsPerMinute": 3000}],
        "stop": None,
    },
    "Stopped": msgspec.to_builtins(example(EventType.ACCOUNT_STOPPED).data),
    "BulkChange": {"matched": 12, "changed": 11},
    "Resumed": msgspec.to_builtins(example(EventType.ACCOUNT_RESUMED).data),
    "LogLine": {
        "id": "log_01m7ems408dq8tynzrthx57g28",
        "createdAt": _AT,
        "actor": _KEY_ID,
        "requestId": "req_01m7ems408a3k9x0c5v1n7t2we",
        "action": "recipient.set",
        "subject": "api.example.com",
        "before": None,
        "after": {"hostname": "api.example.com", "address": _ADDRESS},
    },
}
