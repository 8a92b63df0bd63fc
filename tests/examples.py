"""How many inputs a property is tried with: some by default, and with `--random` as many as its profile says."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(least: int, **options: Any) -> settings:
    """The settings of a property for which the default profile's number of inputs is not the right one."""
    profile = settings.default
    assert profile is not None
    deep = profile.max_examples >= DEEP
    return settings(max_examples=max(least, profile.max_examples) if deep else least, **options)


DEEP = 100
"""From so many inputs on a profile is one that looks for something new."""
