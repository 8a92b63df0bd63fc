"""The shield of n hosts at once: the very guards of `Shield`, without a loop over hosts.

For training, fleets and trials. Host by host it answers as `Shield` does, to the last bit, over any history of
readings; `tests/safety/many/test_shield.py` holds the two together. It takes no guards of your own. It leaves out the
two of `rlctl.safety.memory_guards` and `rlctl.safety.overrun`: a simulated host has none of their readings, so they
never object.
"""

from __future__ import annotations

import numpy as np

from rlctl.envs.allocation import Limits
from rlctl.envs.allocations import Allocations, VectorLimits, apply_moves
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.readings import Readings
from rlctl.safety.many.guards import Bounding, Memory, advance
from rlctl.safety.many.harm import HarmRecords, advance_harm
from rlctl.safety.many.readings import form_beliefs
from rlctl.safety.profile import Profile


class BatchShield:
    """The guards of n hosts, and what they remember.

    It opens no file and reads no clock. It learns from each object of readings once; to rule or mask again on the same
    object changes nothing. Apply one ruling for each.

    A clock that goes back, stops or is no number is treated as `Shield` treats it, host by host.

    Args:
        limits: Range of allocations, of all hosts or of each.
    """

    def __init__(self, profile: Profile, limits: Limits | VectorLimits, count: int) -> None:
        if profile.own:
            raise ConfigError(f"guard {profile.own[0].name} rules on one host only; name a shield without it here")
        self.profile = profile
        self.limits = limits
        self.count = count
        self._bounding = Bounding(profile, limits)
        self.reset()

    def reset(self) -> None:
        """Forget everything: all hosts begin."""
        self._latest: tuple[Readings, Allocations, Allocations] | None = None
        self._memory, self._harm = Memory.start(self.count, self.profile), HarmRecords.start(self.count)
        self._learnt: Readings | None = None

    def rule(self, readings: Readings, current: Allocations, proposed: Allocations) -> Allocations:
        """What may be written: the greatest lower bound of the proposals and all guards' bounds.

        With proposals within the hosts' limits it is within them too, for no guard's bound is below `Limits.minimum`.

        Args:
            readings: Readings of this tick, in whatever state; never changed afterwards.
        """
        most = self._bounds(readings, current)
        return Allocations(
            np.minimum(proposed.quota_cpus, most.quota_cpus),
            np.minimum(proposed.cpuset_cpus, most.cpuset_cpus),
            proposed.frozen | most.frozen,
        )

    def mask(self, readings: Readings, current: Allocations) -> Flags:
        """Which moves are allowed on each host: bool, shape (n, len(MOVES))."""
        return apply_moves(current, self.limits).at_most(self._bounds(readings, current)).T

    def _bounds(self, readings: Readings, current: Allocations) -> Allocations:
        """The most that all guards allow; the mask and the ruling of one tick share it."""
        # By identity: the same objects are the same tick, and guards learn from a tick once.
        if self._latest and self._latest[0] is readings and self._latest[1] is current:
            return self._latest[2]
        with np.errstate(all="ignore"):  # absurd readings overflow, as they do without a word in plain floats
            beliefs = form_beliefs(readings, self.profile)
            # Memory moves on before the bounds: a guard judges by what it has just seen.
            if readings is not self._learnt:
                now = readings.time_seconds
                self._memory = advance(self._memory, now, beliefs, self.profile)
                self._harm = advance_harm(self._harm, now, readings.be_cpus, beliefs, self.profile)
                self._learnt = readings
            cleared = self._harm.cleared & self.limits.least_weight
            most = self._bounding.bounds(self._memory, beliefs, current, cleared)
        self._latest = readings, current, most
        return most
