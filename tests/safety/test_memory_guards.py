"""The guards beside CPU time: an LC that waits for memory, memory bandwidth near its peak, and lost sensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.allocations import Allocations
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.telemetry import Missing, Reading, Telemetry, Value, Why
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.constants import MemoryBandwidth, MemoryPressure
from rlctl.safety.memory_guards import MemoryBandwidthGuard, MemoryPressureGuard, PressureLevel, Stalls
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield, _memory
from rlctl.safety.trust import NEVER_THERE, Trust
from rlctl.safety.verdict import Reason
from tests.examples import examples

Calm = Callable[..., Telemetry]

TRUST = Trust(3.0, 20)
STALLED = MemoryPressure(hold_ratio=0.05, suspend_ratio=0.20, after_ticks=3, calm_seconds=10.0)
PRESSURE = MemoryPressureGuard(STALLED, 60.0, TRUST)
BANDWIDTH = MemoryBandwidthGuard(0.90, TRUST)
LIMITS = Limits(cpus=4)
TWO = Allocation(2.0, 3)

AGES = st.one_of(st.just(0.0), st.floats(0.0, 10.0), st.sampled_from([-1.0, math.nan, math.inf]))
NUMBERS = st.one_of(st.floats(0.0, 2.0), st.floats(allow_nan=True), st.sampled_from([0.05, 0.2, 0.9, -1.0, math.inf]))
READINGS = st.one_of(st.builds(Missing, st.sampled_from(Why)), st.builds(Value, NUMBERS, AGES))
NAMES = (
    *("lc_memory_pressure_ratio", "host_memory_pressure_ratio"),
    *("dram_bandwidth_ratio", "be_dram_bandwidth_ratio"),
)
COUNTERS = st.dictionaries(st.sampled_from(NAMES), READINGS)
CURRENT = st.builds(
    Allocation, st.one_of(st.floats(0.01, 4.0), st.just(UNLIMITED)), st.integers(1, 4), st.booleans()
)  # fmt: skip
few = examples(30)


def on(name: str = "responsive") -> Profile:
    """A profile with both guards."""
    more = {"memory_pressure": STALLED, "memory_bandwidth": MemoryBandwidth(limit_ratio=0.9)}
    return load_profile(name).model_copy(update=more)


def seen(now_seconds: float, **readings: Reading | float) -> Telemetry:
    counters = {name: Value(one) if isinstance(one, float) else one for name, one in readings.items()}
    return Telemetry(now_seconds, 0.010, counters=counters)


def lived(*stalls: Reading | float, guard: MemoryPressureGuard = PRESSURE) -> list[Allocation | None]:
    """What the guard leaves of two CPUs, tick by tick."""
    memory, given_ = guard.start(), []
    for now, one in enumerate(stalls):
        telemetry = seen(float(now), lc_memory_pressure_ratio=one)
        memory = guard.advance(memory, telemetry)
        bound = guard.bound(memory, telemetry, TWO, LIMITS)
        given_.append(bound.most if bound else None)
    return given_


def test_memory_waits_hold_then_shrink_then_suspend() -> None:
    assert lived(0.0, 0.1, 0.1, 0.1) == [None, TWO, TWO, LIMITS.minimum]
    assert lived(0.5, 0.5, 0.5) == [TWO, TWO, LIMITS.safe]


def test_be_is_let_go_after_long_calm() -> None:
    """Suspended BE makes the pressure vanish: were it let go at once it would come and go for ever."""
    after = lived(0.5, 0.5, 0.5, *[0.0] * 10)
    assert after[3:] == [LIMITS.safe] * 9 + [None]
    assert lived(0.1, 0.0, 0.1, 0.0, 0.1)[-1] == TWO, "not three in a row"


def test_absent_sensor_is_none_lost_one_holds() -> None:
    for why in Why:
        missing = Missing(why)
        assert lived(missing) == ([None] if why in NEVER_THERE else [TWO]), why
        bound = BANDWIDTH.bound(None, seen(0.0, dram_bandwidth_ratio=missing), TWO, LIMITS)
        assert (bound.most if bound else None) == (None if why in NEVER_THERE else TWO)
    assert lived(0.0, Missing(Why.GONE), 0.0) == [None, TWO, None]
    assert lived(0.5, 0.5, 0.5, Missing(Why.GONE))[-1] == LIMITS.safe, "losing the sensor sets nobody free"
    assert lived(0.5, 0.5, Missing(Why.GONE), 0.5)[-1] == LIMITS.safe, "nor does losing it every third tick"


def test_without_group_of_its_own_hosts_pressure_counts() -> None:
    stalled = {"host_memory_pressure_ratio": 0.1}
    memory = PRESSURE.advance(PRESSURE.start(), seen(0.0, **stalled))
    assert memory.level == PressureLevel.HOLD
    own = seen(0.0, lc_memory_pressure_ratio=0.0, **stalled)
    assert PRESSURE.advance(PRESSURE.start(), own).level == PressureLevel.NONE, "the LC itself waits for nothing"


def test_bad_news_is_believed_when_old() -> None:
    old = 5.0
    assert lived(Value(0.5, old)) == [TWO]
    assert lived(Value(0.0, old)) == [TWO]
    assert lived(Value(0.0)) == [None]
    calm = seen(0.0, dram_bandwidth_ratio=Value(0.1, old))
    bound = BANDWIDTH.bound(None, calm, TWO, LIMITS)
    assert bound is not None
    assert bound.most == TWO


@pytest.mark.parametrize(
    ("total", "be", "kept_cpus"),
    [
        (0.90, 0.5, None),
        (1.00, 0.5, 1.6),  # a fifth of BE's part is too much
        (1.00, None, 1.8),  # all is taken to be BE's
        (1.00, 0.05, 0.01),  # more than BE has: the least that can be written
        (1.00, 0.0, 2.0),  # BE is not to blame
        (math.inf, 0.5, 0.01),
    ],
)
def test_bandwidth_over_the_limit_is_taken_from_be(total: float, be: float | None, kept_cpus: float | None) -> None:
    telemetry = seen(0.0, dram_bandwidth_ratio=total, **({} if be is None else {"be_dram_bandwidth_ratio": be}))
    bound = BANDWIDTH.bound(None, telemetry, TWO, LIMITS)
    assert (bound.most if bound else None) == (None if kept_cpus is None else Allocation(kept_cpus, 3))
    if bound is not None and bound.most != TWO:
        by_link = BANDWIDTH.bound(None, telemetry.but(rein="link"), TWO, LIMITS)
        assert by_link is not None
        assert by_link.most == LIMITS.minimum, "any more of the link leaves BE all CPUs"


def test_unlimited_be_counts_as_whole_host() -> None:
    telemetry = seen(0.0, dram_bandwidth_ratio=1.0)
    bound = BANDWIDTH.bound(None, telemetry, LIMITS.full, LIMITS)
    assert bound is not None
    assert bound.most.quota_cpus == 3.6
    confined = LIMITS.full.but(cpuset_cpus=2)
    assert BANDWIDTH.bound(None, telemetry, confined, LIMITS).most.quota_cpus == 1.8  # type: ignore[union-attr]
    frozen = TWO.but(frozen=True)
    assert BANDWIDTH.bound(None, telemetry, frozen, LIMITS).most == frozen  # type: ignore[union-attr]


def test_be_without_traffic_keeps_what_it_has() -> None:
    telemetry = seen(0.0, dram_bandwidth_ratio=1.0, be_dram_bandwidth_ratio=0.0)
    current = Allocation(1.2302851638765917, 1)
    bound = BANDWIDTH.bound(None, telemetry, current, LIMITS)
    assert bound is not None
    assert bound.most.at_most(current)


@few
@given(history=st.lists(COUNTERS, min_size=1, max_size=12), times=st.data(), current=CURRENT)
def test_guards_bound_within_what_can_be_written(
    history: list[dict[str, Reading]], times: st.DataObject, current: Allocation
) -> None:
    current = LIMITS.clip(current)
    memory = PRESSURE.start()
    for counters in history:
        now = times.draw(st.floats(-10.0, 100.0))
        telemetry = Telemetry(now, 0.010, counters=counters)
        memory = PRESSURE.advance(memory, telemetry)
        for bound in (
            PRESSURE.bound(memory, telemetry, current, LIMITS),
            BANDWIDTH.bound(None, telemetry, current, LIMITS),
        ):
            if bound is not None:
                assert LIMITS.safe.at_most(bound.most)
                assert bound.most.at_most(current) or memory.level >= PressureLevel.SHRINK
        assert memory.high_ticks <= STALLED.after_ticks
        assert 0.0 <= memory.calm_seconds <= STALLED.calm_seconds


@few
@given(stalls=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), more=st.floats(0.0, 1.0))
def test_more_stalls_never_leave_be_more(stalls: list[float], more: float) -> None:
    rank = {None: 0, TWO: 1, LIMITS.minimum: 2, LIMITS.safe: 3}
    worse = [min(one + more, 1.0) for one in stalls]
    assert all(rank[b] >= rank[a] for a, b in zip(lived(*stalls), lived(*worse), strict=True))


@few
@given(counters=COUNTERS)
def test_profile_without_them_ignores_the_readings(counters: dict[str, Reading], calm: Any) -> None:
    plain = load_profile("responsive")
    telemetry = calm(0.0)
    ruled = [Shield(plain, LIMITS).rule(one, TWO, TWO) for one in (telemetry, telemetry.but(counters=counters))]
    assert ruled[0] == ruled[1]


def test_off_means_the_digest_of_before() -> None:
    assert load_profile("heracles").digest == "24b129e87b08"
    assert load_profile("responsive").digest == "ef728702fa02"
    assert on().digest != load_profile("responsive").digest
    assert [guard.name for guard in on().guards()][5:7] == ["memory-pressure", "memory-bandwidth"]


def test_the_verdict_names_the_guard(calm: Calm) -> None:
    shield = Shield(on(), LIMITS)
    for now in range(4):
        telemetry = calm(float(now), counters={"lc_memory_pressure_ratio": Value(0.5)})
        verdict = shield.rule(telemetry, TWO, TWO)
    assert verdict.allocation == LIMITS.safe
    (decisive,) = verdict.decisive
    assert (decisive.guard, decisive.reason) == ("memory-pressure", Reason.MEMORY_PRESSURE)
    assert decisive.detail.startswith("stalled 0.500 of the time, above 0.05 for 3 of 3 ticks")
    remembered = shield.state["memory-pressure"]
    assert _memory(Stalls(), remembered) == Stalls(3, 3, 3, 0.0, 0.5, False, 3.0)  # type: ignore[arg-type]


def test_batch_shield_leaves_memory_guards_out() -> None:
    """A simulated host has none of these readings, for which the guards have no objection."""
    profile, count, dice = on(), 8, np.random.default_rng(3)
    batch = SimBatch(load_host("thesis-host"), range(count), lambda *_: np.full(60, 0.6), 60)
    together, alone = BatchShield(profile, batch.limits, count), [Shield(profile, batch.limits) for _ in range(count)]
    for _ in range(60):
        batch.step()
        telemetries = batch.telemetry()
        asked = [Allocation(float(dice.uniform(0.01, 8.0)), 8) for _ in range(count)]
        ruled = together.rule(batch.read(), Allocations.of(batch.allocations), Allocations.of(asked))
        told = [
            one.rule(telemetry, now, ask).allocation
            for one, telemetry, now, ask in zip(alone, telemetries, batch.allocations, asked, strict=True)
        ]
        assert [ruled.host(host) for host in range(count)] == told
        batch.apply(told)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("memory_pressure: {hold_ratio: 0.5, suspend_ratio: 0.2, after_ticks: 3, calm_seconds: 1.0}", "above suspend"),
        ("memory_pressure: {hold_ratio: 5, suspend_ratio: 0.2, after_ticks: 3, calm_seconds: 1.0}", "hold_ratio is 5"),
        ("memory_pressure: {hold_ratio: 0.1}", "missing"),
        ("memory_bandwidth: {limit: 0.9}", "unknown key"),
    ],
)
def test_slip_in_constants_is_told_with_line(tmp_path: Path, line: str, told: str) -> None:
    from rlctl.envs.errors import ConfigError

    text = (Path(__file__).parents[2] / "configs/safety/heracles.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(line if one.startswith(line.split(":")[0]) else one for one in text.splitlines()) + "\n")
    with pytest.raises(ConfigError, match=told) as caught:
        load_profile(path)
    assert caught.value.line == next(n for n, one in enumerate(path.read_text().splitlines(), 1) if one == line)
