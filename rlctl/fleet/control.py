"""Hosts of a fleet under their controllers, and what is counted of them: sums per host, never the ticks themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.many.batch import batch_policy
from rlctl.agents.many.seen import Answer, BatchPolicy, Flags, Seen
from rlctl.envs.allocations import Allocations
from rlctl.envs.sim.hosts import Window
from rlctl.fleet.config import TICK_SECONDS
from rlctl.fleet.hosts import FleetHosts
from rlctl.safety.batch import BatchShield
from rlctl.safety.batch_readings import GuardReadings
from rlctl.safety.profile import Profile

__all__ = ["NEW", "OLD", "Controlled", "Tally"]

Array = NDArray[np.float64]

OLD, NEW = 0, 1
"""Places of the policies: all hosts begin under the first."""


@dataclass(slots=True)
class Tally:
    """What happened on each host over a stretch of ticks; arrays of shape (n,), or with leading axes of stretches.

    Attributes:
        missed: Windows that did not hold the target; the truth, not what sensors said.
        worst_ratio: The longest latency by the target.
        be_work, load: Sums over ticks of BE's work by BE running alone, and of the load by the maximum.
        overridden: Ticks in which the shield did not let the proposal through as it was.
        frozen: Ticks in which BE was suspended.
        failed, strange: Ticks without a usable answer, and unlike the policy's training.
    """

    missed: Array
    worst_ratio: Array
    be_work: Array
    load: Array
    overridden: Array
    frozen: Array
    failed: Array
    strange: Array

    @classmethod
    def none(cls, count: int) -> Tally:
        """Before the first tick of a stretch."""
        return cls(*(np.zeros(count) for _ in fields(cls)))

    @classmethod
    def stacked(cls, stretches: Sequence[Tally]) -> Tally:
        """One stretch after another, shape (stretches, n)."""
        return cls(*(np.stack([getattr(one, part.name) for one in stretches]) for part in fields(cls)))

    @classmethod
    def beside(cls, tallies: Sequence[Tally]) -> Tally:
        """Hosts side by side."""
        return cls(*(np.concatenate([getattr(one, part.name) for one in tallies], axis=-1) for part in fields(cls)))


class Controlled:
    """Some hosts, each under one of some policies, behind the shield where the policy is judged behind one.

    Args:
        hosts: The hosts, before their first tick.
        policies: Names, as `rlctl.agents.many.batch.batch_policy` takes them; all hosts begin under the first.
        shield: The shield's constants.

    Raises:
        PolicyError: An unknown name, or a bundle that cannot be served.
    """

    def __init__(self, hosts: FleetHosts, policies: Sequence[str], shield: Profile) -> None:
        self.hosts = hosts
        self._policies: list[BatchPolicy] = [batch_policy(name, hosts.limits, TICK_SECONDS) for name in policies]
        self._shielded = np.array([one.shielded for one in self._policies])
        self._shield = BatchShield(shield, hosts.limits, hosts.count) if self._shielded.any() else None
        self._under = np.zeros(hosts.count, np.intp)
        everywhere = np.ones(hosts.count, np.bool_)
        asked = self._policies[OLD].begin(everywhere)
        self._current = (hosts.limits.safe if self._shielded[OLD] else asked).clipped(hosts.limits)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The first policy's."""
        return tuple(self._policies[OLD].remarks)

    def put_under(self, policy: int, which: Flags) -> None:
        """Give some hosts to another policy, which begins anew there; what is in force stays until it decides."""
        self._policies[policy].begin(which)
        self._under = np.where(which, policy, self._under)

    def run(self, ticks: int) -> Tally:
        """Let some ticks pass."""
        tally = Tally.none(self.hosts.count)
        for _ in range(ticks):
            self._look(tally, self.hosts.step(self._current))
            self._decide(tally)
        return tally

    def _look(self, tally: Tally, window: Window) -> None:
        c = self.hosts.constants
        ratio = window.latency_seconds * (1.0 / c.target_seconds)
        tally.missed += ratio > 1.0
        np.maximum(tally.worst_ratio, ratio, out=tally.worst_ratio)
        tally.be_work += window.be_work_ratio
        tally.load += window.offered_rps * (1.0 / c.max_load_rps)

    def _decide(self, tally: Tally) -> None:
        readings, before = self.hosts.read(), self._current
        sensed = GuardReadings.of_vector(readings)
        wants_mask = self._shield is not None and any(one.masked for one in self._policies)
        mask = self._shield.mask(sensed, before) if self._shield and wants_mask else None
        answer = self._answered(Seen(self.hosts.time_seconds, readings, before, mask, self.hosts.telemetry))
        asked = answer.proposed.clipped(self.hosts.limits)
        self._current = asked
        if self._shield is not None:
            verdict, shielded = self._shield.rule(sensed, before, asked), self._shielded[self._under]
            cpuset_cpus = verdict.cpuset_cpus.astype(np.int64)
            self._current = Allocations(verdict.quota_cpus, cpuset_cpus, verdict.frozen).where(shielded, asked)
            tally.overridden += verdict.overridden & shielded
        tally.frozen += self._current.frozen
        tally.failed += answer.failed
        tally.strange += answer.strange

    def _answered(self, seen: Seen) -> Answer:
        """Each host's own policy's answer; policies without a host are not asked."""
        found: Answer | None = None
        for number, policy in enumerate(self._policies):
            mine = self._under == number
            if not mine.any():
                continue
            answer = policy.act(seen if policy.masked else seen._replace(mask=None))
            found = answer if found is None else _put_in(mine, answer, found)
        assert found is not None
        return found


def _put_in(which: Flags, answer: Answer, other: Answer) -> Answer:
    return Answer(
        answer.proposed.where(which, other.proposed),
        np.where(which, answer.failed, other.failed),
        np.where(which, answer.strange, other.strange),
    )
