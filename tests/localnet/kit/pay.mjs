// What an application written with @solana/kit does: fund, build, send, confirm, read back.
// Usage: node pay.mjs RPC_URL WEBSOCKET_URL MINT. Prints what it saw as JSON.
import {
  airdropFactory,
  appendTransactionMessageInstructions,
  assertIsTransactionWithBlockhashLifetime,
  createSolanaRpc,
  createSolanaRpcSubscriptions,
  createTransactionMessage,
  generateKeyPairSigner,
  getSignatureFromTransaction,
  isSolanaError,
  lamports,
  pipe,
  sendAndConfirmTransactionFactory,
  setTransactionMessageFeePayerSigner,
  setTransactionMessageLifetimeUsingBlockhash,
  signTransactionMessageWithSigners,
} from "@solana/kit";
import { getAddMemoInstruction } from "@solana-program/memo";
import {
  TOKEN_PROGRAM_ADDRESS,
  findAssociatedTokenPda,
  getCreateAssociatedTokenIdempotentInstructionAsync,
  getTransferCheckedInstruction,
} from "@solana-program/token";

const [rpcUrl, websocketUrl, mint] = process.argv.slice(2);
const rpc = createSolanaRpc(rpcUrl);
const rpcSubscriptions = createSolanaRpcSubscriptions(websocketUrl);
const sendAndConfirm = sendAndConfirmTransactionFactory({ rpc, rpcSubscriptions });
const commitment = "confirmed";

const payer = await generateKeyPairSigner();
const payee = await generateKeyPairSigner();
await airdropFactory({ rpc, rpcSubscriptions })({
  recipientAddress: payer.address,
  lamports: lamports(2_000_000_000n),
  commitment,
});
await fetch(rpcUrl, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({
    jsonrpc: "2.0",
    id: 1,
    method: "bursar_faucet",
    params: [payer.address, 5_000_000],
  }),
});

const tokenAccountOf = async (owner) =>
  (await findAssociatedTokenPda({ owner, mint, tokenProgram: TOKEN_PROGRAM_ADDRESS }))[0];
const source = await tokenAccountOf(payer.address);
const destination = await tokenAccountOf(payee.address);

async function signedPayment(amount) {
  const { value: latest } = await rpc.getLatestBlockhash({ commitment }).send();
  const message = pipe(
    createTransactionMessage({ version: 0 }),
    (draft) => setTransactionMessageFeePayerSigner(payer, draft),
    (draft) => setTransactionMessageLifetimeUsingBlockhash(latest, draft),
    (draft) =>
      appendTransactionMessageInstructions(
        [
          createAccount,
          getTransferCheckedInstruction({
            source,
            mint,
            destination,
            authority: payer,
            amount,
            decimals: 6,
          }),
          getAddMemoInstruction({ memo: "from kit" }),
        ],
        draft,
      ),
  );
  const signed = await signTransactionMessageWithSigners(message);
  assertIsTransactionWithBlockhashLifetime(signed);
  return signed;
}
const createAccount = await getCreateAssociatedTokenIdempotentInstructionAsync({
  payer,
  owner: payee.address,
  mint,
});

const payment = await signedPayment(1_500_000n);
await sendAndConfirm(payment, { commitment });
const signature = getSignatureFromTransaction(payment);
const { value: balance } = await rpc.getTokenAccountBalance(destination, { commitment }).send();
const landed = await rpc
  .getTransaction(signature, {
    commitment,
    encoding: "jsonParsed",
    maxSupportedTransactionVersion: 0,
  })
  .send();

let refusal;
try {
  await sendAndConfirm(await signedPayment(900_000_000n), { commitment });
} catch (error) {
  refusal = { isSolanaError: isSolanaError(error), cause: String(error.cause ?? error) };
}

console.log(
  JSON.stringify({
    signature,
    balance: balance.uiAmountString,
    fee: String(landed.meta.fee),
    err: landed.meta.err,
    programs: landed.transaction.message.instructions.map((call) => call.program ?? "?"),
    memo: landed.transaction.message.instructions.at(-1).parsed,
    refusal,
  }),
);
process.exit(0);
