"""The survey counts what it says it counts, on a checkout made for it, and in this one all that can be measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SURVEY = Path(__file__).parents[2] / "scripts/survey"

FILES = {
    "rlctl/__init__.py": "",
    "rlctl/cli.py": "import rlctl.commands.serve\n",
    "rlctl/commands/__init__.py": "",
    "rlctl/commands/serve.py": (
        "from rlctl.loop import control\n"
        'WORKER = "rlctl.agents.served.worker"\n'
        'GYM = "rlctl.envs.sim:Host"  # an entry point\n'
    ),
    "rlctl/loop/__init__.py": "",
    "rlctl/loop/control.py": (
        '"""The loop."""\n'
        "from typing import TYPE_CHECKING, cast\n"
        "from rlctl.agents.policies import Learned\n"
        "if TYPE_CHECKING:\n"
        "    from rlctl.commands import serve\n"
        "class Controller:\n"
        "    def tick(self):\n"
        "        self.policy.act(self.observer.observe())\n"
        "        self.verdict()\n"
        "    def verdict(self):\n"
        "        return self.shield.rule()\n"
        "def only_rules(shield, policy):\n"
        "    # The law: never more than the safe allocation.\n"
        "    if isinstance(policy, Learned): pass  # noqa: E701\n"
        "    if isinstance(policy, int | Learned): pass\n"
        "    return shield.rule()\n"
    ),
    "agents/__init__.py": "",
    "agents/policies.py": (
        "from typing import Protocol\n"
        "class Policy(Protocol):\n"
        "    def act(self): ...\n"
        "class Manager:\n"
        "    def act(self):\n"
        '        """Likewise."""\n'
        "class Learned(Manager):\n"
        '    """A policy that has been learned.\n'
        "\n"
        "    Attributes:\n"
        "        seed: Its seed.\n"
        '    """\n'
        "def test(found): return isinstance(found, Learned)\n"
    ),
    "agents/served/__init__.py": "",
    "agents/served/worker.py": "",
    "agents/lonely.py": "\n\n\n",
    "envs/__init__.py": "",
    "envs/sim.py": "",
    "safety/__init__.py": "",
    "scripts/plain": "#!/usr/bin/env python3\nfound = 1\n",
    "tests/test_it.py": "",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for floor in ("envs", "agents", "safety"):
        (folder / "rlctl" / floor).symlink_to(f"../{floor}")
    return folder


def survey(*words):
    done = subprocess.run([sys.executable, SURVEY, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def figures(checkout):
    survey(checkout, "--json", checkout / "figures.json", "--symilar", "none-such")
    return json.loads((checkout / "figures.json").read_text())


def test_each_measure_is_computed_from_the_code(figures):
    measured = figures["measures"]
    assert measured["sentences"] == 1
    assert measured["rules"] == 2
    assert measured["leaks"] == 1
    assert measured["ls-rlctl"] == 7  # the links of the three floors among them
    assert measured["ls-agents"] == 4
    assert measured["circles"] == 1  # commands and loop, for types only
    assert measured["unreached"] == 3  # what a text names as a module is reached
    assert measured["lines"] == sum(
        len(text.splitlines()) for name, text in FILES.items() if not name.startswith(("scripts", "tests"))
    )
    assert measured["docstrings"] == 1
    assert measured["attributes"] == 1
    assert measured["vague"] == 2
    assert measured["comments-control"] == pytest.approx(100 / 16, abs=0.01)


def test_what_cannot_be_measured_says_why(figures, checkout):
    assert figures["measures"]["frames"] is None
    assert "? (ModuleNotFoundError" in survey(checkout, "--symilar", "none-such")


def test_two_checkouts_stand_side_by_side(checkout, tmp_path):
    out = survey(checkout, "--before", checkout, "--json", tmp_path / "both.json", "--symilar", "none-such")
    row = next(line for line in out.splitlines() if " leaks " in line)
    assert row.split()[-4:] == ["1", "1", "0", "missed"]
    figures = json.loads((tmp_path / "both.json").read_text())
    assert figures["before"] == figures["measures"]


def test_the_places_behind_a_measure_can_be_listed(checkout):
    assert survey(checkout, "--list", "sentences") == "rlctl/loop/control.py:6 Controller\n"
    assert survey(checkout, "--list", "leaks") == "rlctl/loop/control.py:14 Learned\n"
    assert survey(checkout, "--list", "circles") == "rlctl: commands <-> loop\n"


def test_a_tick_of_this_checkout_can_be_measured():
    probe = SURVEY.with_name("house") / "tick_frames.py"
    done = subprocess.run([sys.executable, probe, SURVEY.parents[1]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    stack = json.loads(done.stdout)
    assert stack[0] == "Controller.tick"
    assert stack[-1].endswith("Watched.write")
