"""The bundle of a training run: its model exported, with a card that says what it learned on and how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rlctl.agents.served.card import CardParts, TrainedOn, Training
from rlctl.agents.training import run_folder as files
from rlctl.agents.training.algorithms import CLASSES
from rlctl.agents.training.export import export
from rlctl.agents.training.host_kinds import Kind, present
from rlctl.agents.training.recipe import as_document
from rlctl.agents.training.sb3_model import recorded
from rlctl.agents.training.training_run import SIMULATED, Tally, TrainingRun

TICK_SECONDS = 1.0
"""Control period of all simulated hosts."""


def write_bundle(run: TrainingRun, model: Any, seconds: float, tally: Tally | None) -> Path:
    """Export a run's model; returns the bundle's folder. BundleError where network and model disagree."""
    own: dict[str, Any] = {"rollouts": tally.as_json()} if tally else {}
    before = files.init_card(run.folder) if run.init else None
    if run.init:
        own["init"] = _sha256(run.folder / files.INIT)
    plants = [_trained_on(kind, count) for kind, count in present(run.hosts, run.recipe.n_envs)]
    if tally and tally.hosts and all(one.kind != SIMULATED for one in tally.hosts.values()):
        plants = []
    plants += [one for one in before.plants if one not in plants] if before else []
    card = CardParts(
        algorithm=CLASSES[run.algorithm].__name__,
        tick_seconds=TICK_SECONDS,
        lags=run.recipe.lags,
        plants=tuple(plants),
        training=Training(
            hyperparameters=run.recipe.model_dump(mode="json") | own,
            total_timesteps=model.num_timesteps + (before.training.total_timesteps if before else 0),
            wall_seconds=round(seconds + (before.training.wall_seconds if before else 0.0), 1),
            seed=run.seed,
            code=files.code_version(),
            search=run.search,
            training_id=_digest(run),
        ),
    )
    out = run.folder / "bundle"
    export(model, out, name=run.algorithm, card=card, observations=recorded(run.recipe.lags))
    return out


def _digest(run: TrainingRun) -> str:
    """sha256 over all that the run follows from."""
    document = {
        "algorithm": run.algorithm,
        "config": as_document(run.recipe),
        "hosts": run.hosts.model_dump(mode="json"),
        "seed": run.seed,
        "max_seconds": run.max_seconds,
        "init": _sha256(run.folder / files.INIT) if run.init else None,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _trained_on(kind: Kind, count: int) -> TrainedOn:
    host, shield = kind.host(), kind.shield()
    return TrainedOn(
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
