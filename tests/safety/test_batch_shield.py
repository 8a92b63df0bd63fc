"""The shield of many hosts answers as `Shield` does, host by host: a policy trained behind it meets no other guards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.envs.actions import MOVES
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.allocations import Allocations, apply_moves
from rlctl.envs.readings import Readings
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import load_profile as load_host
from rlctl.envs.telemetry import Missing, Quantile, Telemetry, Value, Why
from rlctl.safety.batch_shield import BatchShield
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield
from tests.doubles.shipped import SAFETY_PROFILES
from tests.examples import examples
from tests.safety.conftest import AGES, NUMBERS

HOSTS, TICKS = 8, 40
HALF_A_NANO = 0.3 + 0.5e-9
EVERYTHING = Allocation(UNLIMITED, 99)
HIGH = [(move.quota_ratio or 0.0) > 0.3 or move.cpuset_cpus > 0 or move.name == "thaw" for move in MOVES]
LIKELY = np.where(HIGH, 0.8 / sum(HIGH), 0.2 / (len(MOVES) - sum(HIGH)))
"""Mostly growth, so that the guards have work."""

READ = 8
"""So many fields of `Readings` guards read first: time, target, tail, oldest, load, samples, lost, age. And be_cpus."""

Row = Sequence[Any]
"""These of one host."""

TIMES, TARGETS, SAMPLES = st.floats(-10.0, 1000.0), st.just(0.010), st.sampled_from([-1, 0, 19, 20, 500])
TAILS, LOADS, ZERO = st.floats(0.0001, 0.02), st.floats(0.0, 1.2), st.just(0.0)
USED = st.sampled_from([0.0, 0.01, 0.02, 0.5, 2.0])
SOUND = st.tuples(TIMES, TARGETS, TAILS, ZERO, LOADS, st.just(500), st.just(False), ZERO, USED)
ANY = st.tuples(
    TIMES | NUMBERS, TARGETS | NUMBERS, NUMBERS, NUMBERS, NUMBERS, SAMPLES, st.booleans(), AGES, USED | NUMBERS
)


def arrays(rows: Sequence[Row]) -> Readings:
    """The readings of some hosts, the last of a row what BE used; what no guard reads is 0."""
    unread = [np.zeros(len(rows))] * (len(Readings._fields) - READ)
    *read, used = (np.array(column) for column in zip(*rows, strict=True))
    return Readings(*read, *unread)._replace(be_cpus=used)


def host_by_host(readings: Readings) -> list[Telemetry]:
    """The same for `Shield`, as the sensors of simulated hosts tell it."""
    told = []
    for row in zip(*(column.tolist() for column in (*readings[:READ], readings.be_cpus)), strict=True):
        time, target, tail, oldest, load, samples, lost, age, used = row
        late = Quantile(tail, age, samples), Value(oldest, age), Value(load, age)
        silence = Missing(Why.NO_DATA, age_seconds=age)
        told.append(Telemetry(time, target, *((silence,) * 3 if lost else late), Value(1.0), be_cpus=Value(used)))
    return told


class Both:
    """Shields of either kind side by side; every answer is asked of both and compared."""

    def __init__(self, profile: Profile, limits: Limits, count: int) -> None:
        self.batch = BatchShield(profile, limits, count)
        self.singles = [Shield(profile, limits) for _ in range(count)]
        self.decided: set[str] = set()

    def reset(self) -> None:
        self.batch.reset()
        for single in self.singles:
            single.reset()

    def rule(
        self,
        telemetries: list[Telemetry],
        readings: Readings,
        current: Sequence[Allocation],
        proposed: Sequence[Allocation],
    ) -> list[Allocation]:
        asked = Allocations.of(proposed)
        together = self.batch.rule(readings, Allocations.of(current), asked)
        overridden = asked.differ(together)
        ruled = []
        for host, shield in enumerate(self.singles):
            alone = shield.rule(telemetries[host], current[host], proposed[host])
            assert together.host(host) == alone.allocation, alone
            assert overridden[host] == alone.overridden
            self.decided |= {bound.guard for bound in alone.decisive}
            ruled.append(alone.allocation)
        return ruled

    def mask(self, telemetries: list[Telemetry], readings: Readings, current: Sequence[Allocation]) -> None:
        alone = [one.mask(*given) for one, *given in zip(self.singles, telemetries, current, strict=True)]
        assert np.array_equal(self.batch.mask(readings, Allocations.of(current)), np.stack(alone))


def drawn_allocation(dice: np.random.Generator) -> Allocation:
    """Any allocation on four CPUs: on the quota grid, off it, at the edge of rounding, lifted, and beyond the host."""
    quota = dice.choice([0.001, 0.01, 0.2, 2.0, 3.9, 4.0, HALF_A_NANO, UNLIMITED, dice.uniform(0.01, 5.0), 1e9])
    return Allocation(float(quota), int(dice.integers(1, 6)), bool(dice.random() < 0.3))


@examples(8)
@given(data=st.data(), profile=st.sampled_from([load_profile(name) for name in SAFETY_PROFILES]))
def test_it_answers_as_each_hosts_shield(data: st.DataObject, profile: Profile, limits: Limits) -> None:
    limits = replace(limits, least_weight=data.draw(st.booleans(), "least weight"))
    odd = data.draw(st.lists(SOUND | ANY, min_size=1, max_size=10), "odd readings")
    odd_share, tick_seconds = data.draw(st.sampled_from([0.05, 0.3, 1.0])), data.draw(st.sampled_from([0.1, 1.0, 7.0]))
    own_clocks = data.draw(st.booleans(), "clocks of their own, that go back and stop")
    by_sensor = data.draw(st.booleans(), "some sensors are odd while others of the host are sound")
    dice = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    ceiling = {"ceiling_ratio": data.draw(st.sampled_from([0.7, 1.0]))}
    profile = profile.scale_time(data.draw(st.sampled_from([1.0, 15.0]))).model_copy(update=ceiling)
    both = Both(profile, limits, HOSTS)
    current = [limits.safe] * HOSTS
    used = data.draw(st.sampled_from([(0.5, 0.5), (0.95, 0.05), (0.1, 0.9)]), "how often BE is held, and runs")

    def one(now: float) -> Row:
        load, slack = dice.choice([0.5, 0.82, 0.92, 0.97]), dice.choice([-0.5, 0.0, 0.02, 0.07, 0.5])
        calm = now, 0.010, 0.010 * (1.0 - slack), 0.0, load, 500, False, 0.0, dice.choice([0.0, 2.0], p=used)
        is_odd = (dice.random(READ + 1 if by_sensor else 1) < odd_share) & np.array([own_clocks, *[True] * READ])
        found = odd[dice.integers(len(odd))]
        return [wrong if other else right for right, wrong, other in zip(calm, found, is_odd, strict=True)]

    for tick in range(TICKS):
        readings = arrays([one(tick * tick_seconds) for _ in range(HOSTS)])  # a new object is a new tick
        seen = host_by_host(readings)
        if dice.random() < 0.5:
            both.mask(seen, readings, current)
        for _ in range(dice.integers(1, 3)):  # ruling again on the same readings teaches nothing
            both.rule(seen, readings, current, [EVERYTHING] * HOSTS)
            proposed = [drawn_allocation(dice) for _ in range(HOSTS)]
            ruled = both.rule(seen, readings, current, proposed)
            if dice.random() < 0.1:
                both.reset()
        current = ruled if dice.random() < 0.8 else [drawn_allocation(dice) for _ in range(HOSTS)]


def test_harm_is_judged_alike() -> None:
    """Hosts of every kind: BE does harm or none, and the LC misses alone never, seldom, often, for a time, always."""
    limits, profile, dice = Limits(cpus=4, least_weight=True), load_profile("measured"), np.random.default_rng(5)
    alone = np.repeat([0.0, 0.02, 0.1, 0.3, 0.6, 1.0], 4)
    harm = np.tile([0.0, 0.05, 0.3, 1.0], 6)
    both, current = Both(profile, limits, len(alone)), [limits.safe] * len(alone)
    for tick in range(600):
        used = np.array([one.usable_cpus for one in current])
        chance = np.where(tick % 400 < 250, alone, 0.0) + harm * (used > 1.0)
        missed, load = dice.random(len(alone)) < chance, 0.5 if tick % 300 < 200 else 0.3
        tail = np.where(missed, 0.015, 0.005)
        rows = [(float(tick), 0.010, one, 0.0, load, 500, False, 0.0, be) for one, be in zip(tail, used, strict=True)]
        readings = arrays(rows)
        current = both.rule(host_by_host(readings), readings, current, [limits.full] * len(alone))
    assert both.decided >= {"slack-gate", "growth-rate"}


def test_odd_reading_among_sound_is_believed_alike(profile: Profile, limits: Limits) -> None:
    """Each rule of trust at its edge, where nothing else hides it: between polls, at one, and in what is remembered."""
    numbers = [0.0, -1.0, 1e-4, 0.0095, 0.0101, 0.83, 0.93, 20.0, 20.1, math.nan, math.inf, -math.inf]
    samples, ages = [-1, 0, profile.min_samples - 1, profile.min_samples], [*numbers, profile.max_age_seconds, 61.0]
    odd = [*[numbers] * 5, samples, [True], ages]
    between = (profile.load_suspend_ratio + profile.load_resume_ratio) / 2.0

    def ticks() -> Iterator[list[Row]]:
        for now, load in ((0.0, 0.5), (1.0, 0.5), (60.0, 0.5), (120.0, between)):
            calm = now, 0.010, 0.005, 0.0, load, 500, False, 0.0, 0.0
            rows = [(*calm[:place], wrong, *calm[place + 1 :]) for place in range(READ) for wrong in odd[place]]
            yield rows if now in {1.0, 60.0} else [calm] * len(rows)

    count = sum(map(len, odd))
    both, current = Both(profile, limits, count), [Allocation(1.0, 2)] * count
    for readings in map(arrays, ticks()):
        seen = host_by_host(readings)
        both.mask(seen, readings, current)
        both.rule(seen, readings, current, [EVERYTHING] * count)
    assert both.decided >= {"sensors", "load-gate", "slack-gate", "slack-hold"}


def hashed_load(seed: int, ticks: int, tick_seconds: float) -> np.ndarray:
    """Minutes of calm, of load in the gates' band, and of overload, in an order that differs by host."""
    return np.repeat(np.random.default_rng(seed).choice([0.3, 0.6, 0.83, 0.93, 1.05], ticks // 15 + 1), 15)[:ticks]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unruly"), [("heracles", False), ("responsive", True), ("knee", True), ("measured", False)]
)
def test_it_answers_as_each_simulated_hosts_shield(name: str, unruly: bool) -> None:
    count, dice, profile = 16, np.random.default_rng(7), load_profile(name)
    host = load_host("thesis-host").but(missing_ratio=0.01)
    if unruly:
        host = host.but(missing_ratio=0.1, delay_ticks=2.0, tail_cv=0.5)
    batch = SimBatch(host, range(count), hashed_load, 300)
    both = Both(profile.scale_time(10.0), batch.limits, count)
    passed = 0
    for tick in range(300):
        batch.step()
        telemetries, readings = batch.telemetry(), batch.read()
        if tick % 3 == 0:
            both.mask(telemetries, readings, batch.allocations)
        moves = dice.choice(len(MOVES), count, p=LIKELY)
        proposed = [MOVES[move].of(now, batch.limits) for move, now in zip(moves, batch.allocations, strict=True)]
        if tick % 20 == 0:
            proposed[0] = batch.limits.full
        ruled = both.rule(telemetries, readings, batch.allocations, proposed)
        passed += sum(one == asked for one, asked in zip(ruled, proposed, strict=True))
        batch.apply(ruled)
        if tick == 150:  # while the hosts' clock goes on
            both.reset()
    assert passed > 0
    assert both.decided >= {"sensors", "load-gate", "slack-gate", "slack-floor", "slack-hold", "growth-rate"}


def test_moves_ask_for_what_their_table_says() -> None:
    dice = np.random.default_rng(1)
    for limits in (Limits(cpus=4), Limits(cpus=36, levels=7), Limits(cpus=1, min_quota_cpus=0.5)):
        current = [limits.clip(drawn_allocation(dice)) for _ in range(200)]
        current += [limits.clip(Allocation(limits.quota_at(level), 1)) for level in range(limits.levels + 1)]
        asked = apply_moves(Allocations.of(current), limits)
        for row, move in enumerate(MOVES):
            expected = Allocations.of([move.of(one, limits) for one in current])
            assert np.array_equal(asked.quota_cpus[row], expected.quota_cpus), move.name
            assert np.array_equal(asked.cpuset_cpus[row], expected.cpuset_cpus), move.name
            assert np.array_equal(asked.frozen[row], expected.frozen), move.name


def test_quota_is_rounded_as_shield_rounds_it() -> None:
    """numpy rounds the product with 1e9, which would let BE have a nano-CPU that the shield forbids."""
    limits, profile = Limits(cpus=4), load_profile("responsive")
    current = [Allocation((k + 0.5) * 1e-9 + tiny, 4) for k in range(1000, 4000, 7) for tiny in (0.0, 1e-16, -1e-16)]
    both = Both(profile, limits, len(current))
    calm = arrays([(0.0, 0.010, 0.005, 0.0, 0.5, 500, False, 0.0, 0.0)] * len(current))
    both.rule(host_by_host(calm), calm, current, [limits.full] * len(current))
    assert both.decided == {"growth-rate"}, "no other guard hides it"
