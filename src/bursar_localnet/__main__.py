"""`python -m bursar_localnet`: the node on its own, without the service."""

import argparse
import asyncio
import sys
from pathlib import Path

from bursar_localnet.clock import SystemClock
from bursar_localnet.errors import LocalnetFailed
from bursar_localnet.genesis import NETWORKS
from bursar_localnet.rpc import Settings, run
from bursar_localnet.slots import Lag


def main() -> None:
    parser = argparse.ArgumentParser(prog="bursar_localnet", description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("localnet"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8899, help="0 takes a free one")
    parser.add_argument("--genesis", choices=sorted(NETWORKS), default="test")
    parser.add_argument("--slot-ms", type=int, default=400)
    given = parser.parse_args()
    settings = Settings(
        data_dir=given.data_dir,
        network=NETWORKS[given.genesis],
        host=given.host,
        port=given.port,
        ws_port=None,
        slot_ms=given.slot_ms,
        lag=Lag(0, 0),
        faults=False,
    )
    try:
        asyncio.run(run(settings, SystemClock(), echo=lambda line: print(line, flush=True)))  # noqa: T201
    except LocalnetFailed as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
