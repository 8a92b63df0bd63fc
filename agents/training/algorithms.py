"""The algorithms of Stable-Baselines3 and its contrib package behind one door: make one, read its logits, load weights.

model = make("ppo", recipe, env, budget)          # schedules go by what is left of the budget, time or timesteps
logits = logits_of(model)                         # observations -> logits, numpy; see rlctl.agents.training.trial
take_weights(model, Path("model.zip"))            # tensors only: nothing is unpickled
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from rlctl.agents.batch_learned import Logits
from rlctl.agents.served.network import first_line
from rlctl.agents.training.recipe import Recipe, linear
from rlctl.envs.actions import MOVES
from rlctl.envs.errors import ConfigError
from rlctl.envs.whole_file import whole

CLASSES: Mapping[str, type[BaseAlgorithm]] = MappingProxyType(
    {"ppo": PPO, "dqn": DQN, "maskable-ppo": MaskablePPO, "qrdqn": QRDQN, "ppo-lagrangian": PPO}
)

LAST_SHARE = 0.05
"""Of what falls with the budget: what is left of it at the end."""

BY_BUDGET = ("lr_schedule", "clip_range", "exploration_schedule")
"""Attributes of models that Stable-Baselines3 asks for a number by what is left of the timesteps."""

ACTIVATIONS: Mapping[str, type[torch.nn.Module]] = MappingProxyType(
    {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}
)

NEIGHBOURS = 2.0
"""Standard deviation of the sharing of gradients, in targets: each is about a fifth above the one before."""


def make(
    algorithm: str,
    recipe: Recipe,
    env: VecEnv,
    left: Callable[[], float],
    classes: Mapping[str, type[BaseAlgorithm]] = CLASSES,
) -> Any:
    """A new model; seeds are the caller's.

    Args:
        recipe: Its hyperparameters, already fitted to the budget.
        left: Share of the budget that is left, 1 to 0.
        classes: The learners, or what was made from them for another kind of environment.

    Raises:
        ConfigError: Stable-Baselines3 does not take them.
    """
    arguments = recipe.arguments() | {"learning_rate": _schedule(recipe.learning_rate)}
    if hasattr(recipe, "clip_range"):
        arguments["clip_range"] = _schedule(recipe.clip_range)
    learner: Any = classes[algorithm]
    # Torch would search every batch for NaN, for an eighth of the learner's time; sampling from one fails anyway.
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        model = learner(recipe.policy, env, policy_kwargs=network_of(recipe), device="cpu", **arguments)
    except (ValueError, AssertionError, TypeError) as error:
        raise ConfigError(f"{algorithm} does not take these hyperparameters: {first_line(error)}") from error
    share_gradients(head_of(model))
    for name in BY_BUDGET:
        if callable(schedule := getattr(model, name, None)):
            setattr(model, name, lambda _, schedule=schedule: schedule(left()))
    return model


def head_of(model: Any) -> Any:
    """The layer whose rows are moves."""
    policy = model.policy
    if isinstance(model, DQN):
        return policy.q_net.q_net[-1]
    return policy.quantile_net.quantile_net[-1] if isinstance(model, QRDQN) else policy.action_net


def kernel() -> NDArray[np.float64]:
    """How much of a move's gradient another one takes: 1 for itself, less for nearby targets, else 0.

    Shape (len(MOVES), len(MOVES)), symmetric and positive definite.
    """
    place = np.array([np.nan if not move.quota_ratio else float(index) for index, move in enumerate(MOVES)])
    apart = place[:, None] - place[None, :]
    shared = np.where(np.isnan(apart), 0.0, np.exp(-0.5 * (apart / NEIGHBOURS) ** 2))
    np.fill_diagonal(shared, 1.0)
    return shared


def share_gradients(layer: torch.nn.Linear) -> None:
    """Have a layer's rows learn from their neighbours: a row for each move, or for each quantile of each move.

    Nothing tells the rows of weights that 36 % lies next to 43 %. Left alone a policy settles on the few targets that
    it happened to try early, and jumps between them. So the gradient of each row is shared with the rows of nearby
    targets, as a layer over smooth functions of the target would do. Layer and files stay what they are.
    """
    repeats, rest = divmod(layer.out_features, len(MOVES))
    assert not rest, "a layer whose rows are not those of the moves"
    shared = torch.as_tensor(np.kron(np.eye(repeats), kernel()), dtype=layer.weight.dtype)
    for weights in (layer.weight, layer.bias):
        hook: Any = weights.register_hook  # untyped in torch
        hook(lambda gradient: shared @ gradient)


def _schedule(value: float | str) -> float | LinearSchedule:
    number, falls = linear(value)
    return LinearSchedule(number, LAST_SHARE * number, 1.0) if falls else number


def network_of(recipe: Any) -> dict[str, Any]:
    """A recipe's `policy_kwargs` as Stable-Baselines3 takes them."""
    given = recipe.policy_kwargs.model_dump()
    arch = given["net_arch"]
    layers = {arm: list(units) for arm, units in arch.items()} if isinstance(arch, dict) else list(arch)
    return {**given, "net_arch": layers, "activation_fn": ACTIVATIONS[given["activation_fn"]]}


def tensor_logits(model: Any, observations: torch.Tensor) -> torch.Tensor:
    """What the model prefers among the moves: logits, or for DQN and QR-DQN values; shape (n, moves)."""
    policy = model.policy
    if isinstance(model, DQN):
        return torch.as_tensor(policy.q_net(observations))
    if isinstance(model, QRDQN):
        return torch.as_tensor(policy.quantile_net(observations).mean(dim=1))
    return torch.as_tensor(policy.action_net(policy.mlp_extractor.forward_actor(observations)))


def logits_of(model: Any) -> Logits:
    """The model as `rlctl.agents.training.trial` takes it."""

    def logits(observations: NDArray[np.float32]) -> NDArray[np.floating]:
        with torch.no_grad():
            return np.asarray(tensor_logits(model, torch.as_tensor(observations)).numpy())

    return logits


def save(model: Any, path: Path) -> None:
    """Write the model as Stable-Baselines3 does, without what belongs to this process; whole or not at all."""
    with whole(path, lasting=True) as file:
        model.save(file, exclude=[*BY_BUDGET, "_logger", "_last_obs", "_last_episode_starts"])


def take_weights(model: Any, path: Path, *, policy_only: bool = False) -> None:
    """Give a model the weights of a file that `save` or Stable-Baselines3 wrote: tensors only, no pickle is opened.

    Args:
        policy_only: Without the optimiser's state.

    Raises:
        ConfigError: The file is no model, or one of another algorithm or shape.
    """
    try:
        _, parameters, _ = load_from_zip_file(path, device="cpu", load_data=False)
        if policy_only:
            model.policy.load_state_dict(parameters["policy"])
        else:
            model.set_parameters(parameters, exact_match=True, device="cpu")
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        raise ConfigError(f"does not fit this algorithm and network: {first_line(error)}", path) from error
