"""What scripts, fuzzers and guest tests import from this project is there: most of them no other test runs."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ("rlctl", "scripts", "tests")


def is_python(path):
    return path.suffix == ".py" or (not path.suffix and path.read_bytes().startswith(b"#!/usr/bin/env python"))


FILES = [
    path
    for folder in ("scripts", "tests/fuzz", "tests/guest", "tests/release", "docs/rlctl_docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and is_python(path)
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_from_this_project_exists(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OWN:
            module = imported(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or imported(f"{node.module}.{name}"), f"{node.module}: no {name}"
        elif isinstance(node, ast.Import):
            for name in (alias.name for alias in node.names if alias.name.split(".")[0] in OWN):
                imported(name)


def imported(name):
    """A module of this project; skips where a package of an extra that it needs is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OWN:
            raise AssertionError(f"there is no module {error.name}") from error
        pytest.skip(f"{error.name} is not installed")
