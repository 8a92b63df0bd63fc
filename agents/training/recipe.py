"""Hyperparameters as YAML in the RL Zoo's shape, one file per algorithm, read as data: nothing in it is ever run.

    recipe = load_recipe("ppo")                       # configs/training/ppo.yaml
    recipe = load_recipe("ppo", Path("mine.yaml"))    # ConfigError with file:line and the closest name
    recipe, notes = recipe.fitted(timesteps=2000, seconds=None)   # smaller where the budget is tiny

The top key is the environment's id, `rlctl/SimHost-v0`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, create_model

from rlctl.envs.errors import ConfigError
from rlctl.envs.observation import LAGS, checked_lags
from rlctl.envs.yaml_edge import Strict, configs_folder, load_model

ENV_ID = "rlctl/SimHost-v0"

SMALL_TIMESTEPS, SMALL_SECONDS = 200_000, 60.0
"""A budget below either is a try-out: hosts and evaluations shrink with it."""

ROLLOUTS = 8
"""As many as a try-out has at least, so that there is something to see."""

T = TypeVar("T", bound="Recipe")
R = TypeVar("R", bound=BaseModel)
_LINEAR = re.compile(r"^lin_(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)$")


def linear(value: str | float) -> tuple[float, bool]:
    """A number, and whether it falls with the budget that is left, as `lin_2e-3` does; ValueError for anything else."""
    found = _LINEAR.match(value) if isinstance(value, str) else None
    if isinstance(value, str) and not found:
        raise ValueError(f"{value!r}: give a number, or lin_ and a number (lin_1e-3) for one that falls to its end")
    number = float(found[1]) if found else float(value)
    if not number > 0.0:
        raise ValueError(f"{value!r} is not positive")
    return number, found is not None


def _is_schedule(value: float | str) -> float | str:
    linear(value)
    return value


def _is_history(value: tuple[int, ...]) -> tuple[int, ...]:
    try:
        lags = checked_lags(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if unknown := set(lags) - set(LAGS):
        raise ValueError(f"observers do not show lag {min(unknown)}; choose among {', '.join(map(str, LAGS))}")
    return lags


Schedule = Annotated[float | str, AfterValidator(_is_schedule)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Below = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0)]
Activation = Literal["tanh", "relu", "elu"]


class Arms(Strict):
    """Layers of the actor and of the critic."""

    pi: tuple[Count, ...]
    vf: tuple[Count, ...]


class NetworkRecipe(Strict):
    """`policy_kwargs` of PPO and MaskablePPO; PPO may have `{pi: [...], vf: [...]}` as its layers."""

    net_arch: tuple[Count, ...] | Arms = (64, 64)
    activation_fn: Activation = "tanh"


class QNetwork(Strict):
    """`policy_kwargs` of DQN: one network."""

    net_arch: tuple[Count, ...] = (64, 64)
    activation_fn: Activation = "relu"


class QuantileNetwork(QNetwork):
    """`policy_kwargs` of QR-DQN: quantiles of each value."""

    n_quantiles: Count = 25


class Recipe(Strict):
    """What all algorithms have.

    Attributes:
        n_envs: Simulated hosts side by side.
        n_timesteps: Control periods of all hosts together.
        policy: As the algorithm calls it.
        learning_rate: A number, or `lin_` and one, which falls to a twentieth of it by the end of the budget.
        gamma: Discount of a control period.
        batch_size: Transitions of a gradient step.
        lags: Ticks back that the policy sees.
        eval_every_seconds, eval_every_timesteps: Time between two evaluations; whichever comes first, None for never.
            Which model is kept depends on the machine's pace where they go by seconds, and on the seed alone else.
        early_stop: Evaluations without a gain after which the run ends; none goes on to its budget.
    """

    OWN: ClassVar[frozenset[str]] = frozenset(
        {"n_envs", "n_timesteps", "policy", "policy_kwargs", "learning_rate", "lags", "early_stop"}
        | {"eval_every_seconds", "eval_every_timesteps", "clip_range"}
    )
    """Keys that are no plain constructor arguments."""

    n_envs: Count
    n_timesteps: Count
    policy: str = "MlpPolicy"
    learning_rate: Schedule
    gamma: Share
    batch_size: Count
    lags: Annotated[tuple[int, ...], AfterValidator(_is_history)] = LAGS
    eval_every_seconds: Positive | None = 60.0
    eval_every_timesteps: Count | None = None
    early_stop: Count | None = None

    def arguments(self) -> dict[str, Any]:
        """What goes to the algorithm's constructor as it stands."""
        return self.model_dump(exclude=set(self.OWN))

    def fitted(self: T, timesteps: int, seconds: float | None, n_envs: int | None = None) -> tuple[T, dict[str, str]]:
        """The recipe made to fit its budget and the user's number of hosts, if any, and why each key was changed."""
        tiny = small(timesteps, seconds)
        few = min(self.n_envs, max(self._few(timesteps), ROLLOUTS)) if tiny else self.n_envs
        hosts = {"n_envs": n_envs or few}
        wanted = {**hosts, "n_timesteps": timesteps, **self._fitting(timesteps, hosts["n_envs"])}
        changes = {key: value for key, value in wanted.items() if value != getattr(self, key)}
        why = {key: f"{getattr(self, key)} does not fit the budget or the hosts" for key in changes}
        asked = {"n_timesteps": "", "n_envs": "--n-envs" if n_envs else f"{self.n_envs} are too many for a try-out"}
        return self.model_copy(update=changes), {key: asked.get(key, reason) for key, reason in why.items()}

    def _few(self, timesteps: int) -> int:
        """Hosts of a try-out."""
        raise NotImplementedError

    def _fitting(self, timesteps: int, n_envs: int) -> dict[str, Any]:
        """What else must fit."""
        raise NotImplementedError


def small(timesteps: int, seconds: float | None) -> bool:
    """True for a try-out, whose hosts and evaluations are few."""
    return timesteps < SMALL_TIMESTEPS or (seconds is not None and seconds < SMALL_SECONDS)


class OnPolicy(Recipe):
    """PPO and MaskablePPO; `clip_range` falls as the learning rate does when it is written `lin_0.2`."""

    policy_kwargs: NetworkRecipe = NetworkRecipe()
    n_steps: Count
    n_epochs: Count
    gae_lambda: Share = 0.95
    clip_range: Schedule = 0.2
    normalize_advantage: bool = True
    ent_coef: float = Field(0.0, ge=0.0)
    vf_coef: float = Field(0.5, ge=0.0)
    max_grad_norm: Positive = 0.5
    target_kl: Positive | None = None

    def _few(self, timesteps: int) -> int:
        return timesteps // (ROLLOUTS * self.n_steps)

    def _fitting(self, timesteps: int, n_envs: int) -> dict[str, Any]:  # noqa: ARG002 - DQN needs it
        return {"batch_size": _divisor(n_envs * self.n_steps, self.batch_size)}


class ConstrainedPpo(OnPolicy):
    """PPO-Lagrangian: at most a share `cost_limit` of the windows may miss, and `multiplier_gain` finds the price."""

    OWN: ClassVar[frozenset[str]] = OnPolicy.OWN | {"cost_limit", "multiplier_gain"}

    cost_limit: float = Field(0.01, gt=0.0, le=1.0)
    multiplier_gain: Positive = 0.02


class OffPolicy(Recipe):
    """DQN: off-policy, from a replay buffer.

    A control period of all hosts together is one step: `train_freq` counts those, `learning_starts`,
    `target_update_interval` and `buffer_size` count single hosts' periods, as Stable-Baselines3 has it.
    """

    policy_kwargs: QNetwork = QNetwork()
    buffer_size: Count
    learning_starts: int = Field(ge=0)
    train_freq: Count
    gradient_steps: Count
    target_update_interval: Count
    tau: Share = 1.0
    n_steps: Count = 1
    exploration_fraction: Share
    exploration_initial_eps: Share = 1.0
    exploration_final_eps: Share
    max_grad_norm: Positive = 10.0

    def _few(self, timesteps: int) -> int:
        return timesteps // 100

    def _fitting(self, timesteps: int, n_envs: int) -> dict[str, Any]:
        return {
            "learning_starts": min(self.learning_starts, timesteps // 4),
            "target_update_interval": max(self.target_update_interval, n_envs),
        }


class QuantileDqn(OffPolicy):
    """QR-DQN: DQN on quantiles."""

    policy_kwargs: QuantileNetwork = QuantileNetwork()


class OfflineRecipe(Strict):
    """What both algorithms have.

    Attributes:
        n_updates: Steps of the optimiser in all.
        rounds: Between them the policy is judged so many times, and the best one is kept.
        learning_rate: A number, or `lin_` and one, which falls to a twentieth of it.
        batch_size: Transitions of an update.
        gamma: Discount; also of the off-policy value by which policies are judged.
        work: Worth of BE's work by a violation, in place of `rlctl.envs.reward.WORK`; none takes what each of the
            dataset's sources says, which is WORK for real hosts.
        held_out: Share of the episodes that is judged on and not learned from.
        max_grad_norm: Gradients are cut to it.
    """

    n_updates: Count
    rounds: Count = 8
    learning_rate: Schedule
    batch_size: Count
    gamma: Below = 0.9
    work: Positive | None = None
    held_out: Below = 0.1
    max_grad_norm: Positive = 10.0


class Cloning(OfflineRecipe):
    """Behaviour cloning of one policy."""

    policy_kwargs: NetworkRecipe = NetworkRecipe()


class Conservative(OfflineRecipe):
    """Conservative Q-learning, CQL(H) of Kumar et al. (NeurIPS 2020), on a quantile network.

    Attributes:
        target_update_interval: Updates between two target networks.
        alpha: Weight of the conservative term.
        temperature: Of its soft maximum, in units of the reward: differences of values that are less hardly count.
    """

    policy_kwargs: QuantileNetwork = QuantileNetwork()
    target_update_interval: Count
    alpha: float = Field(ge=0.0)
    temperature: Positive


def _divisor(of: int, most: int) -> int:
    """The largest divisor not above a number: minibatches of one size."""
    return next(size for size in range(min(most, of), 0, -1) if of % size == 0)


ALGORITHMS: Mapping[str, type[Recipe]] = MappingProxyType(
    {
        "ppo": OnPolicy,
        "dqn": OffPolicy,
        "maskable-ppo": OnPolicy,
        "qrdqn": QuantileDqn,
        "ppo-lagrangian": ConstrainedPpo,
    }
)
"""What `--algo` may be, and what its file may say."""

OFFLINE: Mapping[str, type[OfflineRecipe]] = MappingProxyType({"bc": Cloning, "cql": Conservative})
"""What `--algo` may be with `--offline`, and what its file may say."""


NO_RECURRENT = (
    "recurrent-ppo was removed, since no bundle holds its memory: train it with sb3-contrib on rlctl's SimVecEnv, or "
    "give maskable-ppo"
)


def load_recipe(algorithm: str, path: Path | None = None) -> Recipe:
    """The hyperparameters that ship, or those of a file; a ConfigError has its line and the closest key."""
    if algorithm not in ALGORITHMS:
        raise ConfigError(NO_RECURRENT if algorithm == "recurrent-ppo" else f"unknown learner '{algorithm}'")
    return recipe_file(ALGORITHMS[algorithm], algorithm, path)


def recipe_file(kind: type[R], algorithm: str, path: Path | None) -> R:
    """What a file of hyperparameters says, or the one that ships for an algorithm; see `load_recipe`."""
    source = path or configs_folder("training") / f"{algorithm}.yaml"
    recipe: R = load_model(_document(kind), source).recipe
    return recipe


def as_document(recipe: Recipe) -> dict[str, Any]:
    """As a file has it."""
    return {ENV_ID: recipe.model_dump(mode="json")}


class _Document(Strict):
    """A file's shape, in which the hyperparameters stand below the environment's id."""

    REMOVED: ClassVar = {
        f"{ENV_ID}.warm_start": "clone a manager with `rlctl dataset record` and `--offline DATASET --algo bc`",
        f"{ENV_ID}.n_steps": "sums over several ticks: a larger gamma looks further ahead",
    }


def _document(kind: type[BaseModel]) -> Any:
    """The model of a file: the environment's id above the hyperparameters."""
    recipe: Any = (kind, Field(alias=ENV_ID))
    return create_model("Document", __base__=_Document, recipe=recipe)
