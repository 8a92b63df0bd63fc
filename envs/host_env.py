"""The Gymnasium environment over any Plant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action, decode, discrete_space
from rlctl.envs.allocation import Allocation
from rlctl.envs.allocations import Allocations, useful_moves
from rlctl.envs.errors import RlctlError
from rlctl.envs.observation import LAGS, Observation, Observer
from rlctl.envs.plant import Plant
from rlctl.envs.reward import reward
from rlctl.envs.telemetry import Missing, Telemetry


class HostEnv(gym.Env[NDArray[np.float32], Any]):
    """One LC and one BE budget on one host, a control period per step.

    ## Observation space
    `Box(-1, 1, (observer.size,), float32)`: the features of `rlctl.envs.features.FEATURES` with their validity
    flags and the latency's age, for the ticks `lags` back, oldest first. Ranges and scales are fixed and versioned
    (`VERSION`), and relative to the host; nothing is fitted.

    ## Action space
    `Discrete(len(MOVES))`, an index into `rlctl.envs.actions.MOVES`. An `Allocation` is taken as well, which is how
    the shield's wrapper and the heuristic managers act.

    ## Reward
    `rlctl.envs.reward`: a tick that missed the target, or of which nobody knows, is worth -1 or less whatever BE got
    (`qos`, `severity`); one that held it is worth BE's work at most, which is `WORK` for all that BE would do alone
    (`be_work`), less a cost of coming near the target. Every change of a knob costs a little (`reconfiguration`), and
    so does each action that the shield must change (`override`, by what its wrapper tells). The terms stand in
    `info["reward"]`, each within [-1, 1]; the reward is their sum.

    ## Start and end
    A reset puts BE at the safe allocation (frozen). Episodes have no natural end; they are truncated by
    `max_episode_steps`. On a live plant a step takes one real control period; deadlines that were missed are counted
    in `info["missed_deadlines"]`.

    ## Version history
    v0: first. It may change without a new number until it is in a release.

    Args:
        plant: The host. The environment owns it and closes it, which restores what was touched.
        lags: Ticks back that the observation shows, oldest first.
        render_mode: None or "ansi".
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own

    def __init__(self, plant: Plant, lags: Sequence[int] = LAGS, render_mode: str | None = None) -> None:
        self.plant = plant
        self.observer = Observer(plant.limits, plant.tick_seconds, lags)
        self.observation_space: gym.Space[NDArray[np.float32]] = self.observer.space
        self.action_space = discrete_space()
        self.render_mode = render_mode
        self.missed_deadlines = 0
        self.overridden = False
        """The action of the next step is the shield's and not the policy's; set by the shield's wrapper."""
        self.telemetry: Telemetry | None = None
        self._seen: Observation | None = None

    @property
    def current(self) -> Allocation:
        """The allocation in force."""
        return self.plant.current

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - Gymnasium's signature
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode at the safe allocation; returns after its first control period.

        Args:
            seed: For plants with chance in them; a live host has none.
            options: None is taken.
        """
        super().reset(seed=seed)
        self.observer.reset()
        self.missed_deadlines = 0
        self.plant.reset(seed)
        self._apply(self.plant.limits.safe)
        self.plant.wait()
        self.telemetry = self.plant.read()
        return self._observation(), self._info()

    def step(self, action: Action) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply an action, let one control period pass, and read what came of it.

        Raises:
            PolicyError: The action is outside the space.
            CgroupError: The kernel refused; what is in force was read back.
        """
        before = self.plant.current
        self._apply(decode(action, before, self.plant.limits))
        if missed := self.plant.wait():  # the learner took longer than a period, in which the move before was in force
            self.missed_deadlines += missed + self.plant.wait()
        self.telemetry = self.plant.read()
        terms = reward(self.telemetry, before, self.plant.current, overridden=self.overridden)
        info = self._info() | {"reward": terms._asdict()}
        return self._observation(), terms.total, False, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Moves that change something or keep all, as far as the host's experience leaves them; shape (len(MOVES),)."""
        return self.filter_moves(useful_moves(Allocations.same(self.plant.current, 1), self.plant.limits)[0])

    def filter_moves(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The moves of a mask that what this host has taught leaves, see `rlctl.envs.experience`."""
        assert self._seen is not None, "call reset() first"
        return self._seen.filter_moves(mask)

    def render(self) -> str | None:
        """One line on the latest tick, in render mode "ansi"."""
        if self.render_mode != "ansi" or self.telemetry is None:
            return None
        latency = self.telemetry.latency_seconds
        shown = latency.why if isinstance(latency, Missing) else f"{latency.value * 1e3:.2f} ms"
        return f"latency {shown} of {self.telemetry.target_seconds * 1e3:g} ms; BE {self.plant.current}"

    def close(self) -> None:
        """Restore the host. Idempotent."""
        self.plant.close()

    def _apply(self, allocation: Allocation) -> None:
        try:
            self.plant.apply(allocation)
        except RlctlError:
            self.plant.apply(self.plant.limits.safe)  # never leave BE where a failed write has left it
            raise

    def _observation(self) -> NDArray[np.float32]:
        assert self.telemetry is not None
        self._seen = self.observer.observe(self.telemetry, self.plant.current)
        return self._seen.vector

    def _info(self) -> dict[str, Any]:
        return {
            "telemetry": self.telemetry,
            "allocation": self.plant.current,
            "missed_deadlines": self.missed_deadlines,
        }
