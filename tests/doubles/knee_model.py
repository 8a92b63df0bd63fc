"""The largest load that a simulated LC holds with BE frozen: what counts as load 1.0 (thesis 5.1.3)."""

from __future__ import annotations

import numpy as np

from rlctl.envs.errors import ConfigError
from rlctl.envs.sim.physics import HostOrders, Hosts
from rlctl.envs.sim.profile import Constants, HostProfile

HELD_RATIO = 0.99
"""Share of windows that hold the target at the knee."""
HOSTS = 32
WINDOWS = 100
WARM_UP = 10  # windows, in which a backlog shows if there is one
STEPS = 12  # of the bisection: a part in 4096 of the LC's capacity


def knee_rps(profile: HostProfile) -> float:
    """The largest load at which 99 % of the windows hold the target with BE frozen, without drift and spikes.

    The knee of a drifting host is lower; it is that of its slow hours. Chance is the same in each step, so the
    answer is the same each time.

    Raises:
        ConfigError: The target cannot be held at any load.
    """
    low, high = 0.0, profile.lc.lc_cpus / profile.lc.service_seconds
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if held_ratio(profile, middle) >= HELD_RATIO else (low, middle)
    if low == 0.0:
        raise ConfigError(
            f"profile {profile.name}: the LC misses {1e3 * profile.lc.target_seconds:g} ms at every load, "
            "even with BE frozen; its service time or its target is wrong"
        )
    return low


def held_ratio(profile: HostProfile, rate_rps: float) -> float:
    """Share of one-second windows that hold the target at a constant load with BE frozen, drift and spikes excluded."""
    still = profile.but(drift_cv=0.0, spikes_per_hour=0.0)
    hosts = Hosts(Constants.stack([still] * HOSTS), np.arange(1, HOSTS + 1, dtype=np.uint64))
    shape = (HOSTS,)
    cpuset = np.full(shape, still.be.own_cpus + still.be.shared_cpus)
    frozen = HostOrders(np.full(shape, np.inf), cpuset, np.ones(shape, bool), np.ones(shape))
    rate = np.full(shape, rate_rps)
    tails = [hosts.step(rate, frozen).tail_latency_seconds for _ in range(WARM_UP + WINDOWS)][WARM_UP:]
    return float(np.mean(np.stack(tails) <= still.lc.target_seconds))
