"""Times that callers and receivers were promised; whoever changes one breaks somebody."""

import pytest

from bursar.api.webhooks import OVERLAP_SECONDS
from bursar.config import load_config
from bursar.spend.wait import wanted_seconds
from bursar.webhook.deliver import DISABLE_SECONDS
from bursar.webhook.send import CONNECT_SECONDS

MINUTE, HOUR = 60, 3_600


def test_deliveries():
    """Goal: 15 s to answer, 5 s of them to connect; retries after 5 s, 5 min, 30 min, 2 h, 5 h,
    10 h, 10 h; disabled after five days; an old secret signs along for 24 hours."""
    config = load_config({})
    assert config.webhooks_timeout_seconds == 15
    assert CONNECT_SECONDS == 5
    assert config.webhooks_retry_seconds == (
        *(5, 5 * MINUTE, 30 * MINUTE),
        *(2 * HOUR, 5 * HOUR, 10 * HOUR, 10 * HOUR),
    )
    assert DISABLE_SECONDS == 5 * 24 * HOUR
    assert OVERLAP_SECONDS == 24 * HOUR


def test_a_pending_spend_waits_for_a_day():
    assert load_config({}).approval_seconds == 24 * HOUR


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0),
        ("respond-async", 0),
        ("wait=0", 0),
        ("wait=29", 29),
        ("wait=30", 30),
        ("wait=31", 30),
        ("respond-async, wait=999999", 30),
        ('wait="40"', 30),
    ],
)
def test_a_preferred_wait_is_cut_to_thirty_seconds(prefer: str | None, seconds: int):
    assert wanted_seconds(prefer) == seconds
