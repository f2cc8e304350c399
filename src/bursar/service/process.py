"""One process of `bursar serve`: `python -m bursar.service.process api|worker [OPTION...]`.

It does what `bursar api` and `bursar worker` do, and is there sooner: it imports nothing of the
command line, and everything else while the database is still starting. Its standard input is
closed once the database is ready; the null device, which is always at its end, does not keep it
waiting.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

# structlog imports rich wherever it is installed, to colour tracebacks. These processes write JSON,
# and without it they start a tenth of a second sooner. (None: as if it were not installed.)
sys.modules["rich"] = None  # pyright: ignore[reportArgumentType]

import uvloop  # noqa: E402

from bursar.clock import SystemClock  # noqa: E402
from bursar.config import load_config  # noqa: E402
from bursar.errors import BursarError  # noqa: E402
from bursar.logs import set_up_logs  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bursar.service.process")
    parser.add_argument("name", choices=("api", "worker"))
    parser.add_argument("--share-port", action="store_true")
    parser.add_argument("--limits-socket", type=Path)
    options = parser.parse_args(arguments)
    config = load_config(os.environ)
    set_up_logs(config.log_level, options.name)
    if options.name == "api":
        from bursar.service.api import run_api

        def work() -> Any:
            return run_api(
                config,
                SystemClock(),
                share_port=options.share_port,
                limits_socket=options.limits_socket,
            )
    else:
        from bursar.service.worker import run_worker

        def work() -> Any:
            return run_worker(config)

    sys.stdin.read()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work())
    except BursarError as problem:
        sys.exit(f"bursar {options.name}: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
