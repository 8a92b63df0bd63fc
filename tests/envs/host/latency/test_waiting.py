"""`kind: waiting`: where no latency is told, what the LC waits for is held below a bound, and is called so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.latency.newest import LatencySource
from rlctl.envs.host.latency.waiting import WaitingSource
from rlctl.envs.telemetry import LC_WAITING, Missing, Quantile, Telemetry, Value
from rlctl.envs.workload import SLO
from tests.doubles.cgroup_kernel import FakeKernel

GOAL = SLO(target_seconds=0.010, quantile=0.95, max_load_rps=2.0)


class WaitingLc:
    """An LC's group on a fake kernel, whose counters a test sets."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.fake = FakeKernel(folder, kind)
        self.group = self.make("lc")
        self.source = WaitingSource(GOAL, self.group, lambda: (os.getpid(),), 0.1)

    def make(self, name: str) -> Group:
        return Group.create(Layout.detect(self.fake.root, self.fake.proc), name, Knobs(None, self.fake))

    def set(self, used_seconds: float, **waited_seconds: float) -> None:
        assert self.group.usage_file is not None
        us = round(used_seconds * 1e6)
        v1 = self.group.usage_file.name == "cpuacct.usage"
        self.group.usage_file.write_text(f"{us * 1000}\n" if v1 else f"usage_usec {us}\n")
        for resource, seconds in waited_seconds.items():
            file = self.group.pressure_file
            assert file is not None
            file.with_name(f"{resource}.pressure").write_text(f"some avg10=0 total={round(seconds * 1e6)}\n")


@pytest.fixture
def lc(tmp_path: Path) -> WaitingLc:
    return WaitingLc(tmp_path, "v2")


def read_second(lc: WaitingLc, used: float, **waited: float) -> Telemetry:
    """The telemetry of a second in which the LC used and waited so much."""
    lc.set(1.0, **dict.fromkeys(waited, 1.0))
    lc.source.read(10.0)
    lc.set(1.0 + used, **{resource: 1.0 + seconds for resource, seconds in waited.items()})
    readings = dict(lc.source.read(11.0))
    assert set(readings) <= set(lc.source.provides)
    tail, load = readings["tail_latency_seconds"], readings["load_ratio"]
    return Telemetry(11.0, 0.010, tail_latency_seconds=tail, load_ratio=load, counters=readings)


@pytest.mark.parametrize(("waited", "slack"), [(0.05, 0.5), (0.1, 0.0), (0.2, -1.0), (0.0, 0.99)])
def test_the_slack_is_left_of_the_bound(lc: WaitingLc, waited: float, slack: float) -> None:
    telemetry = read_second(lc, 0.5, cpu=waited)
    assert telemetry.slack_ratio == pytest.approx(slack, abs=1e-3)
    assert telemetry.load_ratio == Value(pytest.approx(0.25))


def test_it_is_called_waiting(lc: WaitingLc) -> None:
    telemetry = read_second(lc, 0.5, cpu=0.05)
    assert telemetry.latency_in_words == "not known; the LC waited 5.00% of the time"
    assert telemetry.counters[LC_WAITING] == Value(pytest.approx(0.05))
    assert "weaker than a latency" in lc.source.name
    assert isinstance(lc.source, LatencySource)


def test_silence_is_not_taken_for_zero_latency(lc: WaitingLc) -> None:
    """The shield refuses a latency of 0, which a broken source tells."""
    tail = read_second(lc, 0.0, cpu=0.0).tail_latency_seconds
    assert isinstance(tail, Quantile)
    assert tail.value > 0.0


def test_a_group_that_is_gone_has_no_latency(lc: WaitingLc) -> None:
    read_second(lc, 0.5, cpu=0.0)
    assert lc.group.usage_file is not None
    lc.group.usage_file.unlink()
    lc.source.close()
    assert isinstance(lc.source.read(12.0)["tail_latency_seconds"], Missing)


def test_lc_made_anew_is_followed(lc: WaitingLc) -> None:
    read_second(lc, 0.5, cpu=0.0)
    lc.group.remove()
    lc.group = lc.make("lc-2")
    lc.source.follow(lc.group)
    assert read_second(lc, 0.5, cpu=0.05).slack_ratio == pytest.approx(0.5, abs=1e-3)


def test_the_disk_counts_where_it_is_worse(tmp_path: Path) -> None:
    made = WaitingLc(tmp_path, "v2")
    made.set(0.0, cpu=0.0, io=0.0, memory=0.0)
    made.source = WaitingSource(GOAL, made.group, lambda: (os.getpid(),), 0.1)
    assert read_second(made, 0.5, cpu=0.01, io=0.3, memory=0.0).slack_ratio == pytest.approx(-2.0, abs=1e-3)


def test_without_pressure_the_run_delay_counts(tmp_path: Path) -> None:
    made = WaitingLc(tmp_path, "v1")
    telemetry = read_second(made, 0.5)
    assert isinstance(telemetry.tail_latency_seconds, Quantile)
