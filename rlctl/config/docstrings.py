"""What docstrings say of attributes, for the configuration's schema and the generated reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):\n", re.MULTILINE)
_NAMES = re.compile(r"^    (?P<names>[a-z_0-9]+(, [a-z_0-9]+)*): (?P<text>.*)")


def summary(documented: type) -> str:
    """The docstring without its sections."""
    return _SECTION.split(inspect.cleandoc(_own(documented)))[0].strip()


def attributes(documented: type) -> dict[str, str]:
    """What `Attributes:` and `Args:` of a class and of those it is made of say, by name, each on one line."""
    return {name: text for one in reversed(documented.__mro__) for name, text in _attributes(_own(one))}


def _own(documented: type) -> str:
    return documented.__dict__.get("__doc__") or ""  # `python -OO` has none


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    parts = _SECTION.split(inspect.cleandoc(docstring))
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Args", "Attributes"):
            continue
        for entry in re.split(r"\n(?=    \S)", body.rstrip()):
            if found := _NAMES.match("    " + " ".join(entry.split())):
                yield from ((name, found["text"]) for name in found["names"].split(", "))
