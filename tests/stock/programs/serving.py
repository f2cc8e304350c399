"""What the stock programs share: one JSON argument, a free port, and a line that says where."""

import json
import socket
import sys
from typing import Any

import uvicorn

GIVEN: dict[str, Any] = json.loads(sys.argv[1])


def serve(app: Any) -> None:
    """Until it is killed. The first line of its output is its address, which listens already."""
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
