// Goal: the rules of trying again, and what is sent, against a server that answers by a script.
import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { after, beforeEach, test } from "node:test";
import { inspect } from "node:util";
import {
  Bursar,
  ConfigError,
  ConnectionFailed,
  InternalError,
  NotFound,
  RateLimitExceeded,
  ServiceError,
  TimedOut,
  UnexpectedAnswer,
  ValidationError,
  type BursarOptions,
} from "bursar";

const KEY = "bur_test_00000000000000000000000000000000000000";
type Answer = (request: IncomingMessage, response: ServerResponse) => void;
interface Seen {
  method: string;
  url: string;
  headers: IncomingMessage["headers"];
  body: string;
}

let script: Answer[] = [];
let seen: Seen[] = [];
const server = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  const { method = "", url = "", headers } = request;
  seen.push({ method, url, headers, body });
  (script.shift() ?? said(500, { error: error("internal_error") }))(request, response);
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
after(() => {
  server.close();
  server.closeAllConnections();
});
beforeEach(() => {
  script = [];
  seen = [];
});

function bursar(options: BursarOptions = {}): Bursar {
  return new Bursar({ apiKey: KEY, baseUrl, ...options });
}

function said(status: number, body: unknown, headers: Record<string, string> = {}): Answer {
  return (_, response) => {
    response.writeHead(status, { "x-request-id": "req_1", ...headers });
    response.end(typeof body === "string" ? body : JSON.stringify(body));
  };
}

function error(code: string, more: object = {}): object {
  return { code, message: "No.", retryable: false, requestId: "req_1", ...more };
}

const tooMany = said(429, { error: error("rate_limit_exceeded") }, { "retry-after": "7" });
const hangUp: Answer = (request) => request.socket.destroy();

test("a 429 is tried again with the same key, after the pauses of the rule", async () => {
  script = [tooMany, tooMany, said(201, { data: { id: "txn_1" } })];
  const started = performance.now();
  const made = await bursar().spend.authorise({ amount: "1", recipient: "api.example.com" });
  const took = performance.now() - started;
  assert.equal(made.id, "txn_1");
  assert.equal(seen.length, 3);
  assert.equal(new Set(seen.map(({ headers }) => headers["idempotency-key"])).size, 1);
  assert.ok(took >= 1490 && took < 3000, `${took} ms`);
});

test("after the last retry the error is thrown, with everything that it says", async () => {
  script = [tooMany, tooMany];
  const failure = await failed(bursar({ maxRetries: 1 }).keys.me(), RateLimitExceeded);
  assert.equal(seen.length, 2);
  const { status, code, retryAfter, requestId, idempotencyKey, name } = failure;
  assert.deepEqual(
    { status, code, retryAfter, requestId, idempotencyKey, name },
    {
      status: 429,
      code: "rate_limit_exceeded",
      retryAfter: 7,
      requestId: "req_1",
      idempotencyKey: null,
      name: "RateLimitExceeded",
    },
  );
});

test("every other error is thrown at once", async () => {
  const details = [{ param: "amount", message: "No." }];
  script = [said(400, { error: error("validation_error", { param: "amount", details }) })];
  const spend = { amount: "1", recipient: "api.example.com" };
  const failure = await failed(
    bursar().spend.authorise(spend, { idempotencyKey: "k1" }),
    ValidationError,
  );
  assert.deepEqual([failure.param, failure.details], ["amount", details]);
  assert.equal(failure.idempotencyKey, "k1");
  await failed(bursar().keys.me(), InternalError);
  script = [hangUp];
  const broken = await failed(bursar().spend.authorise(spend), ConnectionFailed);
  assert.match(broken.message, /Whether it was done is not known/);
  assert.ok(broken.idempotencyKey);
  assert.equal(seen.length, 3);
});

test("a broken connection is tried again when asked, where that is safe", async () => {
  script = [hangUp, said(201, { data: { id: "txn_1" } }), hangUp];
  const client = bursar({ retryConnections: true });
  await client.spend.authorise({ amount: "1", recipient: "api.example.com" });
  assert.equal(seen[0]?.headers["idempotency-key"], seen[1]?.headers["idempotency-key"]);
  await failed(client.agents.update("ag_1", { status: "paused" }), ConnectionFailed);
  assert.equal(seen.length, 3);
});

test("answers of somebody else are named so", async () => {
  for (const body of ["<html>", "[]", "{}", '{"error": "no"}', '{"error": {"code": 1}}']) {
    script.push(said(502, body));
    const failure = await failed(bursar().keys.me(), UnexpectedAnswer);
    assert.equal(failure.status, 502);
  }
  script = [said(200, "<html>")];
  await failed(bursar().keys.me(), UnexpectedAnswer);
  script = [said(409, { error: error("brand_new") })];
  const newer = await failed(bursar().keys.me(), ServiceError);
  assert.equal(newer.code, "brand_new");
  assert.ok(!(newer instanceof NotFound));
});

test("a redirect is not followed, for the key belongs to one address", async () => {
  script = [said(302, "", { location: `${baseUrl}/elsewhere` })];
  await failed(bursar().keys.me(), UnexpectedAnswer);
  assert.equal(seen.length, 1);
});

test("no answer in time, and a caller that gives up", async () => {
  const never: Answer = () => undefined;
  script = [never, never];
  await failed(bursar({ timeout: 100 }).keys.me(), TimedOut);
  const signal = AbortSignal.timeout(50);
  await assert.rejects(bursar().keys.me({ signal }), { name: "TimeoutError" });
});

test("what is sent", async () => {
  script = [said(200, { data: [], hasMore: false, nextCursor: null }), said(204, "")];
  const client = bursar();
  const from = new Date("2026-11-15T09:30:00Z");
  await client.transactions.list({ agentId: "ag_1", from, limit: 5 }).page();
  const asked = new URL(seen[0]?.url ?? "", baseUrl);
  assert.equal(asked.pathname, "/v1/transactions");
  assert.deepEqual(Object.fromEntries(asked.searchParams), {
    agentId: "ag_1",
    from: "2026-11-15T09:30:00.000Z",
    limit: "5",
  });
  assert.equal(seen[0]?.headers.authorization, `Bearer ${KEY}`);
  assert.equal(seen[0]?.headers["idempotency-key"], undefined);
  assert.equal(await client.webhooks.delete("a/b"), undefined);
  assert.equal(seen[1]?.url, "/v1/webhooks/a%2Fb");
  for (const id of ["", ".", ".."]) assert.throws(() => client.agents.terminate(id), TypeError);
});

test("pages are read as they are needed", async () => {
  const page = (ids: number[], nextCursor: string | null) =>
    said(200, { data: ids.map((id) => ({ id })), hasMore: nextCursor !== null, nextCursor });
  script = [page([1, 2], "c1"), page([3], null), page([1, 2], "c1")];
  const found: unknown[] = [];
  for await (const agent of bursar().agents.list({ limit: 2 })) found.push(agent.id);
  assert.deepEqual(found, [1, 2, 3]);
  assert.match(seen[1]?.url ?? "", /limit=2&after=c1$/);
  for await (const _ of bursar().agents.list()) break;
  assert.equal(seen.length, 3);
});

test("a key that could be read on its way is refused, and none is shown", () => {
  const live = KEY.replace("test", "live");
  assert.throws(() => new Bursar({ apiKey: live, baseUrl: "http://example.com" }), ConfigError);
  for (const url of ["https://example.com", "http://127.0.0.1:1", "http://localhost:1"]) {
    assert.equal(new Bursar({ apiKey: live, baseUrl: `${url}/` }).baseUrl, url);
  }
  for (const apiKey of ["", "bur test", "bür"]) {
    assert.throws(() => new Bursar({ apiKey, baseUrl }), ConfigError);
  }
  assert.ok(!inspect(bursar(), { depth: 9, showHidden: true }).includes(KEY));
});

async function failed<E extends Error>(
  call: Promise<unknown>,
  kind: abstract new (...given: never[]) => E,
): Promise<E> {
  const caught = await call.then(
    () => assert.fail("It did not fail."),
    (problem: unknown) => problem,
  );
  assert.ok(caught instanceof kind, String(caught));
  return caught;
}

test("a wait ends with the outcome or with the time, and asks no more often than fits into it", async () => {
  const pending = said(200, { data: { status: "pending" } });
  const settled = said(200, { data: { status: "settled" } });
  const cases: [number, Answer[], number[], string][] = [
    [70, [pending, pending, pending], [30, 30, 10], "pending"],
    [70, [pending, settled], [30, 30], "settled"],
    [0, [pending], [0], "pending"],
  ];
  for (const [seconds, answers, rounds, status] of cases) {
    script = answers;
    seen = [];
    const found = await bursar().transactions.wait("txn_1", { seconds });
    assert.equal(found.status, status);
    assert.deepEqual(
      seen.map(({ headers }) => headers["prefer"]),
      rounds.map((round) => `wait=${round}`),
    );
  }
});
