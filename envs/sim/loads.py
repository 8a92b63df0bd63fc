"""Load over time for simulated hosts: a share of the LC's maximum per tick, different for every seed.

A load model is a value: frozen, comparable, picklable. All chance comes from the counter-based generator of the
simulator, so a seed has the same load with any version of numpy and in any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from rlctl.envs.arrays import Array
from rlctl.envs.sim.noise import between, normals, uniforms
from rlctl.envs.sim.plant import LoadModel
from rlctl.envs.testbed import traces
from rlctl.envs.testbed.traces import MOST_RATIO, Trace, TraceError, built, share_beyond

Order = Literal["triangle", "shuffled", "up", "down", "up-down"]

# Place of the loads' random numbers in the generator: a tick that no host ever reaches.
LOAD_TICK = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """Rungs from low to high, each held for a while, then again from the first.

    Args:
        low_ratio, high_ratio: The lowest and the highest rung.
        rungs: How many there are in a round; from bottom to top for triangle, whose round is up and down.
        step_seconds: Time on each.
        order: triangle (up and down, begun at a place that depends on the seed), shuffled (a permutation by the
            seed), up, down, or up-down (every second rung on each way).
    """

    low_ratio: float
    high_ratio: float
    rungs: int
    step_seconds: float
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        _check_range(low_ratio=self.low_ratio, high_ratio=self.high_ratio)
        _check_positive(step_seconds=self.step_seconds, rungs=self.rungs)
        if not isinstance(self.rungs, int):
            raise TraceError(f"rungs: a whole number is needed, not {self.rungs!r}")
        if self.order not in get_args(Order):
            raise TraceError(f"order: one of {', '.join(get_args(Order))} is needed, not {self.order!r}")
        if self.order == "up-down" and self.rungs < 3:
            raise TraceError(f"rungs: up-down takes 3 or more, not {self.rungs}: it would never reach high_ratio")

    def __call__(self, seed: int, ticks: int, tick_seconds: float) -> Array:
        """Load in each tick, shape (ticks,)."""
        rungs = self._rungs(seed)
        # A hair more, so that 0.1-s ticks do not fall short of a step's end by a rounding error.
        step = np.floor(np.arange(ticks) * tick_seconds / self.step_seconds + 1e-9).astype(int)
        return np.asarray(rungs[step % len(rungs)])

    def _rungs(self, seed: int) -> Array:
        if self.order == "up-down":
            up = np.linspace(self.low_ratio, self.high_ratio, (self.rungs + 1) // 2)
            return np.concatenate((up, up[::-1][self.rungs % 2 :]))
        rungs = np.linspace(self.low_ratio, self.high_ratio, self.rungs)
        if self.order == "triangle":
            both_ways = np.concatenate((rungs, rungs[-2:0:-1]))
            return np.roll(both_ways, int(_uniforms(seed, 1)[0] * len(both_ways)))
        if self.order == "shuffled":
            return rungs[np.argsort(_uniforms(seed, self.rungs))]
        return rungs if self.order == "up" else rungs[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A day: a wave with a second harmonic and slow noise, begun at an hour that depends on the seed.

    Args:
        mean_ratio: Middle between the day's lowest and highest load.
        swing_ratio: From there to either.
        harmonic_ratio: Second harmonic by the first: a steeper morning, a second peak.
        high_ratio: Clipped there; mean and swing together when None.
    """

    mean_ratio: float
    swing_ratio: float
    period_seconds: float
    harmonic_ratio: float = 0.0
    noise_ratio: float = 0.0
    noise_seconds: float = 30.0
    high_ratio: float | None = None

    def __post_init__(self) -> None:
        _check_shares(mean_ratio=self.mean_ratio, swing_ratio=self.swing_ratio, noise_ratio=self.noise_ratio)
        _check_shares(harmonic_ratio=self.harmonic_ratio)
        _check_shares(**{"high_ratio" if self.high_ratio is not None else "mean_ratio + swing_ratio": self._high})
        _check_positive(period_seconds=self.period_seconds, noise_seconds=self.noise_seconds)

    def __call__(self, seed: int, ticks: int, tick_seconds: float) -> Array:
        """Load in each tick, shape (ticks,)."""
        day = np.arange(ticks) * tick_seconds / self.period_seconds + _uniforms(seed, 1)[0]
        # Correlated noise: the load of a minute wanders, it does not jump from tick to tick.
        noise = self.noise_ratio * _red_noise(seed, ticks, math.exp(-tick_seconds / self.noise_seconds))
        return np.asarray(np.clip(self.mean_ratio + self.swing_ratio * self._shape(day) + noise, 0.0, self._high))

    def _shape(self, day: Array) -> Array:
        """The day between -1 and 1."""

        def wave(at: Array) -> Array:
            return np.sin(2.0 * np.pi * at) + self.harmonic_ratio * np.sin(4.0 * np.pi * at)

        # The extremes of a sine with its harmonic have no simple form: the day's are looked up on a fine grid.
        whole = wave(np.linspace(0.0, 1.0, 20_001))
        low, high = whole.min(), whole.max()
        return np.asarray((2.0 * wave(day) - low - high) / (high - low))

    @property
    def _high(self) -> float:
        return self.mean_ratio + self.swing_ratio if self.high_ratio is None else self.high_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """Markov-modulated: calm stretches and bursts in turn, each of exponential length and of a level of its own.

    Args:
        calm_seconds, burst_seconds: Mean lengths; none is shorter than a tick.
    """

    calm_low_ratio: float
    calm_high_ratio: float
    burst_low_ratio: float
    burst_high_ratio: float
    calm_seconds: float
    burst_seconds: float

    def __post_init__(self) -> None:
        _check_range(calm_low_ratio=self.calm_low_ratio, calm_high_ratio=self.calm_high_ratio)
        _check_range(burst_low_ratio=self.burst_low_ratio, burst_high_ratio=self.burst_high_ratio)
        _check_positive(calm_seconds=self.calm_seconds, burst_seconds=self.burst_seconds)

    def __call__(self, seed: int, ticks: int, tick_seconds: float) -> Array:
        """Load in each tick, shape (ticks,)."""
        # A Markov-modulated rate (Fischer and Meier-Hellstern 1993, The Markov-modulated Poisson process cookbook):
        # calm and burst take turns, and each lasts for an exponential time, by inversion of its distribution.
        chance = _uniforms(seed, 2 * ticks).reshape(2, ticks)
        odd = np.arange(ticks) % 2 == 1
        mean_ticks = np.where(odd, self.burst_seconds, self.calm_seconds) / tick_seconds
        lengths = np.maximum(np.round(-np.log(chance[0]) * mean_ticks), 1.0).astype(int)
        calm = between((self.calm_low_ratio, self.calm_high_ratio), chance[1])
        burst = between((self.burst_low_ratio, self.burst_high_ratio), chance[1])
        ends = np.cumsum(lengths)
        return np.asarray(np.where(odd, burst, calm)[np.searchsorted(ends, np.arange(ticks), side="right")])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCrowd:
    """Calm, but for crowds that come at once and leave by and by.

    Args:
        peak_low_ratio, peak_high_ratio: Range of what a crowd takes the load to.
        decay_seconds: Time in which a crowd falls to 1/e.
        every_seconds: One crowd comes in each stretch of this length, anywhere in its first half.
    """

    calm_ratio: float
    peak_low_ratio: float
    peak_high_ratio: float
    decay_seconds: float
    every_seconds: float

    def __post_init__(self) -> None:
        _check_range(peak_low_ratio=self.peak_low_ratio, peak_high_ratio=self.peak_high_ratio)
        _check_range(calm_ratio=self.calm_ratio, peak_low_ratio=self.peak_low_ratio)
        _check_positive(decay_seconds=self.decay_seconds, every_seconds=self.every_seconds)

    def __call__(self, seed: int, ticks: int, tick_seconds: float) -> Array:
        """Load in each tick, shape (ticks,)."""
        now = np.arange(ticks) * tick_seconds
        crowds = math.ceil(ticks * tick_seconds / self.every_seconds)
        place, height = _uniforms(seed, 2 * crowds).reshape(2, crowds)
        # One crowd a stretch, in its first half: two never add up to more than a peak.
        starts = (np.arange(crowds) + 0.5 * place) * self.every_seconds
        peaks = between((self.peak_low_ratio, self.peak_high_ratio), height)
        since = now[None, :] - starts[:, None]
        # At once up, then exp(-t / decay): how a front page's readers come and go.
        left = np.where(since >= 0.0, np.exp(-np.maximum(since, 0.0) / self.decay_seconds), 0.0)
        more = ((peaks - self.calm_ratio)[:, None] * left).sum(axis=0)
        return np.asarray(np.minimum(self.calm_ratio + more, self.peak_high_ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomWalk:
    """A walk that turns round at both ends.

    Args:
        low_ratio, high_ratio: The ends; it begins anywhere between them.
        sd_ratio: Standard deviation of its way in a second; it grows with the root of the time.
    """

    low_ratio: float
    high_ratio: float
    sd_ratio: float

    def __post_init__(self) -> None:
        _check_range(low_ratio=self.low_ratio, high_ratio=self.high_ratio)
        _check_positive(sd_ratio=self.sd_ratio)

    def __call__(self, seed: int, ticks: int, tick_seconds: float) -> Array:
        """Load in each tick, shape (ticks,)."""
        width = self.high_ratio - self.low_ratio
        steps = self.sd_ratio * math.sqrt(tick_seconds) * _normals(seed, ticks)
        way = width * _uniforms(seed, 1)[0] + np.cumsum(steps)
        # Folded like paper: reflections at both ends are a zigzag of twice the width.
        folded = np.abs(way % (2.0 * width) - width) if width else np.zeros(ticks)
        return np.asarray(self.low_ratio + width - folded)


@dataclass(frozen=True, slots=True)
class Traced:
    """A trace of the testbed, with rates as shares.

    Args:
        trace: The load over time as shares of the LC's maximum.
        phase_seconds: The seed begins it anywhere within so many seconds; 0 begins it at its begin.
    """

    trace: Trace
    phase_seconds: float = 0.0

    def __call__(self, seed: int, ticks: int, tick_seconds: float) -> Array:
        """Load in each tick, shape (ticks,)."""
        start = self.phase_seconds * float(_uniforms(seed, 1)[0])
        return np.array([self.trace.rate(start + tick * tick_seconds) for tick in range(ticks)])


KINDS: Mapping[str, Callable[..., LoadModel]] = {
    "staircase": Staircase,
    "diurnal": Diurnal,
    "bursty": Bursty,
    "flash-crowd": FlashCrowd,
    "random-walk": RandomWalk,
}

PERIODS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "sinusoid": lambda options: float(options["period"]),
    "steps": lambda options: float(options["step_seconds"]) * len(options["rates"]),
    "bursts": lambda options: 1e6 * float(options["every"]),  # other bursts, not the same ones later
}
"""Kinds of trace that may begin anywhere, and within how many seconds."""


def from_config(config: Mapping[str, Any]) -> LoadModel:
    """Build a load model from a mapping such as `{"kind": "staircase", "low_ratio": 0.5, ...}`.

    The kinds are staircase, diurnal, bursty, flash-crowd and random-walk, whose other keys are the arguments of their
    classes; and those of `rlctl.envs.testbed.traces` with rates as shares of the LC's maximum. Of the latter sinusoid,
    steps and bursts take `random_phase: true`: the seed decides where in them a run begins.

    Raises:
        TraceError: Unknown kind, unknown or missing key, or a value that is impossible.
    """
    kind = config.get("kind")
    if isinstance(kind, str) and kind in traces.KINDS:
        return _trace_load(kind, dict(config))
    return built(config, KINDS, others=traces.KINDS)


def _trace_load(kind: str, options: dict[str, Any]) -> LoadModel:
    phase = options.pop("random_phase", False)
    if not isinstance(phase, bool):
        raise TraceError(f"random_phase: true or false is needed, not {phase!r}")
    if phase and kind not in PERIODS:
        raise TraceError(f"random_phase: {kind} has no phase; {', '.join(PERIODS)} have one")
    trace = traces.shares_from_config(options)
    return Traced(trace, PERIODS[kind](options) if phase else 0.0)


def _check_shares(**ratios: object) -> None:
    """Each a share of the maximum load."""
    for key, value in ratios.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= traces.LARGEST:
            raise TraceError(f"{key}: a share from 0 to {MOST_RATIO:g} is needed, not {value!r}")
        if value > MOST_RATIO:
            raise TraceError(f"{key}: {share_beyond(value)}")


def _check_range(**ends: float) -> None:
    """Two shares, the first one not above the second."""
    _check_shares(**ends)
    (low, low_ratio), (high, high_ratio) = ends.items()
    if low_ratio > high_ratio:
        raise TraceError(f"{low} ({low_ratio:g}) is above {high} ({high_ratio:g})")


def _check_positive(**numbers: object) -> None:
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= traces.LARGEST:
            raise TraceError(f"{key}: a number above zero is needed, not {value!r}")


def _uniforms(seed: int, count: int) -> Array:
    return uniforms(np.array([seed], np.uint64), LOAD_TICK, count)[:, 0]


def _normals(seed: int, count: int) -> Array:
    return normals(np.array([seed], np.uint64), LOAD_TICK + 1, count + count % 2)[:count, 0]


def _red_noise(seed: int, ticks: int, keep: float) -> Array:
    """Noise of unit variance in which a share `keep` of each tick is that of the tick before."""
    # A first-order autoregression x' = keep x + sqrt(1 - keep^2) e: its correlation time is -tick / ln keep.
    fresh = math.sqrt(1.0 - keep * keep) * _normals(seed, ticks)
    noise = np.zeros(ticks)
    level = float(_uniforms(seed, 2)[1]) - 0.5
    for tick, news in enumerate(fresh.tolist()):
        level = keep * level + news
        noise[tick] = level
    return noise
