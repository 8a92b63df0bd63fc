"""Any number of simulated hosts as one Gymnasium vector environment, stepped in arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlctl.envs.actions import discrete_space
from rlctl.envs.allocations import Allocations, checked_moves, useful_moves
from rlctl.envs.arrays import Flags
from rlctl.envs.errors import ConfigError
from rlctl.envs.host_env import require_no_options
from rlctl.envs.late_info import LateInfo
from rlctl.envs.observation import LAGS, MOST_PRICE
from rlctl.envs.readings import Readings
from rlctl.envs.reward import WORK, RewardTerms
from rlctl.envs.rows import Rows
from rlctl.envs.sim.loads_training import training_load
from rlctl.envs.sim.plant import LoadModel, SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.seeds import kind_of
from rlctl.envs.sim.sim_env import (
    EPISODE_STEPS,
    LOAD_TICKS,
    as_load,
    as_profile,
    as_weight,
    episode_keys,
    fresh_seed,
)
from rlctl.envs.sim.tick import NO_MOVES, TickLoop, TickRows, pass_ticks
from rlctl.envs.workload import Weight

PRICE_STREAM = 7
"""Number of the random stream that prices come from, beside those of the hosts."""


class VectorShield(Protocol):
    """Whoever has the last word on every host; see `rlctl.safety`."""

    def reset(self) -> None:
        """Forget everything: episodes begin."""

    def loop(self, readings: Rows) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """The law by which hosts pass a tick under its ruling, and what it takes before what `pass_ticks` takes.

        What is in force is never freer than what was proposed, and within the hosts' limits.

        Args:
            readings: READING, what is known before the tick; the same array is the same tick.
        """

    def mask(self, readings: Readings, current: Allocations) -> Flags:
        """Moves that it lets through unchanged, shape (n, len(MOVES))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Keywords of `SimHostVectorEnv` that have a default, see there."""

    vary: bool = True
    tick_seconds: float = 1.0
    ticks: int = LOAD_TICKS
    lags: Sequence[int] = LAGS
    absent: Collection[str] = ()
    weight: Weight | str = Weight.EQUAL
    shield: VectorShield | None = None
    true_rewards: bool = False
    work: float = WORK
    priced: bool = False


class SimHostVectorEnv(VectorEnv[NDArray[np.float32], Any, NDArray[Any]]):
    """The vector twin of `rlctl/SimHost-v0`: the same spaces, rewards and numbers.

    Host i after `reset(seed=s)` equals a `SimHost` after `reset(seed=s + i)`, number for number, episode after episode.
    All episodes are truncated after `max_episode_steps`. The next ones begin in the same step (SAME_STEP, the default),
    in the next one, whose actions then count for nothing (NEXT_STEP), or with a reset (DISABLED).

    ## Infos
    Dicts of arrays with `_key` masks: `telemetry` (see `Readings`), `allocation`, `missed_deadlines`; in a step
    `reward` with its terms, `cost`, and with a shield `proposed`, `executed` and `overridden`. Where episodes end and
    begin in one step, `final_obs` and `final_info` are about those that ended, and all else is about the new ones.

    Args:
        profile, load, vary, tick_seconds, ticks, lags, weight: As in `SimHost`, the same for all hosts.
        absent: Features whose sensor the hosts lack.
        shield: Rules on every action; None takes them as they are.
        true_rewards: Judge by what happened, not by what the sensors say of it; see `rewards`.
        work: Worth of a tick in which BE does what it would do alone, by a violation.
        priced: Each episode has a price of its own, which divides `work` and stands in the observation.
        autoreset_mode: When the next episodes begin: Gymnasium's mode, or its name.
        render_mode: None; one host by itself can be rendered, see `SimHost`.

    Raises:
        ConfigError: There is no such profile, weight or mode, or no host or no step is asked for.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        profile: str | HostProfile = "thesis-host",
        load: LoadModel | Mapping[str, Any] = training_load,
        *,
        max_episode_steps: int = EPISODE_STEPS,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        given = VectorOptions(**options)
        if num_envs < 1 or max_episode_steps < 1:
            raise ConfigError(f"{num_envs} hosts for {max_episode_steps} steps: give at least one of each")
        if render_mode is not None:
            raise ConfigError(f"render_mode {render_mode!r}: many hosts are not drawn; make one with gymnasium.make")
        self.metadata = self.metadata | {"autoreset_mode": _autoreset_mode(autoreset_mode)}
        made, load, weight = as_profile(profile), as_load(load), as_weight(given.weight)
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        self.limits, self.tick_seconds, self.shield = made.limits(weight), given.tick_seconds, given.shield
        self._hosts = partial(
            SimBatch,
            made,
            load=load,
            ticks=given.ticks,
            tick_seconds=given.tick_seconds,
            vary=given.vary,
            weight=weight,
        )
        self._loop = TickLoop(self.limits, given.tick_seconds, given.lags, given.absent, from_truth=given.true_rewards)
        self.single_observation_space = self._loop.observer.space
        self.single_action_space = discrete_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.work, self._priced = given.work, given.priced
        self._all = np.ones(num_envs, np.bool_)
        self._seeds: NDArray[np.uint64] | None = None
        self._episodes = np.zeros(num_envs, np.uint64)
        self._readings: tuple[TickRows | None, Readings | None] = None, None
        self._ended = False

    @property
    def current(self) -> Allocations:
        """What is in force."""
        return Allocations.of_rows(self._latest().allocations)

    @property
    def readings(self) -> Readings:
        """The sensors' readings of the last period, one object of each."""
        tick = self._latest()
        if self._readings[0] is not tick or self._readings[1] is None:
            self._readings = tick, Readings.of(tick.readings)
        assert self._readings[1] is not None
        return self._readings[1]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode on every host, at the safe allocation; returns after its first control period.

        Args:
            seed: Host i gets seed + i, or the i-th of a sequence; None goes on to the next episode.
            options: `reset_mask`, shape (n,), which must name all hosts; nothing else is taken.

        Raises:
            ConfigError: A number of seeds that is not that of the hosts, or another option.
        """
        self._require_open()
        # Gymnasium's own users of DISABLED give a mask of the hosts whose episodes ended.
        given = dict(options or {})
        if not np.all(given.pop("reset_mask", True)):  # they have one clock, so their episodes end together
            raise ConfigError("reset_mask: all hosts begin together; make SyncVectorEnv of single ones to begin some")
        require_no_options(given)
        super().reset(seed=seed if isinstance(seed, int) else None)
        self._seed(seed)
        return self._begin(), self._first_info()

    def close_extras(self, **_: Any) -> None:
        """Let go of the hosts; nothing can be stepped any more."""
        # Memory of thousands of hosts is let go at once.
        self._loop.latest = None

    def step(
        self, actions: NDArray[np.integer] | Allocations
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """Apply an action on every host, let one control period pass, and read what came of it.

        Args:
            actions: Moves (n,), or `Allocations`.

        Raises:
            PolicyError: An action is outside the space.
            ConfigError: There was no reset before, or none after the end of the episodes where none begin by
                themselves, or the environment is closed.
        """
        self._require_open()
        if self._ended:
            return self._next_episodes()
        last, tick = self._latest(), self._loop.new_tick()
        tick.overridden[:] = False
        moves = NO_MOVES
        if isinstance(actions, Allocations):
            tick.proposed[:] = tick.allocations[:] = actions.clip_to(self.limits).rows
        else:
            moves = checked_moves(actions, self.num_envs)
        # The shield has the last word before anything is applied, as on a live host.
        loop, guards = self.shield.loop(last.readings) if self.shield else (pass_ticks, ())
        self._loop.step(tick, last.allocations, moves, loop=loop, guards=guards)
        ended = self._loop.passed - 1 >= self.max_episode_steps  # the period that a reset lets pass does not count
        self._ended = ended and self.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP
        observation, about = tick.observations, partial(_step_info, tick, self._all, self.shield is not None)
        # SAME_STEP: whoever learns sees the new episode's first observation, and the last one in `final_obs`.
        if ended and not self._ended:
            self._episodes = self._episodes + np.uint64(1)
            observation = self._begin()
            about = partial(_reset_info, tick, self._latest(), self._all, self.shield is not None)
        return observation, tick.rewards, np.zeros_like(self._all), np.full_like(self._all, ended), LateInfo(about)

    @property
    def prices(self) -> NDArray[np.float64]:
        """What a violation costs in the episode of each host, shape (n,); one number where all have the same."""
        return np.asarray(self._loop.observer.prices, np.float64)

    def action_masks(self) -> Flags:
        """As `HostEnv.action_masks`, of the moves that a shield lets through; shape (n, len(MOVES))."""
        readings, current, shield = self.readings, self.current, self.shield
        mask = useful_moves(current, self.limits) if shield is None else shield.mask(readings, current)
        return self._loop.observer.filter_moves(mask, readings, current)

    def _next_episodes(self) -> tuple[NDArray[np.float32], NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """The step after an end, in NEXT_STEP: the actions count for nothing."""
        if self.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            raise ConfigError("the episodes are over: call reset()")
        self._episodes = self._episodes + np.uint64(1)
        observation, nothing = self._begin(), np.zeros_like(self._all)
        return observation, np.zeros(self.num_envs), nothing, nothing.copy(), self._first_info()

    def _require_open(self) -> None:
        if self.closed:
            raise ConfigError("the environment is closed: make another one")

    def _latest(self) -> TickRows:
        if self._loop.latest is None:
            raise ConfigError("the hosts have not begun: call reset() first")
        return self._loop.latest

    def _begin(self) -> NDArray[np.float32]:
        """Begin new episodes; returns what the policies see."""
        assert self._seeds is not None
        keys, self._ended = episode_keys(self._seeds, self._episodes), False
        # BE begins each episode at the safe allocation, as a controller's start on a live host does.
        if self.shield is not None:
            self.shield.reset()
        prices = prices_of(keys) if self._priced else np.ones(self.num_envs)
        return self._loop.begin(self._hosts(keys), prices, self.work).observations

    def _first_info(self) -> LateInfo:
        tick, which = self._latest(), self._all
        return LateInfo(lambda: _with_masks(_state(tick), which))

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        """Set seeds and numbers of the episodes that begin now."""
        seeds = self._seeds_of(seed)
        anew = np.array([seed is not None for seed in seeds])
        if self._seeds is None:
            self._seeds = np.uint64(fresh_seed()) + np.arange(self.num_envs, dtype=np.uint64)
            self._episodes = np.zeros(self.num_envs, np.uint64)
        else:
            # A host that is given a seed begins its first episode; the others go on to their next one.
            self._episodes = np.where(anew, np.uint64(0), self._episodes + np.uint64(1))
        self._seeds = np.where(anew, np.array([seed or 0 for seed in seeds], np.uint64), self._seeds)

    def _seeds_of(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
        if len(seeds) != self.num_envs:
            raise ConfigError(f"{len(seeds)} seeds for {self.num_envs} hosts: give one for each")
        for number in seeds:
            if number is not None:
                kind_of(number)
        return seeds


def prices_of(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The price of a violation in each episode, by its key.

    It is 1, at which most policies serve, in half of them. The others are spread evenly over its logarithm, up to
    MOST_PRICE and down to its inverse.
    """
    # A stream of its own, so that prices change no host's noise.
    share = np.array([np.random.default_rng([int(key), PRICE_STREAM]).random() for key in keys])
    return MOST_PRICE ** np.where(share < 0.5, 0.0, 4.0 * share - 3.0)


def _state(tick: TickRows) -> dict[str, Any]:
    """What every info holds, without masks."""
    return {
        "telemetry": Readings.of(tick.readings)._asdict(),
        "allocation": Allocations.of_rows(tick.allocations)._asdict(),
        "missed_deadlines": np.zeros(len(tick.rewards), np.int64),
    }


def _outcome(tick: TickRows, *, shielded: bool) -> dict[str, Any]:
    """What the info of a step holds besides."""
    terms = RewardTerms(*tick.terms.T)
    outcome: dict[str, Any] = {"reward": terms._asdict(), "cost": np.asarray(terms.missed, np.float64)}
    if not shielded:
        return outcome
    proposed, executed = (Allocations.of_rows(rows)._asdict() for rows in (tick.proposed, tick.allocations))
    return outcome | {"proposed": proposed, "executed": executed, "overridden": tick.overridden}


def _step_info(tick: TickRows, which: Flags, shielded: bool) -> dict[str, Any]:
    return _with_masks(_state(tick) | _outcome(tick, shielded=shielded), which)


def _reset_info(last: TickRows, first: TickRows, which: Flags, shielded: bool) -> dict[str, Any]:
    """Of a step in which episodes end and begin: the last step's outcome is in `final_info`."""
    final = np.empty(len(which), object)  # rows as objects, as Gymnasium's own vector environments do
    for place, row in enumerate(last.observations):
        final[place] = row
    finals = {"final_obs": final, "final_info": _step_info(last, which, shielded)}
    about = _with_masks(_state(first), which) | _with_masks(_outcome(last, shielded=shielded), ~which)
    return about | finals | {f"_{name}": which for name in finals}


def _autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    """A mode by its name or value; ConfigError: there is no such one."""
    if isinstance(given, AutoresetMode):
        return given
    for mode in AutoresetMode:
        if str(given).lower().replace("_", "").endswith(mode.value.lower()):
            return mode
    raise ConfigError(f"autoreset_mode {given!r}: {', '.join(mode.name for mode in AutoresetMode)} are known")


def _with_masks(infos: dict[str, Any], which: Flags) -> dict[str, Any]:
    """Infos in Gymnasium's form: beside every array stands `_NAME`, the mask of the hosts that it is about: all."""
    masked: dict[str, Any] = {}
    for name, value in infos.items():
        masked[name] = _with_masks(value, which) if isinstance(value, dict) else value
        masked["_" + name] = which
    return masked
