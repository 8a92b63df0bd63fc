"""The perf sensor with a played child: its readings, its restarts, and when it gives up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.errors import SensorError
from rlctl.envs.host.sensors.perf import PerfSensor, perf_command, perf_root
from rlctl.envs.host.sensors.perf_process import MOST_RAPID_DEATHS, Shape
from rlctl.envs.telemetry import Missing, Reading, Value, Why

near: Any = pytest.approx  # its own type is not that of a number

EVENTS = ("cycles", "instructions", "LLC-load-misses", "context-switches", "task-clock")
PERMISSION = "Error:\nAccess to performance monitoring and observability operations is limited.\n"


@dataclass
class PlayedChild:
    """Says what the test puts into `out`, and is dead once `code` is set."""

    command: Sequence[str]
    out: bytes = b""
    words: str = ""
    code: int | None = None
    stopped: bool = False

    def read(self) -> bytes:
        out, self.out = self.out, b""
        return out

    def poll(self) -> int | None:
        return self.code

    def last_words(self) -> str:
        return self.words

    def stop(self) -> None:
        self.stopped = True

    def die(self, words: str) -> None:
        self.words, self.code = words, 255


@dataclass
class Stage:
    """Starts played children and remembers them, newest last."""

    children: list[PlayedChild] = field(default_factory=list)

    def start(self, command: Sequence[str]) -> PlayedChild:
        self.children.append(PlayedChild(command))
        return self.children[-1]

    @property
    def child(self) -> PlayedChild:
        return self.children[-1]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def sensor(stage: Stage, groups: Path, events: Sequence[str] = EVENTS, be: Sequence[str] = ("be",)) -> PerfSensor:
    return PerfSensor(["lc"], be, groups, events=events, start=stage.start)


def why(reading: Reading) -> Why | None:
    return reading.why if isinstance(reading, Missing) else None


def line(stamp: float, group: str, event: str, value: object, running: float = 100.0) -> bytes:
    return (
        f'{{"interval" : {stamp}, "counter-value" : "{value}", "unit" : "", "event" : "{event}", '
        f'"cgroup" : "{group}", "event-runtime" : 1, "pcnt-running" : {running}}}\n'
    ).encode()


@pytest.mark.parametrize("name", ["perf-5.15.csv", "perf-6.8-hybrid.jsonl"])
def test_cpi_is_lcs_and_counters_are_per_second(stage: Stage, groups: Path, perf_output: Path, name: str) -> None:
    perf = sensor(stage, groups)
    stage.child.out = (perf_output / name).read_bytes()
    found = perf.read(100.0)
    assert set(found) == set(perf.provides)
    assert found["cpi"] == Value(near(0.8))
    assert found["be_instructions"] == Value(near(0.5e9, rel=1e-3))
    assert found["lc_context_switches"] == Value(near(4200, rel=1e-3))
    assert found["lc_task_clock"] == Value(near(0.8125, rel=1e-3))


def test_three_kinds_of_no_number_are_three_reasons(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("cycles", "instructions", "cache-misses", "task-clock"))
    for group, value in (("lc", 100), ("be", "<not counted>")):
        stage.child.out += line(1.0, group, "cycles", value, running=24.0)
        stage.child.out += line(1.0, group, "instructions", value)
        stage.child.out += line(1.0, group, "cache-misses", "<not supported>")
        stage.child.out += line(1.0, group, "task-clock", value)
    found = perf.read(1.0)
    assert why(found["lc_cycles"]) is Why.MULTIPLEXED
    assert why(found["cpi"]) is Why.MULTIPLEXED
    assert why(found["lc_cache_misses"]) is Why.NOT_SUPPORTED
    assert why(found["be_instructions"]) is Why.NOT_COUNTED
    assert found["lc_instructions"] == Value(100.0)


def test_all_intervals_since_last_tick_are_added(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("cycles", "instructions"), be=())
    for stamp, cycles, instructions in ((0.5, 100, 100), (1.0, 300, 100), (1.5, "<not counted>", "<not counted>")):
        stage.child.out += line(stamp, "lc", "cycles", cycles) + line(stamp, "lc", "instructions", instructions)
    found = perf.read(10.0)
    assert found["cpi"] == Value(2.0)
    assert found["lc_cycles"] == Value(near(400 / 1.5))
    assert why(found["be_cycles"]) is Why.NOT_CONFIGURED


def test_an_impossible_cpi_is_absurd(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("cycles", "instructions"), be=())
    stage.child.out = line(1.0, "lc", "cycles", 1e9) + line(1.0, "lc", "instructions", 2)
    assert why(perf.read(0.0)["cpi"]) is Why.ABSURD


def test_readings_grow_old_and_then_stale(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("task-clock",), be=())
    assert why(perf.read(0.5)["lc_task_clock"]) is Why.NO_DATA
    stage.child.out = line(1.0, "lc", "task-clock", 7)
    assert perf.read(11.0)["lc_task_clock"] == Value(7.0)
    assert perf.read(13.5)["lc_task_clock"] == Value(7.0, age_seconds=2.5)
    assert why(perf.read(14.5)["lc_task_clock"]) is Why.STALE


def test_without_pmu_the_lacking_events_are_left_out(stage: Stage, groups: Path, perf_output: Path) -> None:
    perf = sensor(stage, groups, events=("cycles", "instructions", "context-switches", "task-clock"))
    assert "{cycles,instructions},context-switches,task-clock" in stage.child.command
    stage.child.die((perf_output / "perf-6.1-group-without-pmu.stderr").read_text())
    perf.read(1.0)
    assert "cycles,instructions,context-switches,task-clock" in stage.child.command
    stage.child.out = (perf_output / "perf-6.1-no-pmu.jsonl").read_bytes()
    found = perf.read(2.0)
    assert why(found["cpi"]) is Why.NOT_SUPPORTED
    assert isinstance(found["lc_context_switches"], Value)
    perf.read(3.0)
    assert stage.child.command[-1] == "context-switches,task-clock"
    stage.child.out = line(1.0, "lc", "context-switches", 5) + line(1.0, "lc", "task-clock", 5)
    stage.child.out += line(1.0, "be", "context-switches", 5) + line(1.0, "be", "task-clock", 5)
    found = perf.read(4.0)
    assert found["lc_context_switches"] == Value(5.0)
    assert why(found["cpi"]) is Why.NOT_SUPPORTED


def test_host_without_events_runs_no_perf(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("cycles",), be=())
    stage.child.out = line(1.0, "lc", "cycles", "<not supported>")
    assert why(perf.read(1.0)["lc_cycles"]) is Why.NOT_SUPPORTED
    assert why(perf.read(2.0)["cpi"]) is Why.NOT_SUPPORTED
    assert stage.child.stopped
    assert len(stage.children) == 1


def test_lost_line_leaves_its_event_in(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("page-faults", "task-clock"), be=())
    stage.child.out = line(1.0, "lc", "task-clock", 1) + line(2.0, "lc", "page-faults", 1)
    assert why(perf.read(2.0)["lc_page_faults"]) is Why.GONE
    stage.child.out = line(2.0, "lc", "task-clock", 1)
    assert perf.read(3.0)["lc_page_faults"] == Value(1.0)
    assert len(stage.children) == 1


def test_a_perf_without_json_is_asked_for_csv(stage: Stage, groups: Path, perf_output: Path) -> None:
    perf = sensor(stage, groups)
    assert "-j" in stage.child.command
    stage.child.die((perf_output / "perf-5.15-json-switch.stderr").read_text())
    perf.read(1.0)
    assert "-x;" in stage.child.command
    stage.child.out = (perf_output / "perf-5.15.csv").read_bytes()
    assert perf.read(2.0)["cpi"] == Value(near(0.8))


def test_child_that_dies_late_is_replaced(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("task-clock",), be=())
    stage.child.out = line(100.0, "lc", "task-clock", 400)
    assert perf.read(100.0)["lc_task_clock"] == Value(4.0)
    stage.child.die("Killed")
    assert perf.read(101.0)["lc_task_clock"] == Value(4.0, age_seconds=1.0)
    perf.read(102.5)
    assert len(stage.children) == 2
    stage.child.out = line(1.0, "lc", "task-clock", 3)
    assert perf.read(103.5)["lc_task_clock"] == Value(3.0)


def test_it_backs_off_then_gives_up(stage: Stage, groups: Path, caplog: pytest.LogCaptureFixture) -> None:
    perf = sensor(stage, groups)
    for second in range(200):
        if stage.child.code is None:
            stage.child.die("perf: kernel version mismatch\n")
        found = perf.read(float(second))
    assert len(stage.children) == MOST_RAPID_DEATHS
    reading = found["cpi"]
    assert isinstance(reading, Missing)
    assert reading.why is Why.NOT_SUPPORTED
    assert "kernel version mismatch" in reading.detail
    assert "no further try" in caplog.text
    perf.close()


def test_after_giving_up_other_groups_bring_another_try(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("task-clock",), be=("later",))
    stage.child.out = line(1.0, "lc", "task-clock", 4)
    assert perf.read(1.0)["lc_task_clock"] == Value(4.0)
    for second in range(2, 202):
        if stage.child.code is None:
            stage.child.die("perf: kernel version mismatch\n")
        perf.read(float(second))
    given_up = len(stage.children)
    (groups / "later").mkdir()
    for second in range(202, 205):
        assert isinstance(perf.read(float(second))["lc_task_clock"], Missing)
    assert len(stage.children) == given_up + 1, "perf has another command line"
    stage.child.out = line(1.0, "lc", "task-clock", 2) + line(1.0, "later", "task-clock", 1)
    assert perf.read(205.0)["lc_task_clock"] == Value(2.0)


def test_deaths_after_changes_of_groups_are_borne(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("task-clock",))
    for number in range(2 * MOST_RAPID_DEATHS):
        start = 100.0 * number
        (groups / "be").rmdir() if (groups / "be").exists() else (groups / "be").mkdir()
        perf.read(start)
        stage.child.die("perf: no such cgroup\n")
        perf.read(start + 1.0)
        perf.read(start + 3.0)
        assert stage.child.code is None, f"perf is tried again after change {number}"
        perf.read(start + 99.0)


def test_a_refusal_is_a_missing_permission(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups)
    stage.child.die(PERMISSION)
    assert why(perf.read(1.0)["cpi"]) is Why.NO_PERMISSION


def test_lc_restarted_in_a_new_group_is_followed(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("task-clock",), be=())
    stage.child.out = line(1.0, "lc", "task-clock", 1)
    perf.read(1.0)
    (groups / "lc").rmdir()
    assert why(perf.read(2.0)["lc_task_clock"]) is Why.GONE
    (groups / "something-else").mkdir()
    (groups / "lc").mkdir()
    perf.read(3.0)
    assert len(stage.children) == 2
    stage.child.out = line(1.0, "lc", "task-clock", 2)
    assert perf.read(4.0)["lc_task_clock"] == Value(2.0)


def test_be_group_to_come_does_not_blind_lc(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups, events=("task-clock",), be=("later",))
    stage.child.out = line(1.0, "lc", "task-clock", 1)
    found = perf.read(1.0)
    assert found["lc_task_clock"] == Value(1.0)
    assert why(found["be_task_clock"]) is Why.GONE
    (groups / "later").mkdir()
    perf.read(2.0)
    assert "lc,later" in stage.child.command


def test_no_perf_on_this_machine(groups: Path) -> None:
    perf = PerfSensor(["lc"], ["be"], groups, perf="no-such-perf-anywhere")
    assert perf.read(0.0)["cpi"] == Missing(Why.NOT_SUPPORTED, "no no-such-perf-anywhere on PATH")
    perf.close()


def test_name_like_a_pattern_is_refused(groups: Path) -> None:
    with pytest.raises(SensorError, match="rename the group"):
        PerfSensor(["lc*"], [], groups)


def test_a_closed_sensor_says_so(stage: Stage, groups: Path) -> None:
    perf = sensor(stage, groups)
    perf.close()
    perf.close()
    assert stage.child.stopped
    assert why(perf.read(1.0)["cpi"]) is Why.GONE
    assert len(stage.children) == 1


def test_the_command_line(groups: Path) -> None:
    command = perf_command("perf", Shape(json=False, grouped=True), ["a/lc", "a/be"], ["cycles", "instructions"], 0.25)
    assert " ".join(command) == "perf stat -x; -I 250 -a --for-each-cgroup a/lc,a/be -e {cycles,instructions}"


V2_MOUNT = "25 1 0:22 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n"
V1_MOUNT = "26 1 0:23 / /sys/fs/cgroup/perf_event rw - cgroup cgroup rw,perf_event\n"


@pytest.mark.parametrize(
    ("mounts", "root"),
    [
        ("20 1 0:5 / /proc rw - proc proc rw\n" + V2_MOUNT, Path("/sys/fs/cgroup/unified")),
        (V2_MOUNT + V1_MOUNT, Path("/sys/fs/cgroup/perf_event")),
        ("garbage\n", None),
    ],
)
def test_where_perf_looks_up_names(mounts: str, root: Path | None, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(mounts)
    assert perf_root(tmp_path) == root
