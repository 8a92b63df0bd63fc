"""Platform descriptions: what a typing mistake in one would do to a whole host, and what is chosen without one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlctl.envs.applications import CpuCluster
from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.partition.platform import discover_platform, load_platform

CAPTURED = Path(__file__).parents[2] / "fixtures/platform/opteron-8378.txt"
MB = 1 << 20


def unpacked(folder: Path, captured: str) -> Path:
    """A sysfs from what `grep -r .` printed of one."""
    for line in captured.splitlines():
        name, _, content = line.partition(":")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return folder


def small(folder: Path, *caches: str, nodes: bool = True, siblings: int = 1) -> Path:
    """A sysfs of one socket with these groups of CPUs that share a last-level cache."""
    cpus = sorted(int(cpu) for cache in caches for cpu in cache.split(","))
    lines = [f"devices/system/cpu/online:{','.join(map(str, cpus))}"]
    lines += [f"devices/system/node/node0/cpulist:{','.join(map(str, cpus))}"] if nodes else []
    for cpu in cpus:
        place = f"devices/system/cpu/cpu{cpu}"
        cache = next(cache for cache in caches if str(cpu) in cache.split(","))
        core = ",".join(str(other) for other in cpus if other // siblings == cpu // siblings)
        lines += [f"{place}/topology/physical_package_id:0", f"{place}/topology/thread_siblings_list:{core}"]
        lines += [f"{place}/cache/index3/level:3", f"{place}/cache/index3/shared_cpu_list:{cache}"]
    return unpacked(folder, "\n".join(lines))


@pytest.fixture
def opteron(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "sys", CAPTURED.read_text())


def test_the_papers_machine_is_what_its_tables_say(opteron: Path) -> None:
    platform = load_platform("barbeque-opteron", sys=opteron)
    assert platform.host_cpus == {0, 4, 8, 12}
    assert platform.host_memory_nodes == {0}
    assert platform.mdev_cpus == {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15}
    assert platform.mdev_memory_nodes == {1, 2, 3}
    assert platform.clusters == (
        CpuCluster("node1", frozenset({1, 5, 9, 13}), 4.0, frozenset({3}), 6000 * MB),
        CpuCluster("node2", frozenset({2, 6, 10, 14}), 4.0, frozenset({2}), 6000 * MB),
        CpuCluster("node3", frozenset({3, 7, 11, 15}), 4.0, frozenset({1}), 6000 * MB),
    )
    assert platform.cluster_group("node1") == "rlctl-mdev/node1"


def test_larger_machines_description_is_refused() -> None:
    if (os.cpu_count() or 0) >= 16:
        pytest.skip("this machine has the CPUs")
    with pytest.raises(ConfigError, match=r"opteron\.yaml:4: host\.cpus: there is no CPU .* online here, only"):
        load_platform("barbeque-opteron")


RIGHT = """host:
  cpus: 0,4
  memory_nodes: 0
mdev:
  cpus: 1-3,5-7
  memory_nodes: 1-3
  clusters:
    one: {cpus: "1,5", memory_nodes: 1}
    two:
      cpus: [2, 6]
      quota_percent: 50
      memory_mb: 100
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "told"),
    [
        ("cpus: 0,4", "cpus: 0,16", 2, "host.cpus: there is no CPU 16 online here, only 0-15"),
        ("cpus: 0,4", 'cpus: ""', 2, "host.cpus is .*: .*at least 1 item"),
        ("cpus: 0,4", "cpus: 0-", 2, "host.cpus: '0-' is no list of CPUs such as 0-2,5"),
        ("cpus: 0,4", "cpus: 0,5", 5, "mdev.cpus: CPU 5 is the host's already; a CPU has one partition"),
        ("memory_nodes: 0", "memory_nodes: 4", 3, "host.memory_nodes: there is no memory node 4, only 0-3"),
        ('"1,5"', '"1,4"', 8, "mdev.clusters.one.cpus: CPU 4 is outside mdev, which has 1-3,5-7"),
        ("memory_nodes: 1}", "memory_nodes: 0}", 8, "memory node 0 is outside mdev, which has 1-3"),
        ("[2, 6]", "[2, 5]", 10, "mdev.clusters.two.cpus: CPU 5 is cluster one's already"),
        ("quota_percent: 50", "quota_percent: 150", 11, "mdev.clusters.two.quota_percent is 150: .*100"),
        ("quota_percent: 50", "quota_percent: 0", 11, "mdev.clusters.two.quota_percent is 0: .*greater than 0"),
        ("memory_mb: 100", "memory_gb: 1", 12, "unknown key .*memory_gb'; did you mean 'memory_mb'"),
        ("    two:", "    ../two:", 9, r"mdev.clusters.*pattern"),
        ("  memory_nodes: 1-3\n", "  memory_nodes: 1-3\n  cluster: 3\n", 7, "did you mean 'clusters'"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(
    opteron: Path, tmp_path: Path, before: str, after: str, line: int, told: str
) -> None:
    file = tmp_path / "mine.yaml"
    assert before in RIGHT
    file.write_text(RIGHT.replace(before, after, 1))
    with pytest.raises(ConfigError, match=rf"mine\.yaml:{line}: .*{told}"):
        load_platform(file, sys=opteron)


def test_share_of_each_cpu_is_share_of_cluster(opteron: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RIGHT)
    _, two = load_platform(tmp_path / "mine.yaml", sys=opteron).clusters
    assert (two.quota_cpus, two.memory_bytes) == (1.0, 100 * MB)


def test_without_clusters_there_is_one(opteron: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("host: {cpus: 0}\nmdev: {cpus: 3-5}\n")
    (only,) = load_platform(tmp_path / "mine.yaml", sys=opteron).clusters
    assert only == CpuCluster("all", frozenset({3, 4, 5}), 3.0)


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'barbeque-opteron'"):
        load_platform("opteron")


def test_numa_nodes_are_the_clusters(opteron: Path) -> None:
    platform = discover_platform(sys=opteron)
    assert platform.host_cpus == {0, 4}
    assert [(one.name, sorted(one.cpus), sorted(one.memory_nodes)) for one in platform.clusters] == [
        ("node0", [8, 12], [0]),
        ("node1", [1, 5, 9, 13], [1]),
        ("node2", [2, 6, 10, 14], [2]),
        ("node3", [3, 7, 11, 15], [3]),
    ]
    assert "4 NUMA nodes; the host keeps CPU 0,4 (2 of 16 cores)" in platform.why


def test_two_cpus_are_one_each(tmp_path: Path) -> None:
    platform = discover_platform(sys=small(tmp_path, "0,1"))
    assert platform.host_cpus == {0}
    assert platform.clusters == (CpuCluster("all", frozenset({1}), 1.0),)
    shipped = load_platform("two-core", sys=tmp_path)
    assert (shipped.host_cpus, shipped.clusters) == (platform.host_cpus, platform.clusters)


@pytest.mark.parametrize("nodes", [True, False])
def test_without_numa_the_caches_are_the_clusters(tmp_path: Path, nodes: bool) -> None:
    platform = discover_platform(sys=small(tmp_path, "0,1,2,3", "4,5,6,7", nodes=nodes))
    assert [(one.name, sorted(one.cpus)) for one in platform.clusters] == [
        ("cache0", [1, 2, 3]),
        ("cache1", [4, 5, 6, 7]),
    ]


def test_the_host_gets_both_threads_of_its_core(tmp_path: Path) -> None:
    assert discover_platform(sys=small(tmp_path, "0,1,2,3", siblings=2)).host_cpus == {0, 1}


def test_single_core_is_divided_by_threads(tmp_path: Path) -> None:
    platform = discover_platform(sys=small(tmp_path, "0,1", siblings=2))
    assert platform.host_cpus == {0}
    assert platform.mdev_cpus == {1}
    assert "which both partitions share" in platform.why


def test_of_limited_group_only_its_cpus_are_divided(opteron: Path, tmp_path: Path) -> None:
    """A container's, of which /sys tells nothing."""
    platform = discover_platform(within="box", cpus=frozenset({2, 3, 6}), sys=opteron)
    assert platform.host_cpus == {2}
    assert [(one.name, sorted(one.cpus)) for one in platform.clusters] == [("node2", [6]), ("node3", [3])]
    assert platform.cluster_group("node3") == "box/rlctl-mdev/node3"
    (tmp_path / "mine.yaml").write_text(RIGHT)
    with pytest.raises(ConfigError, match=r"mine\.yaml:2: host\.cpus: there is no CPU 4 online here, only 0-3"):
        load_platform(tmp_path / "mine.yaml", within="box", cpus=frozenset(range(4)), sys=opteron)


def test_one_cpu_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="one CPU cannot be divided"):
        discover_platform(sys=small(tmp_path, "0"))


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
)
PART = st.dictionaries(st.sampled_from(["cpus", "memory_nodes", "clusters", "quota_percent", "memory_mb"]), PLAIN)
CLUSTERS = st.dictionaries(st.text(max_size=4), PART | PLAIN, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({"host": PART | PLAIN, "mdev": PART | PLAIN}), CLUSTERS | PLAIN)
def test_whatever_description_says_it_is_taken_or_refused(
    opteron: Path, said: dict[str, Any], clusters: object
) -> None:
    if isinstance(said["mdev"], dict):
        said["mdev"]["clusters"] = clusters
    file = opteron / "mine.yaml"
    file.write_text(yaml.safe_dump(said))
    with contextlib.suppress(ConfigError):
        platform = load_platform(file, sys=opteron)
        assert platform.host_cpus.isdisjoint(platform.mdev_cpus)


@given(st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=8, unique=True), min_size=1, max_size=6))
def test_whatever_topology_every_cpu_is_in_one_part(
    tmp_path_factory: pytest.TempPathFactory, caches: list[list[int]]
) -> None:
    seen: set[int] = set()
    disjoint = [[cpu for cpu in cache if not (cpu in seen or seen.add(cpu))] for cache in caches]  # type: ignore[func-returns-value]
    groups = [",".join(map(str, sorted(cache))) for cache in disjoint if cache]
    folder = tmp_path_factory.mktemp("sys")
    if len(seen) < 2:
        return
    platform = discover_platform(sys=small(folder, *groups))
    parts = [platform.host_cpus, *(one.cpus for one in platform.clusters)]
    assert sum(map(len, parts)) == len(seen)
    assert frozenset().union(*parts) == seen == platform.host_cpus | platform.mdev_cpus
    assert all(parts)
