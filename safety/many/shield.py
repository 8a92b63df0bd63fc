"""The shield of n hosts at once: the very guards of `Shield`, without a loop over hosts.

For training, fleets and trials. Host by host it answers as `Shield` does, to the last bit, over any history of
readings; `tests/safety/many/test_shield.py` holds the two together. It takes no guards of your own, and leaves out the
two of `rlctl.safety.memory_guards` and `rlctl.safety.overrun`, which have no objection on a simulated host since it has
none of their readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits, moved
from rlctl.envs.arrays import Flags
from rlctl.envs.readings import Readings
from rlctl.safety.many.guards import GUARDS, Bounding, Bounds, Memory, advance
from rlctl.safety.many.readings import Beliefs, GuardReadings, believed
from rlctl.safety.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class BatchVerdict:
    """What may be written on n hosts, and what decided it.

    Attributes:
        allocations: The greatest lower bound of the proposals and all bounds. With proposals within the hosts' limits
            these are within them too, for no guard's bound is below `Limits.minimum`.
        overridden: Where a proposal was not let through as it was; bool, shape (n,).
        decisive: By each guard's name, where the proposal exceeded its bound; bool, shape (n,).
    """

    allocations: Allocations
    overridden: Flags
    decisive: Mapping[str, Flags]


class BatchShield:
    """The guards of n hosts, and what they remember.

    It opens no file and reads no clock. It learns from each object of readings once; to rule or mask again on the same
    object changes nothing. Apply one verdict for each.

    Hosts may share a clock (`SimHosts`) or have one each (`SimHostVectorEnv`); a clock that goes back, stops or is no
    number is treated as `Shield` treats it, host by host. Only differences count: a host that begins anew under a
    shared clock, which goes on, is ruled as under its own, but for the last bit where the control period is no binary
    fraction.

    Args:
        limits: Range of allocations, of all hosts or of each.

    Attributes:
        verdict: The latest verdict, for statistics of which guard overrides.
    """

    def __init__(self, profile: Profile, limits: Limits | VectorLimits, count: int) -> None:
        self.profile = profile
        self.limits = limits
        self.count = count
        self.verdict: BatchVerdict | None = None
        self._bounding = Bounding(profile, limits)
        self.reset()

    @property
    def digest(self) -> str:
        """The digest of a `Shield` with this profile: equal digests forbid the same."""
        return self.profile.digest

    def reset(self, which: Flags | None = None) -> None:
        """Forget everything, or everything about some hosts: `which` is bool, shape (n,)."""
        self._latest: tuple[GuardReadings | Readings, Allocations, Bounds] | None = None
        fresh = Memory.start(self.count, self.profile)
        if which is None:
            self._memory = fresh
            self._learnt: GuardReadings | Readings | None = None
            self._unlearnt = np.zeros(self.count, bool)
            return
        self._memory = fresh.where(which, self._memory)
        self._unlearnt = self._unlearnt | which

    def rule(self, readings: GuardReadings | Readings, current: Allocations, proposed: Allocations) -> BatchVerdict:
        """What may be written.

        Args:
            readings: Readings of this tick, in whatever state; never changed afterwards.

        Returns:
            A verdict whose allocations are at most the proposals and at most every guard's bound.
        """
        most = self._bounds(readings, current)
        quota_cpus, cpuset_cpus, frozen = proposed
        exceeded = (quota_cpus > most.quota_cpus) | (cpuset_cpus > most.cpuset_cpus) | (most.frozen & ~frozen)
        allocations = Allocations(
            np.minimum(quota_cpus, most.quota_cpus.min(axis=0)),
            # Bounds are floats, for where no guard objects they are infinite; a minimum with a proposal never is.
            np.minimum(cpuset_cpus, most.cpuset_cpus.min(axis=0)).astype(np.int64),
            frozen | np.logical_or.reduce(most.frozen, axis=0),
        )
        decisive = dict(zip(GUARDS, exceeded, strict=True))
        self.verdict = BatchVerdict(allocations, np.logical_or.reduce(exceeded, axis=0), decisive)
        return self.verdict

    def mask(self, readings: GuardReadings | Readings, current: Allocations) -> Flags:
        """Which moves are allowed on each host: bool, shape (n, len(MOVES))."""
        quota_cpus, cpuset_cpus, frozen = self._bounds(readings, current)
        most = Allocations(quota_cpus.min(axis=0), cpuset_cpus.min(axis=0), np.logical_or.reduce(frozen, axis=0))
        return moved(current, self.limits).at_most(most).T

    def _bounds(self, readings: GuardReadings | Readings, current: Allocations) -> Bounds:
        """Every guard's bound; the mask and the ruling of one tick share them."""
        if self._latest and self._latest[0] is readings and self._latest[1] is current:
            return self._latest[2]
        with np.errstate(all="ignore"):  # absurd readings overflow, as they do without a word in plain floats
            sensed = GuardReadings.of_vector(readings) if isinstance(readings, Readings) else readings
            beliefs = believed(sensed, self.profile)
            self._learn(readings, beliefs)
            bounds = self._bounding.bounds(self._memory, beliefs, current)
        self._latest = readings, current, bounds
        return bounds

    def _learn(self, readings: GuardReadings | Readings, beliefs: Beliefs) -> None:
        again = readings is self._learnt
        if again and not self._unlearnt.any():
            return
        after = advance(self._memory, readings.time_seconds, beliefs, self.profile)
        self._memory = after.where(self._unlearnt, self._memory) if again else after
        self._learnt, self._unlearnt = readings, np.zeros(self.count, bool)
