"""Every point of a discretised state space, and every short history, against the rules restated in plain words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.telemetry import FEW_IN_LONG, LC_IDLE, Missing, Quantile, Telemetry, Value, Why
from rlctl.safety.gates import Excess, GateMemory, LoadGate, Overrun, SlackGate, Strikes
from rlctl.safety.growth import GrowthRate, Pace, SeenSlack, SlackFloor, SlackHold
from rlctl.safety.harm import HarmEvidence, HarmRecord
from rlctl.safety.profile import Profile, load_profile
from rlctl.safety.shield import Shield, advance, bounds, judge

Calm = Callable[..., Telemetry]

LIMITS = Limits(cpus=4)
QUOTAS = (0.01, 1.0, 4.0, UNLIMITED)
EVERY_ALLOCATION = [Allocation(q, c, f) for q, c, f in itertools.product(QUOTAS, (1, 4), (False, True))]
SLACKS = (-9.0, -0.5, -1e-6, 0.0, 0.049, 0.05, 0.099, 0.1, 0.5, 0.99)
QUICK = (-1e-6, 0.049, 0.099)
"""A miss, and what the floor and the hold each forbid."""

STRIDE = 7
"""Of all points the default run takes every seventh, and `scripts/test --all` each; 7 divides no side of the grid."""


LOADS = (0.0, 0.79, 0.8, 0.85, 0.851, 0.9, 0.939, 0.941, 0.95, 0.951, 1.2)
NOW = 100.0
TICK = 1.0

BROKEN: dict[str, dict[str, object]] = {
    "no latency": {"tail_latency_seconds": Missing(Why.NO_DATA)},
    "old latency": {"tail_latency_seconds": Quantile(0.001, 6.0, samples=500)},
    "few samples, not in long": {
        "tail_latency_seconds": Quantile(0.001, samples=19),
        "counters": {FEW_IN_LONG: Value(0.0)},
    },
    "none in long": {"tail_latency_seconds": Quantile(0.001, samples=0), "counters": {FEW_IN_LONG: Value(1.0)}},
    "idle, said long ago": {"tail_latency_seconds": Missing(Why.NO_DATA), "counters": {LC_IDLE: Value(1.0, 6.0)}},
    "idle, and one waits": {
        "tail_latency_seconds": Missing(Why.NO_DATA),
        "counters": {LC_IDLE: Value(1.0)},
        "oldest_request_seconds": Value(0.001),
    },
    "idle, and the oldest is lost": {
        "tail_latency_seconds": Missing(Why.NO_DATA),
        "counters": {LC_IDLE: Value(1.0)},
        "oldest_request_seconds": Missing(Why.GONE),
    },
    "idle, and the source is lost": {"tail_latency_seconds": Missing(Why.GONE), "counters": {LC_IDLE: Value(1.0)}},
    "idle and dead": {
        "tail_latency_seconds": Missing(Why.NO_DATA),
        "counters": {LC_IDLE: Value(1.0)},
        "lc_alive": Value(0.0),
    },
    "perhaps idle": {"tail_latency_seconds": Missing(Why.NO_DATA), "counters": {LC_IDLE: Value(float("nan"))}},
    "few samples": {"tail_latency_seconds": Quantile(0.001, samples=19)},
    "zero latency": {"tail_latency_seconds": Quantile(0.0, samples=500)},
    "negative latency": {"tail_latency_seconds": Quantile(-0.001, samples=500)},
    "NaN latency": {"tail_latency_seconds": Quantile(float("nan"), samples=500)},
    "lost oldest request": {"oldest_request_seconds": Missing(Why.GONE)},
    "no load": {"load_ratio": Missing(Why.NOT_CONFIGURED)},
    "old load": {"load_ratio": Value(0.1, 6.0)},
    "NaN load": {"load_ratio": Value(float("nan"))},
    "percent load": {"load_ratio": Value(50.0)},
    "dead LC": {"lc_alive": Value(0.0)},
    "lost LC": {"lc_alive": Missing(Why.GONE)},
    "zero target": {"target_seconds": 0.0},
    "NaN target": {"target_seconds": float("nan")},
    "NaN time": {"time_seconds": float("nan")},
}


def memories(profile: Profile) -> Iterator[tuple[dict[str, object], bool, int, float, bool]]:
    """Every combination of what the gates may remember a tick ago, with a poll due now; a quiet host has long been."""
    polled = NOW - max(profile.poll_seconds, TICK)
    lefts = ((0.0, False), (1.0, False), (9.0, False), (0.0, True))
    for closed, strikes, (left, over), quiet in itertools.product(
        (False, True), range(profile.suspend_after_strikes + 1), lefts, (False, True)
    ):
        memory: dict[str, object] = {
            "load-gate": GateMemory(closed, 0.5, polled, 0.0 if quiet else 0.05),
            "slack-gate": Strikes(strikes, 0.0, left, 0.5, NOW - TICK, polled),
            "slack-floor": SeenSlack(0.5, polled),
            "slack-hold": SeenSlack(0.5, polled),
            "growth-rate": Pace(NOW - TICK, TICK, 1e4 if quiet else 0.0),
            "harm": HarmRecord(seen_seconds=NOW - TICK),
            "overrun": Excess(1.5, True, 0.9, 0.0, NOW - TICK) if over else Excess(seen_seconds=NOW - TICK),
        }
        yield memory, closed, strikes, 9.0 if over else left, quiet  # an overrun suspends as a cool-down does


def most(
    profile: Profile, now: tuple[float, float], then: tuple[bool, int, float, bool], current: Allocation
) -> tuple[float, int, bool]:
    """The rules of the issue in plain words: the largest quota and cpuset, and whether BE must be frozen."""
    (slack, load), (closed, strikes, left, quiet) = now, then
    measured = profile.measured if quiet else None
    quota, cpuset, frozen = UNLIMITED, LIMITS.cpus, False
    suspended = load > profile.load_suspend_ratio
    if closed and load >= (profile.load_suspend_ratio - 0.01 if measured else profile.load_resume_ratio):
        suspended = True
    if slack < 0.0 and strikes + 1 >= profile.suspend_after_strikes:
        suspended = True
    if left > TICK:
        suspended = True
    if slack < 0.0:
        quota, cpuset = 0.01, 1
    if suspended:
        quota, cpuset, frozen = 0.01, 1, True
    if slack < 0.05:
        quota, cpuset = min(quota, 0.4), 1
    if slack < 0.10:
        quota, cpuset, frozen = (
            min(quota, current.quota_cpus),
            min(cpuset, current.cpuset_cpus),
            frozen or current.frozen,
        )
    running_quota, running_cpuset = (0.01, 1) if current.frozen else (current.quota_cpus, current.cpuset_cpus)
    rate, step = profile.growth_ratio_per_second, 1
    if measured and slack >= 0.0:
        rate, step = 0.6, 2
    grown = running_quota + rate * 4 * TICK
    quota = min(
        quota, UNLIMITED if grown >= LIMITS.cpus else round(grown, 9)
    )  # a quota of all CPUs and none are the same
    return quota, min(cpuset, running_cpuset + step), frozen


@pytest.mark.parametrize(
    ("slacks", "stride"), [pytest.param(QUICK, STRIDE, id="some"), pytest.param(SLACKS, 1, marks=pytest.mark.slow)]
)
def test_exactly_what_the_rules_forbid_is_forbidden(
    profile: Profile, calm: Calm, slacks: tuple[float, ...], stride: int
) -> None:
    guards = profile.guards()
    points = itertools.product(slacks, LOADS, list(memories(profile)))
    for slack, load, (memory, *then) in itertools.islice(points, 0, None, stride):
        telemetry = calm(NOW, load, slack)
        slack_seen = telemetry.slack_ratio
        assert slack_seen is not None
        after = advance(guards, tuple(memory.get(guard.name) for guard in guards), telemetry)
        for current in EVERY_ALLOCATION:
            quota, cpuset, frozen = most(profile, (slack_seen, load), tuple(then), current)
            given = bounds(guards, after, telemetry, current, LIMITS)
            for proposed in EVERY_ALLOCATION:
                want = Allocation(
                    min(quota, proposed.quota_cpus), min(cpuset, proposed.cpuset_cpus), frozen or proposed.frozen
                )
                assert judge(given, proposed).allocation == want, (load, memory, current, proposed)


SUSPECTED = {"suspect_seconds": 30.0, "sentence_seconds": 60.0}
CONTROL = {"held_windows": 20.0, "held_missed_ratio": 0.5, "held_load_ratio": 0.8, "free_windows": 20.0}
HARM: dict[str, tuple[dict[str, float], Callable[[float, float], bool]]] = {
    "nothing known": ({}, lambda slack, _: slack >= 0.0),
    "missed lately": ({"clean_seconds": 5.0}, lambda slack, _: slack >= 0.0),
    "suspected": (SUSPECTED, lambda slack, load: False),
    "suspected no longer": ({**SUSPECTED, "suspect_seconds": 0.5}, lambda slack, _: slack >= 0.0),
    "misses alone as well": (CONTROL | {"free_missed_ratio": 0.3}, lambda slack, load: slack >= 0.0 or load >= 0.72),
    "misses less alone": (CONTROL | {"free_missed_ratio": 0.9}, lambda slack, _: slack >= 0.0),
    "too small a control": (CONTROL | {"held_windows": 4.9}, lambda slack, _: slack >= 0.0),
    "too small to acquit": (CONTROL | SUSPECTED | {"held_windows": 9.9}, lambda slack, load: False),
    "acquitted": (CONTROL | SUSPECTED | {"free_missed_ratio": 0.3}, lambda slack, load: load >= 0.72),
}
"""What is known of harm, and at which slack and load nothing speaks against BE."""


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize(
    ("slacks", "stride"), [pytest.param(QUICK, STRIDE, id="some"), pytest.param(SLACKS, 1, marks=pytest.mark.slow)]
)
def test_least_weight_is_free_without_harm(harm: str, slacks: tuple[float, ...], stride: int, calm: Calm) -> None:
    """Sensors, load gate and overrun hold all the same; with evidence of harm every guard does, as at any weight."""
    profile, limits, known, is_cleared = load_profile("measured"), replace(LIMITS, least_weight=True), *HARM[harm]
    guards = profile.guards()
    points = itertools.product(slacks, LOADS, list(memories(profile)))
    for slack, load, (memory, closed, *then) in itertools.islice(points, 0, None, stride):
        remembered = memory | {"harm": HarmRecord(seen_seconds=NOW - TICK, **known)}
        telemetry = calm(NOW, load, slack, be_cpus=Value(1.0))
        slack_seen = telemetry.slack_ratio
        assert slack_seen is not None
        after = advance(guards, tuple(remembered.get(guard.name) for guard in guards), telemetry)
        for current in EVERY_ALLOCATION:
            quota, cpuset, frozen = most(profile, (slack_seen, load), (closed, *then), current)
            if is_cleared(slack_seen, load):
                quiet, left = then[2], then[1]
                opens = profile.load_suspend_ratio - 0.01 if quiet else profile.load_resume_ratio
                overrun = left > TICK and memory["slack-gate"].remaining_seconds == 0.0
                frozen = load > profile.load_suspend_ratio or (closed and load >= opens) or overrun
                quota, cpuset = (0.01, 1) if frozen else (UNLIMITED, LIMITS.cpus)
            ruled = judge(bounds(guards, after, telemetry, current, limits), limits.full).allocation
            assert ruled == Allocation(quota, cpuset, frozen), (slack, load, remembered, current)


QUIET: dict[str, tuple[float, dict[str, object]]] = {
    "idle": (1.0, {"tail_latency_seconds": Missing(Why.NO_DATA), "counters": {LC_IDLE: Value(1.0)}}),
    "few in long": (0.9, {"tail_latency_seconds": Quantile(0.001, samples=1), "counters": {FEW_IN_LONG: Value(1.0)}}),
}
"""Telemetry of an LC with nothing or little to do, and the slack by which BE is ruled beside it."""


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("quiet", QUIET)
def test_a_quiet_lc_is_ruled_by_its_slack(profile: Profile, calm: Calm, quiet: str, stride: int) -> None:
    """In every state of the gates: a strike, a cool-down or a closed gate is not forgotten for it."""
    slack, readings = QUIET[quiet]
    guards = profile.guards()
    points = itertools.product(LOADS, list(memories(profile)))
    for load, (memory, *then) in itertools.islice(points, 0, None, stride):
        telemetry = calm(NOW, load, **readings)
        after = advance(guards, tuple(memory.get(guard.name) for guard in guards), telemetry)
        for current in EVERY_ALLOCATION:
            quota, cpuset, frozen = most(profile, (slack, load), tuple(then), current)
            ruled = judge(bounds(guards, after, telemetry, current, LIMITS), LIMITS.full).allocation
            assert ruled == Allocation(min(quota, LIMITS.full.quota_cpus), cpuset, frozen), (load, memory, current)


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
def test_broken_telemetry_is_safe_in_every_state(profile: Profile, calm: Calm, stride: int) -> None:
    guards = profile.guards()
    points = itertools.product(BROKEN.items(), list(memories(profile)), EVERY_ALLOCATION)
    for (broken, readings), (memory, *_), current in itertools.islice(points, 0, None, stride):
        telemetry = calm(NOW, 0.1, 0.9, **readings)
        after = advance(guards, tuple(memory.get(guard.name) for guard in guards), telemetry)
        given = bounds(guards, after, telemetry, current, LIMITS)
        for proposed in EVERY_ALLOCATION:
            assert judge(given, proposed).allocation.at_most(LIMITS.safe), (broken, memory, current)


LETTERS: dict[str, dict[str, object]] = {
    "calm": {"load": 0.5, "slack": 0.5},
    "band": {"load": 0.87, "slack": 0.5},
    "busy": {"load": 0.97, "slack": 0.5},
    "late": {"load": 0.5, "slack": -0.1},
    "lost": {"tail_latency_seconds": Missing(Why.GONE)},
}


class Clerk:
    """A second opinion on when BE must be frozen, kept in ticks and absolute dates."""

    def __init__(self, profile: Profile, cool_ticks: int, forget_ticks: int) -> None:
        self.profile, self.cool_ticks, self.forget_ticks = profile, cool_ticks, forget_ticks
        self.every = max(int(profile.poll_seconds), 1)
        self.load_due = self.slack_due = 0
        self.suspended, self.until = True, -1
        self.strikes: list[int] = []

    def frozen(self, tick: int, letter: str) -> bool:
        load, late = {"busy": 0.97, "band": 0.87}.get(letter, 0.5), letter == "late"
        if tick >= self.load_due:
            self.load_due = tick + self.every
            if load > self.profile.load_suspend_ratio:
                self.suspended = True
            elif load < self.profile.load_resume_ratio:
                self.suspended = False
        if tick >= self.slack_due and letter != "lost":
            self.slack_due = tick + self.every
            if late:
                self.strikes.append(tick)
            elif self.strikes and tick - self.strikes[-1] >= self.forget_ticks:
                self.strikes = []
            if late and len(self.strikes) >= self.profile.suspend_after_strikes:
                self.until = tick + self.cool_ticks
        return letter == "lost" or self.suspended or tick < self.until


@pytest.mark.parametrize("poll_seconds", [0.0, pytest.param(2.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "forget"), [pytest.param("heracles", 0, marks=pytest.mark.slow), ("responsive", 0), ("responsive", 2)]
)
def test_every_history_of_five_ticks(name: str, forget: int, poll_seconds: float, calm: Calm) -> None:
    times = {"poll_seconds": poll_seconds, "cool_down_seconds": 2.0, "forget_strikes_seconds": float(forget)}
    profile = load_profile(name).model_copy(update=times)
    shield = Shield(profile, LIMITS)
    readings = {(t, letter): calm(float(t), **changes) for t in range(5) for letter, changes in LETTERS.items()}
    for history in itertools.product(LETTERS, repeat=5):
        shield.reset()
        clerk = Clerk(profile, cool_ticks=2, forget_ticks=forget)
        for tick, letter in enumerate(history):
            verdict = shield.rule(readings[tick, letter], LIMITS.minimum, LIMITS.minimum)
            assert verdict.allocation.frozen == clerk.frozen(tick, letter), (history, tick)


def test_the_grid_covers_every_guard_with_a_memory(profile: Profile) -> None:
    """A guard added to the profiles and not to this file would be tested in its start state only."""
    known = {LoadGate, SlackGate, SlackFloor, SlackHold, Overrun, GrowthRate}
    known |= {HarmEvidence} if profile.measured else set()
    assert {type(guard) for guard in profile.guards() if guard.start() is not None} == known
