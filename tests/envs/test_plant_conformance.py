"""What every Plant promises, whatever it is made of; the live one is tried in host/test_live.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.plant import Plant
from rlctl.envs.sim.plant import SimPlant
from rlctl.envs.sim.profile import load_profile
from rlctl.envs.telemetry import Missing, Telemetry
from rlctl.envs.workload import Weight
from tests.doubles.plant import FakePlant
from tests.doubles.shipped import HOST_PROFILES

Make = Callable[[], Plant]


def simulated(name: str) -> Make:
    return lambda: SimPlant(load_profile(name), lambda seed, ticks, seconds: np.full(ticks, 0.7))


PLANTS: dict[str, Make] = {
    "fake": lambda: FakePlant(Limits(cpus=4), loads=(0.3, 0.7)),
    **{name: simulated(name) for name in HOST_PROFILES},
}


@pytest.fixture(params=PLANTS)
def plant(request: pytest.FixtureRequest) -> Plant:
    return PLANTS[request.param]()


def run(plant: Plant, ticks: int = 4) -> list[Telemetry]:
    """Ticks with BE at its safe allocation."""
    plant.apply(plant.limits.safe)
    seen = []
    for _ in range(ticks):
        plant.wait()
        seen.append(plant.read())
    return seen


def test_it_begins_with_all_and_can_be_read(plant: Plant) -> None:
    """The daemon reads before its first period ends; nothing missing may raise."""
    assert plant.current == plant.limits.full
    assert plant.read().target_seconds > 0.0


def test_allocation_is_in_force_once_applied(plant: Plant) -> None:
    for wanted in (plant.limits.safe, plant.limits.minimum, plant.limits.full, Allocation(0.5, 1)):
        assert plant.apply(wanted) == plant.current == wanted


def test_what_host_does_not_have_is_not_given(plant: Plant) -> None:
    assert plant.apply(Allocation(1e6, 10_000)) == Allocation(float(plant.limits.cpus), plant.limits.cpus)
    assert plant.apply(Allocation(1e-9, 1)).quota_cpus == plant.limits.min_quota_cpus


def test_time_passes_in_wait_alone(plant: Plant) -> None:
    plant.reset()
    first = plant.read()
    assert plant.read() == first
    assert plant.wait() == 0
    plant.apply(plant.limits.minimum)
    assert plant.read().time_seconds - first.time_seconds == pytest.approx(plant.tick_seconds)


def test_a_reset_begins_the_run_again(plant: Plant) -> None:
    plant.reset(3)
    first = run(plant)
    plant.reset(3)
    assert run(plant) == first


def test_a_reset_leaves_the_allocation(plant: Plant) -> None:
    """A run that begins must not thaw BE behind the controller's back."""
    plant.apply(plant.limits.safe)
    plant.reset(1)
    assert plant.current == plant.limits.safe


def test_frozen_be_does_nothing_and_free_one_works(plant: Plant) -> None:
    assert run(plant)[-1].be_cpus.value == 0.0  # type: ignore[union-attr]
    plant.apply(plant.limits.full)
    plant.wait()
    work = plant.read().be_work_rate
    assert not isinstance(work, Missing)
    assert work.value > 0.0


def test_both_weights_are_taken(plant: Plant) -> None:
    for weight in Weight:
        plant.set_weight(weight)


def test_closing_gives_be_everything_back_however_often(plant: Plant) -> None:
    plant.apply(plant.limits.safe)
    plant.close()
    plant.close()
    assert plant.current == plant.limits.full
