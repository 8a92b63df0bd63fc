"""Each contribution against values worked out by hand from the constants of BarbequeRTRM's shipped configuration."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.allocator import (
    CPU_SATURATION,
    MEMORY_SATURATION,
    ContributionWeights,
    Room,
    Stock,
    congestion,
    fair_part,
    fairness,
    reconfiguration,
    value,
)
from rlctl.envs.applications import Application, Placement, WorkingMode
from rlctl.envs.errors import ConfigError

GIB = 1 << 30


def node(free: float = 4.0, part: float = 2.0, name: str = "node1", memory: Stock | None = None) -> Room:
    """A quad-core node of the paper's machine."""
    return Room(name, Stock(4.0, free, free, part, CPU_SATURATION), memory)


def memory(free: float, part: float) -> Stock:
    return Stock(10.0 * GIB, free * GIB, free * GIB, part * GIB, MEMORY_SATURATION)


def mode(cpus: float, gib: float = 0, worth: float = 1.0) -> WorkingMode:
    return WorkingMode(cpus, 1, worth, int(gib * GIB))


def bodytrack(current: Placement | None = None, gap_percent: float = 0.0) -> Application:
    modes = tuple(mode(cpus, worth=worth) for cpus, worth in ((0.5, 0.2), (1.0, 0.4), (2.0, 0.6), (4.0, 0.8)))
    return Application("bodytrack", modes, gap_percent=gap_percent, current=current)


def test_mode_is_worth_its_share_of_best() -> None:
    assert [value(bodytrack(), index) for index in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert value(Application("idle", (mode(1.0, worth=0.0),)), 0) == 0.0


@pytest.mark.parametrize(
    ("gap_percent", "values"),
    [
        (50.0, [0.1, 0.2, 0.6, 0.7]),  # +0.6 * 0.50 for the modes above the present one
        (250.0, [0.1, 0.2, 0.9, 1.0]),  # a goal gap ends at 100 %
        (-30.0, [0.1, 0.2, 0.3, 0.4]),  # better than its goal is no gap
    ],
)
def test_goal_gap_speaks_for_modes_above_present_one(gap_percent: float, values: list[float]) -> None:
    application = bodytrack(Placement(1, "node1", 1.0), gap_percent)
    assert [value(application, index) for index in range(4)] == pytest.approx(values)


def test_goal_gap_of_stopped_one_says_nothing() -> None:
    assert value(bodytrack(gap_percent=80.0), 3) == pytest.approx(0.4)


def test_staying_costs_nothing_change_sixth_of_migration() -> None:
    application = bodytrack(Placement(2, "node1", 2.0))
    assert reconfiguration(application, 2, node()) == 1.0
    assert reconfiguration(application, 3, node()) == pytest.approx(1.0 - 1.0 / 6.0)
    assert reconfiguration(application, 1, node()) == pytest.approx(1.0 - 0.25 / 6.0)
    assert reconfiguration(application, 2, node(name="node2")) == pytest.approx(1.0 - 0.5)
    assert reconfiguration(bodytrack(), 2, node()) == pytest.approx(1.0 - 0.5 / 6.0), "a start is no migration"


def test_reconfiguration_counts_the_mean_of_all_resources() -> None:
    room = node(memory=memory(8.0, 8.0))
    application = Application("x", (mode(2.0, 5.0),), current=Placement(0, "node2", 2.0))
    assert reconfiguration(application, 0, room) == pytest.approx(1.0 - (0.5 + 0.5) / 2)
    assert reconfiguration(bodytrack(), 2, room) == pytest.approx(1.0 - 0.5 / 2 / 6.0), "no memory asked for is a 0"


@pytest.mark.parametrize(
    ("asked", "free", "index"),
    [
        (3.0, 4.0, 1.0),  # 75 % of 4: just not saturating
        (3.5, 4.0, 0.875),  # half of the way
        (4.0, 4.0, 0.75),  # all that is free
        (1.0, 2.0, 1.0),
        (2.0, 2.0, 0.75),
        (0.5, 1.0, 0.875),  # saturated already: linear from 0
        (2.5, 2.0, 0.0),
    ],
)
def test_congestion_of_cpus(asked: float, free: float, index: float) -> None:
    assert congestion(mode(asked), node(free)) == pytest.approx(index)


def test_the_most_congested_resource_decides() -> None:
    room = node(memory=memory(10.0, 10.0))
    assert congestion(mode(1.0, 9.5), room) == pytest.approx(0.875)  # 90 % is the memory's limit
    assert congestion(mode(4.0, 9.0), room) == pytest.approx(0.75)
    assert congestion(mode(1.0, 11.0), room) == 0.0


def test_congestion_is_the_clusters_whatever_the_budget() -> None:
    assert congestion(mode(1.0), Room("node1", Stock(4.0, 4.0, 1.0, 1.0, CPU_SATURATION))) == 1.0


@pytest.mark.parametrize(
    ("asked", "part", "index"),
    [
        (1.0, 2.0, 0.95),
        (2.0, 2.0, 0.90),  # the fair part costs the penalty
        (3.0, 2.0, 0.9 * (5**0.5 - 1) / 4),
        (4.0, 2.0, 0.0),  # all of the cluster
        (2.0, 1.0, 0.9 * (5 ** (2 / 3) - 1) / 4),
        (4.0, 4.0, 0.90),
        (5.0, 4.0, 0.0),
    ],
)
def test_fairness_of_cpus(asked: float, part: float, index: float) -> None:
    assert fairness(mode(asked), node(part=part)) == pytest.approx(index)


def test_the_least_fair_resource_decides() -> None:
    room = node(part=4.0, memory=memory(10.0, 5.0))
    assert fairness(mode(1.0, 5.0), room) == pytest.approx(0.90)
    assert fairness(mode(1.0, 10.0), room) == 0.0
    assert fairness(mode(4.0, 1.0), room) == pytest.approx(0.90)


@pytest.mark.parametrize(
    ("available", "share", "part"),
    [
        (4.0, 3.0, 2.0),  # L1: 12 CPUs for 4 applications: 2 to a node
        (4.0, 2.0, 2.0),  # M1: for 6
        (4.0, 1.2, 1.0),  # H1, H2: for 10: 4 to a node
        (4.0, 4.0, 4.0),
        (1.0, 1.0 / 3.0, 1.0 / 3.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_fair_part_is_fewest_equal_parts_within_share(available: float, share: float, part: float) -> None:
    assert fair_part(available, share) == pytest.approx(part)


def test_weights_are_as_published_and_normalised() -> None:
    assert ContributionWeights().normalised == (0.5, 0.125, 0.125, 0.25)


@pytest.mark.parametrize("wrong", [{"value": -1.0}, {"fairness": inf}, {"congestion": float("nan")}, {"value": "much"}])
def test_impossible_weights_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="weights"):
        ContributionWeights(**wrong)
    with pytest.raises(ConfigError, match="not all 0"):
        ContributionWeights(value=0, reconfiguration=0, congestion=0, fairness=0)


AMOUNT = st.floats(0.001, 64.0)


@given(total=AMOUNT, used=st.floats(0.0, 1.0), count=st.integers(1, 40), asked=st.tuples(AMOUNT, AMOUNT))
def test_all_lie_between_0_and_1(total: float, used: float, count: int, asked: tuple[float, float]) -> None:
    free = total * (1.0 - used)
    room = Room("x", Stock(total, free, free, fair_part(free, free / count), CPU_SATURATION))
    less, more = (mode(cpus) for cpus in sorted(asked))
    for contribution in (congestion, fairness):
        assert 0.0 <= contribution(more, room) <= contribution(less, room) + 1e-6 <= 1.0 + 1e-6
    for current in (None, Placement(0, "x", 1.0), Placement(0, "y", 1.0)):
        application = Application("a", (less, more), gap_percent=30.0, current=current)
        for index in (0, 1):
            assert 0.0 <= reconfiguration(application, index, room) <= 1.0
            assert 0.0 <= value(application, index) <= 1.0
