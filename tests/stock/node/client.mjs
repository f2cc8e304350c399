// The client of `@x402/fetch` buys once, and prints what it got.
import { createKeyPairSignerFromBytes, getBase58Encoder } from "@solana/kit";
import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";
import { ExactSvmScheme } from "@x402/svm/exact/client";

const given = JSON.parse(process.argv[2]);
const signer = await createKeyPairSignerFromBytes(getBase58Encoder().encode(given.secret));
const client = new ExactSvmScheme(signer, { rpcUrl: given.rpc });
const buy = wrapFetchWithPaymentFromConfig(fetch, {
  schemes: [{ network: given.network, client }],
});
const answer = await buy(given.url);
console.log(JSON.stringify({ status: answer.status, body: await answer.text() }));
