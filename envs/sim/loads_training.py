"""The load that policies are trained under: a random mixture of waves, steps and bursts, another one for every seed.

It depends on the seed and the time only. A longer run begins with the same load as a shorter one; a host has the same
load alone or among others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array
from rlctl.envs.sim.noise import between, numbered_uniform, uniforms
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


def training_load(seed: int, ticks: int, tick_seconds: float) -> Array:
    """One host's load as a share of the LC's maximum in each tick, shape (ticks,); the seed decides all of it."""
    return training_loads(np.array([seed], np.uint64), ticks, tick_seconds)[:, 0]


def training_loads(seeds: NDArray[np.uint64], ticks: int, tick_seconds: float) -> Array:
    """The loads of many hosts at once, shape (ticks, n); column i is `training_load(seeds[i], ...)`."""
    draws = uniforms(seeds, 0, DRAWS, SHAPE)
    kind, low, rise, period, phase, step = draws[:6]
    # Nights from .1 to .7 of the maximum, days between them and the maximum: room for BE on some hosts, none on others.
    low = 0.10 + 0.60 * low
    high = low + (1.0 - low) * (0.2 + 0.8 * rise)
    time: Array = np.arange(ticks, dtype=np.float64)[:, None] * tick_seconds
    # All three shapes are computed for all hosts and one is taken: no loop over hosts.
    wave = 0.5 - 0.5 * np.cos(2.0 * np.pi * (time / _log_between(PERIOD_SECONDS, period) + phase))
    level = numbered_uniform(seeds, (time / between(STEP_SECONDS, step)).astype(np.int64), LEVEL)
    share = np.where(kind < WAVE_SHARE, wave, np.where(kind < WAVE_SHARE + STEPS_SHARE, level, phase))
    loads = low + (high - low) * share + _bursts(seeds, time, draws[6:])
    within: Array = np.clip(loads, LOWEST, HIGHEST)
    return within


def _bursts(seeds: NDArray[np.uint64], time: Array, draws: Array) -> Array:
    """What bursts add: one at a random place of each gap, all of a host's alike."""
    has, spacing, size = draws
    gap, length = between(GAP_SECONDS, spacing), between(BURST_SECONDS, size)
    # One burst a gap, whose place within it is drawn anew for each.
    number = (time / gap).astype(np.int64)
    inside = in_burst(time, number, numbered_uniform(seeds, number, BURST), gap, length) & (has < BURSTS_SHARE)
    return np.where(inside, between(BURST_HEIGHT, has / BURSTS_SHARE), 0.0)


def _log_between(span: tuple[float, float], draw: Array) -> Array:
    span_of_logs: Array = span[0] * np.exp(np.log(span[1] / span[0]) * draw)
    return span_of_logs
