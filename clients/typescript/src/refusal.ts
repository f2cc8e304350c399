import { ServiceError, UnexpectedAnswer, type Fault } from "./errors.js";
import * as errors from "./generated/errors.js";

const KINDS: Record<string, typeof ServiceError> = errors;

/** The error for an answer that is not 2xx; `body` is its JSON, or null. */
export function failureOf(
  status: number,
  body: unknown,
  headers: Headers,
  idempotencyKey: string | null,
): ServiceError {
  const requestId = headers.get("x-request-id");
  const seconds = headers.get("retry-after") ?? "";
  // Whole seconds are the only form that Bursar sends.
  const retryAfter = /^[0-9]{1,9}$/.test(seconds) ? Number(seconds) : null;
  const error = fields(fields(body)?.["error"]);
  if (typeof error?.["code"] !== "string" || typeof error["message"] !== "string") {
    return unexpected(status, requestId, idempotencyKey, retryAfter);
  }
  const code = error["code"];
  const name = code.replace(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const kind = Object.hasOwn(KINDS, name) ? KINDS[name] : undefined;
  return new (kind ?? ServiceError)(
    {
      message: error["message"],
      status,
      code,
      param: typeof error["param"] === "string" ? error["param"] : null,
      details: Array.isArray(error["details"]) ? (error["details"] as Fault[]) : [],
      retryable: error["retryable"] === true,
      requestId: typeof error["requestId"] === "string" ? error["requestId"] : requestId,
      retryAfter,
    },
    idempotencyKey,
  );
}

/** For an answer that is not one of Bursar's, or not one that this client can read. */
export function unexpected(
  status: number,
  requestId: string | null,
  idempotencyKey: string | null,
  retryAfter: number | null = null,
  options?: ErrorOptions,
): UnexpectedAnswer {
  return new UnexpectedAnswer(
    {
      message:
        `The answer, ${status}, is not one of Bursar's. Is baseUrl the address of the service, and` +
        " does nothing in between answer for it?",
      status,
      code: "unexpected_answer",
      param: null,
      details: [],
      retryable: false,
      requestId,
      retryAfter,
    },
    idempotencyKey,
    options,
  );
}

function fields(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null
    ? (value as Record<string, unknown>)
    : undefined;
}
