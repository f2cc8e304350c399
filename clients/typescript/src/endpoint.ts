import { Pages, type Page } from "./pages.js";
import type { Call, Transport } from "./transport.js";

export interface Options {
  /** Ends the wait for an answer. Whether the request was done is then not known. */
  signal?: AbortSignal;
  /** Milliseconds to wait for this answer, instead of the client's own. */
  timeout?: number;
}

export interface ReadOptions extends Options {
  /** Seconds, at most 30, that the service may wait for the outcome before it answers. */
  wait?: number;
}

export interface PostOptions extends Options {
  /**
   * One for each effect, the same at every retry of it. The client makes one if none is given; null
   * sends none.
   */
  idempotencyKey?: string | null;
}

export interface WaitOptions extends PostOptions {
  /** Seconds, at most 30, that the service may wait for the outcome before it answers. */
  wait?: number;
  /**
   * Of purchases without an idempotency key: the same method, URL, body and credentials
   * (`Authorization`, `Cookie`) within so many seconds are the same purchase.
   */
  sameWithin?: number;
}

/** What a method was given. */
interface Given {
  body?: object;
  query?: object;
  options: ReadOptions & WaitOptions;
}

// A purchase may wait for its turn half of this, and the service asks the seller twice: a quarter
// each, unless set otherwise.
const SELLER_MS = 120_000;

/** A group of endpoints, over one transport. */
export class Resource {
  /** @internal */
  constructor(protected readonly transport: Transport) {}

  protected async send<T>(method: string, path: string, given: Given): Promise<T> {
    const body = await this.transport.json<{ data: T } | undefined>(call(method, path, given));
    return body?.data as T;
  }

  protected pages<T>(path: string, given: Given): Pages<T> {
    const first = call("GET", path, given);
    return new Pages((after) =>
      this.transport.json<Page<T>>(
        after === undefined ? first : { ...first, query: { ...first.query, after } },
      ),
    );
  }

  protected download(path: string, given: Given): AsyncIterable<Uint8Array> {
    return this.transport.stream(call("GET", path, given));
  }

  protected segment(value: string): string {
    // Any of these would change the path, and so call another endpoint.
    if (value === "" || value === "." || value === "..") {
      throw new TypeError(`A part of a path must name something, not ${JSON.stringify(value)}.`);
    }
    return encodeURIComponent(value);
  }
}

function call(method: string, path: string, { body, query, options }: Given): Call {
  const headers: Record<string, string> = {};
  let idempotencyKey: string | null = null;
  if (method === "POST") {
    const { idempotencyKey: given = crypto.randomUUID() } = options;
    idempotencyKey = given;
    if (given !== null) headers["Idempotency-Key"] = given;
  }
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const preferred: string[] = [];
  if (options.wait !== undefined) preferred.push(`wait=${options.wait}`);
  if (options.sameWithin !== undefined) preferred.push(`same-within=${options.sameWithin}`);
  if (preferred.length > 0) headers["Prefer"] = preferred.join(", ");
  const buys = method === "POST" && path.startsWith("/v1/purchases");
  return {
    method,
    path,
    query: { ...query },
    headers,
    body: body === undefined ? null : JSON.stringify(body),
    idempotencyKey,
    patience: (options.wait ?? 0) * 1000 + (buys ? SELLER_MS : 0),
    signal: options.signal ?? null,
    timeout: options.timeout ?? null,
  };
}
