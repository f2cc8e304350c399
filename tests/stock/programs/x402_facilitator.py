"""The facilitator of the Python package `x402`, behind the three endpoints of the protocol."""

from typing import Any

from fastapi import FastAPI
from serving import GIVEN, serve
from solders.keypair import Keypair
from x402 import x402FacilitatorSync
from x402.mechanisms.svm import FacilitatorKeypairSigner
from x402.mechanisms.svm.exact import register_exact_svm_facilitator
from x402.schemas import PaymentPayload, PaymentRequirements

signer = FacilitatorKeypairSigner(Keypair.from_base58_string(GIVEN["secret"]), GIVEN["rpc"])
facilitator = x402FacilitatorSync()
register_exact_svm_facilitator(facilitator, signer, GIVEN["network"])
app = FastAPI()


@app.get("/supported")
def supported() -> Any:
    return shown(facilitator.get_supported())


@app.post("/verify")
def verify(asked: dict[str, Any]) -> Any:
    return shown(facilitator.verify(*terms(asked)))


@app.post("/settle")
def settle(asked: dict[str, Any]) -> Any:
    return shown(facilitator.settle(*terms(asked)))


def terms(asked: dict[str, Any]) -> tuple[PaymentPayload, PaymentRequirements]:
    return (
        PaymentPayload.model_validate(asked["paymentPayload"]),
        PaymentRequirements.model_validate(asked["paymentRequirements"]),
    )


def shown(answer: Any) -> Any:
    return answer.model_dump(by_alias=True, exclude_none=True)


serve(app)
