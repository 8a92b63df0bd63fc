"""Random numbers that depend on the seed, the tick and the channel only, for any number of hosts at once.

A counter-based generator: each number is a hash of (seed, tick, channel). So a host draws the same noise alone or among
a thousand others, whatever the managers do; managers are compared on common random numbers by construction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TICK = np.uint64(0xD1342543DE82EF95)  # odd, so that ticks and channels step through different sequences
_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31, 12))
_SCALE = 2.0**-52  # of 52 bits and a half, which a float holds exactly: never 0, never 1


def uniforms(seeds: NDArray[np.uint64], tick: int, channels: int, first: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1).

    Args:
        seeds: One per host, shape (n,).
        first: Number of the first channel; give each use its own.

    Returns:
        Shape (channels, n).
    """
    with np.errstate(over="ignore"):
        place = np.uint64(tick) * _TICK + np.arange(first + 1, first + channels + 1, dtype=np.uint64) * _GOLDEN
        bits = _mix_bits(_mix_bits(seeds * _GOLDEN + _MIX_2)[None, :] + place[:, None])
    return ((bits >> _SHIFTS[3]).astype(np.float64) + 0.5) * _SCALE


def normals(seeds: NDArray[np.uint64], tick: int, channels: int, first: int = 0) -> NDArray[np.float64]:
    """Standard normal numbers, shape (channels, n); `channels` must be even."""
    # Box and Muller 1958, A note on the generation of random normal deviates.
    half = channels // 2
    uniform = uniforms(seeds, tick, channels, first)
    radius = np.sqrt(-2.0 * np.log(uniform[:half]))
    angle = (2.0 * np.pi) * uniform[half:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))


def numbered_uniform(seeds: NDArray[np.uint64], numbers: NDArray[np.int64], channel: int) -> NDArray[np.float64]:
    """A uniform number per host for each of some whole numbers: of a step, a stretch, a gap.

    Args:
        seeds: One per host, shape (n,).
        numbers: Shape (m, n), or (m, 1) for the same on all hosts.

    Returns:
        Shape (m, n).
    """
    numbers = np.broadcast_to(numbers, (len(numbers), len(seeds)))
    first, last = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, -1)
    drawn = [uniforms(seeds, number % 2**64, 1, channel) for number in range(first, last + 1)]
    return np.take_along_axis(np.concatenate(drawn or [np.zeros((0, len(seeds)))]), numbers - first, axis=0)


def between(span: tuple[float, float], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """The number at some share of the way from one end of a range to the other."""
    return span[0] + (span[1] - span[0]) * share


def _mix_bits(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> _SHIFTS[0])) * _MIX_1
    bits = (bits ^ (bits >> _SHIFTS[1])) * _MIX_2
    return bits ^ (bits >> _SHIFTS[2])
