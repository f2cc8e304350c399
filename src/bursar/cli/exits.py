"""How commands end. Scripts go by these codes, so they do not change; docs/cli.md lists them."""

from enum import IntEnum

from bursar.cli.printed import OutputLost
from bursar.errors import BursarError, ConfigError


class ExitCode(IntEnum):
    doc: str

    def __new__(cls, value: int, doc: str) -> "ExitCode":
        member = int.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        return member

    DONE = 0, "Done. A spend is approved or settled."
    FAILED = 1, "It could not be done; for `audit` and `doctor`: something is wrong."
    USAGE = 2, "An option, setting or key is wrong or missing; for `audit`: not all was checked."
    REFUSED = 3, "The policy refused the spend, or would."
    WAITING = 4, "The spend waits for a person's approval, or would."
    NOT_ALLOWED = 5, "The service does not know the key, or its scope does not allow this."
    NOT_FOUND = 6, "There is no such object for this key."
    UNAVAILABLE = (
        7,
        "The service is out of reach, or failed, or asks to come back later. Try again.",
    )
    UNWRITTEN = (
        8,
        "The output could not be written. It is done, or may be: look before you repeat it.",
    )
    INTERRUPTED = 130, "Ended with Ctrl-C."


def exit_code(problem: BursarError) -> ExitCode:
    if isinstance(problem, ConfigError):
        return ExitCode.USAGE
    if isinstance(problem, OutputLost):
        return ExitCode.UNWRITTEN
    # Imported here because importing it at the top would slow commands that call no service.
    from bursar.client import errors

    if isinstance(problem, errors.Unauthorized | errors.Forbidden):
        return ExitCode.NOT_ALLOWED
    if isinstance(problem, errors.NotFound):
        return ExitCode.NOT_FOUND
    # A foreign answer at this address, such as a proxy's page, will not change by trying again.
    elsewhere = isinstance(problem, errors.UnexpectedAnswer) and 300 <= problem.status < 500
    out_of_reach = isinstance(problem, errors.NotSent) or outcome_is_open(problem)
    if out_of_reach and not elsewhere:
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED


def outcome_is_open(problem: BaseException) -> bool:
    """Whether the request may have been carried out, or may still be. Only an answer from Bursar
    that refuses it rules that out, or that it was never sent; and of that answer nobody knows whose
    output was lost."""
    from bursar.client import errors

    if isinstance(problem, errors.NotSent):
        return False
    if isinstance(problem, errors.ServiceError) and not isinstance(
        problem, errors.UnexpectedAnswer
    ):
        return problem.retryable
    return isinstance(problem, errors.RequestFailed | KeyboardInterrupt | OutputLost)
