"""perf around one run: real counters of a group where there are any, and reasons where there are none."""

import os
import subprocess
import sys

import pytest

from rlctl.envs.errors import RlctlError
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.telemetry import Missing, Value
from scripts.studies.mixes.perf_span import SPAN_EVENTS, PerfSpan


def proc_with(folder):
    """A /proc that says where cgroup2 is mounted: in this folder."""
    (folder / "self").mkdir(exist_ok=True)
    (folder / "self/mountinfo").write_text(f"25 1 0:22 / {folder} rw - cgroup2 cgroup2 rw\n")
    return folder


BUSY = """
import os, sys
sys.stdin.read(1)
for turn in range(20):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(os.getppid()))[turn % 2 - 1]})
    sum(range(100000))
    os.sched_yield()
"""


@pytest.fixture
def stand_in(tmp_path):
    """A program in perf's place that runs a command as perf does, and prints these lines at its end."""

    def make(lines, answers=True):
        script = tmp_path / "perf"
        text = f"""#!{sys.executable} -IS
import subprocess, sys
{"subprocess.run(sys.argv[sys.argv.index('--') + 1:])" if answers else "sys.exit('no such event')"}
sys.stderr.write({lines!r})
"""
        script.write_text(text)
        script.chmod(0o755)
        (tmp_path / "group").mkdir(exist_ok=True)
        return {"perf": str(script), "proc": proc_with(tmp_path)}

    return make


def test_counts_are_read_once_perf_has_ended(stand_in):
    lines = (
        "12.5;msec;task-clock;group;1;100.00;;\n3;;context-switches;group;1;100.00;;\n"
        "<not supported>;;cycles;group;0;100.00;;\n"
    )
    with PerfSpan("group", ("task-clock", "context-switches", "cycles", "branches"), **stand_in(lines)) as span:
        span.begin()
        counts = span.end()
    assert counts["task-clock"] == Value(0.0125)
    assert counts["context-switches"] == Value(3.0)
    assert counts["cycles"].detail == "perf: not-supported"
    assert counts["branches"].detail == "perf did not print it"


def test_hybrid_cpus_are_added_up(stand_in):
    lines = "5;;cpu_core/cycles/;group;1;100.00;;\n7;;cpu_atom/cycles/;group;1;100.00;;\n"
    with PerfSpan("group", ("cycles",), **stand_in(lines)) as span:
        span.begin()
        assert span.end() == {"cycles": Value(12.0)}


def test_perf_that_refuses_is_reason_and_no_error(stand_in):
    with PerfSpan("group", **stand_in("", answers=False)) as span:
        span.begin()
        counts = span.end()
    assert {one.detail for one in counts.values()} == {"perf: no such event"}


@pytest.mark.parametrize(("perf", "said"), [("no-such-perf", "no no-such-perf on PATH"), ("true", "there is no group")])
def test_no_perf_and_no_group_are_reasons(perf, said, tmp_path):
    with PerfSpan("group", perf=perf, proc=proc_with(tmp_path)) as span:
        span.begin()
        counts = span.end()
    assert set(counts) == set(SPAN_EVENTS)
    assert all(isinstance(one, Missing) and said in one.detail for one in counts.values())


@pytest.fixture
def group():
    try:
        made = Group.create(Layout.detect(), f"rlctl-test-span-{os.getpid()}", Knobs(None))
    except RlctlError as error:
        pytest.skip(str(error))
    yield made
    made.remove()


@pytest.mark.slow
@pytest.mark.host
def test_run_is_counted_from_begin_to_end(group):
    """What perf counts of the group agrees with what the kernel counts for its only process."""
    with (
        subprocess.Popen([sys.executable, "-IS", "-c", BUSY], stdin=subprocess.PIPE) as child,
        PerfSpan(group.name) as span,
    ):
        group.attach(child.pid)
        span.begin()
        before, moved_before = switches(child.pid), migrations(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        counts = span.end()
        moved = migrations(child.pid)
        usage = os.wait4(child.pid, 0)[2]
        child.returncode = 0
    if isinstance(counts["task-clock"], Missing):
        pytest.skip(counts["task-clock"].detail)
    counted = usage.ru_nvcsw + usage.ru_nivcsw - before
    assert counts["context-switches"].value == pytest.approx(counted, abs=20)
    assert 0.0 < counts["task-clock"].value < usage.ru_utime + usage.ru_stime + 0.05
    if moved is not None:
        assert counts["cpu-migrations"].value == pytest.approx(moved - moved_before, abs=2)


def switches(pid):
    with open(f"/proc/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)


def migrations(pid):
    """As the scheduler has it; None for a kernel without CONFIG_SCHED_DEBUG."""
    try:
        with open(f"/proc/{pid}/sched") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith("se.nr_migrations")), None)
    except OSError:
        return None
