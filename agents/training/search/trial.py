"""One trial of a search, on a worker of Ray Tune."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from rlctl.agents.training import run_folder as files
from rlctl.agents.training.evaluations import Evaluation, search_score
from rlctl.agents.training.learn import learn
from rlctl.agents.training.search.job import Job

REPORTED = "reported"
"""File with the timesteps of the last report, in the folder of the run."""

NUMBER = "number"
"""Key of a trial's configuration: its place in the search, from 0."""


def train(config: Mapping[str, Any], job: Job) -> None:
    """Train one trial, or go on with it from its checkpoint; each evaluation is reported with the folder of the run."""
    folder = Path.cwd() / "run"
    # What an earlier worker left here does not count, the checkpoint does.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        checkpoint.to_directory(folder)
        drop_unreported(folder)
    run = job.run_of(config[NUMBER], job.space.values(config), folder)

    def report(now: Evaluation) -> None:
        (folder / REPORTED).write_text(str(now.timesteps))
        metrics = {
            "timesteps": now.timesteps,
            "seconds": now.seconds,
            "score": search_score(now.shortfall_points, now.mean("be_percent")),
            "shortfall_points": now.shortfall_points,
            "qos_percent": now.mean("qos_percent"),
            "be_percent": now.mean("be_percent"),
        }
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    learn(replace(run, resume=checkpoint is not None), evaluated=report)


def drop_unreported(folder: Path) -> None:
    """Leave only the checkpoint that was reported: a search that goes on writes over what came after its last state."""
    timesteps = int((folder / REPORTED).read_text())
    files.drop_older(folder, files.checkpoint_folder(folder, timesteps))
