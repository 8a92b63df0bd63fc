"""Days of load for the hosts of a fleet, computed stretch by stretch: no host's day is ever held as a whole.

A load is a function of the host's seed and of the time alone, so any stretch of any day may be asked for, and a host
has the same load alone or among others. A day has its wave (a low before dawn, a shoulder by noon, a peak in the
evening), noise that looks alike at several time scales, bursts, and crowds that come at once and leave by and by.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rlctl.envs.arrays import Array
from rlctl.envs.sim.noise import between, numbered, uniforms
from rlctl.envs.testbed.traces import in_burst
from rlctl.envs.yaml_edge import Strict

Seeds = NDArray[np.uint64]
Span = tuple[float, float]

DAY_SECONDS = 86400.0
# Most load that a crowd takes a host to, by the LC's maximum; beyond it only the length of the backlog differs.
HIGHEST = 1.25
# The day's second harmonic by its first: a steep morning and a shoulder by noon.
HARMONIC = 0.3
# Time scales of the noise, by its `seconds`; each has the same part of its variance.
OCTAVES = (1, 8, 64)

LEVEL, NOISE, BURST, CROWD = 5000, 5010, 5020, 5030  # first noise channels


class Noise(Strict):
    """Noise around the wave.

    Attributes:
        sd_ratio: About its standard deviation, as a share of the LC's maximum.
        seconds: The shortest of its time scales.
    """

    sd_ratio: float = Field(gt=0.0, le=1.0)
    seconds: float = Field(30.0, gt=0.0)


class Bursts(Strict):
    """More load for a while, at a random place of each stretch.

    Attributes:
        every_seconds: Length of a stretch.
        seconds: Length of a burst.
        height_ratio: Range of what it adds.
    """

    every_seconds: float = Field(gt=0.0)
    seconds: float = Field(gt=0.0)
    height_ratio: Span

    @model_validator(mode="after")
    def _fits(self) -> Bursts:
        if self.seconds > self.every_seconds:
            raise ValueError(f"a burst of {self.seconds:g} s does not fit into {self.every_seconds:g} s")
        return self


class Crowds(Strict):
    """A crowd comes at once, at a random time of each stretch, and leaves by and by.

    Attributes:
        every_seconds: Length of a stretch.
        decay_seconds: Time in which a crowd falls to 1/e; it is gone after a stretch.
        height_ratio: Range of what it adds at first.
    """

    every_seconds: float = Field(gt=0.0)
    decay_seconds: float = Field(gt=0.0)
    height_ratio: Span


class DayLoad(Strict):
    """The load of one kind of host; shares of the LC's maximum. Ranges are drawn from for each host.

    Attributes:
        low_ratio: Range of the day's lowest load.
        high_ratio: Range of its highest, without noise, bursts and crowds.
        peak_hour: Of the host's own time; the region shifts it.
        noise, bursts, crowds: What comes on top.
    """

    low_ratio: Span
    high_ratio: Span
    peak_hour: float = Field(20.0, ge=0.0, lt=24.0)
    noise: Noise | None = None
    bursts: Bursts | None = None
    crowds: Crowds | None = None

    @model_validator(mode="after")
    def _in_order(self) -> DayLoad:
        spans = {"low_ratio": self.low_ratio, "high_ratio": self.high_ratio}
        spans |= {"bursts.height_ratio": self.bursts.height_ratio} if self.bursts else {}
        spans |= {"crowds.height_ratio": self.crowds.height_ratio} if self.crowds else {}
        for name, (low, high) in spans.items():
            if not 0.0 <= low <= high <= HIGHEST:
                raise ValueError(f"{name}: [{low:g}, {high:g}] is no range within 0 and {HIGHEST:g}")
        return self


def day_loads(load: DayLoad, seeds: Seeds, ahead_hours: Array, begin_seconds: float, ticks: int, tick: float) -> Array:
    """A stretch of load.

    Args:
        seeds: One per host, shape (n,).
        ahead_hours: By how much each host's clock is ahead, shape (n,).

    Returns:
        Share of the LC's maximum in each tick, shape (ticks, n).
    """
    now: Array = begin_seconds + tick * np.arange(ticks, dtype=np.float64)
    levels = uniforms(seeds, 0, 2, LEVEL)
    low, high = between(load.low_ratio, levels[0]), between(load.high_ratio, levels[1])
    since_peak = now[:, None] / DAY_SECONDS + (ahead_hours - load.peak_hour) / 24.0
    ratio = low + (np.maximum(high, low) - low) * _wave(since_peak)
    if load.noise:
        ratio += load.noise.sd_ratio * _noise(seeds, now / load.noise.seconds)
    if load.bursts:
        ratio += _bursts(load.bursts, seeds, now)
    if load.crowds:
        ratio += _crowds(load.crowds, seeds, now)
    return np.clip(ratio, 0.0, HIGHEST, out=ratio)


def _wave(days: Array) -> Array:
    """The day's wave between 0 and 1; 1 where `days` is whole."""
    return (_raw(days + _PEAK) - _LEAST) / (_MOST - _LEAST)


def _raw(days: Array) -> Array:
    wave: Array = np.sin(2.0 * np.pi * days) - HARMONIC * np.sin(4.0 * np.pi * days)
    return wave


_WHOLE = np.linspace(0.0, 1.0, 14_401)
_PEAK = float(_WHOLE[_raw(_WHOLE).argmax()])
_LEAST, _MOST = float(_raw(_WHOLE).min()), float(_raw(_WHOLE).max())


def _noise(seeds: Seeds, at: Array) -> Array:
    """Numbers drawn at regular times and lines between them, at each time scale; variance about 1."""
    # Value noise in octaves (Perlin 1985, An image synthesizer): noise that looks alike at several scales, and can be
    # computed for any time without what came before. A uniform number has a variance of 1/12.
    parts = [_lines(seeds, at / scale, NOISE + place) for place, scale in enumerate(OCTAVES)]
    together: Array = np.sum(parts, axis=0) * np.sqrt(12.0 / len(OCTAVES) * 1.5)  # lines have 2/3 of the variance
    return together


def _lines(seeds: Seeds, at: Array, channel: int) -> Array:
    number = np.floor(at).astype(np.int64)[:, None]
    part = at[:, None] - number
    left, right = (numbered(seeds, end, channel) for end in (number, number + 1))
    lines: Array = (1.0 - part) * left + part * right - 0.5
    return lines


def _bursts(bursts: Bursts, seeds: Seeds, now: Array) -> Array:
    number = np.floor(now / bursts.every_seconds).astype(np.int64)[:, None]
    place, height = (numbered(seeds, number, channel) for channel in (BURST, BURST + 1))
    inside: NDArray[np.bool_] = in_burst(now[:, None], number, place, bursts.every_seconds, bursts.seconds)
    return inside * between(bursts.height_ratio, height)


def _crowds(crowds: Crowds, seeds: Seeds, now: Array) -> Array:
    number = np.floor(now / crowds.every_seconds).astype(np.int64)[:, None]
    there = np.zeros((len(now), len(seeds)))
    for stretch in (number - 1, number):
        place, height = (numbered(seeds, stretch, channel) for channel in (CROWD, CROWD + 1))
        since = now[:, None] - (stretch + place) * crowds.every_seconds
        within = (since >= 0.0) & (since < crowds.every_seconds)
        there += within * between(crowds.height_ratio, height) * np.exp(-np.abs(since) / crowds.decay_seconds)
    return there
