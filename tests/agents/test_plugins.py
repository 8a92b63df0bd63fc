"""A manager of one's own, from a file: it is run where a command line names it, and every mistake is one line."""

import json
import time
from pathlib import Path

import pytest

from rlctl.agents import catalogue
from rlctl.agents.conformance import CHECKS
from rlctl.agents.managers.manager import Manager
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PolicyError
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry
from rlctl.safety.conformance import broken
from rlctl.safety.verdict import Verdict

TOY = """
from dataclasses import dataclass

from rlctl.agents.managers.manager import Manager


@dataclass(kw_only=True, eq=False)
class Toy(Manager):
    time_scale: float = 1.0
    core_cpus: float = 1.0

    def begin(self):
        return self.limits.minimum

    def decide(self, telemetry):
        {answer}
"""
ALWAYS = "return self.limits.minimum, 'always the minimum'"


def written(folder: Path, answer: str = ALWAYS) -> str:
    """A file with the class Toy, as a name."""
    path = folder / "toy.py"
    path.write_text(TOY.format(answer=answer))
    return f"{path}:Toy"


def error(name: str) -> str:
    with pytest.raises(PolicyError) as caught:
        catalogue.build(name)
    return str(caught.value)


def test_a_class_in_a_file_is_a_policy(tmp_path: Path) -> None:
    name = written(tmp_path)
    policy = catalogue.build(name, time_scale=15.0, core_cpus=0.5)
    assert policy.name == name
    assert catalogue.label(name) == "Toy"
    assert policy.start(Limits(cpus=2)) == Limits(cpus=2).minimum
    assert not policy.shielded
    assert not policy.learns


def test_one_that_learns_is_taught(tmp_path: Path) -> None:
    path = tmp_path / "toy.py"
    path.write_text(TOY.format(answer=ALWAYS).replace("    time_scale:", "    learns = True\n    time_scale:"))
    assert catalogue.build(f"{path}:Toy").learns


def test_one_that_listens_hears_the_ruling(tmp_path: Path) -> None:
    """Without it, what learns from the shield would take all it asked for as granted."""
    heard = "    def learn_ruling(self, it): self.heard = it\n    def close(self): self.heard = 'end'\n    time_scale:"
    path = tmp_path / "toy.py"
    path.write_text(TOY.format(answer=ALWAYS).replace("    time_scale:", heard))
    policy, limits = catalogue.build(f"{path}:Toy"), Limits(cpus=2)
    verdict = Verdict(limits.safe, limits.full, ())
    policy.learn_ruling(verdict)
    assert policy._policy.heard is verdict
    policy.close()
    assert policy._policy.heard == "end"


def test_its_constructor_gets_the_parameters_it_has(tmp_path: Path) -> None:
    name = written(tmp_path, "return self.limits.minimum, f'{self.time_scale} {self.core_cpus}'")
    policy = catalogue.build(name, time_scale=15.0, core_cpus=0.5)
    policy.start(Limits(cpus=2))
    policy.act(Observation(Telemetry(time_seconds=0.0, target_seconds=0.01), Limits(cpus=2).minimum))
    assert policy.note == "15.0 0.5"


def test_other_names_are_the_catalogues() -> None:
    assert catalogue.build("heracles", time_scale=15.0).name == "heracles"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "gone.py:Toy", "there is no such file"),
        ("", "toy.py", "name the class, too: .*toy.py:CLASS"),
        ("class Toy: ...", "toy.py:Tyo", r"there is no class Tyo; did you mean 'Toy'\?"),
        ("", "toy.py:Toy", "there is no class Toy; it has none"),
        ("Toy = 3", "toy.py:Toy", "there is no class Toy"),
        ("x = 1\nclass Toy(:\n", "toy.py:Toy", "toy.py:2: it raised SyntaxError"),
        ("import nowhere_to_be_found", "toy.py:Toy", "toy.py:1: it raised ModuleNotFoundError.*found'$"),
        ("import sys\nsys.exit(3)", "toy.py:Toy", "toy.py:2: it raised SystemExit: 3"),
        ("class Toy:\n    def __init__(self): raise SystemExit", "toy.py:Toy", r"toy.py:2: Toy\(\) raised SystemExit$"),
        ("class Toy:\n    def act(self, observation): ...", "toy.py:Toy", "class Toy lacks shielded, .*start, note"),
        ("class Toy:\n    def start(self, limits): ...", "toy.py:Toy", "lacks .*act.*; derive it from"),
        ("class Toy:\n    def __init__(self, size): ...", "toy.py:Toy", r"Toy\(\) raised TypeError: .*'size'"),
        ("class Toy:\n    def __init__(self):\n        1 / 0", "toy.py:Toy", "toy.py:3: .* raised ZeroDivisionError"),
        (
            "from rlctl.agents.managers.manager import Manager\nclass Toy(Manager):\n    def begin(self): ...",
            "toy.py:Toy",
            "class Toy lacks decide",
        ),
    ],
)
def test_each_mistake_in_a_file_is_one_line(tmp_path: Path, text: str | None, name: str, said: str) -> None:
    if text is not None:
        (tmp_path / "toy.py").write_text(text)
    with pytest.raises(PolicyError, match=said):
        catalogue.build(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("return 1 / 0, ''", r"toy.py:16: Toy.act raised ZeroDivisionError: division by zero"),
        ("return None, ''", "Toy.act raised AttributeError"),
        ("raise KeyError", r"toy.py:16: Toy.act raised KeyError$"),
        ("return self.limits.minimum", r"Toy.act raised TypeError: decide returned .*; return \(Allocation, reason\)"),
        ("return self.limits.minimum, '', 0", r"decide returned .*; return \(Allocation, reason\)"),
    ],
)
def test_what_it_raises_is_one_line_with_place(tmp_path: Path, answer: str, said: str) -> None:
    policy = catalogue.build(written(tmp_path, answer))
    policy.start(Limits(cpus=2))
    with pytest.raises(PolicyError, match=said):
        policy.act(Observation(Telemetry(time_seconds=0.0, target_seconds=0.01), Limits(cpus=2).minimum))


def test_a_policy_that_answers_nothing_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(
        "class Toy:\n"
        "    __slots__ = ()\n"
        "    shielded, masked, weight, needs, note, remarks = False, False, 'equal', (), 'x', ()\n"
        "    def start(self, limits): return limits.minimum\n"
        "    def act(self, observation): pass\n"
    )
    policy = catalogue.build(f"{tmp_path}/toy.py:Toy")
    assert policy.digest, "a log of one with slots has its hash, too"
    policy.start(Limits(cpus=2))
    with pytest.raises(PolicyError, match=r"Toy\.act returned nothing"):
        policy.act(Observation(Telemetry(time_seconds=0.0, target_seconds=0.01), Limits(cpus=2).minimum))


def test_a_module_beside_the_file_needs_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "toy.py").write_text("from beside.deeper import x")
    assert error(f"{tmp_path}/toy.py:Toy").endswith(
        f"No module named 'beside'; a file is loaded alone, modules beside it are found with PYTHONPATH={tmp_path}"
    )


@pytest.mark.parametrize("member", ["needs = 'latency'", "remarks = 'one sentence'"])
def test_a_text_is_not_a_tuple_of_letters(tmp_path: Path, member: str) -> None:
    name = written(tmp_path)
    (tmp_path / "toy.py").write_text(f"{TOY.format(answer=ALWAYS)}\n    {member}\n")
    with pytest.raises(PolicyError, match=rf"Toy\.{member.split()[0]} is a text; give a tuple"):
        assert not catalogue.build(name).remarks


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Toy", "greedy-shield.*; a class of your own is FILE.py:CLASS$"),
        ("toy:Toy", "FILE.py:CLASS, here toy.py:Toy$"),
        ("toy.Toy", "FILE.py:CLASS, here toy.py:Toy$"),
        ("./toy:Toy", "FILE.py:CLASS, here ./toy.py:Toy$"),
        ("heracls", r"did you mean 'heracles'\?$"),
    ],
)
def test_a_forgotten_file_is_hinted_at(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rlctl.cli import main

    with pytest.raises(PolicyError, match=hint):
        catalogue.build(name)
    assert main(["managers", "check", name]) == 78
    assert "learned policy" not in capsys.readouterr().err


class Growing(Manager):
    """Breaks what it can: it reads nothing, remembers its last run, and has an odd opinion of a host."""

    ticks = 0

    def begin(self) -> Allocation:
        return self.limits.minimum

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        self.ticks += 1
        return Allocation(0.01 * self.ticks, self.limits.cpus), ""

    def act(self, observation: Observation) -> Allocation:
        return self.decide(observation.telemetry)[0]


@pytest.mark.usefixtures("few_runs")
def test_the_checks_find_what_breaks_a_promise() -> None:
    found = {name: what for name, _, what in broken(CHECKS, Growing)}
    assert list(found) == list(CHECKS)
    assert {name for name, what in found.items() if what} == {"start-forgets", "no-reading"}
    assert found["start-forgets"].startswith("answer 1 is 0.01 CPU on 36 CPUs, and after a second start 0.31 CPU")


@pytest.mark.parametrize("clock", ["time", "monotonic", "perf_counter"])
@pytest.mark.usefixtures("few_runs")
def test_the_checks_find_a_clock_that_is_read(clock: str) -> None:
    real = getattr(time, clock)

    class Hourly(Manager):
        def begin(self) -> Allocation:
            return self.limits.minimum

        def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
            hour = getattr(time, clock)() // 3600.0
            return (self.limits.minimum if hour % 2 else self.limits.safe), "by the hour"

    found = {name: what for name, _, what in broken(CHECKS, Hourly)}
    assert "of a second one, later," in found["same-again"]
    assert getattr(time, clock) is real


@pytest.mark.usefixtures("few_runs")
def test_the_checks_find_an_unknown_need() -> None:
    class Needy(Growing):
        needs = ("load_ratio", "latency")

    found = {name: what for name, _, what in broken(CHECKS, Needy)}
    assert found["describes-itself"].startswith("it needs 'latency', which is no reading; there are tail_latency_")


@pytest.mark.usefixtures("few_runs")
def test_the_command_says_what_it_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rlctl.cli import main

    assert main(["managers", "check", "heracles"]) == 0
    assert capsys.readouterr().out.count("ok  ") == len(CHECKS)
    name = written(tmp_path, "return self.limits.full, 'all of it'")
    assert main(["managers", "check", name, "--json"]) == 1
    out, err = capsys.readouterr()
    said = {one["name"]: one["broken"] for one in json.loads(out)["checks"]}
    assert [check for check, what in said.items() if what] == ["no-reading"]
    assert "breaks 1 of 6 promises: no-reading" in err
    assert main(["managers", "check", "ppo"]) == 78
    assert "learned policy" in capsys.readouterr().err
