"""What only a unified hierarchy does, on a kernel that has one: `scripts/guest` boots it (tests/guest/README.md)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import CgroupBusy, CgroupError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.topology import cpu_order
from rlctl.serve.workloads import why_uncontrolled, within_reach
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.host, pytest.mark.cgroup2]

Bench = Any
LIMITS = Limits(cpus=2)
HALF = Allocation(0.5, 2)
ALL = frozenset(os.sched_getaffinity(0))
NOBODY = 65534


@pytest.fixture
def v2(real: Bench) -> Bench:
    return real


def actuator(bench: Bench, *groups: Group) -> BeActuator:
    return BeActuator(groups, (1, 0), LIMITS, bench.knobs())


def folder(group: Group) -> Path:
    return group.directories[0]


@contextlib.contextmanager
def a_partition(group: Group) -> Iterator[Path]:
    """Its CPUs are its own; given back here, since the kernel takes its time after a removal."""
    kind = folder(group) / "cpuset.cpus.partition"
    kind.write_text("root")
    assert kind.read_text() == "root\n"
    try:
        yield kind
    finally:
        kind.write_text("member")


def test_group_without_controllers_is_frozen_until_shared(v2: Bench) -> None:
    outer = v2.group()
    inner = folder(outer) / "be"
    inner.mkdir()
    bare = Group.open(v2.layout, inner, v2.knobs())
    assert (bare.cpu, bare.cpuset) == (None, None)
    assert actuator(v2, bare).apply(LIMITS.safe).frozen
    assert f"write +cpuset to {folder(outer)}/cgroup.subtree_control" in why_uncontrolled(bare, v2.layout)
    (folder(outer) / "cgroup.subtree_control").write_text("+cpu +cpuset")
    whole = Group.open(v2.layout, inner, v2.knobs())
    assert why_uncontrolled(whole, v2.layout) == ""
    assert actuator(v2, whole).apply(HALF) == HALF
    assert v2.restore().ok


def test_peopled_group_takes_no_children(v2: Bench) -> None:
    """The kernel would share cpu and cpuset, which are threaded, and make of the child a group that nobody can join."""
    outer = v2.group()
    outer.attach(v2.task())
    with pytest.raises(CgroupBusy, match=r"has processes of its own.*: move them to a group of their own"):
        v2.group(f"{outer.name}/inner")
    assert not (folder(outer) / "inner").exists()
    assert (folder(outer) / "cgroup.subtree_control").read_text().split() == []


def test_a_group_that_shares_memory_takes_no_processes(v2: Bench) -> None:
    outer = v2.group()
    v2.group(f"{outer.name}/inner")
    (folder(outer) / "cgroup.subtree_control").write_text("+memory")
    with pytest.raises(CgroupBusy, match="child groups"):
        outer.attach(v2.task())


def test_lost_controllers_leave_be_frozen(v2: Bench) -> None:
    outer = v2.group()
    be = v2.group(f"{outer.name}/be")
    under = actuator(v2, be)
    assert under.apply(HALF) == HALF
    shared = folder(outer) / "cgroup.subtree_control"
    shared.write_text("-cpu -cpuset")
    with pytest.raises(CgroupError, match="not enabled"):
        under.apply(LIMITS.safe)
    assert under.read().frozen
    shared.write_text("+cpu +cpuset")
    assert (folder(be) / "cpu.max").read_text() == "max 100000\n"
    assert under.apply(HALF) == HALF
    assert v2.restore().ok
    assert (folder(be) / "cpu.max").read_text() == "max 100000\n"


def test_a_partition_beside_be_keeps_its_cpus(v2: Bench) -> None:
    """Linux 6.1 breaks up a partition as soon as a sibling's `cpuset.cpus` names one of its CPUs."""
    rival, be = v2.group(), v2.group()
    rival.cpuset.set_cpus({1})
    with a_partition(rival) as kind:
        reach = within_reach([be])
        assert reach == ALL - {1}
        order = cpu_order(rival.cpuset.effective(), reach)
        limits = Limits(len(order))
        under = BeActuator([be], order, limits, v2.knobs())
        for allocation in (limits.full, limits.safe):
            assert under.apply(allocation) == allocation
        assert kind.read_text() == "root\n"
        assert v2.restore().ok
        assert kind.read_text() == "root\n"
    assert within_reach([be]) == ALL


def test_partition_is_one_again_afterwards(v2: Bench) -> None:
    be = v2.group()
    be.cpuset.set_cpus({1})
    with a_partition(be) as kind:
        assert within_reach([be]) == ALL, "its own count"
        under = actuator(v2, be)
        for allocation in (HALF, LIMITS.safe, HALF):
            assert under.apply(allocation) == allocation
        assert v2.restore().ok
        assert be.cpuset.cpus() == {1}
        assert kind.read_text() == "root\n"


@pytest.mark.parametrize(
    ("written", "read", "cpus"),
    [("5000", "5000 100000", 0.05), ("max 50000", "max 50000", None), ("20000 1000000", "20000 1000000", 0.02)],
)
def test_others_quotas_are_understood_and_put_back(v2: Bench, written: str, read: str, cpus: float | None) -> None:
    be = v2.group()
    limit = folder(be) / "cpu.max"
    limit.write_text(written)
    assert limit.read_text() == f"{read}\n"
    assert be.cpu.quota().cpus == (pytest.approx(cpus) if cpus else float("inf"))
    under = actuator(v2, be)
    for allocation in (HALF, LIMITS.safe, LIMITS.full):
        assert under.apply(allocation) == allocation
    assert v2.restore().ok
    assert limit.read_text() == f"{read}\n"


DELEGATED = """
import os, sys
from pathlib import Path
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.errors import PermissionMissing
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore

name, state = sys.argv[1], Path(sys.argv[2])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
layout, journal = Layout.detect(), Journal.open(state)
knobs, group = Knobs(journal), Group.create(layout, f"{name}/be", Knobs(None))
be = BeActuator([group], (1, 0), Limits(cpus=2), knobs)
print(be.apply(Allocation(0.5, 2)) == Allocation(0.5, 2), be.apply(Limits(cpus=2).safe) == Limits(cpus=2).safe)
journal.close()
print(restore(state).ok, group.cpu.quota().quota_us)
try:
    Group.open(layout, name, knobs).cpu.set_idle(True)
except PermissionMissing as error:
    print(error)
"""


def test_user_with_delegated_group_needs_no_root(v2: Bench, tmp_path: Path) -> None:
    """As systemd delegates: the directory and three files; the group's own limits stay with who gave it."""
    outer, state = v2.group(), tmp_path / "nobody"
    state.mkdir()
    for shared in (tmp_path, *tmp_path.parents[:2]):
        shared.chmod(shared.stat().st_mode | 0o055)
    for mine in (state, folder(outer), *(folder(outer) / f"cgroup.{name}" for name in ("procs", "threads"))):
        os.chown(mine, NOBODY, NOBODY)
    os.chown(folder(outer) / "cgroup.subtree_control", NOBODY, NOBODY)
    words = [sys.executable, "-c", DELEGATED, outer.name, str(state)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.stdout.splitlines()[:2] == ["True True", "True None"], done.stderr
    assert "delegated to this user" in done.stdout
