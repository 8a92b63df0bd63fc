"""Who gets which CPU: weights, quotas and cpusets, as the kernel's fair scheduler shares CPUs out.

Steady state over one control period. The BE's CPUs are some of its own (the LC never runs there) and some shared with
the LC, and its quota burns on all of them alike.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contest", "Share", "fair_share", "lc_wants", "settled_be", "share_out"]

Array = NDArray[np.float64]


class Share(NamedTuple):
    """What comes of an allocation, arrays of shape (n,).

    Attributes:
        be_cpus: CPUs that BE keeps busy.
        lc_capacity_cpus: CPUs that the LC could keep busy if it wanted to.
        contended_ratio: Share of the time in which BE competes with the LC on a shared CPU.
        burst_ratio: The same if BE had the LC's weight: how often the LC meets slices of BE. With less weight BE burns
            its quota more slowly, so that it competes for longer, but it has no more slices to run.
    """

    be_cpus: Array
    lc_capacity_cpus: Array
    contended_ratio: Array
    burst_ratio: Array


def fair_share(weight_ratio: Array, lc_cpus: Array, be_spread_cpus: Array) -> Array:
    """The LC's part of a CPU on which both always want to run.

    A group's weight is divided over the CPUs that it runs on: on two CPUs BE presses half as hard on each, which is
    why an LC on one of them was measured to hold 2/3 (host.md, cpuset 0-1).

    Args:
        weight_ratio: BE's weight by the LC's.
        lc_cpus: CPUs that the LC runs on.
        be_spread_cpus: CPUs that BE runs on.
    """
    return 1.0 / (1.0 + weight_ratio * lc_cpus / np.maximum(be_spread_cpus, 1e-9))


class Contest(NamedTuple):
    """The CPUs that BE could use, and how hard it presses on the LC there; arrays of shape (n,).

    Attributes:
        lc_cpus: CPUs that the LC may run on.
        fair, fair_equal: The LC's part of a contended CPU, from `fair_share`, and what it would be at equal weights.
        own: CPU time per second that BE can have beside the LC.
        shared: CPUs on which BE's threads may meet the LC.
    """

    lc_cpus: Array
    fair: Array
    fair_equal: Array
    own: Array
    shared: Array

    @classmethod
    def between(
        cls, weight_ratio: Array, lc_cpus: Array, be_spread_cpus: Array, own: Array, shared: Array, threads: Array
    ) -> Self:
        """The LC against so many runnable BE threads (0 when frozen), which take BE's own CPUs first, then shared ones.

        Args:
            weight_ratio: BE's weight by the LC's.
            lc_cpus: CPUs that the LC runs on.
            be_spread_cpus: CPUs that BE runs on.
            own: CPU time per second that BE can have beside the LC.
            shared: CPUs in BE's cpuset that the LC runs on too.
            threads: Threads that BE has ready to run.
        """
        own = np.minimum(own, threads)
        fair, fair_equal = (fair_share(w, lc_cpus, be_spread_cpus) for w in (weight_ratio, np.ones(1)))
        return cls(lc_cpus, fair, fair_equal, own, np.minimum(shared, threads - own))

    def pressed(self) -> Array:
        """CPUs that BE takes from the LC while the LC always wants to run."""
        return (1.0 - self.fair) * self.shared


def lc_wants(work: Array, wakes: Array, lc_cpus: Array) -> Array:
    """CPUs that the LC would use if it had them all.

    A request finds its server idle, and so has to wake it, with probability 1 - utilisation: Poisson arrivals see time
    averages (Wolff 1982). The utilisation is taken without the wake-ups themselves.

    Args:
        work: CPU time per second that requests take, without wake-ups.
        wakes: CPU time per second that wake-ups would take if every request needed one.
        lc_cpus: CPUs that the LC may run on.
    """
    return np.minimum(work + wakes * np.maximum(1.0 - work / lc_cpus, 0.0), lc_cpus)


def settled_be(contest: Contest, work: Array, wakes: Array, inflation: Array, inflation2: Array) -> Array:
    """BE's busy CPUs without a quota where BE slows the LC: the balance point, not a round of a search for it.

    A BE with x CPUs makes the LC's work grow to work * (1 + inflation * x + inflation2 * x^2). The slowed LC wants more
    CPUs, leaves BE less, and is slowed less. What is left falls with x, so there is one x that BE can hold: a root of
    x = own + lc_cpus - lc_wants(x), a quadratic, within what BE has in any case and what its cpuset and threads allow.
    Rounds of substitution overshoot it, so that a BE with more quota ended with fewer CPUs and a faster LC.

    Args:
        contest: The CPUs.
        work: The LC's CPU time per second without BE's interference.
        wakes: As of `lc_wants`.
        inflation: Growth of `work` per busy BE CPU.
        inflation2: The same per square of it.
    """
    own, lc_cpus = contest.own, contest.lc_cpus
    grows = work * np.maximum(1.0 - wakes / lc_cpus, 0.0)  # with every CPU more of work, wake-ups become fewer
    left = own + lc_cpus - wakes - grows
    slope = 1.0 + grows * inflation
    root = 2.0 * left / (slope + np.sqrt(slope * slope + 4.0 * grows * inflation2 * np.maximum(left, 0.0)))
    return np.clip(root, own + contest.pressed(), own + contest.shared)


def share_out(contest: Contest, wants: Array, quota: Array) -> Share:
    """Divide the CPUs.

    Args:
        contest: The CPUs.
        wants: CPUs that the LC would use if it had them all.
        quota: BE's quota in CPUs; it burns on its own CPUs and on shared ones alike.
    """
    pressed = contest.pressed()
    # The LC moves to those CPUs that BE does not use, as far as there are any; what it leaves idle is BE's.
    idle = np.minimum(contest.shared, np.maximum(contest.lc_cpus - wants, 0.0))
    most = contest.own + np.maximum(idle, pressed)
    most_equal = contest.own + np.maximum(idle, (1.0 - contest.fair_equal) * contest.shared)
    duty, duty_equal = (np.minimum(1.0, quota / np.maximum(cpus, 1e-9)) for cpus in (most, most_equal))
    duty_pressed = np.minimum(1.0, quota / np.maximum(contest.own + pressed, 1e-9))
    return Share(
        be_cpus=duty * most,
        lc_capacity_cpus=contest.lc_cpus - duty_pressed * (1.0 - contest.fair) * contest.shared,
        contended_ratio=np.where(contest.shared > 0.0, duty, 0.0),
        burst_ratio=np.where(contest.shared > 0.0, duty_equal, 0.0),
    )
