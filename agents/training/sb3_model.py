"""Models of Stable-Baselines3 from their zip files, and the observations that an export is verified on.

A zip holds pickles, so loading one runs whatever it says: for training hosts and files of one's own, never where a
policy serves.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlctl import __version__
from rlctl.agents.served.card import CardParts, ObservationTable, Training
from rlctl.agents.served.network import first_line
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.export import ALGORITHMS, FEWEST
from rlctl.agents.training.recipe import load_recipe
from rlctl.envs.errors import ConfigError, reading
from rlctl.envs.observation import LAGS
from rlctl.envs.sim.seeds import training
from rlctl.envs.sim.vector_env import SimHostVectorEnv
from rlctl.envs.workload import Weight
from rlctl.envs.yaml_edge import load_yaml

_BY_POLICY = {
    "stable_baselines3.common.policies": "PPO",
    "sb3_contrib.common.maskable.policies": "MaskablePPO",
    "stable_baselines3.dqn.policies": "DQN",
    "sb3_contrib.qrdqn.policies": "QRDQN",
}
"""Learners by the module of their policy's class, which a zip names in plain text."""

_GROUNDS = (("thesis-host", Weight.MINIMUM), ("two-core-nginx", Weight.EQUAL))

HOSTS = 8


def load_model(path: Path) -> Any:
    """A trained model from its zip file.

    Raises:
        ConfigError: It is none, is of a learner that cannot be exported, or learned under a VecNormalize, whose
            statistics it lacks.
    """
    learner = ALGORITHMS[_learner(path)]
    torch.set_num_threads(1)  # a small network is no faster on more, and what is recorded runs beside it
    try:
        model = learner.load(path, device="cpu")
    except Exception as error:  # whatever its pickles raise
        raise ConfigError(f"is no model that loads: {first_line(error)}; train it again", path) from error
    # A zip holds what its model saw last. Statistics take that out of the space that the environment told.
    seen, space = getattr(model, "_last_obs", None), model.observation_space
    if any(path.resolve().parent.glob("*vec*normalize*.pkl")) or (
        seen is not None and not all(map(space.contains, np.asarray(seen, space.dtype)))
    ):
        raise ConfigError("learned under VecNormalize: observations are scaled already, train without it", path)
    return model


def parts_of(model: Any, path: Path, lags: Sequence[int]) -> CardParts:
    """What the zip itself says of its training; a training run knows more."""
    settings = (
        "learning_rate",
        "gamma",
        "batch_size",
        "n_steps",
        "n_epochs",
        "ent_coef",
        "buffer_size",
        "policy_kwargs",
    )
    known = {name: getattr(model, name) for name in settings if hasattr(model, name)}
    told = json.loads(json.dumps(known, default=lambda one: getattr(one, "__name__", type(one).__name__)))
    config = json.dumps({"algorithm": type(model).__name__, **told}, sort_keys=True)
    return CardParts(
        algorithm=type(model).__name__,
        tick_seconds=1.0,
        lags=tuple(lags),
        training=Training(
            hyperparameters=told,
            total_timesteps=int(model.num_timesteps),
            wall_seconds=0.0,
            seed=int(model.seed or 0),
            code=f"unknown: {path.name} was exported by itself with rlctl {__version__}",
            training_id=hashlib.sha256(config.encode()).hexdigest(),
        ),
    )


def lags_of(path: Path, model: Any) -> tuple[int, ...]:
    """Ticks back that a model sees: as the folder of its run says, or rlctl's own; ConfigError where neither fits."""
    configs = (folder / files.CONFIG for folder in path.resolve().parents[:3])
    found = next((file for file in configs if file.is_file() and file.with_name(files.ARGUMENTS).is_file()), None)
    if found:
        arguments, _ = load_yaml(found.with_name(files.ARGUMENTS))
        lags = load_recipe(str(arguments.get("algorithm")), found).lags
    else:
        lags = LAGS
    seen = model.observation_space.shape
    if seen != (ObservationTable.here(lags).size,):
        raise ConfigError(
            f"sees {seen}, and lags {list(lags)} give another size; keep it in the folder of its run, or give --lags",
            path,
        )
    return lags


def recorded(lags: Sequence[int], count: int = 2 * FEWEST) -> NDArray[np.float32]:
    """Observations, `count` or more, of simulated hosts of two kinds under random moves, on training seeds; float32."""
    rng = np.random.default_rng(0)
    seen: list[NDArray[np.float32]] = []
    for profile, weight in _GROUNDS:
        hosts = SimHostVectorEnv(HOSTS, profile, lags=lags, weight=weight)
        observation, _ = hosts.reset(seed=training(0))
        for _ in range(-(-count // (HOSTS * len(_GROUNDS)))):
            seen.append(observation)
            masks = hosts.action_masks()
            choice = np.where(masks, rng.random(masks.shape), -1.0)
            observation = hosts.step(choice.argmax(axis=1))[0]
        hosts.close()
    return np.concatenate(seen)


def _learner(path: Path) -> str:
    try:
        with reading(path), zipfile.ZipFile(path) as file:
            data = json.loads(file.read("data"))
            module = data["policy_class"]["__module__"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ConfigError("is no zip file that a model of Stable-Baselines3 was saved to", path) from error
    if module not in _BY_POLICY or (_BY_POLICY[module] == "PPO" and "n_epochs" not in data):  # A2C has the same policy
        raise ConfigError(f"holds a policy of {module}; {', '.join(_BY_POLICY.values())} can be exported", path)
    return _BY_POLICY[module]
