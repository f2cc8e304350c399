// A shop behind the middleware of `@x402/express`.
import { HTTPFacilitatorClient } from "@x402/core/server";
import { paymentMiddleware, x402ResourceServer } from "@x402/express";
import { ExactSvmScheme } from "@x402/svm/exact/server";
import express from "express";

const given = JSON.parse(process.argv[2]);
const { network } = given;
const resources = new x402ResourceServer(
  new HTTPFacilitatorClient({ url: given.facilitator }),
).register(network, new ExactSvmScheme());
const accepts = { scheme: "exact", price: given.price, network, payTo: given.payee };
const app = express();
app.use(paymentMiddleware({ "GET /weather": { accepts } }, resources));
app.get("/weather", (_, answer) => answer.json({ weather: "fair" }));
const server = app.listen(0, "127.0.0.1", () =>
  console.log(`http://127.0.0.1:${server.address().port}`),
);
