"""CPUs kept busy, from captured files of both cgroup versions, and whether the LC lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.sensors.cpu import HostCpus, LcAlive, cpu_seconds_per_request, usage_seconds
from rlctl.envs.telemetry import Missing, Value, Why
from tests.doubles.timed import TimedCpus

near: Any = pytest.approx  # its own type is not that of a number

V2 = "usage_usec {}\nuser_usec 5\nsystem_usec 1\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"


def test_both_cgroup_versions_give_cpus(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "cpuacct.usage", tmp_path / "cpu.stat"
    v1.write_text("1000000000\n")
    v2.write_text(V2.format(1_000_000))
    sensor = TimedCpus(v1, [v2], host_cpus=2)
    assert isinstance(sensor.read(100.0)["lc_cpus"], Missing)
    v1.write_text("1500000000\n")
    v2.write_text(V2.format(2_500_000))
    assert sensor.read(101.0) == {"lc_cpus": Value(0.5), "be_cpus": Value(1.5)}
    sensor.close()


def test_be_group_that_ended_does_not_hide_other(tmp_path: Path) -> None:
    jobs = [tmp_path / name / "cpu.stat" for name in ("a", "b")]
    for job in jobs:
        job.parent.mkdir()
        job.write_text(V2.format(0))
    sensor = TimedCpus(jobs[0], jobs, host_cpus=2)
    sensor.read(0.0)
    jobs[1].write_text(V2.format(300_000))
    sensor.read(0.5)
    sensor.close()  # lets go of the open file, as the kernel does with ENODEV when a group is removed
    jobs[0].unlink()
    jobs[0].parent.rmdir()
    jobs[1].write_text(V2.format(800_000))
    found = sensor.read(1.5)
    assert found["be_cpus"] == Value(near(0.5))
    assert isinstance(found["lc_cpus"], Missing)
    assert found["lc_cpus"].why is Why.GONE
    sensor.close()


def test_a_be_group_that_ended_counts_once_more(tmp_path: Path) -> None:
    """BE that moved into a new group every 20 ms read as 0.0 CPUs."""
    job = tmp_path / "job/cpu.stat"
    job.parent.mkdir()
    sensor = TimedCpus(tmp_path / "none", [job], host_cpus=2)
    for second in range(3):
        job.write_text(V2.format(second * 800_000))
        sensor.read(float(second))
    sensor.close()
    job.unlink()
    job.parent.rmdir()
    assert sensor.read(3.0)["be_cpus"] == Value(near(0.8))
    assert isinstance(sensor.read(4.0)["be_cpus"], Missing)


def test_counter_set_back_twice_counts_all_cpus(tmp_path: Path) -> None:
    """A 0 written to `cpuacct.usage` five times a second kept the guard against an overrun silent."""
    usage = tmp_path / "cpuacct.usage"
    sensor = TimedCpus(tmp_path / "none", [usage], host_cpus=2)
    found = []
    for second, seconds_used in enumerate([5, 6, 1, 2, 0, 1, 2]):
        usage.write_text(f"{seconds_used}000000000\n")
        found.append(sensor.read(float(second))["be_cpus"])
    assert found[1] == found[3] == Value(1.0), "once may be an accident"
    assert isinstance(found[2], Missing)
    assert found[4:] == [Value(2.0)] * 3
    usage.write_text("3000000000\n")
    sensor.read(70.0)
    usage.write_text("4000000000\n")
    assert sensor.read(71.0)["be_cpus"] == Value(1.0)


def test_group_made_anew_is_no_counter_set_back(tmp_path: Path) -> None:
    job = tmp_path / "job/cpu.stat"
    sensor = TimedCpus(tmp_path / "none", [job], host_cpus=2)
    for second in range(8):
        if second % 2 == 0:
            sensor.close()
            if job.exists():
                job.unlink()
                job.parent.rename(tmp_path / f"gone-{second}")  # or the next one might get its inode
            job.parent.mkdir()
        job.write_text(V2.format((second % 2) * 500_000))
        assert sensor.read(float(second))["be_cpus"] != Value(2.0)


def test_without_be_group_its_cpus_are_not_configured(tmp_path: Path) -> None:
    reading = TimedCpus(tmp_path / "none").read(0.0)["be_cpus"]
    assert reading == Missing(Why.NOT_CONFIGURED, "no BE group")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_usage_or_missing(content: bytes) -> None:
    usage = usage_seconds(content)
    assert isinstance(usage, Missing) or usage >= 0.0


def test_host_cpus_leave_idle_and_stolen_out() -> None:
    times = namedtuple("times", "user system idle iowait irq softirq steal guest")
    samples = iter([times(0, 0, 0, 0, 0, 0, 0, 0), times(1.0, 0.2, 5.0, 1.0, 0.1, 0.1, 0.5, 0.7)])
    sensor = HostCpus(lambda: next(samples), host_cpus=4)
    sensor.read(0.0)
    found = sensor.read(2.0)
    assert found["host_cpus"] == Value(near(0.7))
    assert found["steal_cpus"] == Value(0.25)
    assert isinstance(found["controller_cpus"], Value)
    sensor.close()


def test_cpus_added_meanwhile_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = namedtuple("times", "user")
    samples = iter([times(0.0), times(2.0), times(9.0)])
    usage = tmp_path / "cpu.stat"
    monkeypatch.setattr(os, "sysconf", lambda name: 2)
    host, groups = HostCpus(lambda: next(samples)), TimedCpus(usage, [usage])
    for now, busy in ((0.0, 0), (1.0, 2_000_000)):
        usage.write_text(V2.format(busy))
        host.read(now)
        groups.read(now)
    monkeypatch.setattr(os, "sysconf", lambda name: 8)
    usage.write_text(V2.format(9_000_000))
    assert host.read(2.0)["host_cpus"] == Value(7.0)
    assert groups.read(2.0) == {"lc_cpus": Value(7.0), "be_cpus": Value(7.0)}
    groups.close()


def test_host_without_proc_stat_is_missing() -> None:
    def nothing() -> object:
        raise FileNotFoundError(2, "No such file", "/proc/stat")

    found = HostCpus(nothing).read(0.0)
    assert isinstance(found["host_cpus"], Missing)
    assert found["host_cpus"].why is Why.NOT_SUPPORTED


@pytest.mark.host
def test_psutil_reads_this_host() -> None:
    sensor = HostCpus(psutil.cpu_times)
    sensor.read(0.0)
    assert isinstance(sensor.read(1e6)["host_cpus"], Value)


def test_empty_or_removed_group_is_dead_lc(tmp_path: Path) -> None:
    procs = tmp_path / "lc" / "cgroup.procs"
    procs.parent.mkdir()
    procs.write_text("17\n18\n")
    sensor = LcAlive(procs)
    assert sensor.read(0.0) == {"lc_alive": Value(1.0)}
    procs.write_text("")
    assert sensor.read(1.0) == {"lc_alive": Value(0.0)}
    procs.unlink()
    procs.parent.rmdir()
    assert sensor.read(2.0) == {"lc_alive": Value(0.0)}
    sensor.close()


def test_processes_of_pod_are_in_its_containers(tmp_path: Path) -> None:
    for group, pids in (("", ""), ("container", "21\n22\n"), ("container/inner", "23\n"), ("pause", "")):
        (tmp_path / "pod" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pod" / group / "cgroup.procs").write_text(pids)
    sensor = LcAlive(tmp_path / "pod/cgroup.procs")
    assert sensor.read(0.0) == {"lc_alive": Value(1.0)}
    assert sorted(sensor.pids()) == [21, 22, 23]
    for group in ("container", "container/inner"):
        (tmp_path / "pod" / group / "cgroup.procs").write_text("")
    assert sensor.read(1.0) == {"lc_alive": Value(0.0)}


def test_processes_of_another_namespace_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n12\nx\n")
    sensor = LcAlive(tmp_path / "cgroup.procs")
    assert sensor.read(0.0) == {"lc_alive": Value(1.0)}
    assert sensor.pids() == (12,)


def test_cpu_per_request_needs_both_readings() -> None:
    assert cpu_seconds_per_request(Value(0.5), Value(1000.0, 0.3)) == Value(0.0005, 0.3)
    gone = Missing(Why.GONE)
    assert cpu_seconds_per_request(gone, Value(1.0)) is gone
    assert cpu_seconds_per_request(Value(1.0), gone) is gone
    idle = cpu_seconds_per_request(Value(0.0), Value(0.0))
    assert isinstance(idle, Missing)
    assert idle.why is Why.NO_DATA


@pytest.mark.host
@pytest.mark.parametrize("below", ["", "container"])
def test_a_death_shows_at_once_in_a_group(below: str) -> None:
    """The kernel keeps a v1 pid list for a second as long as the same open file is read again and again."""
    try:
        group = Layout.detect().mount(CgroupController.CPU).path / f"rlctl-test-alive-{os.getpid()}"
        (group / below).mkdir(parents=True)
    except (HostError, OSError) as error:
        pytest.skip(f"cannot make a group: {error}")
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (group / below / "cgroup.procs").write_text(str(process.pid))
        sensor = LcAlive(group / "cgroup.procs")
        assert sensor.read(0.0) == {"lc_alive": Value(1.0)}
        process.communicate(b"\n")
        assert sensor.read(0.1) == {"lc_alive": Value(0.0)}
    finally:
        process.kill()
        process.wait()
        for made in dict.fromkeys((group / below, group)):
            made.rmdir()
