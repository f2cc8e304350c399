"""What callers send, one value at a time: what the document refuses is refused."""

import jsonschema_rs
import pytest

from bursar.errors import Fault
from bursar.form.kinds import Text

TRIMMED = Text(1, 5, trim=True)
WHOLE = Text(1, 5)


@pytest.mark.parametrize("kind", [TRIMMED, WHOLE])
@pytest.mark.parametrize("text", ["a", "abcde", " abcde", "\tabcde\n", "abcdef", "", 7, None])
def test_a_text_that_the_schema_refuses_is_refused(kind: Text, text: object):
    """Goal: blanks that are trimmed do not count, so the schema has no upper bound there."""
    faults: list[Fault] = []
    kind.parse(text, "name", faults)
    if not jsonschema_rs.is_valid(kind.schema(), text):
        assert faults != []


def test_blanks_around_a_text_are_not_counted():
    faults: list[Fault] = []
    assert TRIMMED.parse("  abcde\t", "name", faults) == "abcde"
    assert faults == []
    WHOLE.parse("  abcde\t", "name", faults)
    TRIMMED.parse(" abcdef ", "name", faults)
    TRIMMED.parse("  ", "name", faults)
    assert [fault.message for fault in faults] == ["name must have 1 to 5 characters."] * 3
