"""Which readings are believed, and what BE loses when they are not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from rlctl.envs.allocation import Limits
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why
from rlctl.safety.trust import SensorGuard, Trust
from rlctl.safety.verdict import Reason

Calm = Callable[..., Telemetry]

TRUST = Trust(max_age_seconds=3.0, min_samples=20)
LIMITS = Limits(cpus=2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tail_latency_seconds": Missing(Why.NO_DATA)}, Reason.LATENCY_MISSING),
        ({"tail_latency_seconds": Missing(Why.STALE)}, Reason.LATENCY_STALE),
        ({"tail_latency_seconds": Quantile(0.001, 3.1, samples=500)}, Reason.LATENCY_STALE),
        ({"tail_latency_seconds": Quantile(0.001, math.inf, samples=500)}, Reason.LATENCY_STALE),
        ({"tail_latency_seconds": Quantile(0.001, -1.0, samples=500)}, Reason.ABSURD),
        ({"tail_latency_seconds": Quantile(math.inf, samples=500)}, Reason.ABSURD),
        ({"tail_latency_seconds": Quantile(0.0, samples=500)}, Reason.ABSURD),
        ({"tail_latency_seconds": Quantile(0.001, samples=19)}, Reason.TOO_FEW_SAMPLES),
        ({"tail_latency_seconds": Value(0.001)}, Reason.TOO_FEW_SAMPLES),
        ({"oldest_request_seconds": Missing(Why.GONE)}, Reason.LATENCY_MISSING),
        ({"oldest_request_seconds": Value(math.nan)}, Reason.ABSURD),
        ({"oldest_request_seconds": Value(0.001, 9.0)}, Reason.LATENCY_STALE),
        ({"load_ratio": Missing(Why.NOT_CONFIGURED)}, Reason.LOAD_MISSING),
        ({"load_ratio": Value(0.1, 9.0)}, Reason.LOAD_MISSING),
        ({"load_ratio": Value(-0.1)}, Reason.ABSURD),
        ({"load_ratio": Value(50.0)}, Reason.ABSURD),
        ({"lc_alive": Value(0.0)}, Reason.LC_DEAD),
        ({"lc_alive": Value(math.nan)}, Reason.LC_DEAD),
        ({"lc_alive": Value(1.0, 9.0)}, Reason.LC_DEAD),
        ({"lc_alive": Missing(Why.GONE)}, Reason.LC_DEAD),
        ({"target_seconds": 0.0}, Reason.ABSURD),
        ({"target_seconds": -0.01}, Reason.ABSURD),
        ({"time_seconds": math.nan}, Reason.ABSURD),
    ],
)
def test_unbelieved_is_named_and_ends_safe(calm: Calm, changes: dict[str, object], reason: Reason) -> None:
    bound = SensorGuard(TRUST).bound(None, calm(0.0, **changes), LIMITS.full, LIMITS)
    assert bound is not None
    assert (bound.reason, bound.most) == (reason, LIMITS.safe)
    assert bound.detail


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lc_alive": Missing(Why.NOT_CONFIGURED)},
        {"oldest_request_seconds": Missing(Why.NOT_SUPPORTED)},
        {"oldest_request_seconds": Missing(Why.NO_DATA)},
        {"tail_latency_seconds": Quantile(0.001, 3.0, samples=20)},
        {"load_ratio": Value(0.0)},
    ],
)
def test_sensors_never_there_do_not_stop_be(calm: Calm, changes: dict[str, object]) -> None:
    assert SensorGuard(TRUST).bound(None, calm(0.0, **changes), LIMITS.full, LIMITS) is None


@pytest.mark.parametrize(
    ("tail", "oldest", "slack"),
    [
        (Quantile(0.005, samples=500), Value(0.0), 0.5),
        (Quantile(0.005, samples=3), Value(0.0), math.nan),  # good news from three requests is none
        (Quantile(0.015, samples=3), Value(0.0), -0.5),  # bad news is
        (Quantile(0.015, 60.0, samples=500), Value(0.0), -0.5),
        (Quantile(0.001, samples=3), Value(0.008), math.nan),  # an outstanding request proves nothing good
        (Missing(Why.NO_DATA), Value(0.030), -2.0),  # a stalled LC completes nothing
        (Missing(Why.NO_DATA), Value(0.001), math.nan),
        (Quantile(math.nan, samples=500), Value(0.0), math.nan),
        (Quantile(-0.001, samples=500), Value(0.0), math.nan),
        (Quantile(math.inf, samples=500), Value(0.0), -math.inf),
    ],
)
def test_good_news_needs_proof(calm: Calm, tail: Reading, oldest: Reading, slack: float) -> None:
    seen = TRUST.slack_ratio(calm(0.0, tail_latency_seconds=tail, oldest_request_seconds=oldest))
    assert seen == pytest.approx(slack, nan_ok=True)


@pytest.mark.parametrize(
    ("load", "seen"),
    [
        (Value(0.5), 0.5),
        (Value(0.5, 60.0), math.nan),
        (Value(0.9, 60.0), 0.9),
        (Value(math.inf), math.inf),
        (Value(math.nan), math.nan),
        (Missing(Why.GONE), math.nan),
    ],
)
def test_a_high_load_is_believed_even_when_old(calm: Calm, load: Reading, seen: float) -> None:
    assert TRUST.load_ratio(calm(0.0, load_ratio=load), high_ratio=0.85) == pytest.approx(seen, nan_ok=True)
