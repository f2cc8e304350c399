"""Numbers from a node that no database can hold are no answer."""

from typing import Any

import pytest

from bursar.chain.answers import (
    Unreadable,
    read_accounts,
    read_blockhash,
    read_height,
    read_mentions,
    read_statuses,
)

_HASH = "11111111111111111111111111111111"
_BEYOND = 2**63


def _mention(**fields: Any) -> dict[str, Any]:
    return {"signature": "s", "slot": 1, "err": None, "blockTime": 1, **fields}


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_height({"absoluteSlot": _BEYOND, "blockHeight": 1}),
        lambda: read_blockhash(
            {
                "context": {"slot": 1},
                "value": {"blockhash": _HASH, "lastValidBlockHeight": _BEYOND},
            }
        ),
        lambda: read_statuses({"context": {"slot": _BEYOND}, "value": []}, []),
        lambda: read_mentions([_mention(slot=_BEYOND)]),
        lambda: read_mentions([_mention(blockTime=253_402_300_800)]),
    ],
    ids=["slot", "height", "context", "slot of a mention", "time"],
)
def test_what_no_database_can_hold_is_unreadable(read: Any):
    """Goal: the node counts as one that gave no answer; nothing that depends on it is written."""
    with pytest.raises(Unreadable):
        read()


def test_the_largest_are_read():
    """Goal: the bounds are those of the database, and not less."""
    assert read_height({"absoluteSlot": _BEYOND - 1, "blockHeight": 1}).slot == _BEYOND - 1
    (mention,) = read_mentions([_mention(blockTime=253_402_300_799)])
    assert mention.block_time == 253_402_300_799


@pytest.mark.parametrize("text", ["\x80", "=", "AAA"])
def test_data_that_is_no_base64_is_unreadable(text: str):
    """Goal: the next node is asked; `b64decode` has two kinds of errors."""
    account = {"lamports": 1, "owner": _HASH, "executable": False, "data": [text, "base64"]}
    with pytest.raises(Unreadable):
        read_accounts({"context": {"slot": 1}, "value": [account]}, 1)
