"""Answers are counted and logged together: soon, all of them, and each once."""

import json
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Histogram

from bursar.clock import SystemClock
from bursar.http import answer
from bursar.http.answer import Answers
from bursar.http.request import Request
from bursar.metrics import _SECONDS, _Times
from tests.http_server.wire import Wire, arrived
from tests.service.waiting import eventually
from tests.support import new_account

TIMES = [0.0, 0.0005, 0.001, 0.0011, 0.03, 0.03, 7.0, 30.0, 31.0, 900.0]


def _answer(answers: Answers, route: str, status: int = 200) -> None:
    request = Request(arrived(Wire()))
    request.route_name = route
    answers.note(request, status, SystemClock().monotonic_ns() - 2_000_000)


def _counted(route: str, status: int) -> float:
    labels = {"route": route, "status": str(status)}
    return REGISTRY.get_sample_value("bursar_http_requests_total", labels) or 0


def _lines(capsys: pytest.CaptureFixture[str], route: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in lines if line.get("route") == route]


async def test_they_are_told_soon_without_being_asked(capsys: pytest.CaptureFixture[str]):
    answers, route = Answers(SystemClock(), logs=True), new_account()
    for status in (200, 200, 404):
        _answer(answers, route, status)
    assert _counted(route, 200) == 0
    await eventually(lambda: _counted(route, 404) == 1)
    assert (_counted(route, 200), _counted(route, 404)) == (2, 1)
    lines = _lines(capsys, route)
    assert [line["status"] for line in lines] == [200, 200, 404]
    for line in lines:
        assert (line["message"], line["level"]) == ("request", "info")
        assert line["request_id"].startswith("req_")
        assert 2 <= line["latency_ms"] < 1_000
        assert line["timestamp"].endswith("Z")


async def test_they_are_told_at_once_when_there_are_many_or_somebody_asks(
    capsys: pytest.CaptureFixture[str],
):
    """Goal: no more than so many are kept; what is told is not told again."""
    answers, route = Answers(SystemClock(), logs=True), new_account()
    for _ in range(answer._GATHER + 1):
        _answer(answers, route)
    assert _counted(route, 200) == answer._GATHER
    answers.flush()
    answers.flush()
    assert _counted(route, 200) == answer._GATHER + 1
    assert len(_lines(capsys, route)) == answer._GATHER + 1


async def test_without_a_log_they_are_counted_all_the_same(capsys: pytest.CaptureFixture[str]):
    answers, route = Answers(SystemClock(), logs=False), new_account()
    _answer(answers, route)
    answers.flush()
    assert _counted(route, 200) == 1
    assert _lines(capsys, route) == []


def test_times_counted_together_are_counted_as_one_by_one():
    """Goal: the same buckets and the same sum, on the bounds of buckets too."""
    shown: list[dict[Any, float]] = []
    for kind in (Histogram, _Times):
        registry = CollectorRegistry()
        histogram = kind("times", "Times.", ["route"], buckets=_SECONDS, registry=registry)
        if isinstance(histogram, _Times):
            histogram.labels("a").observe_all(TIMES)
        else:
            for time in TIMES:
                histogram.labels("a").observe(time)
        (family,) = registry.collect()
        shown.append(
            {
                (sample.name, *sample.labels.values()): sample.value
                for sample in family.samples
                if not sample.name.endswith("_created")
            }
        )
    assert shown[0] == pytest.approx(shown[1])
    assert shown[0]["times_count", "a"] == len(TIMES)
