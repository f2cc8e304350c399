"""Runs the real `serve`, with a small HTTP server in the place of `bursar api`.

These tests are about starting, watching and stopping processes; the API has tests of its own. Like
the real one, the small one has a worker process that a kill of its parent does not reach.
"""

import asyncio
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from bursar.config import Config, load_config
from bursar.errors import CommandFailed
from bursar.service import serve


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()


async def first_key(config: Config) -> str | None:
    marker = config.data_dir / "had-a-key"
    if marker.exists():
        return None
    marker.touch()
    return "first-test-key"


def api() -> None:
    # Without our output, which would keep the pipe to the test open after everyone else is gone.
    worker = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    config = load_config(os.environ)
    (config.data_dir / "api.pids").write_text(f"{os.getpid()} {worker.pid}")
    assert config.database_url
    HTTPServer((config.host, config.port), Health).serve_forever()


def main() -> int:
    serve._command = lambda name: [sys.executable, "-m", "tests.service.serve_process", name]
    config = load_config(os.environ)
    try:
        return asyncio.run(
            serve.serve(config, echo=lambda text: print(text, flush=True), first_key=first_key)
        )
    except CommandFailed as error:
        print(f"failed: {error}", flush=True)
        return 1


if __name__ == "__main__":
    if sys.argv[1:] == ["api"]:
        api()
    else:
        sys.exit(main())
