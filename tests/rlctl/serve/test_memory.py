"""What a policy learned of a host outlives the service, and never stands in its way."""

import json
import os
import time
from unittest.mock import patch

import pytest

from rlctl.agents.catalogue import build
from rlctl.agents.managers.learned_table import LearnedTable
from rlctl.cli import main
from rlctl.envs.allocation import Limits
from rlctl.envs.experience import SafeLevelMemory
from rlctl.envs.host.max_load import MaxLoad
from rlctl.envs.telemetry import Value
from rlctl.log.kept import MemoryRecorder
from rlctl.loop.control import Controller
from rlctl.safety.profile import load_profile
from rlctl.safety.shield import Shield
from rlctl.serve.budget import ErrorBudget
from rlctl.serve.memory import KEEP_SECONDS, MEMORY, MOST_LEARNERS, HostMemory
from rlctl.serve.policy_setup import PolicySetup
from tests.doubles.clock import Clock, Countdown
from tests.doubles.host import FakeHost, run_service
from tests.doubles.levels import level_of
from tests.doubles.plant import FakePlant

LIMITS = Limits(cpus=2)
PROFILE = load_profile("responsive")
HOST = {"limits": {"cpus": 2, "lc_cpus": 1.0, "min_quota_cpus": 0.01, "levels": 20}, "slo": {"lc": 0.01}}


class Recorded(HostMemory):
    """Has at hand what was kept last."""

    def keep(self, learners):
        self.learners = learners
        super().keep(learners)


def served(folder, ticks, host=HOST, manager=None):
    """What a service knew of the host in the end."""
    memory = Recorded(folder, host)
    plant = FakeHost(LIMITS, loads=(0.1,))
    setup = PolicySetup(manager or LearnedTable(), PROFILE)
    with patch("rlctl.serve.service.HostMemory", lambda *_, **__: memory):
        run_service(plant, setup, Countdown(ticks), folder)
    return memory.learners[0].state_dict()


def taught():
    """An experience that there is something to keep of."""
    experience = SafeLevelMemory(LIMITS)
    experience.restore_state(known())
    return experience


def test_a_restart_goes_on_with_what_was_learned(tmp_path, caplog):
    caplog.set_level("INFO")
    first = served(tmp_path, 60)
    assert first["cells"]
    assert "goes on" not in caplog.text
    again = served(tmp_path, 1)
    assert len(again["cells"]) >= len(first["cells"])
    assert "experience goes on with what it knew of this host a moment ago" in caplog.text


class Nobody:
    """Learns, and has nothing to tell of it yet."""

    name = "maximum load of lc"

    def state_dict(self):
        return {"schema": 2, "missed_rps": None}

    def restore_state(self, memory):
        pass


@pytest.mark.parametrize(
    ("learner", "seconds", "said"),
    [
        (taught, 59.0, "experience goes on with what it knew of this host a moment ago"),
        (taught, 1800.0, "experience goes on with what it knew of this host 30 min ago"),
        (taught, 5400.0, "experience goes on with what it knew of this host 1.5 h ago"),
        (Nobody, 1800.0, "maximum load of lc begins anew: it knew nothing of this host 30 min ago"),
    ],
)
def test_what_is_known_after_restart_is_said(tmp_path, caplog, learner, seconds, said):
    """Once 0.0 h ago, and of an LC that had missed nothing yet that something was known."""
    caplog.set_level("INFO")
    clock = Clock(1e9)
    HostMemory(tmp_path, HOST, clock).keep((learner(),))
    clock.now += seconds
    HostMemory(tmp_path, HOST, clock).restore_state(learner())
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize(("hours", "missed"), [(0.0, True), (24.0, False)])
def test_what_was_learned_ages_while_service_is_down(tmp_path, hours, missed):
    """A miss of yesterday bars no level today: it is half forgotten after ten minutes."""
    clock = Clock(1e9)
    experience = SafeLevelMemory(LIMITS)
    experience.restore_state({"schema": 3, "cells": [[0.1, 1.0, 0.0, 1.0, 0.0]], "alone": [0.0, 0.0], "calm": []})
    HostMemory(tmp_path, HOST, clock).keep((experience,))
    clock.now += 3600.0 * hours
    again = SafeLevelMemory(LIMITS)
    HostMemory(tmp_path, HOST, clock).restore_state(again)
    assert bool(again.counts()[1].max() > 0.5) is missed


def test_another_proposed_target_is_learned_anew(tmp_path):
    """The configuration says `auto` of each of them."""
    before = HostMemory(tmp_path, HOST)
    before.set_target("lc", 0.05)
    before.keep([taught()])
    for target_seconds, known in ((0.05, True), (0.01, False)):
        memory, experience = HostMemory(tmp_path, HOST), SafeLevelMemory(LIMITS)
        memory.set_target("lc", target_seconds)
        memory.restore_state(experience)
        assert bool(experience.state_dict()) is known


def test_another_host_is_learned_anew(tmp_path, caplog):
    served(tmp_path, 60)
    assert len(served(tmp_path, 2, HOST | {"slo": {"lc": 0.02}})["cells"]) <= 2
    assert "another slo than when it was learned" in caplog.text


def known(schema=3):
    return {"schema": schema, "cells": [[0.1, 1.0, 50.0, 0.0, 0.0]], "alone": [0.0, 0.0], "calm": [[0.1, 0.2]]}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "\0", "[" * 100_000, json.dumps({"schema": 2, "host": HOST, "learned": {}}),
     json.dumps({"schema": 1, "host": HOST, "learned": {"experience": {"saved": 0.0, "memory": known(1)}}}),
     json.dumps({"schema": 1, "host": HOST, "learned": {"experience": {"saved": "x", "memory": known()}}}),
     json.dumps({"schema": 1, "host": HOST, "learned": {"experience": 3}}), "x" * (2 << 20)],
)  # fmt: skip
def test_file_that_is_no_memory_is_written_anew(tmp_path, text, caplog):
    (tmp_path / MEMORY).write_text(text)
    assert served(tmp_path, 60)["cells"]
    assert "is learned anew" in caplog.text
    assert "experience" in json.loads((tmp_path / MEMORY).read_text())["learned"]


def test_under_guessed_limits_what_was_learned_stays(tmp_path):
    """An LC that starts after rlctl: its CPUs are not known, and the host is taken for another one."""
    HostMemory(tmp_path, HOST).keep((taught(),))
    budget, guess = ErrorBudget("lc", 0.01, 1.0), {**HOST, "limits": {}}
    memory = HostMemory(tmp_path, guess, guessed=True)
    memory.restore_state(experience := SafeLevelMemory(LIMITS))
    assert not experience.state_dict()
    memory.keep((experience, budget))
    memory.keep((taught(), budget))
    HostMemory(tmp_path, HOST).restore_state(experience)
    assert experience.state_dict()["cells"] == taught().state_dict()["cells"]
    kept = json.loads((tmp_path / MEMORY).read_text())
    assert kept["host"] == HOST


@pytest.mark.parametrize("planted", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo])
def test_file_of_another_kind_is_not_followed(tmp_path, planted, caplog):
    planted(tmp_path / MEMORY)
    assert served(tmp_path, 60)["cells"]
    assert "experience is learned anew" in caplog.text
    assert (tmp_path / MEMORY).is_file()
    assert not (tmp_path / MEMORY).is_symlink()


def test_what_a_file_says_frees_nobody(tmp_path):
    """Whatever the memory proposes, the shield rules: without latency BE is at the safe allocation."""
    everything = {"schema": 1, "host": HOST, "learned": {"experience": {"saved": time.time(), "memory": known()}}}
    (tmp_path / MEMORY).write_text(json.dumps(everything))
    memory, manager = HostMemory(tmp_path, HOST), LearnedTable()
    shield = Shield(PROFILE, LIMITS)
    plant = FakePlant(LIMITS, loads=(0.99,))
    controller = Controller(plant, manager, shield, MemoryRecorder())
    controller.restore_state = memory.restore_state
    controller.run(ticks=5)
    assert plant.current.frozen or level_of(plant.current, LIMITS) == 0


def test_another_policy_goes_on_with_the_learned(tmp_path):
    first = served(tmp_path, 60)
    assert len(served(tmp_path, 1, manager=build("greedy-shield"))["cells"]) >= len(first["cells"])


def test_latest_are_kept_once_a_minute_by_name(tmp_path):
    clock = Clock(1e9)
    memory, experience = HostMemory(tmp_path, HOST, clock), taught()
    memory.keep_if_due((experience,))
    assert not (tmp_path / MEMORY).exists()
    for number in range(2 * MOST_LEARNERS):
        clock.now += KEEP_SECONDS
        experience.name = f"lc-{number}"
        memory.keep_if_due((experience,))
    kept = list(json.loads((tmp_path / MEMORY).read_text())["learned"])
    assert kept == [f"lc-{number}" for number in range(MOST_LEARNERS, 2 * MOST_LEARNERS)]
    clock.now -= 7200.0  # set right
    experience.name = "back"
    memory.keep_if_due((experience,))
    assert "back" in json.loads((tmp_path / MEMORY).read_text())["learned"]


def test_unwritable_folder_and_failing_learner_are_told(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    HostMemory(tmp_path / "file", HOST).keep((taught(),))
    assert "a restart learns this host anew" in caplog.text
    broken = taught()
    broken.rows = None
    HostMemory(tmp_path, HOST).keep((broken,))
    assert "what experience learned is not kept" in caplog.text


def test_inspect_shows_it(tmp_path, capsys):
    budget = ErrorBudget("lc", 0.01, 1.0)
    budget.count(missed=True)
    load = MaxLoad("lc", 1.0)
    load.observe(1.0, Value(300.0), Value(0.001), 0.5, be_held=True)
    HostMemory(tmp_path, HOST).keep((budget, load))
    served(tmp_path, 60)
    assert main(["inspect", str(tmp_path / MEMORY)]) == 0
    told = capsys.readouterr().out
    assert "experience, 20" in told
    assert "windows held" in told
    assert "error budget of lc" in told
    assert "1 windows missed in the day before" in told
    assert "1 ms of CPU a request" in told
    assert main(["inspect", str(tmp_path / MEMORY), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["host"] == HOST


@pytest.mark.parametrize(
    "text", ["", "{}", json.dumps({"schema": 1, "host": HOST, "learned": {"a\x1b": {"saved": 1e300, "memory": 3}}})]
)
def test_inspect_refuses_what_is_none(tmp_path, capsys, text):
    (tmp_path / MEMORY).write_text(text)
    assert main(["inspect", str(tmp_path / MEMORY)]) == 78
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["inspect", str(tmp_path / "none.json")]) == 78
