"""One suite for every kernel: fake v1, fake v2, fake hybrid, and the one we run on (`-m host`).

What a fake kernel allows and a real one does not would show here, and so would the reverse.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import CgroupBusy, CgroupError, CgroupGone, CgroupRejected, ConfigError, HostError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import PERIOD_US, Quota
from rlctl.envs.host.sensors.cpu import usage_seconds
from rlctl.envs.workload import Weight
from tests.waiting import PATIENCE_SECONDS, until

Bench = Any  # tests/envs/host/conftest.py, which importlib mode lets nobody import

LIMITS = Limits(cpus=2)
ORDER = (1, 0)


def actuator(bench: Bench, *groups: Group, **more: Any) -> BeActuator:
    more.setdefault("settle_seconds", 5.0)  # the QEMU guest is slow, and this suite proves no speed
    return BeActuator(groups, ORDER, LIMITS, bench.knobs(), **more)


def snapshot(bench: Bench, *groups: Group) -> dict[Path, str]:
    """Every setting of the groups, as text."""
    names = ("cfs_quota_us", "cfs_period_us", "shares", "idle", "max", "weight", "cpus", "mems", "state", "freeze")
    settings = {}
    for directory in (path for group in groups for path in group.directories):
        for path in directory.iterdir():
            if path.is_file() and path.name.partition(".")[2] in names:
                settings[path] = bench.kernel.read(path)
    return settings


@pytest.mark.parametrize(
    "allocation",
    [
        Allocation(0.25, 1),
        Allocation(0.5, 2),
        Allocation(2.0, 2),
        Allocation(0.01, 1),
        Allocation(0.03, 1),
        Allocation(1 / 3, 2, frozen=True),
        Allocation(UNLIMITED, 2),
    ],
)
def test_what_is_applied_is_in_force(bench: Bench, allocation: Allocation) -> None:
    be = actuator(bench, bench.group())
    assert be.read() == LIMITS.full
    assert be.apply(allocation) == allocation
    assert be.read() == allocation
    assert be.apply(LIMITS.full) == LIMITS.full


def test_moving_between_all_corners_never_fails(bench: Bench) -> None:
    be = actuator(bench, bench.group(), bench.group())
    corners = [Allocation(q, c, f) for q in (0.01, 0.05, 0.3, 2.0, UNLIMITED) for c in (1, 2) for f in (False, True)]
    for step in (1, 7):
        for index in range(len(corners)):
            corner = corners[index * step % len(corners)]
            assert be.apply(corner) == corner


def test_quota_is_divided_evenly_and_rounded_down(bench: Bench) -> None:
    groups = [bench.group() for _ in range(3)]
    assert actuator(bench, *groups).apply(Allocation(0.5, 2)).quota_cpus == 0.5
    assert [group.cpu.quota() for group in groups if group.cpu] == [Quota(1666, 10_000)] * 3


@pytest.mark.slow
def test_least_quotas_of_many_groups_are_added_up(bench: Bench) -> None:
    """The tick log said .01 CPU, and the shield took what they used for an overrun."""
    groups = [bench.group() for _ in range(20)]
    assert actuator(bench, *groups).apply(Allocation(0.01, 1)).quota_cpus == pytest.approx(20 * 0.001)


def test_an_unchanged_allocation_writes_nothing(bench: Bench) -> None:
    group = bench.group()
    be = actuator(bench, group)
    be.apply(Allocation(0.25, 1))
    before = snapshot(bench, group)
    if bench.fake:
        bench.fake.writes.clear()
    assert be.apply(Allocation(0.25, 1)) == Allocation(0.25, 1)
    assert snapshot(bench, group) == before
    assert not bench.fake or not bench.fake.writes


def test_foreign_writes_are_undone_and_told(bench: Bench) -> None:
    group = bench.group()
    be = actuator(bench, group)
    be.apply(Allocation(0.25, 1))
    assert group.cpu is not None
    Group.open(bench.layout, group.name, Knobs(None, bench.kernel)).cpu.set_quota(Quota(None))  # type: ignore[union-attr]
    assert be.read().quota_cpus == UNLIMITED
    assert be.apply(Allocation(0.25, 1)) == Allocation(0.25, 1)
    assert [event.partition(":")[0] for event in be.ownership.events.drain()] == ["foreign-write"]


def test_reported_is_the_most_be_could_use(bench: Bench) -> None:
    free, bound = bench.group(), bench.group()
    be = actuator(bench, free, bound)
    only = actuator(bench, bound)
    only.apply(Allocation(0.25, 1, frozen=True))
    assert be.read() == Allocation(UNLIMITED, 2)
    assert free.cpuset is not None
    free.cpuset.set_cpus({0})  # one CPU, but the LC's
    assert be.read().cpuset_cpus == 2


def test_a_quota_above_caps_what_is_in_force(bench: Bench) -> None:
    outer = bench.group()
    inner = bench.group(f"{outer.name}/inner")
    if outer.cpu is None:
        pytest.skip("the outer group has no cpu controller")
    outer.cpu.set_quota(Quota(2000, 10_000))
    assert actuator(bench, inner).read().quota_cpus == pytest.approx(0.2)


def test_a_frozen_ancestor_counts_as_frozen(bench: Bench) -> None:
    outer = bench.group()
    inner = bench.group(f"{outer.name}/inner")
    assert outer.freezer is not None
    outer.freezer.order(True)
    outer.freezer.settle(True, 1.0)
    be = actuator(bench, inner, settle_seconds=0.1)
    until(lambda: be.read().frozen)
    assert be.apply(LIMITS.full).frozen
    assert be.apply(LIMITS.safe).frozen
    outer.freezer.order(False)
    assert be.read().frozen, "the inner group was is freezing by itself"
    assert not be.apply(LIMITS.full).frozen


def test_weights_go_to_the_minimum_and_back(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    default = group.cpu.weight()
    be = actuator(bench, group)
    be.set_weight(Weight.MINIMUM)
    assert group.cpu.weight() == {1024: 2, 100: 1}[default]
    be.set_weight(Weight.EQUAL)
    assert group.cpu.weight() == default


def test_equal_weight_means_that_of_the_lc(bench: Bench) -> None:
    lc, group = bench.group(), bench.group()
    assert lc.cpu is not None
    assert group.cpu is not None
    lc.cpu.set_weight(300)
    actuator(bench, group, lc=lc).set_weight(Weight.EQUAL)
    assert group.cpu.weight() == 300


def test_idle_groups_take_a_weight_again(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    if group.cpu.idle() is None:
        pytest.skip("this kernel has no cpu.idle")
    group.cpu.set_idle(True)
    assert group.cpu.idle()
    actuator(bench, group).set_weight(Weight.EQUAL)
    assert group.cpu.idle() is False


def test_who_asks_for_the_minimum_makes_nobody_freer(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    if group.cpu.idle() is None:
        pytest.skip("this kernel has no cpu.idle")
    group.cpu.set_idle(True)
    be = actuator(bench, group)
    be.set_weight(Weight.MINIMUM)
    be.apply(LIMITS.full)
    assert group.cpu.idle()


@pytest.mark.parametrize("operators", [False, True])
def test_after_idle_class_minimum_is_minimum(bench: Bench, operators: bool) -> None:
    group = bench.group()
    assert group.cpu is not None
    if group.cpu.idle() is None:
        pytest.skip("this kernel has no cpu.idle")
    group.cpu.set_idle(operators)
    be = actuator(bench, group)
    for weight in (Weight.EQUAL, Weight.IDLE, Weight.MINIMUM):  # as reloads do
        be.set_weight(weight)
    assert group.cpu.idle() is operators
    be.set_weight(Weight.IDLE)
    actuator(bench, group).set_weight(Weight.MINIMUM)  # as who starts after a crash: the journal tells
    assert group.cpu.idle() is operators
    assert operators or group.cpu.weight() == group.cpu.weights[Weight.MINIMUM]


def test_the_idle_class_is_kept_and_put_back(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    if group.cpu.idle() is None:
        pytest.skip("this kernel has no cpu.idle")
    group.cpu.set_weight(700)
    be = actuator(bench, group)
    be.set_weight(Weight.IDLE)
    be.apply(LIMITS.full)
    assert group.cpu.idle()
    other = Group.open(bench.layout, group.name, Knobs(None, bench.kernel)).cpu
    assert other is not None
    other.set_weight(500)  # another program's, and freer
    be.apply(LIMITS.full)
    assert group.cpu.idle()
    assert bench.restore().ok
    assert (group.cpu.weight(), group.cpu.idle()) == (700, False)


def test_without_cpu_idle_its_class_is_refused(fake: Bench) -> None:
    group = fake.group()
    (group.directories[0] / "cpu.idle").unlink(missing_ok=True)
    be = actuator(fake, Group.open(fake.layout, group.name, fake.knobs()))
    with pytest.raises(CgroupError, match=r"has no cpu\.idle, which came with Linux 5\.15"):
        be.set_weight(Weight.IDLE)


def test_burst_does_not_keep_be_from_being_restricted(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    group.cpu.set_quota(Quota(50_000, 100_000))
    name = (
        "cpu.cfs_burst_us" if "cpu.cfs_quota_us" in {path.name for path in group.cpu.quota_files} else "cpu.max.burst"
    )
    burst = group.directories[0] / name
    if not burst.exists():
        pytest.skip("this kernel has no burst")
    bench.kernel.write(burst, "40000")
    before = snapshot(bench, group) | {burst: bench.kernel.read(burst)}
    assert actuator(bench, group).apply(Allocation(0.25, 1)).quota_cpus == 0.25
    assert bench.restore().ok
    assert snapshot(bench, group) | {burst: bench.kernel.read(burst)} == before


def test_nonsense_is_rejected_with_value_and_file(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    with pytest.raises(CgroupRejected, match="999"):
        group.cpu.set_quota(Quota(999, 10_000))
    assert group.cpuset is not None
    with pytest.raises(CgroupRejected, match=r"cpuset\.cpus.*'4000'"):
        group.cpuset.set_cpus({4000})


def test_a_cpuset_with_tasks_cannot_become_empty(bench: Bench) -> None:
    group = bench.group()
    assert group.cpuset is not None
    group.cpuset.set_cpus({0})
    group.attach(bench.task())
    with pytest.raises(CgroupBusy, match="at least one CPU"):
        group.cpuset.set_cpus(())
    assert group.cpuset.effective() == {0}


def test_empty_cpuset_is_restored_to_its_effect(bench: Bench) -> None:
    group = bench.group()
    assert group.cpuset is not None
    group.cpuset.set_cpus(())
    before, wide = (
        snapshot(bench, group),
        group.cpuset.effective() or (os.sched_getaffinity(0) if bench.fake is None else {0, 1}),
    )
    actuator(bench, group).apply(Allocation(0.25, 1))
    group.attach(bench.task())
    report = bench.restore()
    assert report.ok, str(report)
    cpus = group.cpuset.cpus_files[0]
    assert [item.path for item in report.equivalent] == [cpus]
    assert "while tasks run" in str(report)
    assert group.cpuset.effective() == wide
    assert snapshot(bench, group) | {cpus: before[cpus]} == before
    assert bench.restore().note == "nothing to do"


def test_a_group_with_tasks_is_not_removed(bench: Bench) -> None:
    group = bench.group()
    pid = bench.task()
    group.attach(pid)
    assert group.pids() == {pid}
    with pytest.raises(CgroupBusy, match=str(pid)):
        group.remove(timeout_seconds=0.02)
    bench.end_tasks()
    group.remove()
    assert not any(path.exists() for path in group.directories)
    group.remove()


def test_group_is_peopled_with_a_process_below(bench: Bench) -> None:
    group = bench.group()
    assert not group.has_processes()
    child = bench.group(f"{group.name}/child")
    assert not group.has_processes()
    pid = bench.task()
    child.attach(pid)
    assert group.has_processes()
    assert group.pids() == {pid}, "as of a pod, whose processes are in its containers' groups"
    assert child.has_processes()
    bench.end_tasks()
    assert not group.has_processes()


def test_group_that_exists_is_not_taken_for_ours(bench: Bench) -> None:
    group = bench.group()
    with pytest.raises(CgroupBusy, match="exists already"):
        Group.create(bench.layout, group.name, Knobs(None, bench.kernel))
    assert group.exists()


def test_root_group_and_nested_be_groups_are_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="whole host"):
        Group.open(bench.layout, "/", bench.knobs())
    outer = bench.group()
    inner = bench.group(f"{outer.name}/inner")
    with pytest.raises(ConfigError, match="within"):
        actuator(bench, outer, inner)


def test_groups_open_by_directory_and_by_name(bench: Bench) -> None:
    group = bench.group()
    for path in (group.name, f"/{group.name}", group.directories[0]):
        assert Group.open(bench.layout, path, bench.knobs()).directories == group.directories
    with pytest.raises(CgroupGone, match="no such group"):
        Group.open(bench.layout, "rlctl-test-nobody-made-this", bench.knobs())


def test_a_vanished_group_leaves_the_others_in_control(bench: Bench) -> None:
    doomed, lasting = bench.group(), bench.group()
    be = actuator(bench, doomed, lasting)
    be.apply(Allocation(0.5, 1))
    doomed.remove()
    assert be.apply(Allocation(0.5, 1)) == Allocation(0.5, 1)
    assert lasting.cpu is not None
    assert lasting.cpu.quota() == Quota(5000, 10_000), "the whole budget is its own now"
    lasting.remove()
    with pytest.raises(CgroupGone):
        be.apply(Allocation(0.5, 1))
    with pytest.raises(CgroupGone):
        be.read()


def family(bench: Bench) -> tuple[Group, Group, Group]:
    """Pod, container and a container within it, with the controllers of all three at hand."""
    pod = bench.group()
    container = bench.group(f"{pod.name}/c")
    return pod, container, bench.group(f"{pod.name}/c/d")


def test_children_are_in_nobodys_way(bench: Bench) -> None:
    pod, container, innermost = family(bench)
    for group in (pod, container, innermost):
        assert group.cpuset is not None
        group.cpuset.fit(frozenset({0, 1}))
    assert container.cpu is not None
    assert innermost.cpu is not None
    container.cpu.set_quota(Quota(80_000, 100_000))
    innermost.cpu.set_quota(Quota(3_000, 10_000))
    before = snapshot(bench, pod, container, innermost)
    be = actuator(bench, pod)
    for allocation in (Allocation(0.25, 1), Allocation(0.01, 1), Allocation(0.5, 2), Allocation(0.05, 1, frozen=True)):
        assert be.apply(allocation) == allocation
    assert be.apply(LIMITS.full) == LIMITS.full
    assert container.cpu.quota().cpus == pytest.approx(0.8), "a grown pod gives its containers back what they had"
    assert innermost.cpu.quota().cpus == pytest.approx(0.3)
    be.apply(Allocation(0.1, 1))
    report = bench.restore()
    assert report.ok, str(report)
    assert snapshot(bench, pod, container, innermost) == before


@pytest.mark.parametrize("planned", [False, True])
def test_container_made_in_narrow_pod_grows_too(bench: Bench, planned: bool) -> None:
    pod = bench.group()
    assert pod.cpuset is not None
    pod.cpuset.fit(frozenset({0, 1}))
    be = actuator(bench, pod)
    be.apply(Allocation(0.5, 1))
    container = bench.group(f"{pod.name}/c")  # in v1 it gets its pod's CPUs of now, as from a runtime
    innermost = bench.group(f"{pod.name}/c/d")
    if planned:
        assert be.emergency_plan().paths
    be.apply(LIMITS.full)
    for group in (container, innermost):
        assert group.cpuset is not None
        assert group.cpuset.effective() == {0, 1}
    be.apply(Allocation(0.5, 1))
    assert bench.restore().ok
    for group in (pod, container, innermost):
        assert group.cpuset is not None
        assert group.cpuset.effective() == {0, 1}


def test_container_on_cpus_of_its_own_keeps_them(bench: Bench) -> None:
    pod = bench.group()
    container = bench.group(f"{pod.name}/c")
    assert pod.cpuset is not None
    assert container.cpuset is not None
    pod.cpuset.fit(frozenset({0, 1}))
    container.cpuset.set_cpus({ORDER[0]})
    be = actuator(bench, pod)
    for allocation in (Allocation(0.5, 1), LIMITS.full, Allocation(0.5, 1)):
        be.apply(allocation)
        assert container.cpuset.cpus() == {ORDER[0]}
    assert bench.restore().ok
    assert container.cpuset.cpus() == {ORDER[0]}


def test_a_family_moves_to_other_cpus_altogether(bench: Bench) -> None:
    pod, container, innermost = family(bench)
    for cpus in (frozenset({0}), frozenset({1}), frozenset({0, 1}), frozenset({0})):
        assert pod.cpuset is not None
        pod.cpuset.fit(cpus)
        for group in (pod, container, innermost):
            assert group.cpuset is not None
            assert group.cpuset.effective() <= cpus


def test_child_may_not_have_more_than_v1_parent(bench: Bench) -> None:
    pod, container, _ = family(bench)
    assert pod.cpu is not None
    assert container.cpu is not None
    pod.cpu.fit(Quota(2_000, 10_000))
    if len(pod.cpu.family()) == 1:
        container.cpu.set_quota(Quota(5_000, 10_000))
        assert actuator(bench, container).read().quota_cpus == pytest.approx(0.2)
        return
    with pytest.raises(CgroupRejected, match="parent"):
        container.cpu.set_quota(Quota(5_000, 10_000))
    assert container.cpu.quota().quota_us is None


def test_restore_brings_back_every_byte_and_only_once(bench: Bench) -> None:
    groups = [bench.group(), bench.group()]
    before = snapshot(bench, *groups)
    be = actuator(bench, *groups)
    be.apply(Allocation(0.25, 1, frozen=True))
    be.set_weight(Weight.MINIMUM)
    assert snapshot(bench, *groups) != before
    first = bench.restore()
    assert first.ok
    assert first.restored
    assert snapshot(bench, *groups) == before
    second = bench.restore()
    assert (second.ok, second.restored, second.note) == (True, [], "nothing to do")


def test_restore_puts_back_what_was_unusual(bench: Bench) -> None:
    group = bench.group()
    assert group.cpu is not None
    assert group.cpuset is not None
    assert group.freezer is not None
    group.cpu.set_weight(700)
    group.cpu.set_quota(Quota(150_000, 200_000))
    group.cpuset.set_cpus({0})
    group.freezer.order(True)
    group.freezer.settle(True, 1.0)
    idle = group.cpu.idle() is not None
    before = snapshot(bench, group)
    be = actuator(bench, group)
    be.apply(Allocation(0.01, 1))
    if idle:
        Group.open(bench.layout, group.name, bench.knobs()).cpu.set_idle(True)  # type: ignore[union-attr]
    be.apply(Allocation(2.0, 2))
    be.apply(LIMITS.full)
    assert bench.restore().ok
    group.freezer.settle(True, 1.0)
    assert snapshot(bench, group) == before


def test_restore_leaves_group_of_same_name_alone(bench: Bench) -> None:
    group = bench.group()
    actuator(bench, group).apply(Allocation(0.25, 1))
    group.remove()
    again = bench.group(group.name)
    assert again.cpu is not None
    again.cpu.set_quota(Quota(4_000, 10_000))
    before = snapshot(bench, again)
    report = bench.restore()
    assert report.ok
    assert not report.restored
    assert {"re-created" in item.why for item in report.skipped} == {True}
    assert snapshot(bench, again) == before


def test_restore_skips_groups_that_are_gone(bench: Bench) -> None:
    group = bench.group()
    actuator(bench, group).apply(Allocation(0.25, 1))
    group.remove()
    report = bench.restore()
    assert report.ok
    assert {item.why for item in report.skipped} == {"the group is gone"}
    assert bench.restore().note == "nothing to do"


def test_restore_refuses_while_a_controller_lives(bench: Bench) -> None:
    group = bench.group()
    before = snapshot(bench, group)
    actuator(bench, group).apply(Allocation(0.25, 1))
    with pytest.raises(HostError, match=rf"in use by a running rlctl \(pid {os.getpid()}\)"):
        restore(bench.state_dir, kernel=bench.kernel, proc=bench.proc)
    assert snapshot(bench, group) != before
    assert restore(bench.state_dir, kernel=bench.kernel, proc=bench.proc, force=True).ok
    assert snapshot(bench, group) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from tests.doubles.cgroup_kernel import FakeKernel
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.kernel import KernelFiles
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.workload import Weight

state, folder, name = sys.argv[1:]
fake = FakeKernel(Path(folder)) if folder else None
layout = Layout.detect(fake.root, fake.proc) if fake else Layout.detect()
journal = Journal.open(Path(state), fake.proc if fake else Path("/proc"))
knobs = Knobs(journal, fake or KernelFiles())
be = BeActuator([Group.open(layout, name, knobs)], (1, 0), Limits(cpus=2), knobs)
be.set_weight(Weight.MINIMUM)
be.apply(Allocation(0.02, 1, frozen=True))
os.kill(os.getpid(), signal.SIGKILL)
"""


def die_at_work(bench: Bench, group: Group) -> None:
    folder = "" if bench.fake is None else str(bench.fake.root.parents[2])
    command = [sys.executable, "-c", KILLED, str(bench.state_dir), folder, group.name]
    assert subprocess.run(command, check=False, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL


def test_restore_after_the_controller_was_killed(bench: Bench) -> None:
    group = bench.group()
    assert group.cpuset is not None
    group.cpuset.set_cpus({0, 1})
    group.attach(bench.task())
    before = snapshot(bench, group)
    die_at_work(bench, group)
    assert snapshot(bench, group) != before
    report = bench.restore()
    assert report.ok, str(report)
    assert snapshot(bench, group) == before
    assert bench.restore().note == "nothing to do"


def test_a_second_controller_keeps_the_first_ones_originals(bench: Bench) -> None:
    group = bench.group()
    before = snapshot(bench, group)
    die_at_work(bench, group)
    actuator(bench, group).apply(Allocation(0.7, 2))
    assert bench.restore().ok
    assert snapshot(bench, group) == before


def test_a_dry_run_touches_nothing(bench: Bench) -> None:
    group = bench.group()
    before = snapshot(bench, group)
    be = BeActuator([group], ORDER, LIMITS, bench.knobs(dry_run=True))
    assert be.apply(LIMITS.safe) == LIMITS.full, "it says what is in force, not what was asked"
    be.set_weight(Weight.MINIMUM)
    assert snapshot(bench, group) == before
    assert not bench.open_journal().entries


def test_the_journal_is_complete_before_the_first_write(bench: Bench) -> None:
    group = bench.group()
    before = snapshot(bench, group)
    be = actuator(bench, group)
    be.apply(LIMITS.safe)
    be.set_weight(Weight.MINIMUM)
    changed = {path for path, text in snapshot(bench, group).items() if text != before[path]}
    journalled = {entry.path: entry.original for entry in bench.open_journal().entries}
    kept = {path for path in changed if path.name not in ("freezer.self_freezing", "freezer.parent_freezing")}
    assert kept <= journalled.keys()
    assert all(journalled[path] == before[path] for path in kept)


def throttled_periods(group: Group) -> int:
    """Periods in which it was stopped, for it had had its quota; on a busy machine there are others."""
    assert group.cpu is not None
    stat = (group.cpu.group / "cpu.stat").read_text()
    return int(stat.split("nr_throttled ")[1].split()[0])


def cpu_seconds(group: Group) -> float:
    """CPU time of all its tasks since it was made."""
    assert group.usage_file is not None
    usage = usage_seconds(group.usage_file.read_bytes())
    assert isinstance(usage, float)
    return usage


@pytest.mark.host
def test_usage_grows_only_while_running(real: Bench) -> None:
    group = real.group()
    group.attach(real.task())
    be = actuator(real, group)
    before = cpu_seconds(group)
    until(lambda: cpu_seconds(group) > before)
    assert be.apply(LIMITS.safe).frozen
    before = cpu_seconds(group)
    time.sleep(0.2)
    assert cpu_seconds(group) == pytest.approx(before, abs=0.002)
    be.apply(LIMITS.full)
    until(lambda: cpu_seconds(group) > before + 0.002)


@pytest.mark.host
@pytest.mark.parametrize("quota_cpus", [0.25, pytest.param(0.05, marks=pytest.mark.slow)])
def test_a_quota_holds(real: Bench, quota_cpus: float) -> None:
    group = real.group()
    group.attach(real.task())
    actuator(real, group).apply(Allocation(quota_cpus, 1))
    time.sleep(0.2)  # the interpreter starts, and the period that had begun without a quota ends
    begun, before, stopped = time.monotonic(), cpu_seconds(group), throttled_periods(group)
    until(lambda: throttled_periods(group) >= stopped + 100)
    used, full = cpu_seconds(group) - before, throttled_periods(group) - stopped
    assert used <= 1.15 * quota_cpus * (time.monotonic() - begun)
    assert used >= 0.85 * quota_cpus * full * PERIOD_US / 1e6, "it was stopped before it had had its quota"


@pytest.mark.host
def test_the_cpuset_moves_tasks(real: Bench) -> None:
    group = real.group()
    pid = real.task()
    group.attach(pid)
    be = actuator(real, group)
    be.apply(Allocation(UNLIMITED, 1))
    assert os.sched_getaffinity(pid) == {ORDER[0]}
    be.apply(LIMITS.full)
    assert os.sched_getaffinity(pid) == {0, 1}


@pytest.mark.host
def test_the_minimum_weight_yields_the_cpu(real: Bench) -> None:
    outer = real.group()
    lc, be = real.group(f"{outer.name}/lc"), real.group(f"{outer.name}/be")
    for group in (lc, be):
        group.attach(real.task())
        actuator(real, group).apply(Allocation(UNLIMITED, 1))
    actuator(real, be, lc=lc).set_weight(Weight.MINIMUM)
    time.sleep(0.2)
    before = cpu_seconds(lc), cpu_seconds(be)
    until(lambda: cpu_seconds(lc) >= before[0] + 0.8)
    ours, theirs = cpu_seconds(lc) - before[0], cpu_seconds(be) - before[1]
    assert theirs < 0.2 * ours


@pytest.mark.host
def test_a_process_is_found_in_its_group(real: Bench) -> None:
    group = real.group()
    pid = real.task()
    group.attach(pid)
    found = Group.of_process(real.layout, pid, real.knobs())
    assert set(group.directories) <= set(found.directories)


@pytest.mark.host
def test_attaching_a_process_that_ended_is_an_error(real: Bench) -> None:
    group = real.group()
    pid = real.task("")
    real.tasks[-1].wait()
    with pytest.raises(CgroupError, match="ended"):
        group.attach(pid)


@pytest.mark.host
def test_many_tasks_that_fork_are_frozen(real: Bench) -> None:
    group = real.group()
    group.attach(real.task("import os, time\nwhile True:\n if os.fork() == 0: os._exit(0)\n os.wait()"))
    be = actuator(real, group)
    for _ in range(5):
        assert be.apply(LIMITS.safe).frozen
        assert not be.apply(LIMITS.full).frozen
        time.sleep(0.02)
