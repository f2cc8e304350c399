"""Why a stranger gave no answer, in words for the tenant that wanted it."""

import os
import ssl

from bursar.errors import BursarError


class NoAnswer(BursarError):
    """The message names no address: a tenant must not learn those of the operator's network. Its
    cause may, and is for the operator's log."""


class NotHttp(NoAnswer):
    def __init__(self, problem: str) -> None:
        super().__init__(f"the answer is not HTTP ({problem})")


def no_connection(problem: OSError) -> NoAnswer:
    """Raise it from its cause."""
    match problem:
        case ssl.SSLCertVerificationError():
            return NoAnswer(f"Certificate not accepted: {problem.verify_message}")
        case ssl.SSLError():
            return NoAnswer("no TLS connection")
        case OSError(errno=int(number)) if number > 0:
            return NoAnswer(f"no connection: {os.strerror(number)}")
        case _:
            return NoAnswer(f"no connection ({type(problem).__name__})")
