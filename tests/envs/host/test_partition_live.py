"""Partitions on a real kernel: below a group of the test's own, and in the guest of scripts/guest on the whole host."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlctl.cli import main
from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import CgroupError, CgroupRejected
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.layout import CgroupController
from rlctl.envs.host.partition.apply import Applied, Wish, apply
from rlctl.envs.host.partition.moving import Choice
from rlctl.envs.host.partition.platform import Platform
from rlctl.envs.host.partition.record import Undone, read_record, undo
from tests.doubles.meddling import dying
from tests.waiting import until

pytestmark = [pytest.mark.host, pytest.mark.slow]

Bench = Any
SLEEPER = "import time; print(flush=True); time.sleep(600)"
THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
"""
FORKS = """
import os, time
print(flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.05)
        os._exit(0)
    time.sleep(0.002)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
NOBODY = 65534
LISTS = {"cgroup.procs", "tasks", "cgroup.threads"}
MOVING = ("cpu.stat", "cpuacct.", "memory.", "cpu.pressure", "io.", "irq.pressure", "pids.", "cgroup.stat", "rdma.")
"""Beginnings of files that count something and change by themselves."""


@dataclass
class Divided:
    """A group of the test's own with processes in it, that takes the place of a whole host."""

    bench: Bench
    group: Any
    platform: Platform

    def run(self, program: str = SLEEPER, group: Any = None) -> int:
        """A process in the group, or in another one, which has begun when this returns."""
        command = [sys.executable, "-S", "-c", program]
        task = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.bench.tasks.append(task)
        assert task.stdout is not None
        with task.stdout:
            task.stdout.readline()
        for tid in os.listdir(f"/proc/{task.pid}/task"):
            os.sched_setaffinity(int(tid), range(2))
        (group or self.group).attach(task.pid)
        return task.pid

    def apply(self, wish: Wish | None = None, kernel: Any = None) -> Applied:
        kernel = kernel or self.bench.kernel
        return apply(self.platform, self.bench.state_dir, wish, layout=self.bench.layout, kernel=kernel)

    def undo(self) -> Undone:
        return undo(self.bench.state_dir, kernel=self.bench.kernel)

    def snapshot(self) -> dict[Path, str]:
        return knobs(self.group.directories)


@pytest.fixture
def divided(real: Bench) -> Iterator[Divided]:
    group = real.group()
    name = group.name
    yield Divided(real, group, Platform(frozenset({0}), frozenset({1}), (cluster(),), within=name))
    undo(real.state_dir, kernel=real.kernel)


def cluster() -> CpuCluster:
    return CpuCluster("half", frozenset({1}), 0.5, memory_bytes=64 << 20)


def knobs(groups: Any) -> dict[Path, str]:
    """Every setting in some directories and below them."""
    found = {}
    for top in groups:
        for folder, _, names in os.walk(top):
            for name in sorted(set(names) - LISTS):
                if not name.startswith(MOVING):
                    with contextlib.suppress(OSError):  # some can only be written
                        found[Path(folder, name)] = Path(folder, name).read_text()
    return found


def where(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def restricted(bench: Bench, pid: int) -> set[str]:
    """Its groups in the hierarchies of cpu and cpuset."""
    names = {""} if bench.layout.kind == "v2" else {"cpu", "cpuset"}
    lines = (line.split(":", 2) for line in where(pid).splitlines())
    return {path for _, controllers, path in lines if names & set(controllers.split(","))}


def allowed(tid: int) -> set[int]:
    return os.sched_getaffinity(tid)


def test_everything_goes_to_host_part_and_comes_back(divided: Divided) -> None:
    pids = [divided.run(), divided.run(THREADS)]
    threads = [int(tid) for tid in os.listdir(f"/proc/{pids[1]}/task")]
    assert len(threads) == 4
    before, places = divided.snapshot(), {tid: where(tid) for tid in (*pids, *threads)}
    divided.apply()
    host = f"/{divided.platform.host_group}"
    assert [restricted(divided.bench, tid) for tid in (*pids, *threads)] == [{host}] * 6
    assert [allowed(tid) for tid in threads] == [{0}] * 4
    undone = divided.undo()
    assert undone.failed == []
    assert {tid: where(tid) for tid in places} == places
    assert [allowed(tid) for tid in threads] == [{0, 1}] * 4
    assert divided.snapshot() == before


def test_the_managed_part_is_as_described(divided: Divided) -> None:
    divided.apply()
    half = Group.open(divided.bench.layout, divided.platform.cluster_group("half"), divided.bench.knobs())
    pid = divided.run(group=half)
    assert allowed(pid) == {1}
    assert half.cpu is not None
    assert half.cpu.quota().cpus == 0.5
    limit = "memory.max" if divided.bench.layout.kind == "v2" else "memory.limit_in_bytes"
    assert (half.paths[CgroupController.MEMORY] / limit).read_text() == f"{64 << 20}\n"
    assert half.freezer is not None, "the shield freezes what runs there"
    divided.bench.close_journal()
    undone = divided.undo()
    assert undone.ok
    assert undone.moved > 0, "what was started there goes to the group above"
    assert restricted(divided.bench, pid) == {f"/{divided.group.name}"}


def test_tasks_of_a_taken_group_come_back(divided: Divided) -> None:
    other = divided.bench.group()
    pid = divided.run(THREADS, group=other)
    place = where(pid)
    divided.apply(Wish(take=(other.name,)))
    assert restricted(divided.bench, pid) == {f"/{divided.platform.host_group}/{other.name}"}
    assert allowed(pid) == {0}
    assert divided.undo().ok
    assert where(pid) == place


def test_endless_forker_is_caught_with_its_children(divided: Divided) -> None:
    pid = divided.run(FORKS)
    divided.apply()
    for directory in divided.group.directories:
        if (directory / "rlctl-host").is_dir():
            listing = directory / "cgroup.procs"
            assert listing.read_text() == "", "no process is left beside the partitions"
    assert divided.undo().ok
    assert restricted(divided.bench, pid) == {f"/{divided.group.name}"}


def test_left_alone_stays_where_tasks_may_be(divided: Divided) -> None:
    pid = divided.run()
    choice = Wish(choice=Choice(leave=frozenset({str(pid)})))
    if divided.bench.layout.kind == "v2":
        with pytest.raises(CgroupError, match=rf"have to go: {pid}: left by your --leave"):
            divided.apply(choice)  # below the root of v2, a group with controllers for its children has no tasks
        assert not list(divided.group.directories[0].glob("rlctl-*"))
    else:
        assert {one.tid for one in divided.apply(choice).left} == {pid}
    assert restricted(divided.bench, pid) == {f"/{divided.group.name}"}


@pytest.mark.cgroup2  # v1 is not delegated to users
def test_a_user_divides_a_group_that_was_delegated(divided: Divided) -> None:
    theirs = subprocess.Popen(["sleep", "600"], user=NOBODY)
    divided.bench.tasks.append(theirs)
    divided.group.attach(theirs.pid)
    pid, state = theirs.pid, divided.bench.state_dir
    before, place = divided.snapshot(), where(pid)
    folder = divided.group.directories[0]
    state.mkdir()
    for path in (state, folder, *(folder / f"cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
        os.chown(path, NOBODY, NOBODY)

    def as_nobody(work: Callable[[], object]) -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    for above in state.parents:
        above.chmod(above.stat().st_mode | 0o055)
    assert not killed(lambda: as_nobody(lambda: divided.apply(kernel=KernelFiles())))
    assert restricted(divided.bench, pid) == {f"/{divided.platform.host_group}"}
    assert not killed(lambda: as_nobody(lambda: undo(state, kernel=KernelFiles())))
    assert (where(pid), divided.snapshot()) == (place, before)
    for folder, _, _ in os.walk(state):  # or root, who cleans up, believes nothing in it
        os.chown(folder, 0, 0)


def killed(work: Callable[[], object]) -> bool:
    """Do it in a process of its own; whether that was killed by itself before the end."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
def test_killed_at_any_step_everything_comes_back(divided: Divided) -> None:
    pids = [divided.run(), divided.run(THREADS)]
    before, places = divided.snapshot(), [where(pid) for pid in pids]
    steps = {"apply": 0, "undo": 0}
    for step in itertools.count(1):
        if not killed(lambda step=step: divided.apply(kernel=dying(step))):  # type: ignore[misc]
            break
        steps["apply"] = step
        assert divided.undo().ok
        assert ([where(pid) for pid in pids], divided.snapshot()) == (places, before), step
    state = divided.bench.state_dir
    for step in itertools.count(1):
        if not killed(lambda step=step: undo(state, kernel=dying(step))):  # type: ignore[misc]
            break
        steps["undo"] = step
        assert divided.undo().ok
        assert ([where(pid) for pid in pids], divided.snapshot()) == (places, before), step
        divided.apply()
    assert read_record(divided.bench.state_dir) is None
    print(f"killed at {steps['apply']} steps of apply and {steps['undo']} of undo")
    assert min(steps.values()) > 6


def test_restore_ends_what_was_left_half_done(divided: Divided, capsys: pytest.CaptureFixture[str]) -> None:
    pid, state = divided.run(), str(divided.bench.state_dir)
    before, place = divided.snapshot(), where(pid)
    assert killed(lambda: divided.apply(kernel=dying(9)))
    assert main(["partition", "show", "--state", state]) == 1
    assert "the partition is not whole (it was left building)" in capsys.readouterr().err
    assert main(["restore", "--state", state, "--dry-run"]) == 0
    assert "would take down the partition that was left half done" in capsys.readouterr().out
    assert main(["restore", "--state", state]) == 0
    assert "groups removed" in capsys.readouterr().out
    assert (where(pid), divided.snapshot()) == (place, before)
    assert main(["restore", "--state", state]) == 0, "a second time there is nothing to do"
    divided.apply()
    capsys.readouterr()
    assert main(["restore", "--state", state]) == 0
    assert "partition: stands; `rlctl partition undo` takes it down" in capsys.readouterr().out
    assert main(["partition", "undo", "--state", state]) == 0
    assert (where(pid), divided.snapshot()) == (place, before)


TWO = Platform(frozenset({0}), frozenset({1}), (cluster(),))


def everybody() -> dict[int, str]:
    """The group of every process that there is."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[int(pid)] = where(int(pid))
    return found


def settled(root: Path, cpus: str) -> dict[Path, str]:
    """All settings once the kernel has given a removed partition's CPUs back, which it does when it comes to it."""
    until(lambda: (root / "cpuset.cpus.effective").read_text() == cpus)
    return knobs([root])


@pytest.mark.guest
def test_guest_is_divided_and_comes_back(real: Bench) -> None:
    root = real.layout.mounts["cpuset"].path
    before, places = knobs([root]), everybody()
    wish = Wish(exclusive=True, choice=Choice(kernel_threads=True))
    done = apply(TWO, real.state_dir, wish, layout=real.layout, kernel=real.kernel)
    try:
        assert (root / "rlctl-mdev/cpuset.cpus.partition").read_text() == "root\n"
        assert (root / "cpuset.cpus.effective").read_text() == "0\n", "nobody outside has the managed CPU any more"
        assert restricted(real, 1) == restricted(real, os.getpid()) == {"/rlctl-host"}
        assert all("kernel thread, bound" in one.why or "refuses" in one.why for one in done.left)
    finally:
        undone = undo(real.state_dir, kernel=real.kernel)
    assert undone.ok
    assert settled(root, "0-1\n") == before
    after = everybody()
    assert {pid: after[pid] for pid in places if pid in after} == {pid: places[pid] for pid in places if pid in after}


@pytest.mark.guest
def test_group_that_has_managed_cpu_already_is_named(real: Bench) -> None:
    root, rival = real.layout.mounts["cpuset"].path, real.group()
    assert rival.cpuset is not None
    rival.cpuset.set_cpus({1})
    before = knobs([root])
    with pytest.raises(CgroupRejected, match=rf"cannot be exclusive \({rival.name} has some of them\)"):
        apply(TWO, real.state_dir, Wish(exclusive=True), layout=real.layout, kernel=real.kernel)
    assert settled(root, "0-1\n") == before


@pytest.mark.guest
def test_guest_comes_back_from_any_kill(real: Bench) -> None:
    root = real.layout.mounts["cpuset"].path
    before, places, state = knobs([root]), everybody(), real.state_dir
    wish, layout = Wish(exclusive=True), real.layout
    for step in itertools.count(1):
        if not killed(lambda step=step: apply(TWO, state, wish, layout=layout, kernel=dying(step))):  # type: ignore[misc]
            break
        assert undo(state, kernel=real.kernel).ok
        after = everybody()
        assert settled(root, "0-1\n") == before, step
        assert [pid for pid in places if after.get(pid, places[pid]) != places[pid]] == [], step
    assert undo(state, kernel=real.kernel).ok
    print(f"the whole guest: killed at {step - 1} steps of apply")
    assert settled(root, "0-1\n") == before
    assert step > 15
