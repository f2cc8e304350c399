// The facilitator of `@x402/svm`, behind the three endpoints of the protocol.
import { createKeyPairSignerFromBytes, getBase58Encoder } from "@solana/kit";
import { x402Facilitator } from "@x402/core/facilitator";
import { toFacilitatorSvmSigner } from "@x402/svm";
import { registerExactSvmScheme } from "@x402/svm/exact/facilitator";
import express from "express";

const given = JSON.parse(process.argv[2]);
const key = await createKeyPairSignerFromBytes(getBase58Encoder().encode(given.secret));
const facilitator = registerExactSvmScheme(new x402Facilitator(), {
  signer: toFacilitatorSvmSigner(key, { defaultRpcUrl: given.rpc }),
  networks: given.network,
});
const app = express();
app.use(express.json());
app.get("/supported", (_, answer) => answer.json(facilitator.getSupported()));
for (const step of ["verify", "settle"]) {
  app.post(`/${step}`, async ({ body }, answer) =>
    answer.json(await facilitator[step](body.paymentPayload, body.paymentRequirements)),
  );
}
const server = app.listen(0, "127.0.0.1", () =>
  console.log(`http://127.0.0.1:${server.address().port}`),
);
