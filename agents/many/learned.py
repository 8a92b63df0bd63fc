"""A learned policy of n hosts at once: one run of the network for all of them."""

from __future__ import annotations

import numpy as np

from rlctl.agents.many.seen import Answer, Flags, Seen
from rlctl.agents.served.drift import ENDS
from rlctl.agents.served.learned import LearnedPolicy
from rlctl.envs.allocations import Allocations, VectorLimits, chosen
from rlctl.envs.observation import FEATURES
from rlctl.envs.observations import VectorObserver

__all__ = ["BatchLearned"]

_EDGES = [(place, end) for place, one in enumerate(FEATURES) for end in ENDS.get(one.name, ())]
"""Where in a frame a number beyond its feature's range shows, and as what; simulated hosts lack no sensor."""


class BatchLearned:
    """A bundle on n hosts.

    Where the network's answer is no number the host gets the safe allocation, and the failure is told.

    Args:
        policy: The scalar policy.
        limits: Of each host.
        tick_seconds: Control period.

    Attributes:
        shielded, masked, remarks: As in `rlctl.agents.policy.Policy`.
    """

    def __init__(self, policy: LearnedPolicy, limits: VectorLimits, tick_seconds: float) -> None:
        self.shielded, self.masked, self.remarks = policy.shielded, policy.masked, policy.remarks
        self._bundle, self._limits = policy.bundle, limits
        self._observer = VectorObserver(limits, tick_seconds, policy.bundle.card.lags)
        self._width = policy.bundle.card.observation.size // len(policy.bundle.card.lags)
        self._fresh = np.ones(len(limits.each), np.bool_)
        self._begun = False

    def begin(self, which: Flags) -> Allocations:
        """Forget the history; BE begins at the safe allocation."""
        self._fresh = self._fresh | which
        return self._limits.safe

    def act(self, seen: Seen) -> Answer:
        """The best allowed move on each host."""
        vectors = self._observed(seen)
        logits = self._bundle.logits(vectors)
        failed: Flags = np.logical_not(np.isfinite(logits).all(axis=1))
        if seen.mask is not None:
            logits = np.where(seen.mask, logits, np.float32(-np.inf))
        moves = np.where(failed[:, None], np.float32(0.0), logits).argmax(axis=1)
        proposed = chosen(moves, seen.current, self._limits)
        newest = vectors[:, -self._width :]
        strange = np.logical_or.reduce([newest[:, place] == end for place, end in _EDGES])
        return Answer(self._limits.safe.where(failed, proposed) if failed.any() else proposed, failed, strange)

    def _observed(self, seen: Seen) -> np.ndarray:
        if not self._begun:
            self._begun, self._fresh = True, np.zeros_like(self._fresh)
            return self._observer.begin(seen.readings, seen.current)
        vectors = self._observer.observe(seen.readings, seen.current)
        if self._fresh.any():
            vectors = self._observer.begin(seen.readings, seen.current, self._fresh)
            self._fresh = np.zeros_like(self._fresh)
        return vectors
