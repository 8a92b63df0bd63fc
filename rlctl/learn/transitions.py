"""From ticks to transitions: what a policy saw, what was executed, and what the next tick was worth.

Observations, moves and rewards come from the functions that the environments use (`Observer`, `MOVES`, `reward`). So a
recorded transition is the one that a learner on that host would have had. A tick that teaches something wrong is left
out, and the episode is cut there (`Cut`):

    no latency         nobody knows whether the target was missed.
    no BE work         nobody knows what BE did.
    client saturated   no miss was seen, but requests failed or the tail may be longer than was said.
    LC at its cap      the LC had its CPUs busy while BE was frozen: that is the load's doing, and no policy's
    old latency        it is of a period before the last one, and of a move before the one that was made

and where the thread is lost: ticks are missing, a deadline was missed, the service began anew, its settings
changed, lines are damaged, somebody else changed the allocation, or the guard between the ticks held BE meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.training.offline.dataset import TERMS, Source
from rlctl.agents.training.offline.writer import Episode, Recording
from rlctl.envs.allocation import Allocation, Limits
from rlctl.envs.observation import OLD_PERIODS
from rlctl.envs.reward import reward
from rlctl.envs.telemetry import Missing, Telemetry, Value, number
from rlctl.log.replay import same

LONGEST = 300
"""Transitions of an episode: a longer one is cut without losing any, so that episodes can be held out."""


class Cut(StrEnum):
    """Why an episode ends: what the tick's readings lack, or why the next tick does not follow on it."""

    NO_LATENCY = "no latency"
    NO_WORK = "no BE work"
    CLIENT = "client saturated"
    AT_CAP = "LC at its cap"
    OLD = "old latency"
    GAP = "gap or missed deadline"
    RESTART = "restart"
    SETTINGS = "settings changed"
    DAMAGE = "damage"
    OTHERS = "changed by others"
    BETWEEN = "held between ticks"


BUSY_RATIO = 0.99
"""Of the LC's CPUs: from there on it would take more."""

FAILED_RATIO = 0.01
"""Of the requests: from there on the tail of those that succeeded says too little."""


@dataclass(frozen=True, slots=True)
class TransitionStep:
    """One tick as a dataset needs it.

    Attributes:
        observation: What a policy saw, float32, shape (size,).
        mask: Moves that the shield would let through unchanged, shape (len(MOVES),).
        before, applied: Allocations: in force until then, and read back.
        proposed_move, executed_move: The moves nearest to what was asked for and to what happened.
    """

    observation: NDArray[np.float32]
    mask: NDArray[np.bool_]
    telemetry: Telemetry
    before: Allocation
    applied: Allocation
    proposed_move: int
    executed_move: int
    policy: str
    overridden: bool = False
    explored: bool = False


def censored(telemetry: Telemetry, before: Allocation, limits: Limits) -> Cut | None:
    """Why a tick teaches nothing; None when it does."""
    if telemetry.missed is None:
        return Cut.NO_LATENCY
    if not isinstance(telemetry.be_work_rate, Value):
        return Cut.NO_WORK
    # A miss is one whatever the client did not see: without it who causes many would look better than who causes few.
    if not telemetry.missed and _client_saturated(telemetry):
        return Cut.CLIENT
    busy = telemetry.lc_cpus
    at_cap = isinstance(busy, Value) and busy.value >= BUSY_RATIO * limits.lc_cpus
    return Cut.AT_CAP if before.frozen and at_cap else None


def _client_saturated(telemetry: Telemetry) -> bool:
    limit, failed, offered = (
        reading.value if isinstance(reading := telemetry.counters.get(name), Value) else 0.0
        for name in ("tail_is_lower_limit", "error_rps", "offered_rps")
    )
    return limit >= 0.5 or failed > FAILED_RATIO * max(offered, failed)


class TransitionBuilder:
    """Makes episodes of moments that follow one another; `cuts` says why and how often one was cut."""

    def __init__(self, limits: Limits, tick_seconds: float = math.inf) -> None:
        self._old_seconds = OLD_PERIODS * tick_seconds
        self.episodes: list[Episode] = []
        self.ticks = 0
        self.cuts: Counter[str] = Counter()
        self._limits = limits
        self._open: list[TransitionStep] = []

    def add(self, moment: TransitionStep) -> None:
        """Take the next tick."""
        self.ticks += 1
        why = censored(moment.telemetry, moment.before, self._limits)
        latency = moment.telemetry.latency_seconds
        if why is None and not isinstance(latency, Missing) and latency.age_seconds >= self._old_seconds:
            why = Cut.OLD
        if why:
            self.cut(why)
            return
        if self._open and not same(self._open[-1].applied, moment.before):
            self.cut(Cut.OTHERS)
        self._open.append(moment)
        if len(self._open) > LONGEST:
            self.end()
            self._open.append(moment)

    def cut(self, why: Cut) -> None:
        """The next tick does not follow on this one."""
        self.cuts[why] += 1
        self.end()

    def end(self) -> None:
        """Complete the episode that is open."""
        if len(self._open) > 1:
            self.episodes.append(_episode(self._open))
        self._open = []


def recording_of_builders(builders: Sequence[TransitionBuilder], tick_seconds: float, **origin: Any) -> Recording:
    """What builders, one for each host or run, have made and what is open in them; `origin` are fields of `Source`."""
    cuts: Counter[str] = Counter()
    for builder in builders:
        builder.end()
        cuts.update(builder.cuts)
    episodes = tuple(episode for builder in builders for episode in builder.episodes)
    ticks, transitions = sum(one.ticks for one in builders), sum(map(len, episodes))
    source = Source(hosts=len(builders), ticks=ticks, transitions=transitions, **origin)
    return Recording(source, tick_seconds, episodes, cuts)


def _episode(moments: Sequence[TransitionStep]) -> Episode:
    steps = moments[:-1]
    terms = [
        reward(after.telemetry, one.before, one.applied, overridden=one.overridden)._asdict()
        for one, after in zip(steps, moments[1:], strict=True)
    ]
    return Episode(
        observations=np.array([one.observation for one in moments], np.float32),
        action_mask=np.array([one.mask for one in moments], np.bool_),
        actions=np.array([one.executed_move for one in steps], np.int64),
        proposed=np.array([one.proposed_move for one in steps], np.int64),
        reward_terms=np.array([[one[name] for name in TERMS] for one in terms]),
        be_work_ratio=np.array([number(after.telemetry.be_work_rate) or 0.0 for after in moments[1:]]),
        overridden=np.array([one.overridden for one in steps], np.bool_),
        explored=np.array([one.explored for one in steps], np.bool_),
        policy=tuple(one.policy for one in steps),
    )
