"""Hosts of a vector environment that began their episodes together, so that one clock serves them all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.readings import Readings
from rlctl.envs.sim.plant import SimHosts


class Cohort:
    """Hosts under one clock.

    A host that is reset before the others leaves for a new cohort; its place here computes on in vain until the others'
    episode ends. So each host lives exactly the run that it would live alone.

    Args:
        places: Their numbers in the environment, shape (m,).
        batch: The hosts, before their first period.
    """

    def __init__(self, places: NDArray[np.int64], batch: SimHosts) -> None:
        self.places, self.batch = places, batch
        self.here = np.ones(len(places), np.bool_)

    @property
    def steps(self) -> int:
        """Of the episode; the period before the first step, which a reset lets pass, does not count."""
        return self.batch.hosts.tick - 1

    def leave(self, which: NDArray[np.bool_]) -> None:
        """Some hosts of the environment, shape (n,), belong elsewhere from now on."""
        self.here &= ~which[self.places]

    def spread(self, over: Readings) -> Readings:
        """The environment's readings `over`, with the new ones of the hosts that are still here put in."""
        places = self.places[self.here]
        made: list[NDArray[Any]] = [array.copy() for array in over]
        for array, new in zip(made, self.batch.read(), strict=True):
            array[places] = new[self.here]
        return Readings(*made)
