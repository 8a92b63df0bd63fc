"""The Gymnasium environment over any Plant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action, decode, discrete_space
from rlctl.envs.allocation import Allocation
from rlctl.envs.allocations import Allocations, useful_moves
from rlctl.envs.errors import ConfigError, RlctlError
from rlctl.envs.observation import LAGS, Observation, Observer
from rlctl.envs.plant import Plant
from rlctl.envs.reward import reward
from rlctl.envs.telemetry import Missing, Telemetry
from rlctl.envs.timeline import Timeline


class HostEnv(gym.Env[NDArray[np.float32], Any]):
    """One LC and one BE budget on one host, a control period per step.

    ## Observation space
    `Box(-1, 1, (observer.size,), float32)`. For each tick of `lags`, oldest first, one frame:

    | number | feature | unit | least | most | scale | may be missing |
    | --- | --- | --- | --- | --- | --- | --- |
    | 0 | slack | share of target | -1 | 1 | linear | yes |
    | 1 | latency | target | 0.001 | 10 | log10 | yes |
    | 2 | stretch | latency by CPU time of a request | 1 | 10000 | log10 | yes |
    | 3 | load | share of maximum | 0 | 1.25 | linear | yes |
    | 4 | cpi | cycles per instruction | 0.25 | 8 | log10 | yes |
    | 5 | cpu_per_request | target | 0.0001 | 1 | log10 | yes |
    | 6 | lc_cpus | share of LC CPUs | 0 | 1 | linear | yes |
    | 7 | be_cpus | share of BE CPUs | 0 | 1 | sqrt | yes |
    | 8 | quota | share of BE CPUs | 0 | 1 | sqrt | no |
    | 9 | cpuset | share of BE CPUs | 0 | 1 | sqrt | no |
    | 10 | frozen | 0 or 1 | 0 | 1 | linear | no |
    | 11 | exclusive | share of BE CPUs | 0 | 1 | linear | no |

    Each range is mapped to [-1, 1]; a missing number is 0. A validity flag follows for each feature that may be
    missing (1 or -1), then the latency's age in ticks. Behind all frames stands what this host has taught
    (`SafeLevelMemory.features`) and the price of a violation. Ranges are fixed and versioned (`VERSION`).

    ## Action space
    `Discrete(35)`, an index into `rlctl.envs.actions.MOVES`:

    | index | move | what it asks for |
    | --- | --- | --- |
    | 0 | keep | nothing |
    | 1 | freeze | the safe allocation: BE stopped, least quota, one CPU |
    | 2 | thaw | BE runs on with its quota |
    | 3 | minimum | least quota, one CPU |
    | 4 to 31 | quota-1% to quota-100% | towards that share of BE's CPUs: down at once, up by a tenth a tick |
    | 32 | leap | towards all of them, up by half a tick |
    | 33, 34 | cpuset-1, cpuset+1 | one CPU less or more |

    An `Allocation` is taken as well, which is how the shield's wrapper and the heuristic managers act.

    ## Reward
    `rlctl.envs.reward`: a tick that missed the target, or of which nobody knows, is worth -1 or less whatever BE got
    (`qos`, `severity`); one that held it is worth BE's work at most, which is `WORK` for all that BE would do alone
    (`be_work`), less a cost of coming near the target. Every change of a knob costs a little (`reconfiguration`), and
    so does each action that the shield must change (`override`, by what its wrapper tells). The terms stand in
    `info["reward"]`, each within [-1, 1]; the reward is their sum. In the first step of an episode a latency that has
    not arrived yet costs nothing.

    ## Cost
    `info["cost"]` is 1.0 for a window that missed its target, or of which nobody knows, else 0.0. `ConstrainedEnv`
    returns it beside the reward, as Safety-Gymnasium does.

    ## Start and end
    A reset puts BE at the safe allocation (frozen). Episodes have no natural end; they are truncated by
    `max_episode_steps`. On a live plant a step takes one real control period; deadlines that were missed are counted
    in `info["missed_deadlines"]`.

    ## Version history
    v0: first. It may change without a new number until it is in a release.

    Args:
        plant: The host. The environment owns it and closes it, which restores what was touched.
        lags: Ticks back that the observation shows, oldest first.
        render_mode: None, "ansi" (a line on the latest tick) or "rgb_array" (a picture of the last ticks).

    Raises:
        ConfigError: Another render mode, or a picture and Matplotlib is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 - Gymnasium's

    def __init__(self, plant: Plant, lags: Sequence[int] = LAGS, render_mode: str | None = None) -> None:
        self.plant = plant
        self.observer = Observer(plant.limits, plant.tick_seconds, lags)
        self.observation_space: gym.Space[NDArray[np.float32]] = self.observer.space
        self.action_space = discrete_space()
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode {render_mode!r}: {' or '.join(self.metadata['render_modes'])} is needed")
        self.render_mode = render_mode
        self._timeline = Timeline() if render_mode == "rgb_array" else None
        self._first = True
        self.missed_deadlines = 0
        self.overridden = False
        """The action of the next step is the shield's and not the policy's; set by the shield's wrapper."""
        self._told: Telemetry | Callable[[], Telemetry] | None = None
        self._seen: Observation | None = None

    @property
    def telemetry(self) -> Telemetry | None:
        """The latest readings; None before the first."""
        if callable(self._told):
            self._told = self._told()
        return self._told

    @telemetry.setter
    def telemetry(self, telemetry: Telemetry) -> None:
        self._told = telemetry

    @property
    def current(self) -> Allocation:
        """The allocation in force."""
        return self.plant.current

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode at the safe allocation; returns after its first control period.

        Args:
            seed: For plants with chance in them; a live host has none.
            options: None is taken.

        Raises:
            ConfigError: An option is given.
        """
        super().reset(seed=seed)
        require_no_options(options)
        self.missed_deadlines, self._first = 0, True
        self.plant.reset(seed)
        self._apply(self.plant.limits.safe)
        return self._begin(), self._info()

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
        self.telemetry = telemetry = self.plant.read()
        terms = reward(telemetry, before, self.plant.current, overridden=self.overridden, first=self._first)
        self._first = False
        info = self._info() | {"reward": terms._asdict(), "cost": float(terms.missed)}
        return self._observation(), terms.total, False, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Moves that change something or keep all, as far as the host's experience leaves them; shape (len(MOVES),)."""
        return self.filter_moves(useful_moves(Allocations.same(self.plant.current, 1), self.plant.limits)[0])

    def filter_moves(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The moves of a mask that what this host has taught leaves, see `rlctl.envs.experience`."""
        assert self._seen is not None, "call reset() first"
        return self._seen.filter_moves(mask)

    def render(self) -> str | NDArray[np.uint8] | None:
        """The latest tick in a line, or the last ticks as a picture, shape (height, width, 3); None before a reset."""
        if self.telemetry is None or self.render_mode is None:
            return None
        if self._timeline is not None:
            return self._timeline.picture()
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

    def _begin(self) -> NDArray[np.float32]:
        """Let the first period pass; returns what the policy sees."""
        self.plant.wait()
        self.telemetry = self.plant.read()
        self.observer.reset()
        return self._observation()

    def _observation(self) -> NDArray[np.float32]:
        """What the policy sees of this tick."""
        assert self.telemetry is not None
        if self._timeline is not None:
            self._timeline.add(self.telemetry, self.plant.current, self.plant.limits)
        self._seen = self.observer.observe(self.telemetry, self.plant.current)
        return self._seen.vector

    def _info(self) -> dict[str, Any]:
        return {
            "telemetry": self.telemetry,
            "allocation": self.plant.current,
            "missed_deadlines": self.missed_deadlines,
        }


def require_no_options(options: dict[str, Any] | None) -> None:
    """Refuse options of a reset that would have no effect; ConfigError: there are some."""
    if options:
        raise ConfigError(f"reset takes no option {', '.join(map(repr, options))}: give it to the environment instead")
