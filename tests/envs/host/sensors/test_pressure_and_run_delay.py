"""PSI and schedstat from captured trees, and of a real process."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import HostError
from rlctl.envs.host.cgroup.layout import CgroupController, Layout
from rlctl.envs.host.sensors.psi import IN_TURN, UNPRIVILEGED, LcWaits, Psi, PsiTrigger, some_seconds
from rlctl.envs.host.sensors.schedstat import MOST_THREADS, RunDelay, run_seconds
from rlctl.envs.telemetry import Missing, Value, Why

near: Any = pytest.approx  # its own type is not that of a number

PRESSURE = "some avg10=0.02 avg60=0.40 avg300=0.47 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=999\n"


def pressure(group: Path, microseconds: int) -> None:
    group.mkdir(exist_ok=True)
    for resource in ("cpu", "memory", "io"):
        (group / f"{resource}.pressure").write_text(PRESSURE.format(microseconds))


def test_pressure_is_share_of_interval_and_not_average(tmp_path: Path) -> None:
    lc, calm, pressed = (tmp_path / name for name in ("lc", "calm", "pressed"))
    for group in (lc, calm, pressed):
        pressure(group, 1_000_000)
    sensor = Psi(lc, [calm, pressed])
    sensor.read(50.0)
    pressure(lc, 1_500_000)
    pressure(pressed, 1_900_000)
    found = sensor.read(51.0)
    assert set(found) == set(sensor.provides)
    assert found["lc_pressure_ratio"] == Value(0.5)
    assert found["be_pressure_ratio"] == Value(near(0.9))
    assert found["lc_io_pressure_ratio"] == Value(0.5)
    sensor.close()


def test_many_groups_are_read_in_turn(tmp_path: Path) -> None:
    lc, *be = (tmp_path / str(number) for number in range(2 * IN_TURN + 1))
    for group in (lc, *be):
        pressure(group, 1_000_000)
    sensor = Psi(lc, be)
    for second in range(4):
        found = sensor.read(float(second))
    assert found["be_io_pressure_ratio"] == Value(0.0)
    pressure(be[7], 1_500_000)
    both = [sensor.read(4.0), sensor.read(5.0)]
    assert both[0]["be_pressure_ratio"] == Value(0.5), "all of them at each call"
    assert both[1]["be_memory_pressure_ratio"] in (Value(0.25, 0.0), Value(0.25, 1.0)), "half a second of two"
    assert both[1]["lc_pressure_ratio"] == Value(0.0)
    sensor.close()


def test_kernel_without_psi_is_missing_with_file(tmp_path: Path) -> None:
    reading = Psi(tmp_path).read(0.0)["lc_pressure_ratio"]
    assert isinstance(reading, Missing)
    assert reading.why is Why.NOT_SUPPORTED
    assert str(tmp_path / "cpu.pressure") in reading.detail


@given(st.binary(max_size=300))
def test_any_bytes_are_a_pressure_or_malformed(content: bytes) -> None:
    seconds = some_seconds(content)
    assert isinstance(seconds, Missing) or seconds >= 0.0


@given(st.binary(max_size=100))
def test_any_bytes_are_a_run_delay_or_missing(content: bytes) -> None:
    run = run_seconds(content)
    assert isinstance(run, Missing) or min(run) >= 0.0


class Pids:
    """Members as the test says."""

    def __init__(self, *pids: int) -> None:
        self.now: tuple[int, ...] | Missing = pids

    def pids(self) -> tuple[int, ...] | Missing:
        return self.now


def thread(proc: Path, pid: int, tid: int, delay_seconds: float) -> Path:
    task = proc / str(pid) / "task" / str(tid)
    task.mkdir(parents=True, exist_ok=True)
    (task / "schedstat").write_text(f"123456 {round(delay_seconds * 1e9)} 42\n")
    return task


def run_delay(sensor: RunDelay, now: float) -> float | Why:
    reading = sensor.read(now)["lc_run_delay_ratio"]
    return reading.why if isinstance(reading, Missing) else near(reading.value)


def test_threads_count_from_birth_and_take_nothing(tmp_path: Path) -> None:
    thread(tmp_path, 10, 10, 5.0)
    dying = thread(tmp_path, 10, 11, 70.0)
    sensor = RunDelay(Pids(10).pids, proc=tmp_path)
    assert run_delay(sensor, 0.0) is Why.NO_DATA
    thread(tmp_path, 10, 10, 5.25)
    (dying / "schedstat").unlink()
    dying.rmdir()
    thread(tmp_path, 10, 12, 0.5)
    assert run_delay(sensor, 1.0) == 0.75
    sensor.close()


def test_process_that_joins_does_not_bring_its_past(tmp_path: Path) -> None:
    thread(tmp_path, 10, 10, 1.0)
    thread(tmp_path, 20, 20, 900.0)
    members = Pids(10)
    sensor = RunDelay(members.pids, proc=tmp_path)
    sensor.read(0.0)
    members.now = (10, 20)
    assert run_delay(sensor, 1.0) == 0.0
    thread(tmp_path, 20, 20, 900.4)
    assert run_delay(sensor, 2.0) == 0.4
    members.now = ()
    assert run_delay(sensor, 3.0) is Why.GONE
    sensor.close()


def test_process_ended_since_listing_spoils_nothing(tmp_path: Path) -> None:
    """As workers of a server do all the time."""
    thread(tmp_path, 10, 10, 1.0)
    thread(tmp_path, 20, 20, 1.0)
    sensor = RunDelay(Pids(10, 20).pids, proc=tmp_path)
    sensor.read(0.0)
    thread(tmp_path, 10, 10, 1.5)
    shutil.rmtree(tmp_path / "20")
    assert run_delay(sensor, 1.0) == 0.5
    sensor.close()


def test_too_many_threads_are_said_so(tmp_path: Path) -> None:
    for tid in range(10, 11 + MOST_THREADS):
        thread(tmp_path, 10, tid, 1.0)
    assert run_delay(RunDelay(Pids(10).pids, proc=tmp_path), 0.0) is Why.NOT_SUPPORTED


def test_unreadable_members_say_why(tmp_path: Path) -> None:
    members = Pids()
    members.now = Missing(Why.NO_PERMISSION, "cgroup.procs")
    assert run_delay(RunDelay(members.pids, proc=tmp_path), 0.0) is Why.NO_PERMISSION


@pytest.mark.host
def test_this_very_process_with_a_changing_thread() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel has no /proc/self/schedstat")
    members = Pids()
    members.now = (os.getpid(),)
    sensor = RunDelay(members.pids)
    sensor.read(time.monotonic())
    worker = threading.Thread(target=time.sleep, args=(0.05,))
    worker.start()
    assert isinstance(sensor.read(time.monotonic())["lc_run_delay_ratio"], Value)
    worker.join()
    assert isinstance(sensor.read(time.monotonic())["lc_run_delay_ratio"], Value)
    sensor.close()


@pytest.mark.host
def test_this_host_has_pressure_in_group_of_cgroup2() -> None:
    try:
        group = Layout.detect().mount(CgroupController.PRESSURE).path / f"rlctl-test-psi-{os.getpid()}"
        group.mkdir()
    except (HostError, OSError) as error:
        pytest.skip(f"cannot make a group: {error}")
    try:
        sensor = Psi(group)
        first = sensor.read(time.monotonic())["lc_pressure_ratio"]
        time.sleep(0.01)
        if isinstance(first, Missing) and first.why is Why.NOT_SUPPORTED:
            pytest.skip(first.detail)
        assert sensor.read(time.monotonic())["lc_pressure_ratio"] == Value(0.0)
    finally:
        group.rmdir()
    gone = sensor.read(time.monotonic())["lc_pressure_ratio"]
    assert isinstance(gone, Missing)
    assert gone.why is Why.GONE
    sensor.close()


@pytest.fixture
def waits(tmp_path: Path) -> LcWaits:
    """Of an LC on a host whose kernel takes no trigger: its counter is read."""
    pressure(tmp_path / "lc", 0)
    one = LcWaits(Psi(tmp_path / "lc"))
    one.trigger.close()
    return one


def test_without_a_trigger_the_counter_tells_who_waits(tmp_path: Path, waits: LcWaits) -> None:
    found = []
    for look in range(25):  # 51 ms apart; from the tenth on it waits for half of the time
        pressure(tmp_path / "lc", 25_500 * max(look - 10, 0))
        found.append(waits.high(0.051 * look, told=False))
    assert [look for look, high in enumerate(found) if high] == [18], "204 ms of waiting; and anew after as much"


def test_little_waiting_or_lost_counter_is_no_sign(tmp_path: Path, waits: LcWaits) -> None:
    for look in range(100):
        pressure(tmp_path / "lc", 6_000 * look)  # 30 %
        assert not waits.high(0.02 * look, told=False)
    (tmp_path / "lc/cpu.pressure").unlink()
    assert not waits.high(2.0, told=True)


def test_a_trigger_that_the_kernel_refuses_says_why(tmp_path: Path) -> None:
    trigger = PsiTrigger(tmp_path / "absent/cpu.pressure")
    assert trigger.file is None
    assert "No such file" in trigger.why
    trigger.close()


@pytest.mark.host
def test_kernel_takes_trigger_or_says_what_it_lacks() -> None:
    path = Path("/proc/pressure/cpu")
    if not path.exists():
        pytest.skip("this kernel has no PSI")
    trigger = PsiTrigger(path)
    try:
        assert (trigger.file is None) == (trigger.why != "")
        assert trigger.file is not None or trigger.why == UNPRIVILEGED or "Permission" in trigger.why
    finally:
        trigger.close()
