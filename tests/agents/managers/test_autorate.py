"""The shaper's law of cake-autorate: up under load while delay is good, down at once when it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlctl.agents.managers.autorate import Autorate
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.reins import OTHERS, USE, Rein
from rlctl.envs.telemetry import Telemetry, Value

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]

HOST = Limits(cpus=2)
GOOD, LATE = 0.9, -0.6  # slack: a tenth of the target, and twice the delay that is too long


def ratios(allocations: list[Allocation]) -> list[float]:
    return [round(one.quota_cpus / HOST.cpus, 4) for one in allocations]


def steps(drive: Drive, tell: Tell, *ticks: dict[str, Any], **options: float) -> list[float]:
    told = [tell(float(now), **readings) for now, readings in enumerate(ticks)]
    return ratios(drive(Autorate(**options), HOST, told))


def test_rises_by_four_percent_while_good(drive: Drive, tell: Tell) -> None:
    assert steps(drive, tell, *[{"slack": GOOD}] * 3, base_ratio=0.5) == [0.52, 0.5408, 0.5624]
    # At the edge of what is too long, nothing; between that and a third of it, the less the longer.
    assert steps(drive, tell, {"slack": 1.0 - 0.8}, base_ratio=0.5) == [0.5]
    assert steps(drive, tell, {"slack": 1.0 - 0.8 * 2 / 3}, base_ratio=0.5) == [0.51]


def test_falls_at_once_the_more_the_later(drive: Drive, tell: Tell) -> None:
    assert steps(drive, tell, {"slack": LATE}, {"slack": -99.0}, base_ratio=0.5) == [0.375, 0.2812]
    assert steps(drive, tell, {"slack": 1.0 - 0.8 * 1.0001}, base_ratio=0.5) == [0.495]


def test_little_load_leads_back_to_the_base(drive: Drive, tell: Tell) -> None:
    idle = {"slack": GOOD, "be_cpus": 0.1}
    assert steps(drive, tell, idle, base_ratio=0.5) == [0.5]
    assert steps(drive, tell, {"slack": GOOD}, idle, base_ratio=0.5) == [0.52, 0.5148]
    assert steps(drive, tell, {"slack": LATE}, idle, base_ratio=0.5) == [0.375, 0.3788]


def test_link_is_shaped_as_a_whole(tell: Tell) -> None:
    policy = Autorate(base_ratio=0.5)
    policy.start(HOST)
    shared = tell(0.0, slack=GOOD).but(rein="link", counters={OTHERS: Value(0.3), USE[Rein.LINK]: Value(0.2)})
    allocation, why = policy.decide(shared)
    assert allocation.quota_cpus / HOST.cpus == pytest.approx((0.52 - 0.3) / 0.7)
    assert "under load" in why


def test_without_a_latency_the_least(drive: Drive, tell: Tell) -> None:
    assert steps(drive, tell, {}, least_ratio=0.1) == [0.1]


@pytest.mark.parametrize("cpus", [1, 16])
def test_begins_at_the_base(cpus: int) -> None:
    assert Autorate().start(Limits(cpus=cpus)).quota_cpus == pytest.approx(cpus * 20 / 35)
