"""A newcomer who follows CONTRIBUTING's "Where is ...?" finds file and name."""

import ast
import re

import pytest

pytest.importorskip("myst_parser", reason="the documentation's tools are missing: pip install 'rlctl[docs]'")

from rlctl_docs.blocks import ROOT

FLOORS = ("rlctl", "agents", "safety", "envs", "configs", "tests")
SECTION = re.search(
    r"^## Where is \.\.\.\?$(.*?)^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
)
ROWS = [line.strip("| ").rsplit(" | ", 1) for line in SECTION[1].splitlines() if line.startswith("| ")][2:]


def defined(tree, within=""):
    """Functions, classes and constants of a module, members with their class in front."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield within + node.name
            if isinstance(node, ast.ClassDef):
                yield from defined(node, f"{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield within + ast.unparse(target)


def test_it_answers_some_twenty_questions():
    assert len(ROWS) >= 20


@pytest.mark.parametrize(("question", "answer"), ROWS, ids=[question for question, _ in ROWS])
def test_every_file_and_name_of_the_answer_exists(question, answer):
    file, files = None, 0
    for word in re.findall(r"`([^`]+)`", answer):
        if word.startswith("rlctl "):  # a command
            continue
        if word.split("/")[0] in FLOORS and "/" in word:
            file, files = ROOT / word, files + 1
            assert file.exists(), word
        elif file.suffix == ".py":
            assert word in set(defined(ast.parse(file.read_text()))), f"{file.relative_to(ROOT)} has no {word}"
        else:
            assert re.search(rf"^\s*{word}:", file.read_text(), re.MULTILINE), f"{file} has no key {word}"
    assert files, question
