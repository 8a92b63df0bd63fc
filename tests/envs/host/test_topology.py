"""The order in which BE gets CPUs: a wrong one puts BE on the LC's own core first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.errors import ConfigError, HostError
from rlctl.envs.host.decode import format_cpus, parse_cpus
from rlctl.envs.host.topology import cpu_order, exclusive_cpus, read_topology, require_online

Cpus = frozenset[int]
SYS = Path("/sys")


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def tree(
    sys: Path, cores: Mapping[int, int], caches: Mapping[int, int], packages: Mapping[int, int], nodes: bool = True
) -> Path:
    """A sysfs from the core, last-level cache and package (which is also the node) of each CPU."""
    cpu_folder = sys / "devices/system/cpu"
    write(cpu_folder / "online", format_cpus(cores))

    def sharing(of: Mapping[int, int], cpu: int) -> str:
        return format_cpus(other for other in of if of[other] == of[cpu])

    for cpu in cores:
        topology, cache = cpu_folder / f"cpu{cpu}/topology", cpu_folder / f"cpu{cpu}/cache"
        write(topology / "thread_siblings_list", sharing(cores, cpu))
        write(topology / "physical_package_id", packages[cpu])
        for index, (level, shared) in enumerate([(1, cores), (1, cores), (2, cores), (3, caches)]):
            write(cache / f"index{index}/level", level)
            write(cache / f"index{index}/shared_cpu_list", sharing(shared, cpu))
    for package in set(packages.values()) if nodes else ():
        members = (cpu for cpu in packages if packages[cpu] == package)
        write(sys / f"devices/system/node/node{package}/cpulist", format_cpus(members))
    return sys


def vm(sys: Path) -> Path:
    """Two vCPUs, no SMT, one cache, one node: the machine of docs/measured/simulator.md."""
    return tree(sys, {0: 0, 1: 1}, {0: 0, 1: 0}, {0: 0, 1: 0})


def xeon(sys: Path, nodes: bool = True) -> Path:
    """Two sockets of 9 cores with hyperthreads; as Linux numbers them, thread 1 of core n is CPU n + 18."""
    cores = {cpu: cpu % 18 for cpu in range(36)}
    sockets = {cpu: cpu % 18 // 9 for cpu in range(36)}
    return tree(sys, cores, sockets, sockets, nodes)


def epyc(sys: Path) -> Path:
    """One socket, one node, four core complexes of 2 cores with SMT; siblings are neighbours."""
    cpus = range(16)
    return tree(sys, {c: c // 2 for c in cpus}, {c: c // 4 for c in cpus}, dict.fromkeys(cpus, 0))


def test_two_core_machine_keeps_lc_cpu_for_last(tmp_path: Path) -> None:
    assert cpu_order({0}, sys=vm(tmp_path)) == (1, 0)
    assert cpu_order({1}, sys=tmp_path) == (0, 1)
    assert cpu_order({0}, {0}, tmp_path) == (0,)


def test_other_socket_comes_first_lc_last(tmp_path: Path) -> None:
    order = cpu_order({0, 1}, sys=xeon(tmp_path))
    other_socket = tuple(itertools.chain.from_iterable((core, core + 18) for core in range(9, 18)))
    same_socket = tuple(itertools.chain.from_iterable((core, core + 18) for core in range(2, 9)))
    assert order == (*other_socket, *same_socket, 18, 19, 0, 1)


def test_without_numa_sockets_are_told_apart(tmp_path: Path) -> None:
    with_nodes, without = xeon(tmp_path / "a"), xeon(tmp_path / "b", nodes=False)
    assert cpu_order({0}, sys=without) == cpu_order({0}, sys=with_nodes)


def test_another_cache_comes_before_the_lcs(tmp_path: Path) -> None:
    assert cpu_order({4}, sys=epyc(tmp_path)) == (*range(4), *range(8, 16), 6, 7, 5, 4)


def test_candidates_restrict_and_lc_everywhere_still_gives_order(tmp_path: Path) -> None:
    sys = xeon(tmp_path)
    assert cpu_order({0}, {0, 18, 1, 10}, sys) == (10, 1, 18, 0)
    assert sorted(cpu_order(range(36), sys=sys)) == list(range(36))


def test_kernel_that_tells_nothing_but_cpu_folders(tmp_path: Path) -> None:
    for cpu in range(3):
        (tmp_path / f"devices/system/cpu/cpu{cpu}").mkdir(parents=True)
    (tmp_path / "devices/system/cpu/cpufreq").mkdir()
    assert cpu_order({0}, sys=tmp_path) == (1, 2, 0)


def test_offline_candidate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CPU 7,9 is offline or absent; online are 0-1"):
        cpu_order({0}, {1, 7, 9}, vm(tmp_path))
    with pytest.raises(ConfigError, match="at least one"):
        cpu_order({0}, (), tmp_path)
    assert cpu_order({0, 5}, sys=tmp_path) == (1, 0)


def test_no_sysfs_is_said(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="is sysfs mounted"):
        cpu_order({0}, sys=tmp_path)


MACHINES: tuple[Callable[[Path], Path], ...] = (vm, xeon, epyc)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [build(tmp_path_factory.mktemp("sys")) for build in MACHINES]


@given(machine=st.integers(0, len(MACHINES) - 1), data=st.data())
def test_every_machine_and_lc(machines: list[Path], machine: int, data: st.DataObject) -> None:
    places = read_topology(machines[machine])
    lc = frozenset(data.draw(st.sets(st.sampled_from(sorted(places)), min_size=1)))
    order = cpu_order(lc, sys=machines[machine])
    assert sorted(order) == sorted(places)
    assert frozenset(order[-len(lc) :]) == lc  # the LC's own CPUs come last
    siblings = frozenset().union(*(places[cpu].core for cpu in lc)) - lc
    assert frozenset(order[len(order) - len(lc) - len(siblings) : len(order) - len(lc)]) == siblings
    free = order[: len(order) - len(lc) - len(siblings)]
    for cpu in free:  # whole cores: the threads of one follow each other
        at = sorted(free.index(thread) for thread in places[cpu].core)
        assert at == list(range(at[0], at[0] + len(at)))


@pytest.mark.host
def test_this_machine() -> None:
    if not (SYS / "devices/system/cpu/online").exists():
        pytest.skip("no sysfs")
    online = parse_cpus((SYS / "devices/system/cpu/online").read_text())
    first = min(online)
    order = cpu_order({first})
    assert frozenset(order) == online
    assert order[-1] == first


def test_cpu_not_online_is_refused_first(tmp_path):
    online = tmp_path / "devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-1\n")
    with pytest.raises(ConfigError, match=r"^be\.cpus: 7 is not online \(0-1\)$"):
        require_online("be.cpus", (1, 7), tmp_path)
    require_online("be.cpus", (1, 0), tmp_path)


@pytest.mark.parametrize(("order", "count"), [((1, 0), 1), ((0, 1), 0), ((2, 3), 2), ((2, 0, 3), 1)])
def test_only_first_cpus_of_order_are_bes_own(order: tuple[int, ...], count: int) -> None:
    """Whoever gives BE one CPU gives it the first."""
    assert exclusive_cpus(order, {0}) == count
