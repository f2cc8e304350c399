"""A shop behind the FastAPI gate of `solana-pay-kit`, which settles by itself."""

from typing import Annotated, Any

import solana_pay_kit as kit
from fastapi import Depends, FastAPI
from serving import GIVEN, serve
from solana_pay_kit.fastapi import RequirePayment, install_exception_handler

kit.configure(
    network=kit.Network.SOLANA_DEVNET,
    accept=[kit.Protocol(name) for name in GIVEN["accept"]],
    rpc_url=GIVEN["rpc"],
    operator=kit.Operator(recipient=GIVEN["payee"], signer=kit.Signer.base58(GIVEN["secret"])),
    mpp=kit.MppConfig(realm="stock shop", challenge_binding_secret="not a secret " * 4),
)
price = kit.usd(GIVEN["price"].lstrip("$"))
gate = kit.Gate.build(name="weather", amount=price, pay_to=GIVEN["payee"])
app = FastAPI()
install_exception_handler(app)


@app.get("/weather")
async def weather(_payment: Annotated[Any, Depends(RequirePayment(gate))]) -> Any:
    return {"weather": "fair"}


serve(app)
