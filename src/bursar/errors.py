"""Everything that can go wrong, as one tree.

BursarError
├── ApiError              an answer with an error body; `code` says which
│   └── ValidationFailed  400 with every fault of the request at once
├── ConfigError           a setting is wrong; the process says which and exits with 2
├── CommandFailed         an operator's command cannot go on; its message says what to do
└── InvariantBroken       a bug: the request fails with 500, nothing is written

An expected "no" (a refused spend) is not an error but a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class ErrorCode(StrEnum):
    """Each code with its HTTP status; `docs/errors.md` has a paragraph on every one."""

    status: int
    retryable: bool

    def __new__(cls, value: str, status: int, retryable: bool = False) -> "ErrorCode":
        member = str.__new__(cls, value)
        member._value_ = value
        member.status = status
        member.retryable = retryable
        return member

    VALIDATION_ERROR = "validation_error", 400
    INVALID_JSON = "invalid_json", 400
    UNAUTHORIZED = "unauthorized", 401
    FORBIDDEN = "forbidden", 403
    NOT_FOUND = "not_found", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    AGENT_TERMINATED = "agent_terminated", 409
    POLICY_VERSION_CONFLICT = "policy_version_conflict", 409
    INSUFFICIENT_FUNDS = "insufficient_funds", 409
    INVALID_STATE = "invalid_state", 409
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress", 409, True
    LIMIT_REACHED = "limit_reached", 409
    PAYLOAD_TOO_LARGE = "payload_too_large", 413
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused", 422
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded", 429, True
    INTERNAL_ERROR = "internal_error", 500, True
    UNAVAILABLE = "unavailable", 503, True


class BursarError(Exception):
    """The root; never raised itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with one place of a request, e.g. `policy.dailyCap`."""

    param: str
    message: str


class ApiError(BursarError):
    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        details: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.details = tuple(details)
        self.headers = dict(headers or {})

    def body(self, request_id: str) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code.value, "message": self.message}
        if self.param is not None:
            error["param"] = self.param
        if self.details:
            error["details"] = [{"param": f.param, "message": f.message} for f in self.details]
        error["retryable"] = self.code.retryable
        error["requestId"] = request_id
        return {"error": error}


class ValidationFailed(ApiError):
    """All faults of one request, reported together."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        check(len(faults) > 0, "a validation error names at least one fault")
        first = faults[0]
        more = f" (and {len(faults) - 1} more, see details)" if len(faults) > 1 else ""
        super().__init__(
            ErrorCode.VALIDATION_ERROR,
            f"{first.message}{more}",
            param=first.param,
            details=faults,
        )


def not_found(what: str) -> ApiError:
    return ApiError(
        ErrorCode.NOT_FOUND,
        f"No such {what} for this key. Check the id, the key's account and its mode.",
    )


def unavailable(message: str, retry_after_seconds: int = 1) -> ApiError:
    return ApiError(
        ErrorCode.UNAVAILABLE, message, headers={"Retry-After": str(retry_after_seconds)}
    )


class ConfigError(BursarError):
    """`variable` is the setting at fault, as the user would set it."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable}: {problem}")
        self.variable = variable
        self.problem = problem


class CommandFailed(BursarError):
    """Carries the sentence an operator reads."""


class InvariantBroken(BursarError):
    """Something that can never be, was. Crashes the request instead of writing nonsense."""

    def __str__(self) -> str:
        return f"invariant broken: {super().__str__()}"


def check(condition: bool, invariant: str) -> None:
    """`assert` that `python -O` keeps: for what must hold whatever the input."""
    if not condition:
        raise InvariantBroken(invariant)


def of_kind(value: object, kind: type[T], invariant: str) -> T:
    """The value, which is of this kind whatever the input."""
    if not isinstance(value, kind):
        raise InvariantBroken(invariant)
    return value


def present(value: T | None, invariant: str) -> T:
    """The value, which is there whatever the input."""
    if value is None:
        raise InvariantBroken(invariant)
    return value
