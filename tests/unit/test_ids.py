"""Ids: a prefix, then 26 letters and digits that order by time and cannot be guessed."""

import re
import subprocess
import sys
import time
from datetime import timedelta
from typing import get_args

import pytest

from bursar.clock import SystemClock
from bursar.ids import Prefix, is_id, made_at, new_id, past_ids_end

PREFIXES: tuple[Prefix, ...] = get_args(Prefix)

GOOD = "01jcx7z3v8m2n4p6q8r0s2t4v6"


def test_ids_have_the_promised_form():
    """Goal: prefix, underscore, lower-case letters and digits, and nothing else."""
    for prefix in PREFIXES:
        made = new_id(prefix)
        assert re.fullmatch(rf"{prefix}_[0-9a-z]{{26}}", made)
        assert is_id(prefix, made)


def test_ids_of_later_milliseconds_come_later():
    """Goal: text order is time order, so that lists by (createdAt, id) are stable."""
    made: list[str] = []
    for _ in range(20):
        made.append(new_id("txn"))
        started = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == started:
            pass
    assert made == sorted(made)


def test_ids_do_not_repeat():
    """Goal: many at once are all different."""
    assert len({new_id("evt") for _ in range(20_000)}) == 20_000


def test_a_child_process_makes_ids_of_its_own():
    """Goal: a fork does not repeat the random parts that its parent is about to use."""
    script = (
        "import os\n"
        "from bursar.ids import new_id\n"
        "new_id('req')\n"
        "child = os.fork()\n"
        "child and os.waitpid(child, 0)\n"
        "print(*[new_id('req')[-16:] for _ in range(50)], flush=True)\n"
    )
    made = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60).split()
    assert len(made) == len(set(made)) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ag",
        "ag_",
        f"ag{GOOD}",
        GOOD,
        f"txn_{GOOD}",
        f"AG_{GOOD}",
        f"ag_{GOOD.upper()}",
        f"ag_{GOOD[:-1]}",
        f"ag_{GOOD}0",
        f"ag_{GOOD}\n",
        f" ag_{GOOD}",
        f"ag_{GOOD[:-1]}i",
        f"ag_{GOOD[:-1]}l",
        f"ag_{GOOD[:-1]}o",
        f"ag_{GOOD[:-1]}u",
        f"ag_8{GOOD[1:]}",
        f"ag_{GOOD[:-1]}-",
        f"ag_{GOOD[:-1]}\0",
        f"ag_{GOOD[:-1]}０",
        f"ag_ag_{GOOD}",
        "ag_" + "0" * 10_000,
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_text_of_another_form_is_no_id(text: str):
    """Goal: what new_id cannot make is never looked up."""
    assert is_id("ag", f"ag_{GOOD}")
    assert not is_id("ag", text)


def test_a_prefix_is_not_read_as_the_start_of_another():
    """Goal: an id belongs to one kind of object only."""
    for prefix in PREFIXES:
        made = new_id(prefix)
        assert [other for other in PREFIXES if is_id(other, made)] == [prefix]


def test_ids_of_the_past_end_where_they_are_said_to():
    """Goal: what is older than so many days is found by its id alone."""
    second = timedelta(seconds=1)
    before = SystemClock().now()
    end = past_ids_end("evt", 90)
    after = SystemClock().now() + second
    assert before <= made_at(end) + timedelta(days=90) <= after
    assert past_ids_end("evt", 91) + "z" * 16 < end < past_ids_end("evt", 89) + "0" * 16
    assert end < new_id("evt")
