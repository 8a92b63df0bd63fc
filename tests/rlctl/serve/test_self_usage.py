"""What rlctl costs: measured as the kernel counts it, bounded by the kernel, and warned of once."""

import logging
import mmap
import os
import subprocess
import sys
from types import MappingProxyType

import pytest

from rlctl.config.sections import LimitsSection
from rlctl.envs.allocation import Limits
from rlctl.envs.telemetry import LC_WAITING, Quantile, Telemetry, Value
from rlctl.log.record import Tick
from rlctl.safety.verdict import Verdict
from rlctl.serve.self_usage import SelfCheck, SelfUsage, TailCheck, ahead_of_others, self_usage, waited_seconds

SAFE = Limits(2).safe
MOST = LimitsSection(warn_resident_bytes=100 << 20, warn_cpu_ratio=0.1)


def tick(second, tail_seconds=None, counters=MappingProxyType({}), **also):
    tail = {} if tail_seconds is None else {"tail_latency_seconds": Quantile(tail_seconds, samples=50)}
    telemetry = Telemetry(float(second), 0.01, counters=counters, **tail)
    return Tick(0, 1e9, telemetry, SAFE, SAFE, Verdict(SAFE, SAFE), SAFE, "ppo", **also)


@pytest.fixture
def usages():
    """What the next measurements say; the last one for ever."""
    return [SelfUsage(0.0, 60 << 20, 10)]


@pytest.fixture
def warned(usages, caplog):
    """Writes a tick at each of these seconds and returns the warnings."""
    check = SelfCheck(MOST, lambda: usages.pop(0) if len(usages) > 1 else usages[0])

    def at(*seconds):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "rlctl"):
            for second in seconds:
                check.write(tick(second))
        return [record.getMessage() for record in caplog.records]

    return at


def test_this_process_is_measured():
    before = self_usage()
    with mmap.mmap(-1, 32 << 20) as fresh:  # not memory that this process had and kept
        fresh.write(b"x" * len(fresh))
        sum(range(2_000_000))
        after = self_usage()
    assert after.resident_bytes - before.resident_bytes > 24 << 20
    assert after.cpu_seconds > before.cpu_seconds
    assert after.open_files >= 3


@pytest.mark.skipif(os.geteuid() != 0 or os.getpriority(os.PRIO_PROCESS, 0) != 0, reason="needs root, without a nice")
def test_daemon_runs_ahead_unless_niced():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, 0)

    with ahead_of_others():
        assert niceness() < 0
    assert niceness() == 0
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        with ahead_of_others():
            assert niceness() == 5, "its operator's choice"
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def test_memory_bound_is_kept_and_never_raised():
    program = """if True:
        import resource
        from rlctl.serve import self_usage
        self_usage.ROOM_BYTES = 0
        before = resource.getrlimit(resource.RLIMIT_DATA)
        with self_usage.bounded_memory(192 << 20), self_usage.bounded_memory(1 << 40):
            print(resource.getrlimit(resource.RLIMIT_DATA)[0])
            try:
                bytearray(256 << 20)
            except MemoryError:
                print("refused")
        print(resource.getrlimit(resource.RLIMIT_DATA) == before)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(192 << 20), "refused", "True"]


def test_who_exceeds_the_bound_keeps_some_room():
    program = """if True:
        from rlctl.serve import self_usage
        held = bytearray(300 << 20)
        with self_usage.bounded_memory(128 << 20):
            print(len(bytearray(64 << 20)) >> 20)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["64"]


def test_little_is_no_news(warned):
    assert warned(*range(200)) == []


def test_much_memory_is_said_once_an_hour(usages, warned):
    usages[:] = [SelfUsage(0.0, 150 << 20, 10)]
    told = "rlctl itself uses 150 MB of memory, limits.warn_resident_bytes is 100 MB"
    assert warned(*range(0, 3600, 10)) == [told]
    assert warned(3700) == [told]


def test_cpu_time_is_judged_over_a_minute(usages, warned):
    usages[:] = [SelfUsage(seconds, 60 << 20, 10) for seconds in (100.0, 103.0, 115.0)]
    assert warned(0) == []  # what the start took is no habit
    assert warned(60) == []
    assert warned(120) == ["rlctl itself uses 0.20 CPU, limits.warn_cpu_ratio is 0.1"]


def test_clock_going_back_and_unreadable_proc_are_borne(usages, caplog):
    def unreadable():
        raise OSError(24, "Too many open files")

    SelfCheck(MOST, unreadable).write(tick(0))
    check = SelfCheck(MOST, lambda: usages[0])
    for second in (1000, 10, 80, float("nan"), 90):
        check.write(tick(second))
    assert not caplog.records


@pytest.mark.parametrize(("waited", "fallback", "warned"), [(0.6, "no tick completed for 1.9 s", 1), (0.6, "", 0),
                                                            (0.1, "no tick completed for 1.9 s", 0)])  # fmt: skip
def test_lease_lost_for_want_of_cpu_is_told(caplog, waited, fallback, warned):
    """Three leases were lost in 40 s, and all that was said is that a tick was late."""
    waits = [waited * second for second in range(9)]
    check = SelfCheck(MOST, lambda: SelfUsage(0.0, 60 << 20, 10), lambda: waits.pop(0))
    for second in range(5):
        check.write(tick(second, fallback=fallback if second == 3 else ""))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warned
    assert all("short of CPU: it waited 0.6 of 1.0 s for one" in line and "CPUWeight" in line for line in said)


def test_waiting_of_this_process_is_read():
    assert 0.0 <= waited_seconds() < 1e6


def test_tail_far_below_its_target_is_told(caplog):
    """`kind: redis` once said 0.02 ms where clients saw 1.6 to 3.0."""
    check = TailCheck()
    for second in range(200):
        check.write(tick(second, tail_seconds=0.0001 if second > 20 else 0.005))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "0.1 ms, 1 % of its target of 10 ms" in said
    assert "kind: tcp" in said


def test_tail_low_for_seconds_is_not_told(caplog):
    check = TailCheck()
    for second in range(200):
        check.write(tick(second, tail_seconds=0.0001 if second % 50 else 0.005))
    for second in range(200, 400):  # of its waits the least is a hundredth of the bound
        check.write(tick(second, tail_seconds=0.0001, counters={LC_WAITING: Value(0.001)}))
    assert not caplog.records
