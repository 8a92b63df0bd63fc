"""Models of Stable-Baselines3 from their zip files, and the observations that an export is verified on.

A zip holds pickles, so loading one runs whatever it says: for training hosts and files of one's own, never where a
policy serves.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize

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
    """A trained model from its zip file; ConfigError where it is none, or of a learner that cannot be exported."""
    learner = ALGORITHMS[_learner(path)]
    torch.set_num_threads(1)  # a small network is no faster on more, and what is recorded runs beside it
    try:
        return learner.load(path, device="cpu")
    except Exception as error:  # whatever its pickles raise
        raise ConfigError(f"is no model that loads: {first_line(error)}; train it again", path) from error


def load_normalizer(model: Any, path: Path, file: Path | None) -> Any:
    """The VecNormalize that a model was trained under; None where there was none.

    Raises:
        ConfigError: The file does not load, or none is named and the model or its folder shows that there was one.
    """
    if file is None:
        if beside := sorted({*path.resolve().parent.glob("*vec*normalize*.pkl")}):
            raise ConfigError(f"lies beside {beside[0].name}: give --vec-normalize {beside[0]}", path)
        # A zip holds what its model saw last. Statistics take that out of the space that the environment told.
        seen, space = getattr(model, "_last_obs", None), model.observation_space
        if seen is not None and not all(map(space.contains, np.asarray(seen, space.dtype))):
            raise ConfigError("saw observations beyond its space, as under VecNormalize: give --vec-normalize", path)
        return None
    try:
        with reading(file), file.open("rb") as stream:
            normalizer = pickle.load(stream)  # noqa: S301 - like the model, a file of one's own
        if not isinstance(normalizer, VecNormalize):
            raise TypeError(f"it holds a {type(normalizer).__name__}")
    except (pickle.UnpicklingError, TypeError, AttributeError, EOFError, ImportError) as error:
        raise ConfigError(f"is not a VecNormalize that loads: {first_line(error)}", file) from error
    normalizer.training = False
    return normalizer


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
