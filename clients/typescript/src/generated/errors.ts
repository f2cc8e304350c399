// Written by `make reference` from the OpenAPI document. Change nothing here.

import { ServiceError } from "../errors.js";

export class ValidationError extends ServiceError {
  override readonly name: string = "ValidationError";
}

export class InvalidJson extends ServiceError {
  override readonly name: string = "InvalidJson";
}

export class Unauthorized extends ServiceError {
  override readonly name: string = "Unauthorized";
}

export class Forbidden extends ServiceError {
  override readonly name: string = "Forbidden";
}

export class NotFound extends ServiceError {
  override readonly name: string = "NotFound";
}

export class MethodNotAllowed extends ServiceError {
  override readonly name: string = "MethodNotAllowed";
}

export class AgentTerminated extends ServiceError {
  override readonly name: string = "AgentTerminated";
}

export class PolicyVersionConflict extends ServiceError {
  override readonly name: string = "PolicyVersionConflict";
}

export class InsufficientFunds extends ServiceError {
  override readonly name: string = "InsufficientFunds";
}

export class InvalidState extends ServiceError {
  override readonly name: string = "InvalidState";
}

export class IdempotencyInProgress extends ServiceError {
  override readonly name: string = "IdempotencyInProgress";
}

export class LimitReached extends ServiceError {
  override readonly name: string = "LimitReached";
}

export class PayloadTooLarge extends ServiceError {
  override readonly name: string = "PayloadTooLarge";
}

export class UnsupportedMediaType extends ServiceError {
  override readonly name: string = "UnsupportedMediaType";
}

export class IdempotencyKeyReused extends ServiceError {
  override readonly name: string = "IdempotencyKeyReused";
}

export class RateLimitExceeded extends ServiceError {
  override readonly name: string = "RateLimitExceeded";
}

export class InternalError extends ServiceError {
  override readonly name: string = "InternalError";
}

export class Unavailable extends ServiceError {
  override readonly name: string = "Unavailable";
}
