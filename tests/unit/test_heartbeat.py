"""What is made of the heartbeats that workers leave."""

import pytest

from bursar.heartbeat.model import SILENT_SECONDS, Beat, health


def _beat(duty: str = "sign", silent: float = 1, still: float = 1, problem: str | None = None):
    return Beat(
        mode="test",
        duty=duty,
        silent_seconds=silent,
        still_seconds=still,
        patience_seconds=60,
        problem=problem,
    )


@pytest.mark.parametrize(
    ("beats", "told"),
    [
        ([], "starting"),
        ([_beat(), _beat("follow")], "ok"),
        ([_beat(silent=99), _beat("follow", silent=SILENT_SECONDS)], "silent for 30 s"),
        # Another version's duty that nobody has any more.
        ([_beat(), _beat("old duty", silent=9_999, still=9_999)], "ok"),
        (
            [_beat(still=61, problem="KeyError"), _beat("follow", still=59)],
            "sign stuck for 61 s (KeyError)",
        ),
        ([_beat("start", problem="ChainOutOfReach")], "starting (ChainOutOfReach)"),
        # It hangs: nothing was raised.
        ([_beat(still=70), _beat("sweep", still=80)], "sign stuck for 70 s; sweep stuck for 80 s"),
    ],
)
def test_health(beats: list[Beat], told: str):
    """Goal: a worker that was never seen, one that is gone and one that does not move are told
    apart."""
    assert health(beats) == told
