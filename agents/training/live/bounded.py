"""Bounded exploration on a host that serves users: seldom, by one target, and only where there is room for it.

A learner on a live host asks `action_masks` before every step and takes one of the moves that it allows. Nearly always
that is one: the policy's own best move among those that the shield lets through, as it would be served. Now and then,
and only while the believed slack is large and no guard holds BE down, its neighbours stand beside it (Autothrottle's
rule; lesson L9 of managers.md 5.2). So a learner may choose among what is allowed as it likes, uniformly or by its own
distribution, and stays within the bounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlctl.agents.batch_learned import Logits
from rlctl.agents.training.nearest_move import nearest_move
from rlctl.envs.actions import MOVES, RISE_RATIO
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.telemetry import Telemetry, number
from rlctl.safety.shield import Shield
from rlctl.safety.trust import Trust
from rlctl.safety.verdict import Reason
from rlctl.safety.wrapper import ShieldedEnv

KEEP = [move.name for move in MOVES].index("keep")
_QUOTAS = {
    index: move.quota_ratio
    for index, move in enumerate(MOVES)
    if move.quota_ratio is not None and not move.cpuset_cpus and not move.frozen and move.rise_ratio == RISE_RATIO
}
TARGETS = tuple(sorted(_QUOTAS, key=lambda index: (_QUOTAS[index], index)))
"""Moves towards a quota and nothing else, the smallest first."""

STANDING = frozenset({Reason.GROWTH_RATE, Reason.CEILING})
"""Bounds that hold on a healthy host too; any other says that a guard is worried."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a policy may try something else than its best move; ConfigError for a number outside 0 to 1.

    Attributes:
        least_slack_ratio: Believed slack from which on it may.
    """

    probability: float = 0.1
    least_slack_ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ConfigError(f"an exploration probability of {self.probability:g} is none; give one from 0 to 1")
        if not 0.0 <= self.least_slack_ratio <= 1.0:
            raise ConfigError(f"exploring from a slack of {self.least_slack_ratio:g} on: give a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class Step:
    """One control period, as it is recorded.

    Attributes:
        observation: What the policy saw, float32, shape (size,).
        mask: Moves that the shield would have let through, shape (len(MOVES),).
        chosen, proposed, executed: Moves: the policy's best one, the one taken, and the one nearest to what happened.
        before, asked, ruled, in_force: Allocations: until then, asked for, let through, and read back.
        begins: BE was put to the safe allocation before it: it does not follow on the step before.
    """

    observation: NDArray[np.float32]
    mask: Flags
    telemetry: Telemetry
    chosen: int
    proposed: int
    executed: int
    before: Allocation
    asked: Allocation
    ruled: Allocation
    in_force: Allocation
    overridden: bool
    reward: dict[str, float]
    missed_deadlines: int
    begins: bool = False

    @property
    def held(self) -> bool:
        """The window held its target; one that nobody measured did not."""
        slack = self.telemetry.slack_ratio
        return slack is not None and slack >= 0.0

    @property
    def be_work_ratio(self) -> float:
        """BE's work, as a share of BE running alone; 0 where nobody knows."""
        return number(self.telemetry.be_work_rate) or 0.0

    def as_json(self) -> dict[str, Any]:
        """As plain data; a lifted quota is null."""
        slack = self.telemetry.slack_ratio
        return {
            "time_seconds": round(self.telemetry.time_seconds, 3),
            "observation": np.round(self.observation.astype(float), 7).tolist(),
            "mask": "".join("01"[may] for may in self.mask.astype(int)),
            **{name: MOVES[getattr(self, name)].name for name in ("chosen", "proposed", "executed")},
            **{name: _plain(getattr(self, name)) for name in ("before", "asked", "ruled", "in_force")},
            "overridden": self.overridden,
            "reward": {name: round(term, 6) for name, term in self.reward.items()},
            "held": self.held,
            "slack_ratio": None if slack is None else round(slack, 6),
            "be_work_ratio": round(self.be_work_ratio, 6),
            "missed_deadlines": self.missed_deadlines,
            "begins": self.begins,
        }


def around(chosen: int, current: Allocation, limits: Limits) -> Flags:
    """A move and its neighbours: the next targets up and down, and to keep what is in force.

    A move that names no target has the targets on both sides of the quota that it leaves. One that leaves BE frozen has
    no neighbour, since to thaw is no small step.

    Returns:
        bool, shape (len(MOVES),), with the move itself.
    """
    near = np.zeros(len(MOVES), np.bool_)
    near[chosen] = True
    wanted = MOVES[chosen].of(current, limits)
    if wanted.frozen:
        return near
    near[KEEP] = True
    if chosen in TARGETS:
        place = TARGETS.index(chosen)
        below, above = place - 1, place + 1
    else:
        quotas = [max(_QUOTAS[index] * limits.cpus, limits.min_quota_cpus) for index in TARGETS]
        below, above = bisect_left(quotas, wanted.quota_cpus) - 1, bisect_right(quotas, wanted.quota_cpus)
    near[[TARGETS[place] for place in (below, above) if 0 <= place < len(TARGETS)]] = True
    return near


def has_room(shield: Shield, telemetry: Telemetry, current: Allocation, least_slack_ratio: float) -> bool:
    """True when the slack is believed and large, and no gate is closed, no cool-down runs, and no guard holds BE."""
    profile = shield.profile
    slack = Trust(profile.max_age_seconds, profile.min_samples).slack_ratio(telemetry)
    if slack is None or slack < least_slack_ratio:
        return False
    return all(bound.reason in STANDING for bound in shield.rule(telemetry, current, current).bounds)


class BoundedHost(gym.Wrapper[NDArray[np.float32], Any, NDArray[np.float32], Any]):
    """A shielded live host on which a learner may do what `action_masks` allows, and nothing else.

    `info["executed_move"]` is the move that an off-policy learner has to store.

    Attributes:
        logits: The policy; another one may be put in its place between two steps.
        exploring: False, as at first, leaves the best move alone.
    """

    def __init__(
        self,
        env: ShieldedEnv,
        logits: Logits,
        bounds: Bounds,
        seed: int = 0,
        note: Callable[[Step], None] = lambda _: None,
    ) -> None:
        super().__init__(env)
        self.logits, self.exploring = logits, False
        self._shielded, self._bounds, self._note = env, bounds, note
        self._dice = np.random.default_rng(seed)
        self._begin(np.zeros(0, np.float32))

    def _begin(self, seen: NDArray[np.float32]) -> None:
        self._seen, self._missed, self._begins = seen, 0, True
        self._chosen, self._passed, self._allowed = KEEP, np.zeros(0, np.bool_), np.zeros(0, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """As the environment's: BE begins at the safe allocation."""
        seen, info = super().reset(seed=seed, options=options)
        self._begin(seen)
        return seen, info

    def action_masks(self) -> Flags:
        """Moves of this tick, shape (len(MOVES),); drawn once, however often it is asked for."""
        if not self._allowed.size:
            self._allowed = self._drawn()
        return self._allowed

    def step(self, action: Any) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """Take an allowed move; PolicyError where it is not allowed now."""
        move, host = int(action), self._shielded.host
        if not self.action_masks()[move]:
            raise PolicyError(f"{MOVES[move].name} is out of the bounds of exploration now")
        before = host.current
        seen, reward, terminated, truncated, info = self._shielded.step(move)
        executed = nearest_move(info["allocation"], before, host.plant.limits, preferred=move)
        info["executed_move"] = executed
        missed, self._missed = info["missed_deadlines"] - self._missed, info["missed_deadlines"]
        self._note(
            Step(
                observation=self._seen,
                mask=self._passed,
                telemetry=info["telemetry"],
                chosen=self._chosen,
                proposed=move,
                executed=executed,
                before=before,
                asked=info["proposed"],
                ruled=info["executed"],
                in_force=info["allocation"],
                overridden=info["overridden"],
                reward=info["reward"],
                missed_deadlines=missed,
                begins=self._begins,
            )
        )
        self._seen, self._allowed, self._begins = seen, np.zeros(0, np.bool_), False
        return seen, reward, terminated, truncated, info

    def _drawn(self) -> Flags:
        passed = self._passed = self._shielded.action_masks()  # it reads anew where the host went on without us
        logits = np.asarray(self.logits(self._seen[np.newaxis]))[0]
        if not np.isfinite(logits).all():
            raise PolicyError("the network's answer is not finite: its training diverged")
        self._chosen = int(np.where(passed, logits, -np.inf).argmax())
        host = self._shielded.host
        if self._explores():
            return passed & around(self._chosen, host.current, host.plant.limits)
        alone = np.zeros(len(MOVES), np.bool_)
        alone[self._chosen] = True
        return alone

    def _explores(self) -> bool:
        host = self._shielded.host
        if not self.exploring or self._dice.random() >= self._bounds.probability:
            return False
        assert host.telemetry is not None
        return has_room(self._shielded.shield, host.telemetry, host.current, self._bounds.least_slack_ratio)


def _plain(allocation: Allocation) -> dict[str, Any]:
    quota = None if allocation.quota_cpus == UNLIMITED else round(allocation.quota_cpus, 6)
    return {"quota_cpus": quota, "cpuset_cpus": allocation.cpuset_cpus, "frozen": allocation.frozen}
