"""Queueing theory: Erlang C, Allen and Cunneen's approximation, and a backlog that lasts beyond a window.

Symbols are those of the textbooks: m servers, utilisation rho, service time s, squared coefficients of variation of
arrivals (ca2) and service (cs2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rlctl.envs.law import law
from rlctl.envs.rows import Row, Rows
from rlctl.envs.sim.elementary import exponential, logarithm

# Control periods for which arrivals are kept: a request that waits longer is taken to have waited so long.
REMEMBERED = 64

# Points of a period at which the wait of those that complete is computed.
SHARES = 5

BACKLOG = [("came", "f8", (REMEMBERED,)), ("newest", "i8"), ("kept", "i8"), ("gone", "f8")]
"""Of a host's row: requests that wait in the order of their arrival, a fluid, carried from one period to the next.

It is counted in requests, so that it stays what it is when the LC's CPUs change. It knows when its requests came: one
that completes at t has waited since it arrived, when the rate of arrivals may have been another. `came` is a ring: the
number of arrivals so far, at the end of each period. Of it `kept` up to `newest` count. `gone` is the number of
completions so far."""

_NEARLY_EQUAL = 1e-6  # two exponentials of the same rate have a limit of their own, which this keeps away from


@law
def delay_probability(servers: float, rho: float) -> float:
    """Erlang's C: the probability that an arrival must wait in M/M/m; 1 where rho is 1 or more.

    Whole numbers of servers only.
    """
    if servers == 1.0:
        return min(rho, 1.0)
    if rho >= 1.0:
        return 1.0
    # Erlang C from Erlang B, by the recursion B(k) = a B(k-1) / (k + a B(k-1)), which neither overflows nor cancels
    # (Gross, Shortle, Thompson and Harris 2008, Fundamentals of Queueing Theory, chapter 2).
    offered, blocked = servers * rho, 1.0
    for k in range(1, int(servers) + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1.0 - rho * (1.0 - blocked))


@law
def conditional_wait(servers: float, rho: float, service: float, ca2: float, cs2: float) -> float:
    """Mean wait of those that wait at all, in the unit of `service`; infinite where rho is 1 or more."""
    # Allen and Cunneen's approximation of G/G/m: the wait of M/M/m times (ca2 + cs2) / 2 (Allen 1990, Probability,
    # Statistics, and Queueing Theory). Exact for M/M/m, and for M/G/1 (Pollaczek and Khinchine).
    return service / (servers * (1.0 - rho)) * (ca2 + cs2) / 2.0 if rho < 1.0 else math.inf


@law
def sojourn_quantile(q: float, delayed: float, wait: float, service: float, cs2: float) -> float:
    """The q-quantile of wait plus service, in their unit.

    Args:
        q: The quantile, in (0, 1).
        wait: Mean wait of those that wait; finite.
        cs2: Squared coefficient of variation of the service time.
    """
    # A wait, where there is one, is exponential: exact for M/M/m. The service time is a constant plus an exponential
    # of the right mean and variance, for cs2 up to 1. So P(T > x) is a sum of two exponentials.
    spread = max(math.sqrt(min(cs2, 1.0)) * service, 1e-3 * service)
    constant = service - spread
    wait = max(wait, 1e-6 * service)  # none at all (D/D/1) has no rate
    if abs(wait - spread) < _NEARLY_EQUAL * spread:
        wait *= 1.0 + 3.0 * _NEARLY_EQUAL
    weight_wait = delayed * wait / (wait - spread)
    weight_spread = 1.0 - weight_wait
    left = 1.0 - q
    slowest, weight = (wait, weight_wait) if wait > spread else (spread, weight_spread)
    scale, times = (slowest, weight / left) if weight > left else (spread, 1.0 / left)
    x, mixture = scale * logarithm(times), Mixture(weight_wait, weight_spread, 1.0 / wait, 1.0 / spread, left)
    # From where the slower exponential alone would lie five steps come within 1e-7 for all arguments, and within 1e-14
    # for nearly all. They are written out, for machine code takes several hosts at once where no loop is in their loop.
    x = nearer(nearer(nearer(x, mixture), mixture), mixture)
    return constant + nearer(nearer(x, mixture), mixture)


class Mixture(NamedTuple):
    """Two exponentials by weight and rate, and what of them shall lie above their quantile."""

    weight: float
    other_weight: float
    rate: float
    other_rate: float
    left: float


@law
def nearer(x: float, mixture: Mixture) -> float:
    """A number nearer to the quantile, by a step of Halley's method on ln P(T > x)."""
    weight, other_weight, rate, other_rate, left = mixture
    one, other = weight * exponential(-x * rate), other_weight * exponential(-x * other_rate)
    tail = max(one + other, 1e-300)
    one, other = one * rate, other * other_rate
    density = max(one + other, 1e-300)
    slope = max(density / tail, 1e-12)
    step = logarithm(tail / left) / slope
    bend = 1.0 - 0.5 * step * ((one * rate + other * other_rate) / density - slope)
    return max(x + (step / bend if bend > 0.5 else step), 0.0)


@law
def waiting_requests(host: Row) -> float:
    """Number of requests that wait."""
    return host["came"][host["newest"]] - host["gone"]


@law
def pass_backlog(host: Row, q: float, offered: float, capacity: float, seconds: float) -> tuple[float, float]:
    """Let one period pass.

    Args:
        offered: Arrivals per second.
        capacity: Requests per second that can be worked off.

    Returns:
        The q-quantile of the wait of those that completed, and the wait of the oldest that has not; seconds.
    """
    gone_before, waited_before = host["gone"], waiting_requests(host)
    came = host["came"][host["newest"]] + offered * seconds
    gone = min(came, gone_before + capacity * seconds)
    host["newest"] = (host["newest"] + 1) % REMEMBERED
    host["came"][host["newest"]] = came
    host["gone"] = gone
    if gone >= came and waited_before <= 0.0:
        host["kept"] = 2
        return 0.0, 0.0
    host["kept"] = min(host["kept"] + 1, REMEMBERED)
    # The wait of those that complete mostly grows or shrinks over the whole period, so that its quantile is the
    # wait at share q or 1 - q of them; where it turns in between, it is near the largest.
    most = 0.0
    for place in range(SHARES):
        share = 1.0 - q + (2.0 * q - 1.0) * place / (SHARES - 1)
        number = gone_before + share * (gone - gone_before)
        at = min((number - gone_before) / capacity, seconds) if capacity > 0.0 else seconds
        most = max(most, _waiting_time(host, number, at, seconds))
    oldest = _waiting_time(host, gone, seconds, seconds) if gone < came else 0.0
    while host["kept"] > 2 and host["came"][(host["newest"] - host["kept"] + 2) % REMEMBERED] <= gone:
        host["kept"] -= 1
    return most, oldest


@law
def _waiting_time(host: Row, number: float, at: float, seconds: float) -> float:
    """How long the request of this number has waited, so many seconds after the period's begin."""
    high = host["came"][host["newest"]]
    for back in range(host["kept"] - 1):
        low = host["came"][(host["newest"] - back - 1) % REMEMBERED]
        if number >= low:
            into = (number - low) / max(high - low, 1e-9)
            return max(at + (back - into) * seconds, 0.0)
        high = low
    return at + (host["kept"] - 1.0) * seconds


def empty_backlog(rows: Rows) -> None:
    """No request has come yet, on all hosts."""
    rows["came"], rows["newest"], rows["kept"], rows["gone"] = 0.0, 0, 1, 0.0
