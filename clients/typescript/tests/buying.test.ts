// Goal: a running service and its demo shop: `agent.fetch` buys, is refused, and hands over what was
// bought; so does the stock x402 client.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  wrapFetchWithPayment,
  wrapFetchWithPaymentFromConfig,
  x402Client,
  x402HTTPClient,
} from "@x402/fetch";
import { Bursar, PurchasePending, PurchaseRefused, type NewPolicy } from "bursar";
import { BursarScheme } from "bursar/x402";

const shop = process.env["SHOP_URL"] ?? "";
const bursar = new Bursar();

async function spender(policy: Partial<NewPolicy> = {}) {
  const made = await bursar.agents.create({
    name: "buyer",
    policy: { dailyCap: "1.00", allowlist: [new URL(shop).hostname], ...policy },
  });
  await bursar.wallets.fund(made.id, { amount: "1" });
  return bursar.agent(made.id);
}

test("it buys, and gives a Response", async () => {
  const agent = await spender();
  const answer = await agent.fetch(shop, { memo: "the weather", wait: 20 });
  assert.ok(answer instanceof Response);
  assert.equal(answer.status, 200);
  assert.equal(answer.url, shop);
  assert.deepEqual([answer.truncated, answer.purchase.status], [false, "paid"]);
  assert.equal(answer.purchase.memo, "the weather");
  const { sky } = (await answer.json()) as { sky: string };
  assert.equal(sky, "clear");
  const budget = await agent.budget();
  assert.equal(budget.spentToday, "0.001000");
});

test("one key, one purchase", async () => {
  const agent = await spender();
  const first = await agent.fetch(shop, { idempotencyKey: "order-1" });
  const again = await agent.fetch(new Request(shop), { idempotencyKey: "order-1" });
  assert.equal(first.purchase.id, again.purchase.id);
  assert.equal((await agent.budget()).spentToday, "0.001000");
});

test("refused and waiting purchases are errors that say why", async () => {
  const agent = await spender();
  await assert.rejects(agent.fetch(shop, { maxAmount: "0.0001" }), (problem) => {
    assert.ok(problem instanceof PurchaseRefused);
    assert.equal(problem.rejectCode, "max_amount_exceeded");
    return true;
  });
  const careful = await spender({ approvalThreshold: "0.00" });
  await assert.rejects(careful.fetch(shop), PurchasePending);
});

test("a body that is no text is refused before anything is bought", async () => {
  const agent = await spender();
  const body = new Uint8Array([0xff]);
  await assert.rejects(agent.fetch(shop, { method: "POST", body }), TypeError);
  const bought = await bursar.purchases.list({ agentId: await agent.id() }).page();
  assert.equal(bought.data.length, 0);
});

test("the stock x402 client buys, and Bursar signs", async () => {
  const agent = await spender();
  const buy = wrapFetchWithPaymentFromConfig(fetch, {
    schemes: [{ network: "solana:*", client: new BursarScheme(agent) }],
  });
  const answer = await buy(shop);
  assert.equal(answer.status, 200);
  assert.equal(((await answer.json()) as { sky: string }).sky, "clear");
  const scheme = new BursarScheme(agent);
  const client = new x402HTTPClient(new x402Client().register("solana:*", scheme));
  const own = wrapFetchWithPayment(fetch, client.onPaymentRequired(scheme.onPaymentRequired));
  assert.equal((await own(`${shop}?city=Lisbon`)).status, 200);
  const [last] = (await bursar.purchases.list({ agentId: await agent.id() }).page()).data;
  assert.equal(last?.url, `${shop}?city=Lisbon`);
  const frozen = await bursar.agents.update(await agent.id(), { policy: { frozen: true } });
  assert.equal(frozen.policy.frozen, true);
  await assert.rejects(buy(shop), /policy_frozen/);
});
