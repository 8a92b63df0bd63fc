"""The optimum that the heuristic is measured against is one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlctl.agents.allocator import allocate
from rlctl.envs.applications import Application, CpuCluster, Placement, WorkingMode
from tests.doubles.exhaustive import best, gap, totals

Scene = tuple[list[Application], list[CpuCluster], float]
Scenes = st.SearchStrategy[Scene]

HOST = CpuCluster("host", frozenset(range(4)), 4.0)
SIDE = CpuCluster("side", frozenset(range(4)), 4.0)


def job(name: str, *cpus: float, priority: int = 0) -> Application:
    return Application(name, tuple(WorkingMode(quota, 1, quota / cpus[-1]) for quota in cpus), priority)


@pytest.mark.slow
@given(data=st.data())
def test_the_heuristic_never_beats_it(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    scene = applications[:3], clusters[:2], budget
    reached, optimum = (totals(place(*scene), *scene) for place in (allocate, best))
    assert reached <= optimum
    assert 0.0 <= gap(reached, optimum) <= 1.0


@settings(max_examples=12)
@given(data=st.data())
def test_no_assignment_at_all_beats_it(data: st.DataObject, scenes: Scenes) -> None:
    applications, clusters, budget = data.draw(scenes)
    scene = applications[:3], clusters[:2], budget
    optimal = best(*scene)
    placed = [(one.modes[optimal[one.name].mode], optimal[one.name]) for one in scene[0] if one.name in optimal]
    assume(all(one.cpus > mode.cpus - 1e-6 for mode, one in placed))  # nobody is squeezed in
    optimum = totals(optimal, *scene)
    for placements in every(*scene):
        assert totals(placements, *scene) <= optimum


def every(applications: list[Application], clusters: list[CpuCluster], budget: float) -> list[dict[str, Placement]]:
    """All assignments of whole modes that fit."""
    options = [
        [None, *(Placement(index, node.name, mode.cpus) for index, mode in enumerate(one.modes) for node in clusters)]
        for one in applications
    ]
    found = []
    for picks in product(*options):
        placed = [(one, pick) for one, pick in zip(applications, picks, strict=True) if pick is not None]
        if sum(pick.cpus for _, pick in placed) <= budget and all(is_within(node, placed) for node in clusters):
            found.append({one.name: pick for one, pick in placed})
    return found


def is_within(node: CpuCluster, placed: list[tuple[Application, Placement]]) -> bool:
    there = [(one.modes[pick.mode], pick) for one, pick in placed if pick.cluster == node.name]
    memory = sum(mode.memory_bytes for mode, _ in there)
    fits = node.memory_bytes is None or memory <= node.memory_bytes
    return sum(pick.cpus for _, pick in there) <= node.quota_cpus and fits


def test_total_is_metric_with_others_in_place() -> None:
    scene = [job("a", 2.0), job("b", 2.0)], [HOST], 4.0
    both = {name: Placement(0, "host", 2.0) for name in "ab"}
    # V 0.4, R 1 - 0.5/6, F 0.9, and L 0.75: beside the other each takes all that is free
    each = 0.5 * 0.4 + 0.125 * (1 - 0.5 / 6) + 0.125 * 0.75 + 0.25 * 0.9
    assert totals(both, *scene) == (pytest.approx(2 * each),)
    assert totals({}, *scene) == (0.0,)


def test_congestion_is_what_the_heuristic_does_not_see() -> None:
    scene = [job("a", 3.0), job("b", 1.0)], [HOST, SIDE], 8.0
    heuristic, optimum = allocate(*scene), best(*scene)
    assert {one.cluster for one in heuristic.values()} == {"host"}, "one cluster after the other, as in the paper"
    assert {one.cluster for one in optimum.values()} == {"host", "side"}
    assert gap(totals(heuristic, *scene), totals(optimum, *scene)) > 0.0


def test_higher_priority_is_never_traded_for_lower_ones() -> None:
    scene = [job("first", 1.0, 4.0), *(job(f"b{index}", 1.0, priority=1) for index in range(3))], [HOST], 4.0
    assert totals(best(*scene), *scene)[0] >= totals({"first": Placement(0, "host", 1.0)}, *scene)[0]


def test_less_than_the_least_mode_counts_nothing() -> None:
    scene = [job("a", 2.0)], [HOST], 1.0
    assert best(*scene) == allocate(*scene) == {"a": Placement(0, "host", 1.0)}
    assert totals(best(*scene), *scene) == (0.0,)
    assert best([job("a", 2.0)], [], 1.0) == {}


def test_gap_is_that_of_first_level_that_differs() -> None:
    assert gap((1.0, 0.3), (1.0, 0.4)) == pytest.approx(0.25)
    assert gap((0.9, 0.5), (1.0, 0.4)) == pytest.approx(0.10)
    assert gap((1.0, 0.4), (1.0, 0.4)) == 0.0
