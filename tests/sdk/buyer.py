"""A program that buys things: agent, number of the buyer, how many, and how it tries again.

carried  by hand, with the idempotency key that the exception carries
option   the client does it, and the program goes on where that gave up
"""

import json
import sys

from bursar import Bursar, ConnectionFailed, IdempotencyInProgress
from bursar.client.model import Transaction

TRIES = 200


def main() -> None:
    agent_id, number, count, how = sys.argv[1:]
    with Bursar(retry_connections=how == "option") as client:
        for purchase in range(int(count)):
            bought = buy(client, agent_id, f"purchase {purchase} of {number}")
            print(json.dumps({"id": bought.id, "memo": bought.memo}), flush=True)


def buy(client: Bursar, agent_id: str, memo: str) -> Transaction:
    key = None
    for _ in range(TRIES):
        try:
            return client.spend.authorise(
                agent_id=agent_id,
                amount="1",
                recipient="api.example.com",
                memo=memo,
                idempotency_key=key,
            )
        except (ConnectionFailed, IdempotencyInProgress) as problem:
            key = problem.idempotency_key
    raise SystemExit(f"{memo} could not be bought")


if __name__ == "__main__":
    main()
