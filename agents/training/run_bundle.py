"""The bundle of a training run: its model exported, with a card that says what it learned on and how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.agents.served.card import CardParts, TrainedOn, Training
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.export import FEWEST, export
from rlctl.agents.training.hosts import present
from rlctl.agents.training.learners import CLASSES, logits_of
from rlctl.agents.training.recipe import as_document
from rlctl.agents.training.rollouts.tally import Tally
from rlctl.agents.training.run import Run

__all__ = ["FEWEST_HOSTS", "write_bundle"]

RECORDED_TICKS = 50
"""Over so many the observations are recorded on which the exported network is compared with the model."""

FEWEST_HOSTS = FEWEST // RECORDED_TICKS

TICK_SECONDS = 1.0


def write_bundle(run: Run, model: Any, env: Any, seconds: float, tally: Tally | None) -> Path:
    """Export a run's model; returns the bundle's folder.

    Args:
        run: What it was asked to do.
        model: With the weights that are to be exported.
        env: Hosts to record observations on, such as those that it learned on.
        seconds: Wall-clock time of the run, over all sessions.
        tally: What became of the transitions, where they came from testbeds.

    Raises:
        BundleError: It cannot be exported, or the network and the model disagree.
    """
    out = run.folder / "bundle"
    card = _card(run, model, seconds, tally)
    export(model, out, name=run.algorithm, card=card, observations=_observations(model, env))
    return out


def _observations(model: Any, env: Any) -> NDArray[np.float32]:
    """What the policy sees on these hosts, shape (FEWEST or more, size)."""
    apart = max(env.num_envs // FEWEST_HOSTS, 1)
    seen, logits = env.reset(), logits_of(model)
    found = [seen[::apart]]
    while sum(len(each) for each in found) < FEWEST:
        env.step_async(logits(seen).argmax(axis=1))
        seen, *_ = env.step_wait()
        found.append(seen[::apart])
    return np.concatenate(found)


def _card(run: Run, model: Any, seconds: float, tally: Tally | None) -> CardParts:
    rollouts = {"rollouts": tally.as_json()} if tally else {}
    return CardParts(
        algorithm=CLASSES[run.algorithm].__name__,
        tick_seconds=TICK_SECONDS,
        lags=run.recipe.lags,
        plants=_trained_on(run),
        training=Training(
            hyperparameters=run.recipe.model_dump(mode="json") | rollouts,
            total_timesteps=model.num_timesteps,
            wall_seconds=round(seconds, 1),
            seed=run.seed,
            code=files.code_version(),
            search=run.search,
            training_id=_digest(run),
        ),
    )


def _digest(run: Run) -> str:
    """sha256 over all that the run follows from."""
    document = {
        "algorithm": run.algorithm,
        "config": as_document(run.recipe),
        "hosts": run.hosts.model_dump(mode="json"),
        "seed": run.seed,
        "max_seconds": run.max_seconds,
        "init": hashlib.sha256(run.init.read_bytes()).hexdigest() if run.init else None,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _trained_on(run: Run) -> tuple[TrainedOn, ...]:
    found = []
    for kind, count in present(run.hosts, run.recipe.n_envs):
        host, shield = kind.host(), kind.shield()
        found.append(
            TrainedOn(
                profile=host.name,
                digest=host.digest,
                ranges={name: list(ends) for name, ends in host.ranges.items()},
                weight=kind.weight,
                shield=shield.name if shield else None,
                shield_digest=shield.digest if shield else None,
                absent=kind.absent,
                work=kind.work,
                hosts=count,
            )
        )
    return tuple(found)
