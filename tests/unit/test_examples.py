"""The examples that the OpenAPI document shows are real: they parse as what they stand for."""

import msgspec
import pytest

from bursar.api import examples
from bursar.api.call import Route
from bursar.api.event_examples import view
from bursar.api.routes import ROUTES
from bursar.errors import Fault
from bursar.event.catalog import EventType

WITH_BODY = [route for route in ROUTES if route.body is not None]
WITH_ANSWER = [route for route in ROUTES if route.data is not None]


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda r: f"{r.method} {r.path}")
def test_every_body_has_an_example_that_is_accepted(route: Route):
    assert route.body is not None
    faults: list[Fault] = []
    route.body.parse(examples.BODIES[route.body.title], "", faults)
    assert faults == []


@pytest.mark.parametrize("route", WITH_ANSWER, ids=lambda r: f"{r.method} {r.path}")
def test_every_answer_has_an_example_with_all_its_fields(route: Route):
    example = examples.ANSWERS[route.data.__name__]
    made = msgspec.convert(example, route.data)
    assert msgspec.to_builtins(made) == example


def test_the_event_holds_all_that_its_type_tells():
    """Goal: `data` is no excerpt, and the delivery is of that event."""
    event, delivery = examples.ANSWERS["Event"], examples.ANSWERS["Delivery"]
    type_ = EventType(event["type"])
    assert msgspec.to_builtins(msgspec.convert(event["data"], view(type_))) == event["data"]
    assert (delivery["eventId"], delivery["eventType"]) == (event["id"], type_)


def test_no_example_is_left_over():
    bodies = {route.body.title for route in WITH_BODY if route.body is not None}
    assert set(examples.BODIES) == bodies
    assert set(examples.ANSWERS) == {route.data.__name__ for route in WITH_ANSWER}
