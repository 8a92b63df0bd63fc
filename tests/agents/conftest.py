"""Drives a manager tick by tick, with telemetry from plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rlctl.agents.managers.prm_model import PrmModel, ThresholdBin
from rlctl.agents.policy import Policy
from rlctl.envs.actions import decode
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import Observation
from rlctl.envs.telemetry import Telemetry, Value
from rlctl.safety import conformance

Drive = Callable[..., list[Allocation]]
Tell = Callable[..., Telemetry]


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public checks take a fifth of their absurd telemetry."""
    monkeypatch.setattr(conformance, "RUNS", 2)


@pytest.fixture(scope="session")
def tell() -> Tell:
    """Telemetry from plain numbers; slack and latency are two ways to say the same, and None is a missing reading."""

    def build(now: float, slack: float | None = None, **readings: float | None) -> Telemetry:
        if slack is not None:
            readings["tail_latency_seconds"] = 1.0 - slack
        known: dict[str, Any] = {name: Value(value) for name, value in readings.items() if value is not None}
        return Telemetry(time_seconds=now, target_seconds=1.0, **known)

    return build


@pytest.fixture(scope="session")
def drive() -> Drive:
    """Starts a manager and returns its allocation after each tick."""

    def run(policy: Policy, limits: Limits, telemetry: Iterable[Telemetry]) -> list[Allocation]:
        current, allocations = policy.start(limits), []
        for tick in telemetry:
            current = decode(policy.act(Observation(tick, current)), current, limits)
            allocations.append(current)
        return allocations

    return run


@pytest.fixture(scope="session")
def thesis_host() -> Limits:
    """36 cores, memcached on 17 of them (thesis 5.1)."""
    return Limits(cpus=36, lc_cpus=17)


@pytest.fixture(scope="session")
def thesis_model() -> PrmModel:
    """LC maximum of 17 cores, and normal CPI up to 1.0 at any use above 850 %."""
    normal = ThresholdBin(low_percent=850, high_percent=1800, rows=100, upper={"cpi": 1.0})
    return PrmModel(lc_cpus=17, lcutilmax_percent=1700, bins=(normal,))
