"""What docstrings leave a newcomer without: too few words, attributes that only repeat their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scripts.house.sources import Source

__all__ = ["LEAST_WORDS", "empty_attributes", "short_docstrings"]

LEAST_WORDS = {"docstring": 4, "attribute": 3}
"""Fewest words of a docstring's first line, and of an entry below `Args:` or `Attributes:`."""

SECTION = re.compile(r"(\w[\w ]*):$")
ENTRY = re.compile(r"    (\S[^:]*):(?: (.*))?$")
FILLERS = frozenset({"a", "an", "and", "as", "in", "is", "its", "of", "on", "or", "the", "their", "to"})

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def short_docstrings(source: Source) -> Iterator[str]:
    """Public functions and classes whose docstring's first line has fewer than four words, as `path:line name`."""
    for node in _definitions(source):
        docstring = ast.get_docstring(node)
        if docstring and not node.name.startswith("_") and _words(docstring.splitlines()[0]) < LEAST_WORDS["docstring"]:
            yield f"{source.at(node)} {node.name}: {docstring.splitlines()[0]}"


def empty_attributes(source: Source) -> Iterator[str]:
    """Entries below `Args:` or `Attributes:` of fewer than three words, or of no word that is not in the name."""
    for node in _definitions(source):
        for name, text in _entries(ast.get_docstring(node) or ""):
            if _words(text) < LEAST_WORDS["attribute"] or _content(text) <= _content(name):
                yield f"{source.at(node)} {node.name}, {name}: {text}"


def _definitions(source: Source) -> Iterator[Definition]:
    return (node for node in ast.walk(source.tree) if isinstance(node, Definition))


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the sections `Args` and `Attributes`; continued lines belong to their entry."""
    entries: list[list[str]] = []
    section = ""
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            heading = SECTION.match(line)
            section = heading[1] if heading else ""
        elif section in ("Args", "Attributes"):
            if entry := ENTRY.match(line):
                entries.append([entry[1], entry[2] or ""])
            elif line.strip() and entries:
                entries[-1][1] += f" {line.strip()}"
    return ((name, text) for name, text in entries)


def _words(text: str) -> int:
    return len(text.split())


def _content(text: str) -> frozenset[str]:
    """Words that say something; a name is taken apart at its underscores."""
    return frozenset(re.findall(r"[a-z0-9]+", text.lower())) - FILLERS
