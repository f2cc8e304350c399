"""docs/api.md is what the route table says, and the recipes leave nothing out."""

import re
from itertools import pairwise
from typing import Final

import pytest

from bursar.api.routes import ROUTES
from bursar.event.catalog import EventType
from bursar.policy.engine import RejectCode
from tests.documents.blocks import Block, blocks
from tests.documents.pages import ROOT
from tests.documents.reference import REFERENCE_FILE, reference

RECIPES: Final = (ROOT / "docs/recipes.md").read_text("utf-8")


def test_the_reference_is_up_to_date():
    """Goal: a route, field, error or example that changes is on the page. `make reference`."""
    assert REFERENCE_FILE.read_text("utf-8") == reference()


def test_the_reference_has_every_route():
    headings = re.findall(r"^`([A-Z]+ /v1/\S+)`$", reference(), re.MULTILINE)
    routes = [re.sub(r":(\w+)", r"{\1}", f"{route.method} {route.path}") for route in ROUTES]
    assert sorted(headings) == sorted(routes)


@pytest.mark.parametrize("name", [*RejectCode, *EventType], ids=lambda name: name.value)
def test_every_reject_code_and_event_has_a_recipe(name: RejectCode | EventType):
    """Goal: each is made to happen on the page, which shows that it did; what a reader cannot
    make happen, by the test that the page names."""
    recipe = rf"^### `{re.escape(name.value)}`\n(.+?)(?=^##|\Z)"
    match = re.search(recipe, RECIPES, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading ### `{name.value}` in docs/recipes.md"
    found = blocks(match[1])
    shown = any(_shows(made, output, name.value) for made, output in pairwise(found))
    assert shown or any(_is_made_by_a_test(block, name.value) for block in found)


def _shows(made: Block, shown: Block, name: str) -> bool:
    return made.runs and shown.note == "output" and f'"{name}"' in shown.text


def _is_made_by_a_test(block: Block, name: str) -> bool:
    path = re.search(r"tests/\S+\.py", block.detail) if block.note == "not run" else None
    return path is not None and f'"{name}"' in (ROOT / path[0]).read_text("utf-8")


def test_no_recipe_is_made_up():
    headings = re.findall(r"^### `(.+)`$", RECIPES, re.MULTILINE)
    assert sorted(headings) == sorted(name.value for name in [*RejectCode, *EventType])
