"""Offers as sellers write them, to be changed by tests."""

from base64 import b64encode, urlsafe_b64encode
from typing import Any

import msgspec
from solders.keypair import Keypair

from bursar_localnet.genesis import TEST_MINT

DEVNET = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
PAYEE, FEE_PAYER = str(Keypair().pubkey()), str(Keypair().pubkey())


def accepted(**change: Any) -> dict[str, Any]:
    """One of x402's offers."""
    made = {
        "scheme": "exact",
        "network": DEVNET,
        "asset": TEST_MINT,
        "amount": "1000",
        "payTo": PAYEE,
        "maxTimeoutSeconds": 300,
        "extra": {"feePayer": FEE_PAYER},
    }
    return made | change


def required(*offers: Any, **change: Any) -> dict[str, Any]:
    resource = {"url": "https://shop.example/weather", "mimeType": "application/json"}
    return {"x402Version": 2, "resource": resource, "accepts": list(offers)} | change


def in_base64(value: Any) -> str:
    return b64encode(msgspec.json.encode(value)).decode()


def request(**change: Any) -> dict[str, Any]:
    """What one of MPP's challenges asks for."""
    details = {
        "network": "devnet",
        "decimals": 6,
        "feePayer": True,
        "feePayerKey": FEE_PAYER,
        "recentBlockhash": "11111111111111111111111111111111",
    }
    made = {
        "amount": "1000",
        "currency": TEST_MINT,
        "recipient": PAYEE,
        "methodDetails": details | change.pop("details", {}),
    }
    return made | change


def in_base64url(value: Any) -> str:
    return urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def challenge(asked: dict[str, Any] | None = None, **change: str) -> str:
    parameters = {
        "id": "c-1",
        "realm": "shop",
        "method": "solana",
        "intent": "charge",
        "request": in_base64url(request() if asked is None else asked),
    } | change
    return "Payment " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())
