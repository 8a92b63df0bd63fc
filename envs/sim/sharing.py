"""Who gets which CPU: weights, quotas and cpusets, as the kernel's fair scheduler shares CPUs out over a period.

BE's CPUs are some of its own, where the LC never runs, and some shared with the LC; its quota burns on all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from rlctl.envs.law import law


class Share(NamedTuple):
    """What comes of an allocation.

    Attributes:
        be_cpus: CPUs that BE keeps busy.
        lc_capacity_cpus: CPUs that the LC could keep busy if it wanted to.
        contended_ratio: Share of the time in which BE competes with the LC on a shared CPU.
        burst_ratio: The same if BE had the LC's weight: how often the LC meets slices of BE. With less weight BE burns
            its quota more slowly, so that it competes for longer, but it has no more slices to run.
        fair: The LC's part of a contended CPU.
        yields: How far BE gives way there: 0 at the LC's weight, nearly 1 at the least.
    """

    be_cpus: float
    lc_capacity_cpus: float
    contended_ratio: float
    burst_ratio: float
    fair: float
    yields: float


class Contest(NamedTuple):
    """The CPUs that BE could use, and how hard it presses on the LC there.

    Attributes:
        lc_cpus: CPUs that the LC may run on.
        fair, fair_equal: The LC's part of a contended CPU, from `fair_share`, and what it would be at equal weights.
        own: CPU time per second that BE can have beside the LC.
        shared: CPUs on which BE's threads may meet the LC.
    """

    lc_cpus: float
    fair: float
    fair_equal: float
    own: float
    shared: float


@law
def fair_share(weight_ratio: float, lc_cpus: float, be_spread_cpus: float) -> float:
    """The LC's part of a CPU on which both always want to run; BE runs on `be_spread_cpus`."""
    # The kernel divides a group's weight over the CPUs that it runs on (Documentation/scheduler/sched-design-CFS):
    # on two CPUs BE presses half as hard on each. An LC on one of them held 2/3 (docs/measured/simulator.md, 4).
    return 1.0 / (1.0 + weight_ratio * lc_cpus / max(be_spread_cpus, 1e-9))


@law
def contest_of(
    weight_ratio: float, lc_cpus: float, be_spread_cpus: float, own: float, shared: float, threads: float
) -> Contest:
    """The LC against so many runnable BE threads (0 when frozen), which take BE's own CPUs first, then shared ones.

    Args:
        be_spread_cpus: CPUs that BE runs on.
        own: CPU time per second that BE can have beside the LC.
        shared: CPUs in BE's cpuset that the LC runs on too.
    """
    own = min(own, threads)
    fair, equal = fair_share(weight_ratio, lc_cpus, be_spread_cpus), fair_share(1.0, lc_cpus, be_spread_cpus)
    return Contest(lc_cpus, fair, equal, own, min(shared, threads - own))


@law
def most_cpus(contest: Contest, lc_wants: float, fair: float) -> float:
    """CPUs that BE keeps busy without a quota, where the LC's part of a contended CPU is `fair` or `fair_equal`.

    The LC moves to those of its CPUs that BE does not use, as far as there are any; what it leaves idle is BE's.
    """
    # The scheduler conserves work: a CPU that the LC leaves idle is BE's, and below it BE still has its fair part.
    idle = min(contest.shared, max(contest.lc_cpus - lc_wants, 0.0))
    return contest.own + max(idle, (1.0 - fair) * contest.shared)


@law
def lc_wants(work: float, wakes: float, lc_cpus: float) -> float:
    """CPUs that the LC would use if it had them all.

    Args:
        work: CPU time per second that requests take, without wake-ups.
        wakes: CPU time per second that wake-ups would take if every request needed one.
    """
    # A request finds its server idle, and so has to wake it, with probability 1 - utilisation: Poisson arrivals see
    # time averages (Wolff 1982, Operations Research 30). The utilisation is taken without the wake-ups themselves.
    return min(work + wakes * max(1.0 - work / lc_cpus, 0.0), lc_cpus)


@law
def duty_of(quota: float, cpus: float) -> float:
    """Share of each period in which a quota lets a BE run that could use so many CPUs."""
    return min(1.0, quota / max(cpus, 1e-9))


@law
def share_out(contest: Contest, wants: float, quota: float) -> Share:
    """The CPUs that BE and the LC get under a quota.

    Args:
        wants: CPUs that the LC would use if it had them all, from `lc_wants`.
        quota: BE's quota in CPUs.
    """
    # A quota below what BE could use lets it run in a part of each period, its duty: beside an LC that wants what it
    # wants now, beside one that always wants to run (the LC's capacity), and as if BE had the LC's weight.
    most, meet = most_cpus(contest, wants, contest.fair), contest.shared > 0.0
    duty = duty_of(quota, most)
    pressed = duty_of(quota, contest.own + (1.0 - contest.fair) * contest.shared)
    equal = duty_of(quota, most_cpus(contest, wants, contest.fair_equal))
    return Share(
        duty * most,
        contest.lc_cpus - pressed * (1.0 - contest.fair) * contest.shared,
        duty if meet else 0.0,
        equal if meet else 0.0,
        contest.fair,
        1.0 - (1.0 - contest.fair) / (1.0 - contest.fair_equal),
    )
