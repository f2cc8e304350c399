"""The samples of /docs are of this version, and do what the examples beside them show."""

import msgspec
import pytest

from tests.documents.samples import (
    FILE,
    Operation,
    body_of,
    endpoints,
    operations,
    python_arguments,
    text,
)


def test_samples_are_those_of_the_document():
    """Goal: a route that is added fails here until `make reference` was run."""
    assert FILE.read_text("utf-8") == text(), "run: make reference"


@pytest.mark.parametrize("operation", [*operations()], ids=lambda one: one[2]["operationId"])
def test_the_sample_in_python_makes_the_request_of_the_example(operation: Operation):
    method, path, asked = operation
    _, _, endpoint = endpoints()[method, path]
    positional, named = python_arguments(endpoint, operation)
    request = endpoint.describe(None, *positional, **named)
    if method == "GET" or "requestBody" not in asked:
        assert request.body is None
    else:
        # As it is sent, where a tuple is a list.
        content = endpoint.call(request).content
        assert content is not None
        assert msgspec.json.decode(content) == (body_of(asked) or {})
