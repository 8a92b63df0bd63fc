"""A learned policy of n hosts at once: one run of the network for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_runner import BatchAnswer, BatchObservation
from rlctl.agents.served.learned import ENDS
from rlctl.envs.allocations import Allocations, VectorLimits, chosen
from rlctl.envs.features import FEATURES, FRAME_SIZE
from rlctl.envs.observations import VectorObserver

Logits = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Observations, shape (n, size), to logits or values of the moves, shape (n, len(MOVES))."""

_EDGES = [(place, end) for place, feature in enumerate(FEATURES) for end in ENDS.get(feature.name, ())]
"""Where in a frame a number beyond its feature's range shows, and as what; simulated hosts lack no sensor."""


class BatchLearned:
    """A network on n hosts: the largest of the allowed logits is the move.

    Where the network's answer is no number the host gets the safe allocation, and the answer counts as failed.

    Args:
        masked: Whether it chooses among the moves that the shield and each host's experience leave; else among all.
        price: What a violation costs, see `Observation.price`.
        absent: What it does not see, as in `VectorObserver`.

    Attributes:
        remarks: What a reader of its results must know.
    """

    def __init__(
        self,
        logits: Logits,
        lags: Sequence[int],
        limits: VectorLimits,
        tick_seconds: float,
        *,
        shielded: bool = True,
        masked: bool = True,
        price: float = 1.0,
        absent: Collection[str] = (),
    ) -> None:
        self.shielded, self.masked = shielded, masked
        self.remarks: tuple[str, ...] = ()
        self._logits, self._limits = logits, limits
        self._observer = VectorObserver(limits, tick_seconds, lags, absent)
        self._observer.prices = price
        history = FRAME_SIZE * len(lags)
        self._newest = slice(history - FRAME_SIZE, history)
        self._fresh = True

    def begin(self) -> Allocations:
        """Forget the history and what was learned; BE begins at the safe allocation."""
        self._fresh = True
        return self._limits.safe

    def act(self, seen: BatchObservation) -> BatchAnswer:
        """The best allowed move on each host."""
        observations = self._observe(seen)
        logits = self._logits(observations)
        failed: NDArray[np.bool_] = np.logical_not(np.isfinite(logits).all(axis=1))
        if self.masked:
            mask = np.ones(logits.shape, np.bool_) if seen.mask is None else seen.mask
            logits = np.where(
                self._observer.filter_moves(mask, seen.readings, seen.current), logits, np.float32(-np.inf)
            )
        moves = np.where(failed[:, None], np.float32(0.0), logits).argmax(axis=1)
        proposed = chosen(moves, seen.current, self._limits)
        newest = observations[:, self._newest]
        strange = np.logical_or.reduce([newest[:, place] == end for place, end in _EDGES])
        return BatchAnswer(self._limits.safe.where(failed, proposed) if failed.any() else proposed, failed, strange)

    def _observe(self, seen: BatchObservation) -> NDArray[np.float32]:
        """What the network sees; where it begins the history is the present alone."""
        fresh, self._fresh = self._fresh, False
        return (self._observer.begin if fresh else self._observer.observe)(seen.readings, seen.current)
