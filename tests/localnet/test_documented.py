"""Goal: `docs/localnet.md` names every method, subscription, fault and option there is."""

from pathlib import Path
from typing import get_args, get_type_hints

from bursar_localnet.faults import Rule
from bursar_localnet.genesis import LIVE_MINT, TEST_MINT
from bursar_localnet.methods import METHODS
from bursar_localnet.subscriptions import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "localnet.md").read_text()


def test_everything_is_documented() -> None:
    names = [*METHODS, *(f"{kind}Subscribe" for kind in KINDS)]
    names += ["bursar_faults", "bursar_expireBlockhashes", "bursar_fork"]
    hints = get_type_hints(Rule)
    names += [*get_args(hints["action"]), *get_args(hints["claim"]), *get_args(hints["at"])]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_the_mints_are_the_ones_on_the_page() -> None:
    assert TEST_MINT in PAGE
    assert LIVE_MINT in PAGE
