/**
 * What a call may throw. Each carries the idempotency key it was sent with, if it had one.
 *
 *     BursarError
 *     ├── ConfigError               the client cannot be made like that
 *     ├── InvalidSignature          `verifyWebhook`: answer 400, and do not process the event
 *     ├── PurchaseError             `fetch` bought nothing, or got no answer: `purchase`
 *     │   ├── PurchaseRefused       the policy said no: `rejectCode`
 *     │   ├── PurchasePending       a person has to approve first
 *     │   ├── PurchaseFailed        nothing was paid: `failureCode`
 *     │   └── PurchaseUnanswered    what was bought may be paid, and its seller gave no answer
 *     └── RequestFailed
 *         ├── ConnectionFailed      no answer came; whether anything was done is not known
 *         │   └── TimedOut
 *         └── ServiceError          an answer that is an error: `status`, `code`, `requestId`, …
 *             ├── ValidationError … one for each code of the API, named as the code is
 *             └── UnexpectedAnswer  not an answer of Bursar's: a proxy's, or another version's
 *
 * To try again by hand, pass the error's `idempotencyKey` with the same arguments: whatever
 * happened to the first try, it is done once.
 */
import type { ErrorCode, Purchase, RejectCode } from "./generated/types.js";

// Names are written out: in a minified program a class has another.
export class BursarError extends Error {
  override readonly name: string = "BursarError";
}

export class ConfigError extends BursarError {
  override readonly name: string = "ConfigError";
}

export class InvalidSignature extends BursarError {
  override readonly name: string = "InvalidSignature";
}

// Requests ----------------------------------------------------------------------------------------

export class RequestFailed extends BursarError {
  override readonly name: string = "RequestFailed";

  constructor(
    message: string,
    /** Send it again with the same arguments, and the effect happens once. Of POSTs only. */
    readonly idempotencyKey: string | null,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

export class ConnectionFailed extends RequestFailed {
  override readonly name: string = "ConnectionFailed";
}

export class TimedOut extends ConnectionFailed {
  override readonly name: string = "TimedOut";
}

export interface Fault {
  param: string;
  message: string;
}

/** What the service said of an error. */
export interface Refusal {
  message: string;
  status: number;
  /** A newer service may have codes that this client does not know. */
  code: ErrorCode | "unexpected_answer" | (string & {});
  /** The first field at fault; `details` has all of them. */
  param: string | null;
  details: Fault[];
  retryable: boolean;
  requestId: string | null;
  /** Seconds, when the service said so. */
  retryAfter: number | null;
}

export class ServiceError extends RequestFailed {
  override readonly name: string = "ServiceError";

  readonly status: number;
  readonly code: Refusal["code"];
  readonly param: string | null;
  readonly details: Fault[];
  readonly retryable: boolean;
  readonly requestId: string | null;
  readonly retryAfter: number | null;

  constructor(said: Refusal, idempotencyKey: string | null, options?: ErrorOptions) {
    const request = said.requestId === null ? "" : `, ${said.requestId}`;
    super(`${said.message} (${said.status} ${said.code}${request})`, idempotencyKey, options);
    this.status = said.status;
    this.code = said.code;
    this.param = said.param;
    this.details = said.details;
    this.retryable = said.retryable;
    this.requestId = said.requestId;
    this.retryAfter = said.retryAfter;
  }
}

export class UnexpectedAnswer extends ServiceError {
  override readonly name: string = "UnexpectedAnswer";
}

// Purchases ---------------------------------------------------------------------------------------

export class PurchaseError extends BursarError {
  override readonly name: string = "PurchaseError";

  constructor(
    readonly purchase: Purchase,
    why: string,
  ) {
    super(`${purchase.method} ${purchase.url}, ${purchase.id}: ${why}`);
  }
}

/** The policy refused; `purchase.decision` says what would pass, and when. */
export class PurchaseRefused extends PurchaseError {
  override readonly name: string = "PurchaseRefused";

  constructor(purchase: Purchase) {
    super(purchase, `The policy refused it, ${purchase.rejectCode}.`);
  }

  get rejectCode(): RejectCode | null {
    return this.purchase.rejectCode;
  }
}

/** A person has to approve it. Then `purchases.continue(purchase.id)` goes on. */
export class PurchasePending extends PurchaseError {
  override readonly name: string = "PurchasePending";

  constructor(purchase: Purchase) {
    super(
      purchase,
      `A person has to approve ${purchase.amount} USDC. Then \`purchases.continue\` goes on with it.`,
    );
  }
}

/** It ended, and nothing was paid. */
export class PurchaseFailed extends PurchaseError {
  override readonly name: string = "PurchaseFailed";

  constructor(purchase: Purchase) {
    super(
      purchase,
      purchase.status === "unpaid"
        ? "The seller never took the payment, which is proven dead; nothing was paid."
        : `Nothing was paid, ${purchase.failureCode}: ${purchase.problem ?? "no more is known"}`,
    );
  }

  get failureCode(): Purchase["failureCode"] {
    return this.purchase.failureCode;
  }
}

/**
 * No answer of the seller is there. If the payment left the service, `purchases.retry(purchase.id)`
 * asks for the goods again, and never pays again. One that is still being made, by another request,
 * is looked at with `purchases.get`: there is no payment yet to show again.
 */
export class PurchaseUnanswered extends PurchaseError {
  override readonly name: string = "PurchaseUnanswered";

  constructor(purchase: Purchase) {
    super(purchase, whatHelps(purchase));
  }
}

function whatHelps({ status }: Purchase): string {
  if (status === "open") {
    return "Another request is still making it. `purchases.get` shows what becomes of it.";
  }
  if (status === "free") {
    return "It cost nothing, and the seller's answer is no longer kept: fetch it again.";
  }
  return (
    `It is ${status}, and the seller's answer is not there.` +
    " `purchases.retry` asks for it again, and pays nothing more."
  );
}
