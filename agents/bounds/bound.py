"""What the bounds on all managers share: a search over quotas and cpusets on every host of a simulated batch.

Which allocations are searched. BE's own CPUs come first in the order; at a given quota fewer shared CPUs help the LC
only where contention itself costs it. There (slices, or a weight above the minimum) every size of the cpuset is tried
with every quota. Elsewhere the quota on all CPUs is searched alone; at full load the bound may be a little short of
what fewer CPUs could add.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from rlctl.envs.allocation import Allocation
from rlctl.envs.arrays import Array
from rlctl.envs.sim.physics import HostOrders, Hosts
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.sharing import fair_share

CHOICES = 8
"""Parts into which a round of the search divides the quotas that are left."""

ROUNDS = 4
"""Rounds of the search: quotas to 1/512 of what BE can use."""

NEVER = -1e9
"""Worth of what is not allowed; what is allowed is worth 0 or more."""

CONTENTION_CPUS = 0.1
"""LC CPUs that contention may cost at most to be taken as free."""


class UpperBound(ABC):
    """A bound on a batch of hosts, from the start of a run: `act_all`, apply what it says, step the batch, repeat."""

    def __init__(self, batch: SimBatch) -> None:
        self._batch = batch
        self._weights = batch.weights
        self._now = Hosts.branch_from(batch.hosts)
        c = self._now.constants
        # Shape (families, 1, n): the cpusets to choose from, and the quota beyond which nothing changes.
        most = int(np.ceil(np.minimum(c.own_cpus + c.shared_cpus, c.threads).max())) if self._contention_costs() else 0
        sizes = sorted({*range(1, most + 1), batch.limits.cpus})
        self._cpusets = np.array(sizes, float)[:, None, None] * np.ones(batch.count)
        usable = np.minimum(self._cpusets, np.minimum(c.own_cpus + c.shared_cpus, c.threads))
        self._most = np.maximum(usable, batch.limits.min_quota_cpus)

    def act_all(self) -> list[Allocation]:
        """What BE gets in the window to come, host by host in the order given."""
        self._now = Hosts.branch_from(self._batch.hosts)
        self._foresee()
        least = self._batch.limits.min_quota_cpus
        low, high = np.zeros_like(self._most), self._most
        parts = np.linspace(0.0, 1.0, CHOICES + 1)[:, None]
        for _ in range(ROUNDS):
            quota = np.maximum(low + (high - low) * parts, least)
            worth = self._worth(quota)
            place = np.argmax(worth, axis=1, keepdims=True)
            low = np.take_along_axis(quota, np.maximum(place - 1, 0), 1)
            high = np.take_along_axis(quota, np.minimum(place + 1, CHOICES), 1)
        best, gain = (np.take_along_axis(one, place, 1)[:, 0] for one in (quota, worth))
        return self._chosen(best, gain)

    @abstractmethod
    def _foresee(self) -> None:
        """Prepare for judging choices from `self._now`."""

    @abstractmethod
    def _worth(self, quota_cpus: Array) -> Array:
        """BE work with these quotas, shape (families, choices, n); below 0 where they are not allowed."""

    def _chosen(self, quota_cpus: Array, worth: Array) -> list[Allocation]:
        """The best family's allocation on each host; frozen where even the smallest is not allowed."""
        family = np.argmax(worth, axis=0)[None]
        columns = (quota_cpus, np.broadcast_to(self._cpusets[:, 0], worth.shape), worth)
        rows = zip(*(np.take_along_axis(column, family, 0)[0].tolist() for column in columns), strict=True)
        return [
            self._batch.limits.clip(Allocation(quota, int(cpus))) if gain >= 0.0 else self._batch.limits.safe
            for quota, cpus, gain in rows
        ]

    def _orders(self, quota_cpus: Array, frozen: bool = False) -> HostOrders:
        return HostOrders(quota_cpus, self._cpusets, np.full(quota_cpus.shape, frozen), self._weights)

    def _contention_costs(self) -> bool:
        c = self._now.constants
        spread = np.minimum(c.own_cpus + c.shared_cpus, c.threads)
        fair = np.vectorize(fair_share)(self._weights, c.lc_cpus, spread)
        lost = (1.0 - fair) * np.minimum(c.shared_cpus, c.threads)
        return bool(((c.own_cpus > 0.0) & ((c.slice_seconds > 0.0) | (lost > CONTENTION_CPUS))).any())
