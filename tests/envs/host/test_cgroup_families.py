"""Pods with containers, at random: no order of writes that v1 refuses, and a way back from everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.host.cgroup.journal import Journal
from rlctl.envs.host.cgroup.knobs import Knobs
from rlctl.envs.host.cgroup.layout import Layout
from rlctl.envs.host.cgroup.quota import Quota
from rlctl.envs.host.cgroup.restore import restore
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


def test_be_is_not_left_on_few_cpus_because_one_that_it_had_is_offline_by_now(tmp_path: Path) -> None:
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
