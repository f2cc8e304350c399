"""Ports to listen on."""

import errno
import socket

from bursar.errors import CommandFailed


def free_port(host: str, port: int, *, shared: bool = False) -> int:
    """The port itself, or a free one for 0. Raises CommandFailed when it cannot be listened on.

    `shared` allows other processes to listen on it too, if they also allow it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server sets it: lingering connections of an earlier run are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(address)
            return probe.getsockname()[1]
    except socket.gaierror as error:
        raise CommandFailed(
            f"Cannot listen on {host}: {error.strerror}. Choose an address with --host."
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandFailed(
                f"Port {port} on {host} is already in use. Stop the program that uses it, or choose"
                " another port with --port."
            ) from error
        raise CommandFailed(
            f"Cannot listen on {host} port {port}: {error.strerror}. Choose others with --host and"
            " --port."
        ) from error
