"""Whether the hosts that are said to explain a log are as likely as they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.sim import identify
from rlctl.envs.workload import Weight


def test_hosts_are_spread_as_readings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dimensions that a record tells of, one of them at a side of what is drawn; of the others it says nothing."""
    monkeypatch.setattr(
        identify,
        "_fits",
        lambda record, points: -0.5 * (((points[:, 0] - 0.6) / 0.05) ** 2 + (points[:, 1] / 0.1) ** 2),
    )
    points = identify._explaining(None, np.random.default_rng(1))  # type: ignore[arg-type]
    mean, spread = points.mean(axis=0), points.std(axis=0)
    assert mean[0] == pytest.approx(0.6, abs=0.01)
    assert spread[0] == pytest.approx(0.05, rel=0.15)
    assert mean[1] == pytest.approx(0.1 * np.sqrt(2 / np.pi), rel=0.15)  # half a normal distribution
    assert mean[2:] == pytest.approx(np.full(len(mean) - 2, 0.5), abs=0.08)
    assert spread[2:] == pytest.approx(np.full(len(mean) - 2, np.sqrt(1 / 12)), rel=0.1)
    assert np.all((points >= 0.0) & (points <= 1.0))


def test_only_ticks_with_the_lc_are_compared() -> None:
    """A service with an hour of traffic in a day: the other hours say nothing of its tail."""
    ticks, busy = 86_400, slice(41_400, 45_000)
    tail, ones = np.full(ticks, np.nan), np.ones(ticks)
    tail[busy] = 0.005
    record = identify.HostRecord(
        limits=Limits(cpus=2), tick_seconds=1.0, target_seconds=0.01, quantile_ratio=0.95, max_load_rps=100.0,
        own_cpus=0.0, weight=Weight.MINIMUM, offered_rps=10.0 * ones, tail_seconds=tail, lc_cpus=0.1 * ones,
        be_cpus=ones, quota_cpus=ones, cpuset_cpus=2.0 * ones, frozen=np.zeros(ticks, dtype=bool),
    )  # fmt: skip
    assert len(record.compared) == identify.MOST_TICKS
    assert np.isfinite(tail[record.compared]).all()


def test_readings_that_nothing_explains_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "_fits", lambda record, points: np.where(points[:, 0] < 1e-4, 0.0, -1e6))
    monkeypatch.setattr(identify, "LEAST_STEP", 0.2)
    assert identify._explaining(None, np.random.default_rng(1)).shape[0] == identify.KEPT  # type: ignore[arg-type]
