"""Pods with containers, at random: no order of writes that v1 refuses, and a way back from everywhere."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import CgroupError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.restore import restore
from rlctl.envs.host.cgroup.values import Quota
from tests.doubles.cgroup_kernel import FakeKernel

CPUS = 3
LIMITS = Limits(cpus=CPUS)
TREE = ("outer", "outer/pod", "outer/pod/a", "outer/pod/a/x", "outer/pod/b")
POD = "outer/pod"

quotas = st.one_of(
    st.none(),
    st.builds(Quota, st.integers(1000, 300_000), st.sampled_from([10_000, 20_000, 100_000, 1_000_000])),
)
allocations = st.builds(
    Allocation, st.sampled_from([0.01, 0.02, 0.07, 0.3, 1.0, 2.5, UNLIMITED]), st.integers(1, CPUS), st.booleans()
)


def runtime_made(layout: Layout, kernel: FakeKernel, wanted: dict[str, tuple[Quota | None, frozenset[int]]]) -> Group:
    """The pod and its containers as a container runtime would have made them, as far as the kernel lets it."""
    groups: dict[str, Group] = {}
    for name in TREE:
        groups[name] = group = Group.create(layout, name, Knobs(None, kernel))
        quota, cpus = wanted[name]
        parent = groups.get(str(Path(name).parent))
        assert group.cpu is not None
        assert group.cpuset is not None
        above = parent.cpuset.cpus() if parent is not None and parent.cpuset is not None else frozenset(range(CPUS))
        group.cpuset.set_cpus((cpus & above) or above)
        if quota is not None and quota.cpus <= min(group.cpu.ceiling_cpus(), CPUS):
            group.cpu.set_quota(quota)
    return groups[POD]


def contents(kernel: FakeKernel) -> dict[Path, str]:
    return {path: path.read_text() for path in kernel.root.rglob("c*.*") if path.name != "cgroup.events"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["v1", "v2"])
@settings(max_examples=25)
@given(
    configured=st.fixed_dictionaries(
        {name: st.tuples(quotas, st.frozensets(st.integers(0, CPUS - 1), min_size=1)) for name in TREE}
    ),
    asked=st.lists(allocations, min_size=1, max_size=5),
)
def test_any_family_follows_and_finds_its_way_back(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    configured: dict[str, tuple[Quota | None, frozenset[int]]],
    asked: list[Allocation],
) -> None:
    folder = tmp_path_factory.mktemp("host")
    kernel = FakeKernel(folder, kind, cpus=CPUS)
    configured["outer"] = None, frozenset(range(CPUS))
    pod = runtime_made(Layout.detect(kernel.root, kernel.proc), kernel, configured)
    before = contents(kernel)
    with Journal.open(folder / "state", kernel.proc) as journal:
        be = BeActuator([pod], (2, 1, 0), LIMITS, Knobs(journal, kernel))
        for allocation in asked:
            assert be.apply(allocation) == allocation
    report = restore(folder / "state", kernel=kernel, proc=kernel.proc, patience_seconds=10.0)
    assert report.ok, str(report)
    assert contents(kernel) == before


class Counting:
    """A kernel that counts how often it is asked anything."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel, self.asked = kernel, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._kernel, name)


def family_of(folder: Path, names: list[str]) -> tuple[FakeKernel, Group]:
    kernel = FakeKernel(folder, "v1", cpus=CPUS)
    layout = Layout.detect(kernel.root, kernel.proc)
    pod, *_ = [Group.create(layout, name, Knobs(None, kernel)) for name in ("pod", *names)]
    return kernel, pod


def questions_of_a_change(folder: Path, names: list[str]) -> int:
    """How often the kernel is asked for a change of quota and CPUs, and for an emergency plan."""
    kernel, pod = family_of(folder, names)
    counting = Counting(kernel)
    with Journal.open(folder / "state", kernel.proc) as journal:
        be = BeActuator([pod], (2, 1, 0), LIMITS, Knobs(journal, counting))
        be.apply(Allocation(0.3, 1))
        be.apply(Allocation(2.5, 2))
        be.emergency_plan()
    return counting.asked


@pytest.mark.parametrize("nested", [True, False])
def test_a_walk_is_linear_in_the_family(tmp_path: Path, nested: bool) -> None:
    """150 groups within one another kept the controller from its ticks until the watchdog set BE free."""
    asked = []
    for count in (5, 10, 20):
        names = ["pod" + "/n" * (one + 1) if nested else f"pod/n{one}" for one in range(count)]
        asked.append(questions_of_a_change(tmp_path / str(count), names))
    assert asked[2] - asked[1] == pytest.approx(2 * (asked[1] - asked[0]), rel=0.05)


def test_be_is_restricted_before_its_family(tmp_path: Path) -> None:
    kernel, pod = family_of(tmp_path, ["pod/a", "pod/a/x"])
    with Journal.open(tmp_path / "state", kernel.proc) as journal:
        be = BeActuator([pod], (2, 1, 0), LIMITS, Knobs(journal, kernel))
        kernel.writes.clear()
        be.apply(LIMITS.safe)
    first = list(itertools.takewhile(lambda path: path.parent.name == "pod", (path for path, _ in kernel.writes)))
    assert {"freezer.state", "cpu.cfs_quota_us"} <= {path.name for path in first}


def test_family_too_large_for_tick_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, pod = family_of(tmp_path, [f"pod/n{one}" for one in range(5)])
    monkeypatch.setattr("rlctl.envs.host.cgroup.v1.MOST_FAMILY", 4)
    with Journal.open(tmp_path / "state", kernel.proc) as journal:
        be = BeActuator([pod], (2, 1, 0), LIMITS, Knobs(journal, kernel))
        with pytest.raises(CgroupError, match="more than 4 control groups are in it"):
            be.apply(LIMITS.safe)
        assert be.read().frozen
        assert be.read().quota_cpus == LIMITS.safe.quota_cpus


def test_offline_cpu_does_not_narrow_be(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, "v1", cpus=4)
    layout = Layout.detect(kernel.root, kernel.proc)
    pod, container = (Group.create(layout, name, Knobs(None, kernel)) for name in ("pod", "pod/c"))
    assert pod.cpuset is not None
    assert container.cpuset is not None
    with Journal.open(tmp_path / "state", kernel.proc) as journal:
        be = BeActuator([pod], (1, 0, 2, 3), Limits(cpus=4), Knobs(journal, kernel))
        be.apply(Allocation(0.25, 1))
    assert container.cpuset.cpus() == {1}
    kernel.offline(3)
    report = restore(tmp_path / "state", kernel=kernel, proc=kernel.proc, patience_seconds=0.1)
    assert report.ok, str(report)
    assert pod.cpuset.cpus() == container.cpuset.cpus() == {0, 1, 2}
    files = [*pod.cpuset.cpus_files, *container.cpuset.cpus_files]
    assert [item.path for item in report.equivalent] == files
    assert "its parent has no more of 0-3 by now: left at 0-2" in str(report)


def test_offline_cpu_costs_be_no_tick(tmp_path: Path) -> None:
    """The kernel of v1 refuses it: BE was safe for good, or without a freezer the service ended."""
    kernel = FakeKernel(tmp_path, cpus=4)
    layout = Layout.detect(kernel.root, kernel.proc)
    above, pod = (Group.create(layout, name, Knobs(None, kernel)) for name in ("above", "above/pod"))
    be = BeActuator([pod], (1, 0, 2, 3), Limits(cpus=4), Knobs(None, kernel))
    be.apply(Allocation(0.25, 2))
    kernel.offline(1)
    assert be.apply(Allocation(0.25, 1)) == Allocation(0.25, 1)
    assert pod.cpuset is not None
    assert pod.cpuset.cpus() == {0}
    assert be.emergency_plan().to_bytes().count(b"cpuset.cpus\x000\x00") == 1
    assert be.ownership.events.drain() == (), "no other program wrote it"
    kernel.online(1)
    assert be.apply(Allocation(0.25, 2)) == Allocation(0.25, 2), "v1 gives it back to nobody but the root"
    assert above.cpuset is not None
    above.cpuset.set_cpus(range(4))
    be.apply(Allocation(0.25, 2))
    assert pod.cpuset.cpus() == {0, 1}


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_quota_of_all_cpus_is_none(kind: str, tmp_path: Path) -> None:
    """The kernel throttles a BE that may have them all, for a part of each short period."""
    kernel = FakeKernel(tmp_path, kind, cpus=CPUS)
    group = Group.create(Layout.detect(kernel.root, kernel.proc), "batch", Knobs(None, kernel))
    be = BeActuator([group], range(CPUS), LIMITS, Knobs(None, kernel))
    whole = Allocation(float(CPUS), CPUS)
    assert group.cpu is not None
    assert be.apply(whole) == whole
    assert group.cpu.quota().quota_us is None
    assert be.read() == whole
    assert be.apply(Allocation(2.0, CPUS)) == Allocation(2.0, CPUS)
    assert group.cpu.quota().cpus == 2.0
