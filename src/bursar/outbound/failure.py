"""Why a stranger gave no answer, in words for the tenant that wanted it."""

import os

import aiohttp


def reason_of(problem: Exception) -> str:
    """Names no address: a tenant must not learn those of the operator's network."""
    match problem:
        case aiohttp.ClientConnectorDNSError():
            return "the host cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            detail = getattr(problem.certificate_error, "verify_message", "")
            return f"Certificate not accepted: {detail}"
        case aiohttp.ClientConnectorSSLError():
            return "no TLS connection"
        case aiohttp.ServerDisconnectedError():
            return f"the connection ended before an answer ({type(problem).__name__})"
        case OSError(errno=int(number)):
            return f"no connection: {os.strerror(number)}"
        case OSError():
            return f"no connection ({type(problem).__name__})"
        case _:
            return f"the answer is not HTTP ({type(problem).__name__})"
