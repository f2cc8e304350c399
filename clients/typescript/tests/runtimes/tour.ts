// What an application does with the client, in nothing but what every runtime has. It tells what it
// saw; tests/stock/test_runtimes.py knows what that must be.
import {
  Bursar,
  ConnectionFailed,
  InvalidSignature,
  NotFound,
  PurchaseRefused,
  verifyWebhook,
} from "bursar";

export interface Place {
  apiKey: string;
  baseUrl: string;
  shop: string;
}

/** The vector of docs/webhooks.md. */
const DELIVERY = '{"id":"evt_01kbfqz4t6g7h8j9k0m1n2p3q4","type":"agent.paused"}';
const SIGNATURE = "t=1794994200,v1=e83c6e980853fc3f6bb4bf60c73ec3d087de762c886ced9b9e4d794429ddbd3c";
const SECRET = "whsec_QnVyc2FyIHRlc3QgdmVjdG9yLCBub3QgYSBzZWNyZXQ=";
const recipient = "api.example.com";

export async function tour({ apiKey, baseUrl, shop }: Place): Promise<Record<string, unknown>> {
  const bursar = new Bursar({ apiKey, baseUrl });
  const { id: agentId } = await bursar.agents.create({
    name: "traveller",
    policy: {
      dailyCap: "25.00",
      approvalThreshold: "20.00",
      allowlist: [recipient, new URL(shop).hostname],
    },
  });
  await bursar.wallets.fund(agentId, { amount: "100" });
  const agent = bursar.agent(agentId);

  const { id } = await agent.spend({ amount: "1.50", recipient });
  const settled = await bursar.transactions.wait(id);
  const refused = await agent.spend({ amount: "26", recipient });
  const pending = await agent.spend({ amount: "21", recipient });

  // One row to a page, so that it turns two of them.
  const listed: string[] = [];
  for await (const row of bursar.transactions.list({ agentId, limit: 1 })) listed.push(row.id);
  let csv = "";
  const decoder = new TextDecoder();
  for await (const piece of bursar.transactions.export({ agentId })) {
    csv += decoder.decode(piece, { stream: true });
  }

  const bought = await agent.fetch(shop, { maxAmount: "0.01", wait: 20 });
  const { sky } = (await bought.json()) as { sky: string };
  const tooDear = await failure(agent.fetch(shop, { maxAmount: "0.0001" }));

  const unknown = await failure(bursar.agents.get("ag_unknown"));
  const nowhere = new Bursar({ apiKey, baseUrl: "http://127.0.0.1:1" });
  // A person would have to approve it within these milliseconds.
  const signal = AbortSignal.timeout(100);
  const late = await failure(bursar.transactions.get(pending.id, { wait: 20, signal }));
  const event = await verifyWebhook(DELIVERY, SIGNATURE, SECRET, Infinity);
  const forged = await failure(verifyWebhook(`${DELIVERY} `, SIGNATURE, SECRET, Infinity));
  return {
    settled: [settled.status, settled.amount, settled.signature !== null],
    refused: [refused.status, refused.rejectCode],
    pending: pending.status,
    listed: listed.length === 3 && listed.join() === [pending.id, refused.id, id].join(),
    exported: csv.split("\n").filter((line) => line.includes(recipient)).length,
    bought: [bought.status, bought.url === shop, bought.purchase.amount, sky],
    tooDear: tooDear instanceof PurchaseRefused && tooDear.rejectCode,
    unknown: unknown instanceof NotFound && unknown.code,
    nowhere: (await failure(nowhere.agents.get(agentId))) instanceof ConnectionFailed,
    late: late instanceof Error && late.name,
    event: event.type,
    forged: forged instanceof InvalidSignature,
  };
}

async function failure(work: Promise<unknown>): Promise<unknown> {
  try {
    await work;
  } catch (problem) {
    return problem;
  }
  return null;
}
