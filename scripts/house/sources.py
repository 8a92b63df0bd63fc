"""The Python files of a checkout, parsed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["PRODUCT", "Source", "sources"]

PRODUCT = ("envs", "safety", "agents", "rlctl")
"""Folders whose modules are in the wheel."""


@dataclass(frozen=True)
class Source:
    """One file of Python.

    Attributes:
        path: Relative to the checkout's folder.
        text: What the file holds.
    """

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file as a syntax tree."""
        return ast.parse(self.text)

    def at(self, node: ast.stmt | ast.expr | ast.pattern) -> str:
        """`path:line` of a node."""
        return f"{self.path}:{node.lineno}"


def sources(checkout: Path, floors: Sequence[str] = PRODUCT) -> list[Source]:
    """Files below some of the checkout's folders, in order.

    Links are passed over: `rlctl/envs` belongs to the floor `envs`. Scripts without a suffix count where their first
    line names Python.
    """
    return [
        Source(path.relative_to(checkout), path.read_text()) for floor in floors for path in _files(checkout / floor)
    ]


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(place) / name
            if name.endswith(".py") or (not path.suffix and path.read_bytes().startswith(b"#!/usr/bin/env python")):
                yield path
