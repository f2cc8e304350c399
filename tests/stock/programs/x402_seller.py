"""A shop behind the FastAPI middleware of the Python package `x402`."""

from typing import Any

from fastapi import FastAPI
from serving import GIVEN, serve
from x402 import x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient, PaymentOption, RouteConfig
from x402.http.middleware.fastapi import payment_middleware
from x402.mechanisms.svm.exact import register_exact_svm_server

server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=GIVEN["facilitator"])))
register_exact_svm_server(server, GIVEN["network"])
option = PaymentOption(
    scheme="exact", pay_to=GIVEN["payee"], price=GIVEN["price"], network=GIVEN["network"]
)
app = FastAPI()
app.middleware("http")(payment_middleware({"GET /weather": RouteConfig(option)}, server))


@app.get("/weather")
def weather() -> Any:
    return {"weather": "fair"}


serve(app)
