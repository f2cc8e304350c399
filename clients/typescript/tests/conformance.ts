// Runs the list of tests/conformance with this client: `node conformance.js scenarios.json`, the
// keys (one for each scenario) on standard input. Prints what did not go as the list says.
import { readFile } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { isDeepStrictEqual } from "node:util";
import { Bursar, InvalidSignature, Pages, PurchaseError, RequestFailed, verifyWebhook } from "bursar";

type Json = Record<string, any>;
const SECONDS = 30;
const PAUSE_MS = 100;

class Mismatch extends Error {}

class Run {
  readonly #clients = new Map<string, Bursar>();
  readonly #receivers = new Map<string, Receiver>();

  constructor(
    readonly key: string,
    readonly known: Json,
  ) {}

  async step(step: Json): Promise<void> {
    if (step["until"]) return this.#until(step["until"]);
    const given = filled(step, this.known) as Json;
    let found: unknown;
    try {
      found = await this.#done(given);
    } catch (problem) {
      const ours = problem instanceof RequestFailed || problem instanceof PurchaseError;
      if (!ours || !given["fails"]) throw ours ? new Mismatch(String(problem)) : problem;
      return check(problem, given["fails"]);
    }
    if (given["fails"]) throw new Mismatch("It did not fail.");
    check(found, given["expect"] ?? {});
    if (given["save"]) this.known[given["save"]] = found;
  }

  async #until(step: Json): Promise<void> {
    for (let tries = (SECONDS * 1000) / PAUSE_MS; tries > 0; tries--) {
      try {
        return await this.step(step);
      } catch (problem) {
        if (!(problem instanceof Mismatch)) throw problem;
        await sleep();
      }
    }
    return this.step(step);
  }

  async #done(step: Json): Promise<unknown> {
    if (step["webhook"]) {
      const receiver = await Receiver.open();
      this.#receivers.set(step["save"], receiver);
      return this.#client().webhooks.create({ url: receiver.url, events: step["webhook"] });
    }
    const receiver = this.#receivers.get(step["delivered"] ?? step["forged"]);
    const secret = step["secret"] ?? this.known[step["delivered"] ?? step["forged"]]?.secret;
    if (step["delivered"]) return receiver?.event(step["type"], secret);
    if (step["forged"]) return receiver?.forge(secret);
    const client = this.#client(step["key"]);
    if (step["fetch"]) {
      const answer = await client.agent(step["agent"]).fetch(step["fetch"], step["options"]);
      return { status: answer.status, body: await answer.json(), purchase: answer.purchase };
    }
    const kind = ["call", "list", "page", "download"].find((one) => step[one]) ?? "";
    const [resource = "", name = ""] = step[kind].split(".");
    const group = (client as unknown as Record<string, Json>)[resource] ?? {};
    const body = step["body"] ?? step["query"] ?? {};
    const options = step["options"] ? [body, step["options"]] : [];
    const more = step["body"] || step["query"] ? [body] : [];
    const asked = group[name](...(step["path"] ?? []), ...(options.length ? options : more));
    if (kind === "page") return (asked as Pages<unknown>).page();
    if (kind === "call") return asked;
    const rows: any[] = [];
    for await (const row of asked) rows.push(row);
    if (kind === "list") return rows;
    const text = Buffer.concat(rows).toString();
    if (!text.includes(step["contains"])) throw new Mismatch(`${step["contains"]} is not in it.`);
    return text;
  }

  #client(key = this.key): Bursar {
    const client = this.#clients.get(key) ?? new Bursar({ apiKey: key });
    this.#clients.set(key, client);
    return client;
  }

  close(): void {
    for (const receiver of this.#receivers.values()) receiver.close();
  }
}

/** A server that keeps what it is sent. */
class Receiver {
  readonly #got: { body: Uint8Array; signature: string; taken: boolean }[] = [];
  readonly #server: Server = createServer(async (request, response) => {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    const signature = String(request.headers["service-signature"]);
    this.#got.push({ body: Buffer.concat(pieces), signature, taken: false });
    response.end();
  });

  static async open(): Promise<Receiver> {
    const receiver = new Receiver();
    await new Promise<void>((resolve) => receiver.#server.listen(0, "127.0.0.1", resolve));
    return receiver;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/`;
  }

  /** The next of this type, verified. Each delivery is given once. */
  async event(type: string, secret: string): Promise<unknown> {
    for (let tries = (SECONDS * 1000) / PAUSE_MS; tries > 0; tries--) {
      for (const delivery of this.#got) {
        const { body, signature, taken } = delivery;
        if (!taken && JSON.parse(Buffer.from(body).toString()).type === type) {
          delivery.taken = true;
          return verifyWebhook(body, signature, secret);
        }
      }
      await sleep();
    }
    throw new Mismatch(`No ${type} was delivered.`);
  }

  async forge(secret: string): Promise<void> {
    const { body, signature } = this.#got.at(-1)!;
    const forged: [Uint8Array, string][] = [
      [body, `${secret}x`],
      [Buffer.concat([body, Buffer.from(" ")]), secret],
    ];
    for (const [bytes, other] of forged) {
      const refused = await verifyWebhook(bytes, signature, other).then(
        () => false,
        (problem) => problem instanceof InvalidSignature,
      );
      if (!refused) throw new Mismatch("A forged delivery was taken for a real one.");
    }
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

/** With what `$name.field` stands for. */
function filled(value: unknown, known: Json): unknown {
  if (typeof value === "string") return value.startsWith("$") ? at(known, value.slice(1)) : value;
  if (Array.isArray(value)) return value.map((item) => filled(item, known));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, filled(of, known)]));
}

function check(found: unknown, expected: Json): void {
  for (const [path, value] of Object.entries(expected)) {
    const there = at(found, path) ?? null;
    if (value === "*" ? there === null : !isDeepStrictEqual(there, value)) {
      const shown = `${JSON.stringify(there)}, not ${JSON.stringify(value)}`;
      throw new Mismatch(`${path} is ${shown}`);
    }
  }
}

function at(value: any, path: string): any {
  return path.split(".").reduce((of, part) => of?.[part], value);
}

function sleep(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
}

const [, , file = ""] = process.argv;
const scenarios = JSON.parse(await readFile(file, "utf8")) as { name: string; steps: Json[] }[];
let input = "";
for await (const piece of process.stdin) input += piece;
const keys = input.split("\n");
const shop = process.env["SHOP_URL"] ?? "";

/** What did not go as the list says, of one scenario. */
async function outcome(steps: Json[], key: string): Promise<string> {
  const run = new Run(key, { shop, shopHost: new URL(shop).hostname });
  try {
    for (const [place, step] of steps.entries()) {
      await run.step(step).catch((problem: unknown) => {
        throw new Error(`step ${place + 1}: ${problem}`, { cause: problem });
      });
    }
    return "";
  } catch (problem) {
    return String(problem);
  } finally {
    run.close();
  }
}

// A few side by side: most of a scenario is waiting for the service.
const results: Json = {};
const waiting = scenarios.entries();
async function work(): Promise<void> {
  for (const [number, { name, steps }] of waiting) {
    results[name] = await outcome(steps, keys[number] ?? "");
  }
}
await Promise.all([work(), work(), work(), work()]);
console.log(JSON.stringify(results));
