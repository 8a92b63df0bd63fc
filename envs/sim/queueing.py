"""Queueing theory in arrays: Erlang C, Allen and Cunneen's approximation, and a backlog that lasts beyond a window.

Symbols are those of the textbooks: m servers, utilisation rho, service time s, squared coefficients of variation of
arrivals (ca2) and service (cs2). All arguments broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from rlctl.envs.arrays import Array

# Control periods for which arrivals are kept: a request that waits longer is taken to have waited so long.
REMEMBERED = 64

# Points of a period at which the wait of those that complete is computed.
SHARES = 5

_NEWTON_STEPS = 6
_NEARLY_EQUAL = 1e-6  # two exponentials of the same rate have a limit of their own, which this keeps away from


def delay_probability(servers: Array, rho: Array) -> Array:
    """Erlang's C: the probability that an arrival must wait in M/M/m; 1 where rho is 1 or more.

    Whole numbers of servers only.
    """
    servers, rho = np.broadcast_arrays(np.asarray(servers, float), np.asarray(rho, float))
    if servers.size and servers.max() == 1.0:
        return np.minimum(rho, 1.0)
    # Erlang C from Erlang B, by the recursion B(k) = a B(k-1) / (k + a B(k-1)), which neither overflows nor cancels
    # (Gross, Shortle, Thompson and Harris 2008, Fundamentals of Queueing Theory, chapter 2).
    offered = servers * rho
    blocked = np.ones_like(offered)
    for k in range(1, int(servers.max()) + 1 if servers.size else 1):
        step = offered * blocked / (k + offered * blocked)
        blocked = np.where(servers >= k, step, blocked)
    busy = np.minimum(rho, 1.0)
    return np.where(rho >= 1.0, 1.0, blocked / (1.0 - busy * (1.0 - blocked)))


def conditional_wait(servers: Array, rho: Array, service: Array, ca2: Array, cs2: Array) -> Array:
    """Mean wait of those that wait at all, in the unit of `service`; infinite where rho is 1 or more."""
    # Allen and Cunneen's approximation of G/G/m: the wait of M/M/m times (ca2 + cs2) / 2 (Allen 1990, Probability,
    # Statistics, and Queueing Theory). Exact for M/M/m, and for M/G/1 (Pollaczek and Khinchine).
    with np.errstate(divide="ignore"):
        return np.where(rho < 1.0, service / (servers * np.maximum(1.0 - rho, 0.0)) * (ca2 + cs2) / 2.0, np.inf)


def sojourn_quantile(q: float, delayed: Array, wait: Array, service: Array, cs2: Array) -> Array:
    """The q-quantile of wait plus service.

    Args:
        q: The quantile, in (0, 1).
        wait: Mean wait of those that wait; finite.
        cs2: Squared coefficient of variation of the service time.

    Returns:
        In the unit of `wait` and `service`.
    """
    # A wait, where there is one, is exponential: exact for M/M/m. The service time is a constant plus an exponential
    # of the right mean and variance, for cs2 up to 1. So P(T > x) is a sum of two exponentials.
    spread = np.maximum(np.sqrt(np.minimum(cs2, 1.0)) * service, 1e-3 * service)
    constant = service - spread
    wait = np.maximum(wait, 1e-6 * service)  # none at all (D/D/1) has no rate
    wait = np.where(np.abs(wait - spread) < _NEARLY_EQUAL * spread, wait * (1.0 + 3.0 * _NEARLY_EQUAL), wait)
    weight_wait = delayed * wait / (wait - spread)
    weight_spread = 1.0 - weight_wait
    left = 1.0 - q
    # Newton on ln P(T > x); where wait < spread a weight is negative and a step may pass the root. Six steps come
    # within 1 % for all arguments tried (tests/envs/sim/test_queueing_theory.py).
    x = spread * -np.log(left) + np.where(delayed > left, wait * np.log(np.maximum(delayed, left) / left), 0.0)
    for _ in range(_NEWTON_STEPS):
        slow, fast = weight_wait * np.exp(-x / wait), weight_spread * np.exp(-x / spread)
        tail = np.maximum(slow + fast, 1e-300)
        slope = np.maximum((slow / wait + fast / spread) / tail, 1e-12)
        x = np.maximum(x + np.log(tail / left) / slope, 0.0)
    quantile: Array = constant + x
    return quantile


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests that wait in the order of their arrival, a fluid, carried from one control period to the next.

    It is counted in requests, so that it stays what it is when the LC's CPUs change. It knows when its requests came:
    one that completes at t has waited since it arrived, when the rate of arrivals may have been another.

    Attributes:
        came: Number of arrivals so far at the end of each period, newest first; arrays of shape (n,).
        gone: Number of completions so far, shape (..., n).
    """

    came: tuple[Array, ...]
    gone: Array
    seconds: float

    @classmethod
    def none(cls, count: int, seconds: float) -> Self:
        """An empty backlog on n hosts."""
        return cls((np.zeros(count),), np.zeros(count), seconds)

    @property
    def requests(self) -> Array:
        """Number of requests that wait, shape (..., n)."""
        return self.came[0] - self.gone

    def after(self, q: float, offered: Array, capacity: Array) -> tuple[Self, Array, Array]:
        """Let one period pass.

        Args:
            offered: Arrivals per second.
            capacity: Requests per second that can be worked off.

        Returns:
            The backlog then, the q-quantile of the wait of those that completed, and the wait of the oldest that has
            not; seconds.
        """
        came = self.came[0] + offered * self.seconds
        gone = np.minimum(came, self.gone + capacity * self.seconds)
        rows = (came, *self.came)[:REMEMBERED]
        if (gone >= came).all() and (self.gone >= self.came[0]).all():
            return replace(self, came=rows[:2], gone=gone), np.zeros(gone.shape), np.zeros(gone.shape)
        # The wait of those that complete mostly grows or shrinks over the whole period, so that its quantile is the
        # wait at share q or 1 - q of them; where it turns in between, it is near the largest.
        shares = np.append(np.linspace(1.0 - q, q, SHARES), 1.0).reshape(-1, *(1,) * gone.ndim)
        numbers = self.gone + shares * (gone - self.gone)
        at = np.minimum((numbers - self.gone) / capacity, self.seconds)
        at[-1] = self.seconds
        waited = _waiting_times(rows, numbers, at, self.seconds)
        while len(rows) > 2 and (rows[-2] <= gone).all():
            rows = rows[:-1]
        return replace(self, came=rows, gone=gone), waited[:-1].max(axis=0), np.where(gone < came, waited[-1], 0.0)


def _waiting_times(rows: tuple[Array, ...], numbers: Array, at: Array, seconds: float) -> Array:
    """How long requests have waited at some time after the period's begin; rows newest first, `at` in seconds."""
    waited = at + (len(rows) - 1.0) * seconds
    sought = np.ones(numbers.shape, bool)
    for back, (high, low) in enumerate(pairwise(rows)):
        here = sought & (numbers >= low)
        into = (numbers - low) / np.maximum(high - low, 1e-9)
        waited = np.where(here, np.maximum(at + (back - into) * seconds, 0.0), waited)
        sought &= ~here
        if not sought.any():
            break
    return waited
