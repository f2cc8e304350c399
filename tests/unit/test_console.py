"""The console's pure parts: words, amounts, charts, and what changes between two policies."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, get_args

import pytest

from bursar.access import session
from bursar.api.routes import ROUTES
from bursar.console import charts
from bursar.console.app import SIGN_IN, inside
from bursar.console.draw import amount, brief, moment, percent, spoken
from bursar.console.policies import changes, proposed
from bursar.console.purchases import goods_of
from bursar.console.screens import SCREENS
from bursar.console.store import Bucket
from bursar.console.words import FAILURES, OUTCOMES, PURCHASES, REFUSALS, RULE_NAMES, RULES
from bursar.errors import Fault
from bursar.form.kinds import _money_advice
from bursar.policy.engine import RejectCode, Rule
from bursar.purchase.model import FailureCode, PurchaseStatus

NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
POLICY: dict[str, Any] = {
    "dailyCap": "10.00",
    "perTransactionCap": None,
    "approvalThreshold": "5.00",
    "dailyNetworkLamports": None,
    "allowlist": ["a.example.com", "b.example.com"],
    "blocklist": [],
    "payees": "pinned",
    "frozen": False,
}


def test_every_code_and_rule_has_words():
    """Goal: nobody has to look a code up."""
    assert list(REFUSALS) == list(RejectCode)
    assert list(RULES) == list(RULE_NAMES) == list(Rule)
    assert set(OUTCOMES) == {"pass", "fail", "not_evaluated"}
    assert list(FAILURES) == list(get_args(FailureCode))
    assert list(PURCHASES) == list(get_args(PurchaseStatus))


def test_what_a_seller_answered_is_shown_as_text():
    """Goal: JSON is laid out, what only claims to be JSON is not, bytes are named, much is cut."""

    def shown(body: str, **more: Any) -> tuple[str, bool, bool]:
        headers = {"Content-Type": "application/json"}
        said = {"status": 200, "body": body, "encoding": "text", "truncated": False}
        goods = goods_of({**said, "headers": headers, **more})
        return goods.text, goods.cut, goods.is_text

    assert shown('{"a":[1]}') == ('{\n  "a": [\n    1\n  ]\n}', False, True)
    assert shown("<script>{") == ("<script>{", False, True)
    assert shown("/w==", encoding="base64") == ("", False, False)
    assert shown('{"a":1}', truncated=True) == ('{"a":1}', True, True)
    text, cut, _ = shown("x" * 1_000_000, headers={})
    assert (len(text), cut) == (20_000, True)


def test_every_screen_stands_for_a_route():
    """Goal: scope and limit of every page are those of the API, and reading changes nothing."""
    routes = {f"{route.method} {route.path}" for route in ROUTES}
    assert {screen.stands_for for screen in SCREENS} <= routes
    for screen in SCREENS:
        assert screen.method in ("GET", "POST")
        # A form that fails is shown again, with what was typed.
        assert (screen.again is not None) == (screen.method == "POST")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (0, "0.00"),
        ("12.500000", "12.50"),
        ("1234567.000001", "1,234,567.000001"),
        (1_234_500_000, "1,234.50"),
        ("25.00", "25.00"),
        (-2_000_000, "-2.00"),
        (None, "–"),
    ],
)
def test_amounts(given: int | str | None, shown: str):
    assert amount(given) == shown


def test_moments_carry_utc():
    said = moment("2026-11-15T09:30:00.123Z")
    assert 'datetime="2026-11-15T09:30:00.123Z"' in said
    assert 'title="2026-11-15 09:30:00.123 UTC"' in said
    assert "09:30:00 UTC</time>" in moment("2026-11-15T09:30:00.123Z", "second")
    assert moment(NOW.astimezone()) == moment("2026-11-15T09:30:00.000Z")


def test_long_names_are_escaped_where_they_are_cut():
    assert "&#34;&gt;" in brief('">' + "x" * 40)


def test_shares():
    assert [percent(*pair) for pair in ((0, 0), (1, 0), (1, 3), (3, 3), (9, 3))] == [
        0, 100, 33, 100, 100,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("param", "message", "said"),
    [
        ("host", "Say which host it is.", "Say which host it is."),
        ("policy.dailyCap", "policy.dailyCap is too much.", "The daily cap is too much."),
        (
            "policy.allowlist[1]",
            "policy.allowlist[1] is no host.",
            "Line 2 of the allowlist is no host.",
        ),
        ("limits[0]", "limits[0] needs an amount.", "Limit 1 needs an amount."),
        (
            "policy.limits[0].amount",
            "policy.limits[0].amount is odd.",
            "The amount of limit 1 is odd.",
        ),
        ("limits", "limits may hold at most 20 limits.", "The limits may hold at most 20 limits."),
        ("metadata.team", "metadata.team is too long.", "Metadata “team” is too long."),
        ("unheard", "unheard is not known.", "unheard is not known."),
        (
            "policy.dailyCap",
            f"policy.dailyCap {_money_advice('4.x', 2)}",
            "The daily cap must be an amount such as 12.50"
            + _money_advice("4.x", 2).partition('"12.50"')[2],
        ),
    ],
)
def test_faults_are_told_in_the_words_of_the_form(param: str, message: str, said: str):
    assert spoken(Fault(param, message)) == said


def test_a_chart_of_hours():
    """Goal: one bar an hour up to now, nothing looks like something, little is still seen."""
    busy = NOW.replace(minute=0) - timedelta(hours=2)
    drawn = charts.by_hour(
        [Bucket(busy, 1_000_000, 3, 1), Bucket(busy + timedelta(hours=1), 1, 1, 0)], NOW, 24
    )
    assert [bar.settled_height for bar in drawn.bars[-4:]] == [0, 100, 2, 0]
    assert drawn.bars[-1].start == NOW.replace(minute=0)
    assert (drawn.total_micros, drawn.total_rejected, drawn.most_micros) == (
        1_000_001,
        1,
        1_000_000,
    )
    assert not drawn.empty
    assert charts.by_hour([], NOW, 24).empty


def test_a_chart_of_days():
    drawn = charts.by_day([Bucket(date(2026, 11, 1), 5, 1, 2)], NOW.date(), 30)
    assert len(drawn.bars) == 30
    assert drawn.bars[-15].rejected == 2
    assert drawn.bars[0].x >= 0
    assert drawn.bars[-1].x + drawn.bar_width <= drawn.width


def test_what_changes_between_policies():
    after = proposed(
        POLICY,
        {"dailyCap": 12_000_000, "perTransactionCap": None, "allowlist": ["b.example.com", "*"]},
    )
    found = changes(POLICY, {**after, "frozen": True})
    assert [(change.label, change.before, change.after) for change in found] == [
        ("Daily cap", "10.00", "12.00"),
        ("Allowlist", None, None),
        ("Frozen", "no", "yes"),
    ]
    assert (found[1].added, found[1].removed) == (("*",), ("a.example.com",))
    assert changes(POLICY, POLICY) == []
    (order,) = changes(POLICY, {**POLICY, "allowlist": POLICY["allowlist"][::-1]})
    assert (order.added, order.removed, order.is_list) == ((), (), True)


@pytest.mark.parametrize(
    ("asked", "led"),
    [
        ("/console/agents?q=a", "/console/agents?q=a"),
        ("/console", "/console"),
        ("/console?x=1", "/console?x=1"),
        ("", "/console"),
        ("//evil.example.com", "/console"),
        ("https://evil.example.com/console", "/console"),
        ("/console/../v1/agents", "/console"),
        ("/consolex", "/console"),
        ("/console/\r\nSet-Cookie: a=b", "/console"),
        ("/console/\\evil", "/console"),
        (f"{SIGN_IN}?next=/console", "/console"),
        ("/console/ü", "/console"),
    ],
)
def test_signing_in_leads_only_inside(asked: str, led: str):
    assert inside(asked) == led


def test_form_tokens_belong_to_their_session():
    one, two = session.new_token(), session.new_token()
    assert session.is_form_token(session.form_token(one), one)
    assert not session.is_form_token(session.form_token(one), two)
    assert not session.is_form_token("", one)
    assert not session.is_form_token("é" * 64, one)
