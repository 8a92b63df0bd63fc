"""The load that policies are trained under: a random mixture of waves, steps and bursts, another one for every seed.

It depends on the seed and the time only. A longer run begins with the same load as a shorter one; a host has the same
load alone or among others.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array
from rlctl.envs.law import compiled, law
from rlctl.envs.rows import Row, Rows
from rlctl.envs.sim.elementary import cosine_and_sine
from rlctl.envs.sim.noise import between, key_of, uniform_of, uniforms
from rlctl.envs.testbed.traces import in_burst

SHAPE, LEVEL, BURST = 4000, 4100, 4200  # first noise channels: of the shape, of a step's level, of a burst's place
DRAWS = 9

# Beyond the LC's maximum by a little: a policy must have seen an LC that misses by itself.
LOWEST, HIGHEST = 0.02, 1.03  # loads stay within, as shares of the LC's maximum
WAVE_SHARE, STEPS_SHARE = 0.5, 0.35  # of the hosts; the rest has a constant level
BURSTS_SHARE = 0.5  # of the hosts, on top
PERIOD_SECONDS = (20.0, 1800.0)  # of a wave, log-uniform: from one that a manager can barely follow to a slow one
STEP_SECONDS = (20.0, 180.0)
GAP_SECONDS = (60.0, 600.0)  # one burst in each
BURST_SECONDS = (5.0, 30.0)
BURST_HEIGHT = (0.10, 0.50)


LOAD = np.dtype(
    [
        ("key", "u8"), *((name, "f8") for name in (
            "low", "high", "wave", "steps", "phase", "period_seconds", "step_seconds", "gap_seconds", "burst_seconds",
            "burst_height",
        )),
    ]
)  # fmt: skip
"""The load of one host: `key` of its noise, the levels that it lies between, 1 where it is a wave or in steps, and what
bursts add."""


def training_load(seed: int, ticks: int, tick_seconds: float) -> Array:
    """One host's load as a share of the LC's maximum in each tick, shape (ticks,); the seed decides all of it."""
    return training_loads(load_rows(np.array([seed], np.uint64)), 0, ticks, tick_seconds)[:, 0]


def load_rows(seeds: NDArray[np.uint64]) -> Rows:
    """What the loads of many hosts follow from: LOAD, shape (n,)."""
    kind, low, rise, period, phase, step, has, spacing, size = uniforms(seeds, 0, DRAWS, SHAPE)
    rows = np.empty(len(seeds), LOAD)
    rows["key"] = key_of(seeds)
    # Nights from .1 to .7 of the maximum, days between them and the maximum: room for BE on some hosts, none on others.
    rows["low"] = low = 0.10 + 0.60 * low
    rows["high"] = low + (1.0 - low) * (0.2 + 0.8 * rise)
    rows["wave"], rows["steps"] = kind < WAVE_SHARE, (kind >= WAVE_SHARE) & (kind < WAVE_SHARE + STEPS_SHARE)
    rows["phase"] = phase
    rows["period_seconds"] = PERIOD_SECONDS[0] * (PERIOD_SECONDS[1] / PERIOD_SECONDS[0]) ** period
    rows["step_seconds"] = between(STEP_SECONDS, step)
    rows["gap_seconds"], rows["burst_seconds"] = between(GAP_SECONDS, spacing), between(BURST_SECONDS, size)
    rows["burst_height"] = np.where(has < BURSTS_SHARE, between(BURST_HEIGHT, has / BURSTS_SHARE), 0.0)
    return rows


def training_loads(rows: Rows, first: int, ticks: int, tick_seconds: float) -> Array:
    """The loads of many hosts in so many ticks from the first on, shape (ticks, n)."""
    loads = np.empty((ticks, len(rows)))
    compiled(_fill)(rows, first, tick_seconds, loads)
    return loads


@law
def _fill(rows: Rows, first: int, tick_seconds: float, loads: Array) -> None:
    for tick in range(len(loads)):
        now = loads[tick]
        for place in range(len(rows)):
            now[place] = load_at(rows[place], (first + tick) * tick_seconds)


@law
def load_at(load: Row, seconds: float) -> float:
    """A host's load as a share of its LC's maximum, so many seconds after the start."""
    # A wave, steps of which each has a level of its own, or one level for ever.
    turns = seconds / load["period_seconds"] + load["phase"]
    wave = 0.5 - 0.5 * cosine_and_sine(turns - math.floor(turns))[0]
    level = uniform_of(load["key"], math.floor(seconds / load["step_seconds"]), LEVEL)
    share = wave if load["wave"] != 0.0 else level if load["steps"] != 0.0 else load["phase"]
    # One burst a gap, whose place within it is drawn anew for each.
    gap, length = load["gap_seconds"], load["burst_seconds"]
    number = math.floor(seconds / gap)
    bursts = in_burst(seconds, number, uniform_of(load["key"], number, BURST), gap, length)
    burst = load["burst_height"] if bursts else 0.0
    return min(max(load["low"] + (load["high"] - load["low"]) * share + burst, LOWEST), HIGHEST)
