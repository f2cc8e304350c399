/** Sends requests, again where that is safe, and reads answers. */
import { ConnectionFailed, RequestFailed, ServiceError, TimedOut } from "./errors.js";
import { failureOf, unexpected } from "./refusal.js";
import { VERSION } from "./generated/version.js";

const FIRST_PAUSE_MS = 500;
const JITTER_MS = 200;
// If the service asks to wait longer than this, the error is thrown instead.
const LONGEST_PAUSE_MS = 120_000;
const TOO_MANY = 429;

/** One request, ready to be sent any number of times. */
export interface Call {
  method: string;
  path: string;
  query: Record<string, unknown>;
  headers: Record<string, string>;
  body: string | null;
  idempotencyKey: string | null;
  /** Milliseconds added to the timeout, because the service was asked to wait. */
  patience: number;
  signal: AbortSignal | null;
  timeout: number | null;
}

/** When a failed call is sent again. */
export interface Retries {
  most: number;
  /** Whether to wait for Retry-After if that is longer. */
  honourRetryAfter: boolean;
  /** Whether to retry after a broken connection, too: only calls that are safe to send twice. */
  brokenConnections: boolean;
}

export interface Service {
  apiKey: string;
  baseUrl: string;
  timeout: number;
  retries: Retries;
  fetch: typeof globalThis.fetch;
}

export class Transport {
  // Private for good: a logged client shows no key.
  readonly #service: Service;

  constructor(service: Service) {
    this.#service = service;
  }

  get baseUrl(): string {
    return this.#service.baseUrl;
  }

  /** The answer's JSON; undefined for an answer without a body. */
  async json<T>(call: Call): Promise<T> {
    const { response, text } = await this.#send(call, (answer) => answer.text());
    if (text === "") return undefined as T;
    try {
      return JSON.parse(text) as T;
    } catch (cause) {
      const requestId = response.headers.get("x-request-id");
      throw unexpected(response.status, requestId, call.idempotencyKey, null, { cause });
    }
  }

  async *stream(call: Call): AsyncGenerator<Uint8Array, void, undefined> {
    const { response } = await this.#send(call, async () => "");
    if (response.body === null) return;
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        yield value;
      }
    } catch (problem) {
      throw broken(call, this.baseUrl, problem);
    } finally {
      // Whoever stops early needs no more of it.
      await reader.cancel().catch(() => undefined);
    }
  }

  async #send(
    call: Call,
    read: (answer: Response) => Promise<string>,
  ): Promise<{ response: Response; text: string }> {
    for (let retry = 0; ; retry++) {
      let failure: RequestFailed;
      try {
        return await this.#once(call, read);
      } catch (problem) {
        if (!(problem instanceof RequestFailed)) throw problem;
        failure = problem;
      }
      const pause = pauseBefore(retry, call, failure, this.#service.retries, Math.random());
      if (pause === null) throw failure;
      await sleep(pause, call.signal);
    }
  }

  async #once(
    call: Call,
    read: (answer: Response) => Promise<string>,
  ): Promise<{ response: Response; text: string }> {
    const service = this.#service;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), (call.timeout ?? service.timeout) + call.patience);
    const signals = call.signal === null ? [late.signal] : [late.signal, call.signal];
    try {
      const response = await service.fetch(service.baseUrl + call.path + search(call.query), {
        method: call.method,
        headers: {
          Authorization: `Bearer ${service.apiKey}`,
          Accept: "application/json",
          "User-Agent": `bursar-typescript/${VERSION}`,
          ...call.headers,
        },
        body: call.body,
        // The key is for this address and no other.
        redirect: "manual",
        signal: AbortSignal.any(signals),
      });
      if (response.ok) return { response, text: await read(response) };
      const said = await response.text();
      throw failureOf(response.status, parsed(said), response.headers, call.idempotencyKey);
    } catch (problem) {
      if (problem instanceof RequestFailed) throw problem;
      // The caller gave up, and is told in its own words.
      if (call.signal?.aborted) throw call.signal.reason;
      throw broken(call, service.baseUrl, problem, late.signal.aborted);
    } finally {
      clearTimeout(timer);
    }
  }
}

/**
 * Milliseconds to wait before retry number `retry` (from 0); null: throw the failure instead.
 * `chance`, from 0 to 1, is the random part.
 */
export function pauseBefore(
  retry: number,
  call: Call,
  failure: RequestFailed,
  retries: Retries,
  chance: number,
): number | null {
  if (retry >= retries.most) return null;
  let pause = FIRST_PAUSE_MS * 2 ** retry + JITTER_MS * chance;
  if (failure instanceof ServiceError && failure.status === TOO_MANY) {
    if (retries.honourRetryAfter) pause = Math.max(pause, (failure.retryAfter ?? 0) * 1000);
    return pause <= LONGEST_PAUSE_MS ? pause : null;
  }
  // Sent twice, it has the same effect as sent once.
  const once = call.method === "GET" || call.idempotencyKey !== null;
  return failure instanceof ConnectionFailed && retries.brokenConnections && once ? pause : null;
}

export function sleep(milliseconds: number, signal: AbortSignal | null = null): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}

function broken(call: Call, baseUrl: string, problem: unknown, late = false): ConnectionFailed {
  const known = call.method === "GET" ? "" : " Whether it was done is not known.";
  // Node's fetch says only that it failed; what failed is the cause of that.
  const cause = problem instanceof Error && problem.cause instanceof Error ? problem.cause : problem;
  const why = late ? "no time left" : cause instanceof Error ? cause.message : String(cause);
  return new (late ? TimedOut : ConnectionFailed)(
    `${call.method} ${baseUrl}${call.path} got no answer (${why}).${known}`,
    call.idempotencyKey,
    { cause: problem },
  );
}

function search(query: Record<string, unknown>): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  if (given.length === 0) return "";
  return `?${new URLSearchParams(given.map(([name, value]) => [name, written(value)]))}`;
}

function written(value: unknown): string {
  if (value instanceof Date) return value.toISOString();
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
