"""BE's weight counts where it meets the LC's: siblings, cousins, and slices that others live in too."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.group import Group
from rlctl.envs.workload import Weight

Bench = Any
LEAST_SHARE = 0.02


def weighed(bench: Bench, be: str, lc: str, *others: str, weight: Weight = Weight.MINIMUM) -> BeActuator:
    for name in dict.fromkeys([*parents(be), *parents(lc), be, lc, *others]):
        if not any(group.name == name for group in bench.groups):
            bench.group(name)
    groups = {group.name: group for group in bench.groups}
    knobs = bench.knobs()
    actuator = BeActuator([groups[be]], (1, 0), Limits(cpus=2), knobs, lc=groups[lc].using(knobs))
    actuator.set_weight(weight)
    return actuator


def parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts) - 1)]


def weight_of(bench: Bench, name: str) -> int:
    cpu = Group.open(bench.layout, name, bench.knobs()).cpu
    assert cpu is not None
    return cpu.weight()


def test_siblings_are_weighed_by_their_own_weights(fake: Bench) -> None:
    be = weighed(fake, "be", "lc")
    assert be.least_weight
    assert be.effective_share() < LEAST_SHARE


def test_cousins_are_weighed_by_bes_slice(fake: Bench) -> None:
    be = weighed(fake, "machine/pod/be", "system/lc")
    least = be.groups[0].cpu.weights[Weight.MINIMUM]
    assert weight_of(fake, "machine") == least
    assert be.least_weight
    assert be.effective_share() < LEAST_SHARE
    be.set_weight(Weight.EQUAL)
    assert weight_of(fake, "machine") == weight_of(fake, "system")
    assert not be.least_weight


def test_a_weight_set_above_is_put_back(fake: Bench) -> None:
    weighed(fake, "machine/be", "system/lc")
    assert fake.restore().ok
    assert weight_of(fake, "machine") == weight_of(fake, "system")


def test_shared_slice_is_left_alone(fake: Bench, caplog: pytest.LogCaptureFixture) -> None:
    be = weighed(fake, "machine/be", "system/lc", "machine/other")
    assert weight_of(fake, "machine") == weight_of(fake, "system")
    assert not be.least_weight
    assert be.effective_share() == pytest.approx(0.5)
    assert "machine" in be.outweighed
    be.set_weight(Weight.MINIMUM)
    assert caplog.text.count("BE's CPU weight is void") == 1


def test_comers_into_bes_slice_get_weight_back(fake: Bench) -> None:
    be = weighed(fake, "machine/be", "system/lc")
    assert be.least_weight
    newcomer = fake.group("machine/other")
    be.weigh_above()  # as whoever follows the groups does at each look
    assert weight_of(fake, "machine") == weight_of(fake, "system")
    assert not be.least_weight
    be.adopt([newcomer])
    assert be.least_weight


def test_a_slice_that_is_idle_stays_so(fake: Bench) -> None:
    slice_ = fake.group("machine")
    if slice_.cpu.idle() is None:
        pytest.skip("no cpu.idle")
    slice_.cpu.set_idle(True)
    be = weighed(fake, "machine/be", "system/lc")
    assert slice_.cpu.idle()
    assert be.effective_share() == 0.0


@pytest.mark.parametrize(("lc", "be", "others", "then"), [
    ("lc", "be", (), LEAST_SHARE), ("system/lc", "machine/be", (), LEAST_SHARE),
    ("system/lc", "machine/be", ("machine/other",), 1.0),
])  # fmt: skip
def test_dry_run_tells_the_share_to_come(fake: Bench, lc: str, be: str, others: tuple[str, ...], then: float) -> None:
    names = dict.fromkeys([*parents(be), *parents(lc), be, lc, *others])
    groups = {name: fake.group(name) for name in names}
    knobs = fake.knobs(dry_run=True)
    actuator = BeActuator([groups[be]], (1, 0), Limits(cpus=2), knobs, lc=groups[lc].using(knobs))
    assert actuator.effective_share() == pytest.approx(0.5)
    actuator.set_weight(Weight.MINIMUM)
    assert actuator.effective_share() == pytest.approx(0.5) if others else actuator.effective_share() < then
    assert actuator.least_weight == (not others)
    assert {weight_of(fake, name) for name in names} == {weight_of(fake, lc)}
