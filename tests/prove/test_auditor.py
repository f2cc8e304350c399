"""The auditor finds what is planted; an auditor that finds nothing proves nothing."""

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.prove.auditor import Auditor, Shown
from tests.prove.journal import Journal, Rules, Told

SHOP = "api.example.com"
TOLD = Told("txn_1", "ag_1", 600_000, SHOP, "approved", 1, "2026-10-30T12:00:00.000Z")
SHOWN = Shown("ag_1", 600_000, SHOP, "settled", "signature", 1, TOLD.created_at)
RULES = Rules(1_000_000, 700_000, frozenset({SHOP}), frozen=False)


def audited(journal: Journal, shown: dict[str, Shown], paid: dict[str, set[str]]) -> set[str]:
    auditor = Auditor(cast("Any", None), journal, [])
    auditor.paid.update(paid)
    auditor._check_spends(shown)
    auditor._check_caps(shown)
    auditor._check_chain(shown, {"wdr_1": "settled"})
    return {kind for kind, _ in journal.wrong}


def journal(**told: Told) -> Journal:
    made = Journal(withdrawals={"wdr_1": "ag_1"})
    made.rules["ag_1", 1] = RULES
    made.spends |= told
    return made


PAID = {"txn_1": {"signature"}, "wdr_1": {"other"}}


def test_nothing_wrong_is_found_where_nothing_is_wrong():
    """Goal: no false alarm."""
    assert audited(journal(key=TOLD), {"txn_1": SHOWN}, PAID) == set()


@pytest.mark.parametrize(
    ("told", "shown", "paid", "kind"),
    [
        ({"key": TOLD}, {}, {"wdr_1": {"other"}}, "lost"),
        ({}, {"txn_1": SHOWN}, PAID, "double"),
        ({"key": TOLD, "other": TOLD}, {"txn_1": SHOWN}, PAID, "double"),
        ({"key": TOLD}, {"txn_1": replace(SHOWN, micros=600_001)}, PAID, "lost"),
        ({"key": replace(TOLD, status="rejected")}, {"txn_1": SHOWN}, PAID, "lost"),
        ({"key": TOLD}, {"txn_1": SHOWN}, {**PAID, "txn_1": {"signature", "again"}}, "double"),
        ({"key": TOLD}, {"txn_1": SHOWN}, {**PAID, "txn_2": {"stray"}}, "double"),
        ({"key": TOLD}, {"txn_1": SHOWN}, {"wdr_1": {"other"}}, "chain"),
        ({"key": TOLD}, {"txn_1": SHOWN}, {"txn_1": {"signature"}}, "chain"),
        ({"key": TOLD}, {"txn_1": replace(SHOWN, status="rejected")}, PAID, "chain"),
        ({"key": TOLD}, {"txn_1": replace(SHOWN, signature="another")}, PAID, "chain"),
        (
            {"key": replace(TOLD, recipient="n1.example")},
            {"txn_1": replace(SHOWN, recipient="n1.example")},
            PAID,
            "cap",
        ),
        (
            {"key": replace(TOLD, micros=700_001)},
            {"txn_1": replace(SHOWN, micros=700_001)},
            PAID,
            "cap",
        ),
        (
            {"key": replace(TOLD, policy_version=2)},
            {"txn_1": replace(SHOWN, policy_version=2)},
            PAID,
            "old policy",
        ),
    ],
)
def test_what_is_planted_is_found(
    told: dict[str, Told], shown: dict[str, Shown], paid: dict[str, set[str]], kind: str
):
    """Goal: each kind of wrong is called by its name."""
    assert kind in audited(journal(**told), shown, paid)


def test_a_cap_that_is_passed_by_one_is_found():
    """Goal: to the micro-unit, of one day, and not counting what was rejected."""
    first, second = replace(SHOWN, micros=400_001), replace(SHOWN, micros=600_000)
    shown = {"txn_1": first, "txn_2": second}
    auditor = Auditor(cast("Any", None), journal(), [])
    auditor._check_caps(shown)
    assert [kind for kind, _ in auditor.journal.wrong] == ["cap"]
    for other in ({"status": "rejected"}, {"created_at": "2026-10-31T00:00:00.000Z"}):
        auditor = Auditor(cast("Any", None), journal(), [])
        auditor._check_caps(shown | {"txn_2": replace(second, **other)})
        assert auditor.journal.wrong == []
