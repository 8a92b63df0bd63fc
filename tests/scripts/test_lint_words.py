"""Docstrings and attribute lines that tell a newcomer nothing are refused, and only those."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/lint-words"


def lint(root, *folders):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--root", root, *folders], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


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
def test_a_public_docstring_has_four_words_on_its_first_line(refused, docstring, is_refused):
    assert refused(f'def quota():\n    """{docstring}"""\n') == ["quota"] * is_refused
    assert refused(f'class Quota:\n    """{docstring}"""\n') == ["Quota"] * is_refused
    assert refused(f'class Quota:\n    def cpus(self):\n        """{docstring}"""\n') == ["cpus"] * is_refused


def test_private_names_and_those_without_a_docstring_are_left_to_ruff(refused):
    assert refused('def _quota():\n    """Likewise."""\n\n\ndef quota():\n    pass\n') == []


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
def test_an_entry_says_three_words_that_are_not_all_in_its_name(refused, section, entry, is_refused):
    name = entry.split(":")[0]
    text = f'def make():\n    """Make what is asked for.\n\n    {section}:\n        {entry}\n    """\n'
    assert [line.split(", ", 1)[1] for line in refused(text)] == [name] * is_refused


def test_other_sections_are_left_alone(refused):
    text = (
        '"""Module."""\n\n\ndef make():\n    """Make what is asked for.\n\n    Raises:\n        OSError: No.\n    """\n'
    )
    assert refused(text) == []


def test_without_folders_this_checkout_is_clean():
    code, out = lint(SCRIPT.parents[1])
    assert code == 0, out


@pytest.fixture
def checkout(tmp_path):
    """A product of one module and one page, with a budget; gives what is printed, and the budget afterwards."""

    def run(module, page="", *options, **budget):
        (tmp_path / "safety").mkdir(exist_ok=True)
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "safety/gates.py").write_text(module)
        (tmp_path / "safety/other.py").write_text("class Gate:\n    pass\n")
        (tmp_path / "README.md").write_text(page)
        stored = {"classes": {}, "participles": {}, "messages": {}, "sentences": 0} | budget
        (tmp_path / "scripts/lint-words.json").write_text(json.dumps(stored))
        code, out = lint(tmp_path, *options)
        return code, out, json.loads((tmp_path / "scripts/lint-words.json").read_text())

    return run


CLASS, PARTICIPLE = "class Gate:\n    pass\n", "def told():\n    pass\n"
MESSAGE, LONG = "x = 'y is no number'\n", "Word " * 31 + "end.\n"


@pytest.mark.parametrize(
    ("module", "page", "budget", "what_to_do"),
    [
        (CLASS, "", {"classes": {"Gate": 2}}, "name one of the two classes"),
        (PARTICIPLE, "", {"participles": {"told": 1}}, "name the function by a verb"),
        (MESSAGE, "", {"messages": {"y is no number": 1}}, "'not a valid x' instead of 'is no x'"),
        ("", LONG, {"sentences": 1}, "split those that you wrote"),
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
    }
    code, _, left = checkout(PARTICIPLE, "", "--write", **stored)
    assert (code, left) == (0, {"classes": {}, "participles": {"told": 1}, "messages": {}, "sentences": 0})
    code, _, left = checkout(CLASS, LONG, "--write")
    assert (code, left["classes"], left["sentences"]) == (1, {}, 0)


@pytest.mark.parametrize("module", ["def feed():\n    pass\n", "x = 'is no longer there'\n", '"""Y is no number."""\n'])
def test_verbs_and_docstrings_are_no_offence(checkout, module):
    assert checkout(module)[0] == 0


def test_tables_and_code_are_no_sentences(checkout):
    assert checkout("", f"| {LONG.strip()} |\n\n```text\n{LONG}```\n")[0] == 0
