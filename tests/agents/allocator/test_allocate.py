"""What operators may rely on, whatever the applications ask for; and what the paper's own mixes come out as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.allocator import ContributionWeights, allocate, stretch_placements
from rlctl.envs.applications import Application, CpuCluster, Placement, WorkingMode
from rlctl.envs.errors import ConfigError

Scene = tuple[list[Application], list[CpuCluster], float]
Scenes = st.SearchStrategy[Scene]

HAIR = 1e-6
NODES = tuple(CpuCluster(f"node{node}", frozenset(range(node, 16, 4)), 4.0) for node in (1, 2, 3))
HOST = (CpuCluster("host", frozenset({0, 1}), 2.0),)


def job(name: str, *cpus: float, **rest: object) -> Application:
    """Modes of these CPUs, worth their rank."""
    modes = tuple(WorkingMode(quota, 1 + int(quota), (rank + 1) / len(cpus)) for rank, quota in enumerate(cpus))
    return Application(name, modes, **rest)  # type: ignore[arg-type]


def used(placements: Iterable[Placement], cluster: str | None = None) -> float:
    return sum(one.cpus for one in placements if cluster in (None, one.cluster))


def check(
    placements: Mapping[str, Placement], applications: list[Application], clusters: list[CpuCluster], budget: float
) -> None:
    by_name = {one.name: one for one in applications}
    assert used(placements.values()) <= budget + HAIR
    for cluster in clusters:
        assert used(placements.values(), cluster.name) <= cluster.quota_cpus + HAIR
        if cluster.memory_bytes is not None:
            there = [(by_name[name], one) for name, one in placements.items() if one.cluster == cluster.name]
            assert sum(one.modes[placed.mode].memory_bytes for one, placed in there) <= cluster.memory_bytes
    assert all(one.cpus > 0.0 for one in placements.values())


@given(data=st.data())
def test_never_over_the_budget_nor_over_a_cluster(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    placements = allocate(applications, clusters, budget)
    check(placements, applications, clusters, budget)
    for one in applications:
        if (placed := placements.get(one.name)) is not None:
            asked = one.modes[placed.mode].cpus
            assert placed.cpus <= asked
            assert placed.cpus >= asked - HAIR or (placed.mode == 0 and len(placements) >= 1)
    squeezed = [name for one in applications if (name := one.name) in placements and is_squeezed(one, placements[name])]
    assert len(squeezed) <= 1


def is_squeezed(application: Application, placed: Placement) -> bool:
    return placed.cpus < application.modes[placed.mode].cpus - HAIR


@given(data=st.data())
def test_the_order_of_the_input_does_not_matter(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    placements = allocate(applications, clusters, budget)
    again = allocate(data.draw(st.permutations(applications)), data.draw(st.permutations(clusters)), budget)
    assert again == placements
    assert stretch_placements(again, applications[::-1], clusters[::-1], budget) == stretch_placements(
        placements, applications, clusters, budget
    )


@given(data=st.data())
def test_something_runs_whenever_something_can(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    has_memory = any(
        one.modes[0].memory_bytes
        <= (one.modes[0].memory_bytes if cluster.memory_bytes is None else cluster.memory_bytes)
        for one in applications
        for cluster in clusters
    )
    assert bool(allocate(applications, clusters, budget)) == (budget > 0.0 and has_memory)


@given(data=st.data())
def test_lower_priority_changes_nothing_for_higher_one(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    placements = allocate(applications, clusters, budget)
    for priority in (0, 1):
        above = [one for one in applications if one.priority <= priority]
        names = {one.name for one in above}
        assert allocate(above, clusters, budget) == {name: one for name, one in placements.items() if name in names}


@pytest.mark.slow
@given(data=st.data())
def test_nobody_runs_on_higher_priority_ones_room(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    applications = [replace(one, since_seconds=0.0) for one in applications]
    placements = allocate(applications, clusters, budget)
    for one in applications:
        if one.name not in placements:
            above = {other.name for other in applications if other.priority <= one.priority} & placements.keys()
            kept = [placements[name] for name in above]
            for cluster in clusters:
                free = min(budget - used(kept), cluster.quota_cpus - used(kept, cluster.name))
                assert not any(
                    mode.cpus < free - HAIR and has_memory_for(mode, cluster, applications, placements, above)
                    for mode in one.modes
                )


def has_memory_for(
    mode: WorkingMode,
    cluster: CpuCluster,
    applications: list[Application],
    placements: Mapping[str, Placement],
    names: set[str],
) -> bool:
    if cluster.memory_bytes is None:
        return True
    there = [one for one in applications if one.name in names and placements[one.name].cluster == cluster.name]
    taken = sum(one.modes[placements[one.name].mode].memory_bytes for one in there)
    return taken + mode.memory_bytes <= cluster.memory_bytes


@given(data=st.data())
def test_stretching_takes_from_nobody(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    placements = allocate(applications, clusters, budget)
    wider = stretch_placements(placements, applications, clusters, budget)
    check(wider, applications, clusters, budget)
    assert wider.keys() == placements.keys()
    for name, one in placements.items():
        assert wider[name].cpus >= one.cpus
        assert (wider[name].mode, wider[name].cluster) == (one.mode, one.cluster)
    quotas = {cluster.name: cluster.quota_cpus for cluster in clusters}
    used_clusters = {one.cluster for one in placements.values()}
    reachable = sum(quotas[name] for name in used_clusters)
    assert used(wider.values()) == pytest.approx(min(budget, reachable) if placements else 0.0)


@given(cpus=st.integers(1, 24), more=st.integers(1, 20), count=st.integers(1, 12))
def test_larger_budget_defers_no_more_alike(cpus: int, more: int, count: int) -> None:
    alike = [job(f"a{index:02}", 0.7) for index in range(count)]
    less, wider = (allocate(alike, NODES, budget) for budget in (cpus / 2, (cpus + more) / 2))
    assert len(less) <= len(wider)


def test_larger_budget_may_defer_one_as_published() -> None:
    alike = [job(name, 0.5, 1.0, 2.0) for name in "abcd"]
    assert Counter(one.mode for one in allocate(alike, NODES, 2.0).values()) == {0: 4}
    assert Counter(one.mode for one in allocate(alike, NODES, 3.0).values()) == {1: 3}, "value outweighs fairness"


@pytest.mark.parametrize(
    ("bodytracks", "ferrets", "modes", "cpus", "nodes"),
    [
        (2, 2, {2: 4}, 8.0, 2),  # L1: the paper's own words: AWM2 for all, 8 PUs, a whole CPU is not used
        (3, 3, {2: 6}, 12.0, 3),
        (6, 4, {1: 10}, 10.0, 3),
        (4, 6, {1: 10}, 10.0, 3),
    ],
)
def test_the_papers_mixes(bodytracks: int, ferrets: int, modes: dict[int, int], cpus: float, nodes: int) -> None:
    names = [f"bodytrack{index}" for index in range(bodytracks)] + [f"ferret{index}" for index in range(ferrets)]
    placements = allocate([job(name, 0.5, 1.0, 2.0, 4.0) for name in names], NODES, 12.0)
    assert Counter(one.mode for one in placements.values()) == modes
    assert used(placements.values()) == cpus
    assert len({one.cluster for one in placements.values()}) == nodes


def test_budget_below_every_mode_goes_to_one() -> None:
    placements = allocate([job("a", 0.5, 1.0), job("b", 0.5, 1.0)], HOST, 0.3)
    assert placements == {"a": Placement(0, "host", 0.3)}


def test_too_small_budget_is_not_the_seconds() -> None:
    assert allocate([job("batch", 0.1, priority=1), job("urgent", 1.0)], HOST, 0.3).keys() == {"urgent"}


def test_nothing_is_squeezed_in_beside_another() -> None:
    assert allocate([job("a", 1.5), job("b", 1.0)], HOST, 2.0).keys() == {"b"}, "the fairer one runs, the other waits"


def test_application_without_memory_anywhere_is_passed_over() -> None:
    nodes = (CpuCluster("small", frozenset({0}), 1.0, memory_bytes=1 << 20),)
    greedy = Application("greedy", (WorkingMode(0.5, 1, 1.0, 1 << 30),))
    assert allocate([greedy, job("modest", 2.0)], nodes, 1.0).keys() == {"modest"}
    assert allocate([greedy], nodes, 1.0) == {}


def test_a_goal_gap_raises_the_mode() -> None:
    at_ease = [job(name, 0.5, 1.0, 2.0, current=Placement(0, "host", 0.5)) for name in ("a", "b")]
    before = allocate(at_ease, HOST, 2.0, ContributionWeights(fairness=60))
    after = allocate([at_ease[0], replace(at_ease[1], gap_percent=100.0)], HOST, 2.0, ContributionWeights(fairness=60))
    assert after["b"].mode > before["b"].mode


def test_with_goal_gap_placed_others_are_measured_anew() -> None:
    running = Placement(0, "node1", 1.0)
    urgent = job("urgent", 1.0, 3.0, gap_percent=100.0, current=running)
    placements = allocate([urgent, job("other", 1.0, 2.0)], NODES[:2], 8.0)
    assert placements["urgent"] == Placement(1, "node1", 3.0)
    assert placements["other"].cluster == "node2", "1 CPU is left on node1: seen only once urgent is in place"


def test_who_runs_stays_where_it_runs() -> None:
    at = Placement(1, "node3", 1.0)
    assert allocate([job("a", 0.5, 1.0, current=at)], NODES, 12.0)["a"] == at


def test_no_budget_no_cluster_no_application() -> None:
    assert allocate([job("a", 1.0)], HOST, 0.0) == allocate([job("a", 1.0)], (), 2.0) == allocate((), HOST, 2.0) == {}


def test_names_are_unique() -> None:
    with pytest.raises(ConfigError, match="two applications"):
        allocate([job("a", 1.0), job("a", 2.0)], HOST, 2.0)
    with pytest.raises(ConfigError, match="two clusters"):
        allocate([job("a", 1.0)], HOST * 2, 2.0)


def test_rest_goes_to_higher_priority() -> None:
    applications = [
        Application("first", (WorkingMode(0.5, 2, 1.0),)),
        Application("second", (WorkingMode(0.5, 1, 1.0),), priority=1),
    ]
    nodes = (CpuCluster("host", frozenset(range(8)), 8.0),)
    for budget, shares in ((1.5, (1.0, 0.5)), (2.8, (2.0, 0.8)), (3.0, (2.0, 1.0)), (6.0, (5.0, 1.0))):
        wider = stretch_placements(allocate(applications, nodes, budget), applications, nodes, budget)
        assert (wider["first"].cpus, wider["second"].cpus) == pytest.approx(shares)


def test_equals_grow_in_proportion_to_their_modes() -> None:
    applications = [job("a", 1.0), job("b", 2.0), job("c", 1.0)]
    placements = {"a": Placement(0, "n1", 1.0), "b": Placement(0, "n1", 2.0), "c": Placement(0, "n2", 1.0)}
    nodes = [CpuCluster("n1", frozenset(range(4)), 3.6), CpuCluster("n2", frozenset(range(4)), 4.0)]
    wider = stretch_placements(placements, applications, nodes, 6.0)
    assert {name: one.cpus for name, one in wider.items()} == pytest.approx({"a": 1.2, "b": 2.4, "c": 2.4})
