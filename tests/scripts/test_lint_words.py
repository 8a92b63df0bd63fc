"""Docstrings and attribute lines that tell a newcomer nothing are refused, and only those."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/lint-words"
main = runpy.run_path(str(SCRIPT), run_name="lint-words")["main"]


def lint(root, *words):
    out = io.StringIO()
    with patch.object(sys, "argv", ["lint-words", "--root", str(root), *words]), contextlib.redirect_stdout(out):
        return main(), out.getvalue()


@pytest.fixture
def refused(tmp_path):
    """Lints one module of the given text; what is refused, by the name in it."""

    def run(text):
        (tmp_path / "safety").mkdir(exist_ok=True)
        (tmp_path / "safety/gates.py").write_text(text)
        code, out = lint(tmp_path, "safety")
        assert code == ("safety/gates.py:" in out)
        return [line.split(" ", 1)[1].split(":")[0] for line in out.splitlines()] if code else []

    return run


@pytest.mark.parametrize(
    ("docstring", "is_refused"),
    [
        ("Likewise.", True),
        ("Of BE.", True),
        ("The run's seed.", True),
        ("BE's quota in CPUs.", False),
        ("Short first line.\n\n    And then a long explanation of what it is for.\n    ", True),
    ],
)
def test_a_public_docstring_has_four_words_first(refused, docstring, is_refused):
    assert refused(f'def quota():\n    """{docstring}"""\n') == ["quota"] * is_refused
    assert refused(f'class Quota:\n    """{docstring}"""\n') == ["Quota"] * is_refused
    assert refused(f'class Quota:\n    def cpus(self):\n        """{docstring}"""\n') == ["cpus"] * is_refused


@pytest.mark.parametrize("section", ["Args", "Attributes"])
@pytest.mark.parametrize(
    ("entry", "is_refused"),
    [
        ("manager: Whose.", True),
        ("seed: Its seed.", True),
        ("quota_cpus: The quota of CPUs.", True),
        ("timesteps, seconds: When.", True),
        ("path:", True),
        ("quota_cpus: The most that BE may use.", False),
        ("seed: Draws the\n            hosts.", False),
        ("period_us: Period of the quota, microseconds.", False),
    ],
)
def test_an_entry_says_more_than_its_name(refused, section, entry, is_refused):
    name = entry.split(":")[0]
    text = f'def make():\n    """Make what is asked for.\n\n    {section}:\n        {entry}\n    """\n'
    assert [line.split(", ", 1)[1] for line in refused(text)] == [name] * is_refused


@pytest.fixture
def checkout(tmp_path):
    """A product of one module and one page, with a budget; gives what is printed, and the budget afterwards."""

    def run(module, page="", *options, **budget):
        for folder in ("safety", "scripts", "tests"):
            (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / "tests/test_gates.py").write_text(module)
        (tmp_path / "safety/gates.py").write_text(module)
        (tmp_path / "safety/other.py").write_text("class Gate:\n    pass\n")
        (tmp_path / "README.md").write_text(page)
        stored = {"classes": {}, "participles": {}, "messages": {}, "sentences": 0, "tests": 0} | budget
        (tmp_path / "scripts/lint-words.json").write_text(json.dumps(stored))
        code, out = lint(tmp_path, *options)
        return code, out, json.loads((tmp_path / "scripts/lint-words.json").read_text())

    return run


CLASS, PARTICIPLE = "class Gate:\n    pass\n", "def told():\n    pass\n"
MESSAGE, LONG = "x = 'y is no number'\n", "Word " * 31 + "end.\n"
TEST = "def test_one_two_three_four_five_six_seven_eight_nine():\n    pass\n"


@pytest.mark.parametrize(
    ("module", "page", "budget", "what_to_do"),
    [
        (CLASS, "", {"classes": {"Gate": 2}}, "name one of the two classes"),
        (PARTICIPLE, "", {"participles": {"told": 1}}, "name the function by a verb"),
        (MESSAGE, "", {"messages": {"y is no number": 1}}, "'not a valid x' instead of 'is no x'"),
        ("", LONG, {"sentences": 1}, "split those that you wrote"),
        (TEST, "", {"tests": 1}, "shorten those that you wrote"),
    ],
)
def test_only_what_the_budget_names_passes(checkout, module, page, budget, what_to_do):
    code, out, _ = checkout(module, page)
    assert (code, what_to_do in out) == (1, True)
    assert checkout(module, page, **budget)[0] == 0


def test_the_budget_only_shrinks(checkout):
    stored = {
        "classes": {"Gate": 2, "Gone": 2},
        "participles": {"told": 3},
        "messages": {"a is no b": 1},
        "sentences": 9,
        "tests": 9,
    }
    code, _, left = checkout(PARTICIPLE, "", "--write", **stored)
    assert (code, left) == (0, {"classes": {}, "participles": {"told": 1}, "messages": {}, "sentences": 0, "tests": 0})
    code, _, left = checkout(CLASS, LONG, "--write")
    assert (code, left["classes"], left["sentences"]) == (1, {}, 0)


@pytest.mark.parametrize("module", ["def feed():\n    pass\n", "x = 'is no longer there'\n", '"""Y is no number."""\n'])
def test_verbs_and_docstrings_are_no_offence(checkout, module):
    assert checkout(module)[0] == 0


def test_tables_and_code_are_no_sentences(checkout):
    assert checkout("", f"| {LONG.strip()} |\n\n```text\n{LONG}```\n")[0] == 0
