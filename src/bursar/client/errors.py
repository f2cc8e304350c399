"""What a call may raise. Each carries the idempotency key it was sent with, if it had one.

BursarError
├── PurchaseError                 `fetch` bought nothing, or got no answer: `purchase`
│   ├── PurchaseRefused           the policy said no: `reject_code`
│   ├── PurchasePending           a person has to approve first
│   ├── PurchaseFailed            nothing was paid: `failure_code`
│   └── PurchaseUnanswered        what was bought may be paid, and its seller gave no answer
└── RequestFailed
    ├── ConnectionFailed          no answer came; whether anything was done is not known
    │   ├── TimedOut
    │   └── NotSent               no connection was made: nothing was done
    └── ServiceError              an answer that is an error: `status`, `code`, `request_id`, …
        ├── ValidationError …     one for each code of the API, named as the code is
        └── UnexpectedAnswer      not an answer of Bursar's: a proxy's, or another version's

To try again by hand, pass the exception's `idempotency_key` with the same arguments: whatever
happened to the first try, it is done once.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from bursar.client.model import Purchase
from bursar.errors import BursarError, ErrorCode, Fault

UNEXPECTED: Final = "unexpected_answer"


class PurchaseError(BursarError):
    """`fetch` has no answer of the seller to hand back."""

    def __init__(self, purchase: Purchase) -> None:
        super().__init__(purchase)
        self.purchase = purchase

    def _why(self) -> str:
        return f"It is {self.purchase.status}."

    def __str__(self) -> str:
        bought = self.purchase
        return f"{bought.method} {bought.url}, {bought.id}: {self._why()}"


class PurchaseRefused(PurchaseError):
    """The policy refused; `purchase.decision` says what would pass, and when."""

    @property
    def reject_code(self) -> str | None:
        return self.purchase.reject_code

    def _why(self) -> str:
        return f"The policy refused it, {self.reject_code}."


class PurchasePending(PurchaseError):
    """A person has to approve it. Then `purchases.continue_(purchase.id)` goes on."""

    def _why(self) -> str:
        return (
            f"A person has to approve {self.purchase.amount} USDC. Then"
            " `purchases.continue_` goes on with it."
        )


class PurchaseFailed(PurchaseError):
    """It ended, and nothing was paid."""

    @property
    def failure_code(self) -> str | None:
        return self.purchase.failure_code

    def _why(self) -> str:
        if self.purchase.status == "unpaid":
            return "The seller never took the payment, which is proven dead; nothing was paid."
        return (
            f"Nothing was paid, {self.failure_code}: {self.purchase.problem or 'no more is known'}"
        )


class PurchaseUnanswered(PurchaseError):
    """No answer of the seller is there. If the payment left the service, `purchases.retry(
    purchase.id)` asks for the goods again, and never pays again. One that is still being made, by
    another request, is looked at with `purchases.get`: there is no payment yet to show again."""

    def _why(self) -> str:
        status = self.purchase.status
        if status == "open":
            return "Another request is still making it. `purchases.get` shows what becomes of it."
        if status == "free":
            return "It cost nothing, and the seller's answer is no longer kept: fetch it again."
        return (
            f"It is {status}, and the seller's answer is not there."
            " `purchases.retry` asks for it again, and pays nothing more."
        )


class RequestFailed(BursarError):
    """A call that did not succeed."""

    def __init__(self, message: str, *, idempotency_key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        # Send it again with the same arguments, and the effect happens once. None unless a POST.
        self.idempotency_key = idempotency_key


class ConnectionFailed(RequestFailed):
    """The service could not be reached, or the connection broke before the answer was whole."""


class TimedOut(ConnectionFailed):
    """No answer within the client's `timeout`."""


class NotSent(ConnectionFailed):
    """No connection could be made, so nothing was sent and nothing was done."""


class ServiceError(RequestFailed):
    """The service answered with an error."""

    # The API's error code for this class; a code that only a newer service knows has no class.
    raised_for: ClassVar[ErrorCode | None] = None

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = UNEXPECTED,
        param: str | None = None,
        details: Sequence[Fault] = (),
        retryable: bool = False,
        request_id: str | None = None,
        retry_after: int | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        super().__init__(message, idempotency_key=idempotency_key)
        self.status = status
        self.code = code
        # The first field at fault; `details` has all of them.
        self.param = param
        self.details = tuple(details)
        self.retryable = retryable
        self.request_id = request_id
        # Seconds, when the service said so.
        self.retry_after = retry_after

    def __str__(self) -> str:
        request = f", {self.request_id}" if self.request_id else ""
        return f"{self.message} ({self.status} {self.code}{request})"


class ValidationError(ServiceError):
    """Something in the request is not as it must be; `details` names everything at once."""

    raised_for = ErrorCode.VALIDATION_ERROR


class InvalidJson(ServiceError):
    raised_for = ErrorCode.INVALID_JSON


class Unauthorized(ServiceError):
    """The API key is missing, mistyped, unknown, revoked or expired."""

    raised_for = ErrorCode.UNAUTHORIZED


class Forbidden(ServiceError):
    """The key's scope does not allow this; the message names the scope that does."""

    raised_for = ErrorCode.FORBIDDEN


class NotFound(ServiceError):
    """No such object for this key: check the id, the account and the mode."""

    raised_for = ErrorCode.NOT_FOUND


class MethodNotAllowed(ServiceError):
    raised_for = ErrorCode.METHOD_NOT_ALLOWED


class AgentTerminated(ServiceError):
    """The agent is terminated, for good."""

    raised_for = ErrorCode.AGENT_TERMINATED


class PolicyVersionConflict(ServiceError):
    """Somebody else changed the policy since you last saw it: read it again."""

    raised_for = ErrorCode.POLICY_VERSION_CONFLICT


class InsufficientFunds(ServiceError):
    """A withdrawal of more than is available. (A spend is answered `rejected` instead.)"""

    raised_for = ErrorCode.INSUFFICIENT_FUNDS


class InvalidState(ServiceError):
    """The object is not in a state that allows this, such as approving a settled spend."""

    raised_for = ErrorCode.INVALID_STATE


class IdempotencyInProgress(ServiceError):
    """The first request with this idempotency key still runs: ask again with the same key."""

    raised_for = ErrorCode.IDEMPOTENCY_IN_PROGRESS


class LimitReached(ServiceError):
    """There are as many of these as there may be."""

    raised_for = ErrorCode.LIMIT_REACHED


class PayloadTooLarge(ServiceError):
    raised_for = ErrorCode.PAYLOAD_TOO_LARGE


class UnsupportedMediaType(ServiceError):
    raised_for = ErrorCode.UNSUPPORTED_MEDIA_TYPE


class IdempotencyKeyReused(ServiceError):
    """This idempotency key was used for another request before."""

    raised_for = ErrorCode.IDEMPOTENCY_KEY_REUSED


class RateLimitExceeded(ServiceError):
    """Too many requests in 60 seconds, also after the client's own retries."""

    raised_for = ErrorCode.RATE_LIMIT_EXCEEDED


class InternalError(ServiceError):
    """A fault of the service. Whether anything was done is found out by the idempotency key."""

    raised_for = ErrorCode.INTERNAL_ERROR


class Unavailable(ServiceError):
    """The service, its database or the chain is out of reach for now."""

    raised_for = ErrorCode.UNAVAILABLE


class UnexpectedAnswer(ServiceError):
    """An answer that is not one of Bursar's, or not one that this client can read."""


_BY_CODE: Final = {
    kind.raised_for.value: kind
    for kind in ServiceError.__subclasses__()
    if kind.raised_for is not None
}


def failure_of(
    status: int, body: Any, headers: Mapping[str, str], idempotency_key: str | None
) -> ServiceError:
    """The exception for an answer that is not 2xx; `body` is its JSON, or None."""
    request_id = headers.get("x-request-id")
    retry_after = _seconds(headers.get("retry-after"))
    try:
        error = body["error"]
        code = str(error["code"])
        return _BY_CODE.get(code, ServiceError)(
            str(error["message"]),
            status=status,
            code=code,
            param=error.get("param"),
            details=[Fault(d["param"], d["message"]) for d in error.get("details", ())],
            retryable=bool(error.get("retryable")),
            request_id=error.get("requestId") or request_id,
            retry_after=retry_after,
            idempotency_key=idempotency_key,
        )
    except (KeyError, TypeError, AttributeError):
        return UnexpectedAnswer(
            f"The answer, {status}, is not one of Bursar's. Is base_url the address of the service,"
            " and does nothing in between answer for it?",
            status=status,
            request_id=request_id,
            retry_after=retry_after,
            idempotency_key=idempotency_key,
        )


def _seconds(header: str | None) -> int | None:
    """Retry-After in whole seconds, the only form that Bursar sends."""
    if header is None or re.fullmatch(r"[0-9]{1,9}", header) is None:
        return None
    return int(header)
