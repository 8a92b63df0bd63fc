"""Random numbers that depend on the seed, the tick and the channel only, for any number of hosts at once.

A counter-based generator: each number is a hash of (seed, tick, channel). So a host draws the same noise alone or among
a thousand others, whatever the managers do; managers are compared on common random numbers by construction.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.law import law
from rlctl.envs.sim.elementary import cosine_and_sine, logarithm

# SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_TICK = 0xD1342543DE82EF95  # odd, so that ticks and channels step through different sequences
_STRETCH = np.uint64(0x632BE59BD9B4E019)
_WORD = 2**64 - 1
_SCALE = 2.0**-52  # of 52 bits and a half, which a float holds exactly: never 0, never 1


@law
def mix_bits(bits: Any) -> Any:
    """SplitMix64's hash of a word of 64 bits, as a whole number or an array of them."""
    # A counter, hashed, is a sequence of which any member can be had without those before it: so all managers meet the
    # same chance at a tick, whatever they did before.
    bits = ((bits ^ (bits >> 30)) * _MIX_1) & _WORD
    bits = ((bits ^ (bits >> 27)) * _MIX_2) & _WORD
    return bits ^ (bits >> 31)


@law
def key_of(seed: Any) -> Any:
    """What a host's noise begins from."""
    return mix_bits((seed * _GOLDEN + _MIX_2) & _WORD)


@law
def uniform(key: Any, place: Any) -> Any:
    """A uniform number in (0, 1), from a host's key and one of `places`."""
    # 52 bits and a half, so that neither end is ever met: a logarithm is taken of it.
    return ((mix_bits((key + place) & _WORD) >> 12) + 0.5) * _SCALE


@law
def normal_pair(one: float, other: float) -> tuple[float, float]:
    """Two standard normal numbers from two uniform ones."""
    # Box and Muller 1958, A note on the generation of random normal deviates.
    radius, (cosine, sine) = math.sqrt(-2.0 * logarithm(one)), cosine_and_sine(other)
    return radius * cosine, radius * sine


@law
def key_of_stretch(seed: int, number: float) -> int:
    """The key of a stretch of time of one host, by its number, a whole one from 0 on."""
    stretch = int(np.uint64(number))
    return key_of((seed + int(_STRETCH) * stretch + int(_STRETCH)) & _WORD)


@cache
def _offsets(channels: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.array([(channel + 1) * _GOLDEN & _WORD for channel in channels], np.uint64)


@lru_cache(maxsize=4096)  # episodes meet the same ticks again
def places(tick: int, channels: tuple[int, ...]) -> NDArray[np.uint64]:
    """Where the numbers of some channels of a tick stand in everybody's sequence."""
    at: NDArray[np.uint64] = _offsets(channels) + np.array([tick * _TICK & _WORD], np.uint64)
    return at


def uniforms(seeds: NDArray[np.uint64], tick: int, channels: int, first: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1).

    Args:
        seeds: One per host, shape (n,).
        first: Number of the first channel; give each use its own.

    Returns:
        Shape (channels, n).
    """
    drawn: NDArray[np.float64] = uniform(key_of(seeds), places(tick, tuple(range(first, first + channels)))[:, None])
    return drawn


def normals(seeds: NDArray[np.uint64], tick: int, channels: int, first: int = 0) -> NDArray[np.float64]:
    """Standard normal numbers, shape (channels, n); `channels` must be even. As `normal_pair`."""
    half = channels // 2
    drawn = uniforms(seeds, tick, channels, first)
    radius, angle = np.sqrt(-2.0 * np.log(drawn[:half])), (2.0 * np.pi) * drawn[half:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))


@law
def uniform_of(key: Any, number: int, channel: int) -> Any:
    """A uniform number of a host, from its key, for a whole number from 0 on: of a step, a stretch, a gap."""
    place = (int(np.uint64(channel + 1)) * _GOLDEN + int(np.uint64(number)) * _TICK) & _WORD
    return uniform(key, place)


def between(span: tuple[float, float], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """The number at some share of the way from one end of a range to the other."""
    return span[0] + (span[1] - span[0]) * share
