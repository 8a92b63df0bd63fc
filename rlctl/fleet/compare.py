"""New bundle against old on the hosts of a fleet, as a real fleet can tell: some hosts have it, others do not.

Fisher's randomisation test: the hosts with the new bundle were chosen by chance within each kind. If the new bundle
were the same as the old one, any other choice of hosts would have been as good, so the differences for many other
choices show how large a difference chance alone makes. The test assumes no distribution of misses, which are rare, come
in bursts and differ from host to host, and it holds for ten hosts as for a hundred. Each host's own baseline is
subtracted first.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.arrays import Array, Flags

CHOICES = 9999
"""Other choices of hosts that are drawn, which bounds the smallest chance that can be told from zero."""


class Effect(NamedTuple):
    """How much worse the new bundle is, in points.

    Attributes:
        points: Mean of the hosts that have it, less the mean of the others of their kinds.
        low, high: Interval whose ends are each exceeded by chance as often as one look may err.
        chance: How often a bundle that is worse by no more than the tolerance would look as bad.
    """

    points: float
    low: float
    high: float
    chance: float

    def as_json(self) -> dict[str, float]:
        """All fields by name, rounded."""
        return {name: round(value, 6) for name, value in self._asdict().items()}


def compare(worse: Array, treated: Flags, kinds: NDArray[np.intp], error: float, most: float, seed: int) -> Effect:
    """Compare hosts that have the new bundle with those of their kinds that do not.

    Args:
        worse: How much worse each host fares than in its baseline, in points, shape (n,).
        treated: Hosts that have the new bundle; bool, shape (n,).
        kinds: Kind of each host, shape (n,); a kind without hosts on either side says nothing.
        error: Chance that one look may err by.

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
    """Smallest possible `Effect.chance`: one by the number of possible choices of hosts, or of choices drawn."""
    ways = 1.0
    for kind in np.unique(kinds):
        here = kinds == kind
        ways *= math.comb(int(here.sum()), int(treated[here].sum()))
    return 1.0 / min(ways, CHOICES + 1.0)


def _choices(rng: np.random.Generator, hosts: int, number: int) -> NDArray[np.intp]:
    """Random choices of `number` of the hosts, shape (CHOICES, number)."""
    return rng.random((CHOICES, hosts)).argpartition(number - 1, axis=1)[:, :number]


def _difference(values: Array, sums: Array | np.float64, number: int) -> Array:
    """Mean of some hosts less the mean of the others, from the sum over the former."""
    difference: Array = np.asarray(sums / number - (values.sum() - sums) / (len(values) - number))
    return difference
