// Goal: what a model's call may cost, with a service that answers by a script: one key, one payment.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Bursar, RateLimitExceeded } from "bursar";
import { agentTools, type AgentTool } from "bursar/tools";

const OWN = { scope: "agent", agentId: "ag_1" };
const PURCHASE = {
  ...{ id: "pur_1", agentId: "ag_1", url: "https://api.example.com/a", method: "GET" },
  ...{ status: "presented", amount: "0.001000", decision: null },
};

interface Sent {
  path: string;
  headers: Headers;
}

/** A client whose service answers so, by path; and what it was sent. */
function scripted(answers: Record<string, () => Response>): { bursar: Bursar; sent: Sent[] } {
  const sent: Sent[] = [];
  const bursar = new Bursar({
    apiKey: "bur_test_00000000000000000000000000000000000000",
    baseUrl: "http://127.0.0.1:1",
    maxRetries: 0,
    fetch: async (input, init) => {
      const path = new URL(String(input)).pathname;
      sent.push({ path, headers: new Headers(init?.headers) });
      return (answers[path] ?? (() => new Response("", { status: 500 })))();
    },
  });
  return { bursar, sent };
}

function tool(bursar: Bursar, name: string): AgentTool {
  const found = agentTools(bursar.agent()).find((one) => one.name === name);
  assert.ok(found);
  return found;
}

const spend = { amount: "1", recipient: "api.example.com" };

test("a spend without an idempotency key is not sent", async () => {
  const { bursar, sent } = scripted({ "/v1/me": () => Response.json({ data: OWN }) });
  for (const given of [spend, { ...spend, idempotencyKey: null }]) {
    const { error } = (await tool(bursar, "spend").call(given)) as { error: { code: string } };
    assert.equal(error.code, "validation_error");
  }
  assert.ok(sent.every(({ path }) => path === "/v1/me"));
});

test("what a proxy answers leaves the payment open, and says how to find out", async () => {
  const { bursar } = scripted({
    "/v1/me": () => Response.json({ data: OWN }),
    "/v1/spend/authorise": () => new Response("<html>Gateway timeout</html>", { status: 504 }),
  });
  const said = await tool(bursar, "spend").call({ ...spend, idempotencyKey: "order-1" });
  const { error } = said as { error: { code: string; message: string; retryable: boolean } };
  assert.deepEqual([error.code, error.retryable], ["unavailable", true]);
  assert.match(error.message, /same idempotencyKey/);
});

test("only an agent's own key, and only its own wallet", async () => {
  const admin = scripted({ "/v1/me": () => Response.json({ data: { scope: "admin", agentId: null } }) });
  await assert.rejects(tool(admin.bursar, "get_budget").call({}), /scope agent/);
  const { bursar, sent } = scripted({ "/v1/me": () => Response.json({ data: OWN }) });
  const other = { ...spend, agentId: "ag_2", idempotencyKey: "order-1" };
  const { error } = (await tool(bursar, "spend").call(other)) as { error: { code: string } };
  assert.equal(error.code, "not_found");
  assert.equal(sent.length, 1);
});

test("what fails after the purchase carries the key of the purchase", async () => {
  const response = { status: 503, headers: {}, body: "", encoding: "text", truncated: false };
  const { bursar, sent } = scripted({
    "/v1/purchases": () => Response.json({ data: { ...PURCHASE, response } }),
    "/v1/purchases/pur_1/retry": () =>
      Response.json({ error: { code: "rate_limit_exceeded", message: "No." } }, { status: 429 }),
  });
  await assert.rejects(bursar.agent().fetch(PURCHASE.url), (problem) => {
    assert.ok(problem instanceof RateLimitExceeded);
    assert.equal(problem.idempotencyKey, sent[0]?.headers.get("idempotency-key"));
    return true;
  });
});

test("a fetch that is handed on asks for the same purchase at every try", async () => {
  const response = { status: 200, headers: {}, body: "{}", encoding: "text", truncated: false };
  const { bursar, sent } = scripted({
    "/v1/purchases": () => Response.json({ data: { ...PURCHASE, response } }),
  });
  await bursar.agent().payingFetch({ maxAmount: "0.01" })(PURCHASE.url);
  assert.equal(sent[0]?.headers.get("prefer"), "same-within=60");
  assert.equal(sent[0]?.headers.get("idempotency-key"), null);
});
