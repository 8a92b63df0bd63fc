"""What `scripts/lint-words` and `scripts/survey` count in names, messages and sentences."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PARTICIPLE = re.compile(
    r"_?(?:[a-z]{2,}ed|told|said|kept|held|found|given|made|seen|shown|written|known|taken|sent|left|lost|read_of)"
)
NO_PARTICIPLE = frozenset({"feed", "heed", "testbed", "need", "seed", "speed", "exceed", "proceed", "embed", "shed"})

ODD_ENGLISH = re.compile(r"(?<!there )\bis no (?!longer\b|more\b)|\bnobody\b", re.IGNORECASE)
"""What a message does not say: "'x' is no number" is "'x' is not a valid number"; "nobody" has a name."""

LONGEST_SENTENCE = 30
"""Words."""

LONGEST_TEST_NAME = 8
"""Words after `test_`."""

_CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_APART = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\||#|    \w[\w, ]*: ))")
"""Between paragraphs, list items, rows of tables, headings and entries of a docstring's sections."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def repeated_classes(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Names of classes that several modules define, with these modules."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def participle_functions(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Functions and methods named by one participle, with their places; properties say what something is and may."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or not PARTICIPLE.fullmatch(node.name):
                continue
            is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
            if not is_property and node.name.strip("_") not in NO_PARTICIPLE:
                places[node.name].append(f"{path}:{node.lineno}")
    return dict(sorted(places.items()))


def odd_messages(trees: Mapping[Path, ast.Module]) -> dict[str, list[str]]:
    """Texts in the code that are no docstrings and say "is no x" or "nobody", with their places."""
    places = defaultdict(list)
    for path, tree in trees.items():
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
                continue
            if ODD_ENGLISH.search(node.value):
                places[node.value].append(f"{path}:{node.lineno}")
    return dict(sorted(places.items()))


def long_test_names(folder: Path) -> list[str]:
    """Tests below a folder whose names have too many words, each with its place."""
    found = []
    for path in sorted(folder.rglob("test_*.py")):
        for line, text in enumerate(path.read_text().splitlines(), 1):
            name = re.match(r" *def test_(\w+)\(", text)
            if name and len(name[1].split("_")) > LONGEST_TEST_NAME:
                found.append(f"{path.relative_to(folder.parent)}:{line} test_{name[1]}")
    return found


def long_sentences(trees: Mapping[Path, ast.Module], pages: Mapping[Path, str]) -> list[str]:
    """Sentences of pages and docstrings with too many words, each with its file and its first words."""
    found = []
    for path, text in pages.items():
        found += [f"{path}: {one}" for one in _long_ones(_CODE_BLOCK.sub("", text))]
    for path, tree in trees.items():
        for docstring in _docstrings(tree):
            found += [f"{path}: {one}" for one in _long_ones(docstring)]
    return found


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _long_ones(text: str) -> Iterable[str]:
    for part in _APART.split(text):
        for sentence in _SENTENCE_END.split(part):
            words = sentence.split()
            if len(words) > LONGEST_SENTENCE and not sentence.lstrip().startswith("|"):
                yield " ".join(words[:8]) + f" ... ({len(words)} words)"
