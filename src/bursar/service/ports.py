"""Ports to listen on."""

import errno
import socket

from bursar.errors import CommandFailed


def free_port(host: str, port: int) -> int:
    """The port itself, or a free one for 0. Raises CommandFailed when it cannot be listened on."""
    with bound_socket(host, port) as probe:
        return probe.getsockname()[1]


def bound_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket to listen with, at the port or at a free one for 0. Raises CommandFailed when that
    is not possible.

    `shared` allows other processes to listen on it too, if they also allow it.
    """
    bound: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        # Lingering connections of an earlier run are no obstacle.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        return bound
    except socket.gaierror as error:
        raise CommandFailed(
            f"Cannot listen on {host}: {error.strerror}. Choose an address with --host."
        ) from error
    except OSError as error:
        if bound is not None:
            bound.close()
        if error.errno == errno.EADDRINUSE:
            raise CommandFailed(
                f"Port {port} on {host} is already in use. Stop the program that uses it, or choose"
                " another port with --port."
            ) from error
        raise CommandFailed(
            f"Cannot listen on {host} port {port}: {error.strerror}. Choose others with --host and"
            " --port."
        ) from error
