"""Who gets which CPU: weights, quotas and cpusets, as the kernel's fair scheduler shares CPUs out.

Steady state over one control period. The BE's CPUs are some of its own (the LC never runs there) and some shared with
the LC, and its quota burns on all of them alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Share", "fair_share", "share_out"]

Array = NDArray[np.float64]


class Share(NamedTuple):
    """What comes of an allocation, arrays of shape (n,).

    Attributes:
        be_cpus: CPUs that BE keeps busy.
        lc_capacity_cpus: CPUs that the LC could keep busy if it wanted to.
        contended_ratio: Share of the time in which BE competes with the LC on a shared CPU.
    """

    be_cpus: Array
    lc_capacity_cpus: Array
    contended_ratio: Array


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


def share_out(
    lc_wants: Array, lc_cpus: Array, fair: Array, own: Array, shared: Array, threads: Array, quota: Array
) -> Share:
    """Divide the CPUs.

    The LC moves to those of its CPUs that BE does not use, as far as there are any; what it leaves idle is BE's.

    Args:
        lc_wants: CPUs that the LC would use if it had them all.
        lc_cpus: CPUs that it may run on.
        fair: Its part of a contended CPU, from `fair_share`.
        own: CPU time per second that BE can have beside the LC.
        shared: CPUs in BE's cpuset that the LC runs on too.
        threads: Threads that BE has ready to run; 0 when frozen.
        quota: BE's quota in CPUs.
    """
    own = np.minimum(own, threads)
    shared = np.minimum(shared, threads - own)
    idle = np.minimum(shared, np.maximum(lc_cpus - lc_wants, 0.0))
    taken = np.maximum(idle, (1.0 - fair) * shared)
    most = own + taken
    duty = np.minimum(1.0, quota / np.maximum(most, 1e-9))
    pressed = own + (1.0 - fair) * shared
    duty_pressed = np.minimum(1.0, quota / np.maximum(pressed, 1e-9))
    return Share(
        be_cpus=duty * most,
        lc_capacity_cpus=lc_cpus - duty_pressed * (1.0 - fair) * shared,
        contended_ratio=np.where(shared > 0.0, duty, 0.0),
    )
