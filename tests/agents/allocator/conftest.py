"""Applications, clusters and budgets of every kind."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from rlctl.envs.applications import Application, CpuCluster, Placement, WorkingMode

Scene = tuple[list[Application], list[CpuCluster], float]

GIB = 1 << 30
CLUSTERS = ("c0", "c1", "c2")


@st.composite
def working_modes(draw: st.DrawFn) -> tuple[WorkingMode, ...]:
    quotas = sorted(draw(st.lists(st.integers(1, 80), min_size=1, max_size=4)))
    values, gib = draw(st.lists(st.integers(0, 10), min_size=4, max_size=4)), draw(st.sampled_from([0, 0, 1, 3]))
    return tuple(
        WorkingMode(cpus / 20, 1 + cpus // 20, worth / 10, gib * GIB)
        for cpus, worth in zip(quotas, values, strict=False)
    )


@st.composite
def applications(draw: st.DrawFn) -> list[Application]:
    found = []
    for index in range(draw(st.integers(0, 6))):
        modes = draw(working_modes())
        places = st.builds(
            Placement, st.integers(0, len(modes) - 1), st.sampled_from((*CLUSTERS, "gone")), st.just(1.0)
        )
        found.append(
            Application(
                f"a{index}",
                modes,
                draw(st.integers(0, 2)),
                draw(st.sampled_from([0.0, 0.0, 30.0, 90.0, -20.0])),
                draw(st.none() | places),
                draw(st.sampled_from([0.0, 10.0, 61.0, 300.0])),
            )
        )
    return found


@st.composite
def clusters(draw: st.DrawFn) -> list[CpuCluster]:
    return [
        CpuCluster(
            name,
            frozenset(range(4)),
            draw(st.integers(1, 40)) / 10,
            memory_bytes=draw(st.sampled_from([None, None, 2 * GIB, 8 * GIB])),
        )
        for name in CLUSTERS[: draw(st.integers(0, 3))]
    ]


@pytest.fixture(scope="session")
def scenes() -> st.SearchStrategy[Scene]:
    """Applications, clusters and a budget, any of which may be none or too little."""
    return st.tuples(applications(), clusters(), st.integers(0, 130).map(lambda tenths: tenths / 10))
