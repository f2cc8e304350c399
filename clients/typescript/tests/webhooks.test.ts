// Goal: what the service signed verifies; nothing that differs from it does.
import assert from "node:assert/strict";
import { test } from "node:test";
import { InvalidSignature, verifyWebhook } from "bursar";

const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const BODY = '{"id":"evt_1","type":"wallet.depleted","data":{"agentId":"ag_1"}}';
const encoder = new TextEncoder();

async function signed(body: string, secret = SECRET, time = Math.floor(Date.now() / 1000)) {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", encoder.encode(secret), algorithm, false, [
    "sign",
  ]);
  const made = await crypto.subtle.sign("HMAC", key, encoder.encode(`${time}.${body}`));
  return `t=${time},v1=${Buffer.from(made).toString("hex")}`;
}

test("a delivery is verified as text and as bytes, and typed", async () => {
  const header = await signed(BODY);
  const event = await verifyWebhook(BODY, header, SECRET);
  if (event.type !== "wallet.depleted") assert.fail("another type");
  assert.equal(event.data.agentId, "ag_1");
  assert.deepEqual(await verifyWebhook(encoder.encode(BODY), header, SECRET), event);
});

test("the vector of the docs fits", async () => {
  const event = await verifyWebhook(
    '{"id":"evt_01kbfqz4t6g7h8j9k0m1n2p3q4","type":"agent.paused"}',
    "t=1794994200,v1=e83c6e980853fc3f6bb4bf60c73ec3d087de762c886ced9b9e4d794429ddbd3c",
    "whsec_QnVyc2FyIHRlc3QgdmVjdG9yLCBub3QgYSBzZWNyZXQ=",
    Infinity,
  );
  assert.equal(event.type, "agent.paused");
});

test("during a rotation either secret fits", async () => {
  const other = (await signed(BODY, "whsec_other")).split(",")[1];
  await verifyWebhook(BODY, `${await signed(BODY)},${other}`, SECRET);
});

test("everything else is refused", async () => {
  const header = await signed(BODY);
  const now = Math.floor(Date.now() / 1000);
  const refused: [string, string | null | undefined, string][] = [
    [`${BODY} `, header, SECRET],
    [BODY, header, "whsec_other"],
    [BODY, await signed(BODY, SECRET, now - 301), SECRET],
    [BODY, await signed(BODY, SECRET, now + 302), SECRET],
    [BODY, header.replace(/v1=../, "v1="), SECRET],
    [BODY, header.toUpperCase(), SECRET],
    [BODY, `t=${now}`, SECRET],
    [BODY, `t=${now},v1=`, SECRET],
    [BODY, `t=${now},v1=zz`, SECRET],
    [BODY, `t=1,${header}`, SECRET],
    [BODY, "", SECRET],
    [BODY, null, SECRET],
    ["[]", await signed("[]"), SECRET],
    ["nothing", await signed("nothing"), SECRET],
  ];
  for (const [body, given, secret] of refused) {
    await assert.rejects(verifyWebhook(body, given, secret), InvalidSignature, String(given));
  }
  await verifyWebhook(BODY, await signed(BODY, SECRET, now - 301), SECRET, 400);
});
