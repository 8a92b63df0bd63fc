"""The Python files of a checkout, parsed."""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["FLOORS", "PRODUCT", "Source", "sources"]

PRODUCT = ("envs", "safety", "agents", "rlctl")
"""Folders whose modules are in the wheel."""

FLOORS = (*PRODUCT, "scripts", "tests")

PRAGMA = re.compile(r"#\s*(noqa|fmt:|type:)")
"""Comments for programs, which tell a reader nothing."""


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

    @cached_property
    def line_count(self) -> int:
        """All lines, also blank ones."""
        return len(self.text.splitlines())

    @cached_property
    def tokens(self) -> tuple[tokenize.TokenInfo, ...]:
        """Python's tokens, comments among them."""
        return tuple(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @property
    def comments(self) -> int:
        """Comments on lines of their own and behind code, without pragmas."""
        return sum(token.type == tokenize.COMMENT and not PRAGMA.match(token.string) for token in self.tokens)

    @cached_property
    def code_line_count(self) -> int:
        """Lines that hold neither a comment nor a docstring alone."""
        silent = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
        lines: set[int] = set()
        for token in self.tokens:
            if tokenize.tok_name[token.type] not in silent:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return len(lines)

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
