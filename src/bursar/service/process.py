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
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

# structlog imports rich wherever it is installed, to colour tracebacks. These processes write JSON,
# and without it they start a tenth of a second sooner. (None: as if it were not installed.)
sys.modules["rich"] = None  # pyright: ignore[reportArgumentType]

import uvloop  # noqa: E402

from bursar.clock import SystemClock  # noqa: E402
from bursar.config import Config, load_config  # noqa: E402
from bursar.errors import BursarError  # noqa: E402
from bursar.logs import set_up_logs  # noqa: E402


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bursar.service.process")
    parser.add_argument("name", choices=("api", "worker"))
    parser.add_argument("--share-port", action="store_true")
    parser.add_argument("--limits-socket", type=Path)
    options = parser.parse_args(arguments)
    try:
        config = load_config(os.environ)
        set_up_logs(config.log_level, options.name)
        work = _api(options) if options.name == "api" else _worker()
        sys.stdin.read()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(config))
    except BursarError as problem:
        sys.exit(f"bursar {options.name}: {problem}")


Work = Callable[[Config], Coroutine[Any, Any, None]]


def _api(options: argparse.Namespace) -> Work:
    from bursar.service.api import run_api

    return partial(
        run_api,
        clock=SystemClock(),
        share_port=options.share_port,
        limits_socket=options.limits_socket,
    )


def _worker() -> Work:
    from bursar.service.worker import run_worker

    return run_worker


if __name__ == "__main__":
    main(sys.argv[1:])
