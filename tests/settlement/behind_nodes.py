"""`bursar worker` whose test mode asks the nodes of TEST_NODES, addresses in front of the localnet
that lie about it. Takes the same commands: `python -m tests.settlement.behind_nodes worker`."""

import os

from bursar.chain.solana import Solana
from bursar.cli.main import main
from bursar.config import Config, Mode
from bursar.service import worker
from bursar.service.networks import open_chain


def _open(config: Config, mode: Mode) -> Solana:
    if mode != "test":
        return open_chain(config, mode)
    nodes = os.environ["TEST_NODES"].split(",")
    return Solana.open(nodes, config.chain_timeout_seconds, config.priority_fee_max_lamports)


if __name__ == "__main__":
    worker.open_chain = _open
    main()
