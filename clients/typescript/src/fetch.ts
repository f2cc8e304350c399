/** `fetch` that buys: hands back what was bought, as the platform's own hands back what it got. */
import {
  PurchaseFailed,
  PurchasePending,
  PurchaseRefused,
  PurchaseUnanswered,
  RequestFailed,
  type PurchaseError,
} from "./errors.js";
import type { WaitOptions } from "./endpoint.js";
import { InvalidState } from "./generated/errors.js";
import type { PurchasesResource } from "./generated/resources.js";
import type { NewPurchase, Purchase } from "./generated/types.js";
import { sleep } from "./transport.js";

// How long to wait before the seller is sent the same payment again.
const PAUSES_MS = [500, 1000, 2000, 4000];
// Answers of these statuses have no body, and a Response refuses to hold one.
const BODILESS = [101, 204, 205, 304];
// Payment required, timeout, too early, too many requests: answers to ask again after. Whoever asks
// again by another `fetch` pays again.
const STUMBLES = [402, 408, 425, 429];
const SELLERS_FAULT = 500;

/** What `fetch` takes beside what the platform's own takes. */
export interface BuyOptions {
  /** The most that you would pay for it. */
  maxAmount?: string;
  memo?: string;
  metadata?: Record<string, string>;
  /** Seconds, at most 30, to wait until the payment is final. */
  wait?: number;
  /** One for each purchase, the same at every retry of it. */
  idempotencyKey?: string;
  /**
   * Without an idempotency key: the same method, URL, body and credentials (`Authorization`,
   * `Cookie`) within so many seconds are the same purchase. For whoever tries again by itself, such
   * as an SDK that was handed this `fetch`.
   */
  sameWithin?: number;
}

export type BuyInit = RequestInit & BuyOptions;

/** The seller's answer, with the `purchase` that it belongs to. */
export type Bought = Response & {
  readonly purchase: Purchase;
  /** Whether the service cut the content, which was too long, too slow, or broke off. */
  readonly truncated: boolean;
};

export async function buy(
  purchases: PurchasesResource,
  agentId: string | undefined,
  input: string | URL | Request,
  init: BuyInit = {},
): Promise<Bought> {
  const { maxAmount, memo, metadata, wait, idempotencyKey, sameWithin, ...rest } = init;
  const key = idempotencyKey ?? (sameWithin === undefined ? crypto.randomUUID() : null);
  const request = new Request(input, rest);
  // It ends the wait, not the purchase.
  const signal = rest.signal ?? (input instanceof Request ? input.signal : null);
  // What is undefined is not sent.
  const waiting = { signal: signal ?? undefined, wait } as WaitOptions;
  const order = {
    agentId,
    url: request.url,
    method: request.method,
    headers: Object.fromEntries(request.headers),
    maxAmount,
    memo,
    metadata,
  } as NewPurchase;
  if (request.body !== null) {
    // The API takes bodies as text. Not UTF-8: a TypeError, before anything is sent.
    const content = await request.arrayBuffer();
    order.body = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content);
  }
  let purchase = await purchases.create(order, {
    ...waiting,
    idempotencyKey: key,
    ...(key === null && sameWithin !== undefined ? { sameWithin } : {}),
  });
  for (const pause of PAUSES_MS) {
    const problem = problemOf(purchase);
    if (problem !== null) throw problem;
    if (delivered(purchase)) break;
    await sleep(pause, signal ?? null);
    try {
      purchase = await look(purchases, purchase, waiting);
    } catch (failure) {
      // The key of that one request finds no purchase. By this one it is found, and goes on.
      if (failure instanceof RequestFailed) Object.assign(failure, { idempotencyKey: key });
      throw failure;
    }
  }
  const problem = problemOf(purchase);
  if (problem !== null) throw problem;
  return bought(purchase);
}

async function look(
  purchases: PurchasesResource,
  { id, status }: Purchase,
  options: WaitOptions,
): Promise<Purchase> {
  // Another request of the same key is with the seller.
  if (status === "open") return purchases.get(id);
  try {
    return await purchases.retry(id, options);
  } catch (problem) {
    // It ended meanwhile, or somebody else retries it just now.
    if (problem instanceof InvalidState) return purchases.get(id);
    throw problem;
  }
}

/** What ends the purchase without anything bought, if it has. */
function problemOf(purchase: Purchase): PurchaseError | null {
  switch (purchase.status) {
    case "rejected":
      return new PurchaseRefused(purchase);
    case "failed":
    case "unpaid":
      return new PurchaseFailed(purchase);
    case "pending":
      return new PurchasePending(purchase);
    default:
      return null;
  }
}

/**
 * Whether the seller's answer stands. One that stumbled, or has not seen its money yet, may hand
 * over the goods when it is shown the payment again.
 */
function delivered({ status, response }: Purchase): boolean {
  if (response === null) return false;
  const stumbled = STUMBLES.includes(response.status) || response.status >= SELLERS_FAULT;
  return status === "free" || !stumbled;
}

function bought(purchase: Purchase): Bought {
  const answer = purchase.response;
  if (answer === null) throw new PurchaseUnanswered(purchase);
  const headers = new Headers(answer.headers);
  const content = answer.encoding === "text" ? answer.body : decoded(answer.body);
  // Text is not packed, whatever the seller says, and its length in bytes may differ.
  if (answer.encoding === "text") headers.delete("content-encoding");
  headers.delete("content-length");
  const body = BODILESS.includes(answer.status) ? null : content;
  const response = new Response(body, { status: answer.status, headers });
  Object.defineProperty(response, "url", { value: purchase.url });
  return Object.assign(response, { purchase, truncated: answer.truncated });
}

function decoded(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
