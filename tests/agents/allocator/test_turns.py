"""Applications that do not all fit take turns, run after run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from rlctl.agents.allocator import TURN_SECONDS, allocate
from rlctl.envs.applications import Application, CpuCluster, Placement, WorkingMode

HOST = (CpuCluster("host", frozenset({0, 1}), 2.0),)
PERIOD_SECONDS = 5.0


def job(name: str, cpus: float, priority: int = 0) -> Application:
    return Application(name, (WorkingMode(cpus, 1, 1.0),), priority)


def runs(
    applications: Sequence[Application], seconds: float, budget_cpus: float = 2.0
) -> Iterator[dict[str, Placement]]:
    """One allocation a period, each told who has run or waited how long."""
    known = list(applications)
    for _ in range(int(seconds / PERIOD_SECONDS)):
        placements = allocate(known, HOST, budget_cpus)
        yield placements
        known = [since(one, placements.get(one.name)) for one in known]


def since(application: Application, placed: Placement | None) -> Application:
    is_same = (application.current is None) == (placed is None)
    return replace(
        application, current=placed, since_seconds=(application.since_seconds if is_same else 0.0) + PERIOD_SECONDS
    )


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("budget_cpus", [2.0, 0.5])
def test_equals_that_do_not_fit_run_equally_long(count: int, budget_cpus: float) -> None:
    alike = [job(f"a{index}", 1.2) for index in range(count)]  # one at a time; at 0.5 CPU one squeezed
    periods = Counter(name for placed in runs(alike, 20 * count * TURN_SECONDS, budget_cpus) for name in placed)
    assert max(periods.values()) - min(periods[one.name] for one in alike) <= 2 * TURN_SECONDS / PERIOD_SECONDS


def test_nobody_waits_longer_than_everyones_turn() -> None:
    alike = [job(f"a{index}", 0.9) for index in range(7)]  # two at a time
    last = dict.fromkeys((one.name for one in alike), 0)
    for now, placed in enumerate(runs(alike, 3600.0)):
        last |= dict.fromkeys(placed, now)
        assert all(PERIOD_SECONDS * (now - when) <= 3 * TURN_SECONDS + 4 * PERIOD_SECONDS for when in last.values())


def test_a_turn_is_not_cut_short() -> None:
    everyone = [name for placed in runs([job(f"a{index}", 1.2) for index in range(4)], 3600.0) for name in placed]
    changes = [index for index in range(1, len(everyone)) if everyone[index] != everyone[index - 1]]
    assert min(after - before for before, after in pairwise(changes)) * PERIOD_SECONDS >= TURN_SECONDS


def test_large_one_gets_its_turn_among_small_ones() -> None:
    jobs = [job("large", 2.0), *(job(f"small{index}", 0.5) for index in range(5))]
    periods = Counter(name for placed in runs(jobs, 3600.0) for name in placed)
    assert min(periods[one.name] for one in jobs) >= 0.1 * 3600.0 / PERIOD_SECONDS


def test_waiting_never_beats_priority() -> None:
    jobs = [job("first", 1.5), job("second", 1.5, priority=1)]
    assert all(placed.keys() == {"first"} for placed in runs(jobs, 1800.0))
