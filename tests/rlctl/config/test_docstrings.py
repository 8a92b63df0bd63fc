"""The configuration's schema and the reference say what the docstrings say."""

from rlctl.config.fields import attributes, summary
from rlctl.config.serve import schema


class Sensor:
    """Reads a file.

    And keeps it open.

    Attributes:
        path: Where it is,
            on two lines: as here.
        low, high: The range.

    Raises:
        OSError: It is not there.
    """


class Filtered(Sensor):
    """Reads less.

    Args:
        low: Another one.
    """


def test_sections_are_read_name_by_name():
    assert attributes(Sensor) == {
        "path": "Where it is, on two lines: as here.",
        "low": "The range.",
        "high": "The range.",
    }
    assert summary(Sensor) == "Reads a file.\n\nAnd keeps it open."


def test_class_says_what_its_parents_say():
    assert attributes(Filtered)["low"] == "Another one."
    assert attributes(Filtered)["high"] == "The range."


def test_without_docstrings_there_is_nothing():
    bare = type("Bare", (), {})
    assert (attributes(bare), summary(bare)) == ({}, "")


def test_an_editor_shows_what_a_key_means():
    assert schema()["properties"]["tick_seconds"]["description"] == "Control period: one decision per tick."
