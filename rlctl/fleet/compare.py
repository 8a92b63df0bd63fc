"""New bundle against old on the hosts of a fleet, as a real fleet can tell: some hosts have it, others do not.

Hosts were chosen by chance within each kind. So were the new bundle no other than the old one, any other choice would
have done as well, and what the same difference comes to for such other choices is how large it gets by chance alone
(Fisher's randomisation test). It needs no distribution of misses, which are rare, come in heaps, and differ from host
to host, and it holds for ten hosts as for a hundred. Each host's own baseline is taken off first.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHOICES", "Effect", "compare", "least_chance"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

CHOICES = 9999
"""Other choices of hosts that are drawn."""


class Effect(NamedTuple):
    """How much worse the new bundle is, in points.

    Attributes:
        points: Mean of the hosts that have it, less that of the others of their kinds.
        low, high: Interval; each end is exceeded by chance as often as one look may err.
        chance: How often a bundle that is worse by no more than is put up with would look as bad.
    """

    points: float
    low: float
    high: float
    chance: float

    def as_json(self) -> dict[str, float]:
        """By name."""
        return {name: round(value, 6) for name, value in self._asdict().items()}


def compare(worse: Array, treated: Flags, kinds: NDArray[np.intp], error: float, most: float, seed: int) -> Effect:
    """Compare hosts that have the new bundle with those of their kinds that do not.

    Args:
        worse: How much worse each host fares than in its baseline, in points, shape (n,).
        treated: Which have it.
        kinds: Of each host; a kind without hosts on either side says nothing.
        error: Chance that one look may err by.
        most: Points that are put up with.
        seed: Of the choices that are drawn.

    Raises:
        ValueError: No kind has hosts on both sides.
    """
    strata = [kind for kind in np.unique(kinds) if 0 < int(treated[kinds == kind].sum()) < int((kinds == kind).sum())]
    if not strata:
        raise ValueError("no kind has hosts with and without the new bundle")
    rng = np.random.default_rng(seed)
    total = sum(int(treated[kinds == kind].sum()) for kind in strata)
    points, others = 0.0, np.zeros(CHOICES)
    for kind in strata:
        here = kinds == kind
        values, chosen = worse[here], treated[here]
        number = int(chosen.sum())
        sums = np.take(values, _choices(rng, len(values), number)).sum(axis=1)
        points += number / total * float(_difference(values, values[chosen].sum(), number))
        others += number / total * _difference(values, sums, number)
    low, high = points - np.quantile(others, [1.0 - error, error])
    chance = (1.0 + float(np.sum(others >= points - most))) / (CHOICES + 1.0)
    return Effect(points, float(low), float(high), chance)


def least_chance(treated: Flags, kinds: NDArray[np.intp]) -> float:
    """The least that `Effect.chance` can be: one choice of all that there are, or of all that are drawn."""
    ways = 1.0
    for kind in np.unique(kinds):
        here = kinds == kind
        ways *= math.comb(int(here.sum()), int(treated[here].sum()))
    return 1.0 / min(ways, CHOICES + 1.0)


def _choices(rng: np.random.Generator, hosts: int, number: int) -> NDArray[np.intp]:
    """Other choices of so many hosts, shape (CHOICES, number)."""
    return rng.random((CHOICES, hosts)).argpartition(number - 1, axis=1)[:, :number]


def _difference(values: Array, sums: Array | np.float64, number: int) -> Array:
    """Mean of some hosts less that of the others, given the sum of the former."""
    difference: Array = np.asarray(sums / number - (values.sum() - sums) / (len(values) - number))
    return difference
