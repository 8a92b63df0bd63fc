"""Load traces: shapes, bounds, and words for every way to write one wrongly."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlctl.envs import errors
from rlctl.envs.testbed.traces import TraceError, bursts, constant, csv_replay, from_config, sinusoid, steps

FINITE = st.floats(-1e6, 1e6)
RATES = st.floats(0.0, 1e6)
anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_constant_never_changes() -> None:
    assert {constant(5).rate(t) for t in (0.0, 0.1, 1e6)} == {5.0}


def test_sinusoid_starts_low_and_peaks_after_half_period() -> None:
    trace = sinusoid(120, 480, 30)
    assert trace.rate(0.0) == pytest.approx(120)
    assert trace.rate(7.5) == pytest.approx(300)
    assert trace.rate(15.0) == pytest.approx(480)
    assert trace.rate(30.0) == pytest.approx(120)


def test_steps_hold_and_begin_again() -> None:
    trace = steps([1, 2, 3], 10)
    assert [trace.rate(t) for t in (0.0, 9.99, 10.0, 29.9, 30.0, 45.0)] == [1, 1, 2, 3, 1, 2]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_bursts_give_each_stretch_one_burst(seed: int) -> None:
    trace = bursts(10, 100, every=20, length=2, seed=seed)
    rates = [trace.rate(t / 10) for t in range(1000)]
    for stretch in range(5):
        high = [rate == 100 for rate in rates[stretch * 200 : (stretch + 1) * 200]]
        assert 19 <= sum(high) <= 21
        assert sum(a != b for a, b in itertools.pairwise(high)) <= 2
    assert set(rates) == {10, 100}
    assert [trace.rate(t / 10) for t in reversed(range(1000))] == rates[::-1]


def test_bursts_differ_between_seeds_only() -> None:
    times = [t / 10 for t in range(400)]
    rates = [[bursts(1, 2, 20, 2, seed).rate(t) for t in times] for seed in (1, 1, 2)]
    assert rates[0] == rates[1] != rates[2]


@given(low=RATES, extra=RATES, period=st.floats(0.1, 1e4), t=FINITE)
def test_sinusoid_stays_between_its_bounds(low: float, extra: float, period: float, t: float) -> None:
    rate = sinusoid(low, low + extra, period).rate(t)
    assert low * (1 - 1e-9) <= rate <= (low + extra) * (1 + 1e-9)


# ---- CSV -------------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_csv_replay_joins_or_holds(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufefftime_seconds, rate_rps\r\n\r\n0,100\r\n10, 200\r\n20,50\r\n")
    linear, hold = csv_replay(path), csv_replay(path, "hold")
    times = (-1.0, 0.0, 5.0, 10.0, 16.0, 20.0, 99.0)
    assert [linear.rate(t) for t in times] == pytest.approx([100, 100, 150, 200, 110, 50, 50])
    assert [hold.rate(t) for t in times] == [100, 100, 100, 200, 200, 50, 50]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "first line must be time_seconds,rate_rps"),
        ("time,rate\n0,1\n", 1, "first line must be"),
        ("\ntime_seconds,rate_rps\n", 2, "no rows"),
        ("time_seconds,rate_rps\n0,1\n\n0,1\n", 4, "time 0 does not come after 0"),
        ("time_seconds,rate_rps\n0,1\n1\n", 3, "two numbers are needed, not '1'"),
        ("time_seconds,rate_rps\n0,1,2\n", 2, "two numbers"),
        ("time_seconds,rate_rps\n0,one\n", 2, "two numbers"),
        ("time_seconds,rate_rps\n0,-1\n", 2, "zero or more"),
        ("time_seconds,rate_rps\n0,nan\n", 2, "zero or more"),
        ("time_seconds,rate_rps\ninf,1\n", 2, "zero or more"),
    ],
)
def test_bad_csv_names_path_line_and_reason(tmp_path: Path, text: str, line: int, what: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=what) as caught:
        csv_replay(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert "\n" not in message


def test_unreadable_csv_names_its_path(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path, write(tmp_path, b"time_seconds,rate_rps\n\xff,1\n")):
        with pytest.raises(TraceError, match="cannot be read") as caught:
            csv_replay(path)
        assert str(caught.value).startswith(f"{path}: ")


@anywhere
@given(points=st.dictionaries(FINITE, RATES, min_size=1, max_size=20), t=FINITE)
def test_csv_written_is_csv_read(tmp_path: Path, points: dict[float, float], t: float) -> None:
    rows = sorted(points.items())
    path = write(tmp_path, "time_seconds,rate_rps\n" + "".join(f"{time!r},{rate!r}\n" for time, rate in rows))
    for trace in (csv_replay(path), csv_replay(path, "hold")):
        assert [trace.rate(time) for time, _ in rows] == [rate for _, rate in rows]
        assert min(points.values()) - 1e-6 <= trace.rate(t) <= max(points.values()) + 1e-6


@anywhere
@given(body=st.one_of(st.text(max_size=60), st.text("0123456789.,-e \r\n", max_size=60), st.binary(max_size=60)))
def test_any_text_is_trace_or_trace_error(tmp_path: Path, body: str | bytes) -> None:
    header = b"time_seconds,rate_rps\n"
    path = write(tmp_path, header + (body.encode(errors="replace") if isinstance(body, str) else body))
    with contextlib.suppress(TraceError):
        assert csv_replay(path).rate(1.0) >= 0.0


# ---- configuration ---------------------------------------------------------------------------------------------------


def test_config_builds_what_the_function_builds(tmp_path: Path) -> None:
    path = write(tmp_path, "time_seconds,rate_rps\n0,7\n")
    for config, trace in (
        ({"kind": "constant", "rate": 3}, constant(3)),
        ({"kind": "sinusoid", "low": 1, "high": 2, "period": 3}, sinusoid(1, 2, 3)),
        ({"kind": "steps", "rates": [1, 2], "step_seconds": 3}, steps([1, 2], 3)),
        ({"kind": "bursts", "base": 1, "peak": 2, "every": 4, "length": 1}, bursts(1, 2, 4, 1)),
        ({"kind": "csv_replay", "path": str(path), "interpolation": "hold"}, csv_replay(path, "hold")),
    ):
        assert from_config(config) == trace
        assert pickle.loads(pickle.dumps(trace)) == trace


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({}, "kind: one of constant, sinusoid, steps, bursts, csv_replay is needed, not None"),
        ({"kind": "sine"}, "not 'sine'"),
        ({"kind": []}, r"not \[\]"),
        ({"kind": "constant"}, "constant: key 'rate' is missing; it takes rate"),
        ({"kind": "constant", "level": 0.5}, "constant: unknown key 'level'; it takes rate"),
        ({"kind": "sinusoid", "low": 1, "hihg": 2, "period": 3}, "unknown key 'hihg'; did you mean 'high'"),
        ({"kind": "constant", "rate": "fast"}, "rate: a number is needed, not 'fast'"),
        ({"kind": "constant", "rate": True}, "rate: a number"),
        ({"kind": "constant", "rate": -1}, "rate: -1 is not zero or more"),
        ({"kind": "constant", "rate": float("nan")}, "rate: a number"),
        ({"kind": "constant", "rate": 10**400}, "rate: a number"),
        ({"kind": "sinusoid", "low": 2, "high": 1, "period": 3}, r"low \(2\) is above high \(1\)"),
        ({"kind": "sinusoid", "low": 1, "high": 2, "period": 0}, "period: 0 is not positive"),
        ({"kind": "steps", "rates": [], "step_seconds": 1}, "rates: a list"),
        ({"kind": "steps", "rates": "12", "step_seconds": 1}, "rates: a list"),
        ({"kind": "steps", "rates": [1, None], "step_seconds": 1}, "rates: a number"),
        ({"kind": "bursts", "base": 1, "peak": 2, "every": 1, "length": 2}, "2 s does not fit into 1 s"),
        ({"kind": "bursts", "base": 1, "peak": 2, "every": 2, "length": 1, "seed": 0.5}, "seed: a whole number"),
        ({"kind": "csv_replay", "path": "x", "interpolation": "spline"}, "linear or hold"),
    ],
)
def test_bad_config_is_refused_in_words(config: dict[str, Any], what: str) -> None:
    with pytest.raises(TraceError, match=what) as caught:
        from_config(config)
    assert isinstance(caught.value, errors.ConfigError)
    assert isinstance(caught.value, ValueError)
