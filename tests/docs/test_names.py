"""Folders, files and modules that a page names are there."""

import importlib
import re
import subprocess

import pytest

pytest.importorskip("myst_parser", reason="the documentation's tools are missing: pip install 'rlctl[docs]'")

from rlctl_docs.blocks import ROOT, pages

PATH = re.compile(r"`((?:rlctl|agents|envs|safety|configs|scripts|tests|docs)/[\w./-]+)`")
NO_PATH = re.compile(r"[A-Z]{2,}|-v\d$|^rlctl/\w+_ratio$")
"""A placeholder such as NAME, an environment of Gymnasium, and what a training run calls its curves."""

PACKAGES = sorted(path.name for path in (ROOT / "rlctl").iterdir() if (path / "__init__.py").is_file())
MODULE = re.compile(rf"\brlctl\.(?:{'|'.join(PACKAGES)})(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?")

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in (*pages(), ROOT / "SECURITY.md")}


def test_every_path_that_a_page_names_is_there():
    """What git ignores is made on one machine and missing on the next."""
    named = {(path, page) for page, text in TEXTS.items() for path in PATH.findall(text) if not NO_PATH.search(path)}
    assert not {(path, page) for path, page in named if not (ROOT / path).exists()}
    paths = "\n".join(sorted({path for path, _ in named}))
    checked = subprocess.run(["git", "check-ignore", "--stdin"], cwd=ROOT, input=paths, capture_output=True, text=True)
    assert not {(path, page) for path, page in named if path in checked.stdout.splitlines()}


def test_every_module_that_page_names_can_be_imported():
    named = {(name, page) for page, text in TEXTS.items() for name in MODULE.findall(text)}
    assert not {(name, page) for name, page in named if not is_there(name)}


def is_there(name):
    """A module, or something in one; what needs an extra that is missing counts as there."""
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("rlctl"):
            return True
        return module != "rlctl" and hasattr(importlib.import_module(module), attribute)
    return True
