"""One trial of a search, on a worker of Ray Tune."""

from __future__ import annotations

import json
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
from rlctl.agents.training.search.space import Values

LINEAGE = "lineage.json"


def train(config: Mapping[str, Any], job: Job) -> None:
    """One trial, on a worker: begun, gone on with, or continued from another trial's weights."""
    name, values = tune.get_context().get_trial_name(), config["drawn"]["values"]  # the name there may be another's
    folder = Path.cwd() / "run"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier part of this trial: the checkpoint is what counts
    folder.mkdir()
    kept = tune.get_checkpoint()
    if kept:
        kept.to_directory(folder)
        drop_strays(folder)
        (folder / files.CONFIG).unlink()
        if job.space.margins(lineage(folder)[-1]["values"]) != job.space.margins(values):
            (folder / "evaluations.npz").unlink(missing_ok=True)  # merits under another shield are no yardstick
    run = job.run_of(name, values, folder)
    if kept:
        files.begin(folder, run.recipe, run.hosts, run.arguments, run.command)  # its values may be others now
    past = _with_present(folder, name, values)

    def evaluated(now: Evaluation) -> None:
        (folder / LINEAGE).write_text(json.dumps({"timesteps": now.timesteps, "trials": past}) + "\n")
        told = {
            "timesteps": now.timesteps,
            "seconds": now.seconds,
            "score": search_score(now.shortfall_points, now.mean("be_percent")),
            "shortfall_points": now.shortfall_points,
            "qos_percent": now.mean("qos_percent"),
            "be_percent": now.mean("be_percent"),
        }
        tune.report(told, checkpoint=tune.Checkpoint.from_directory(folder))

    learn(replace(run, resume=kept is not None), evaluated=evaluated)


def lineage(folder: Path) -> list[dict[str, Any]]:
    """Whose weights a trial's were, since when, and with which values; the last one is the trial itself."""
    file = folder / LINEAGE
    found: list[dict[str, Any]] = json.loads(file.read_text())["trials"] if file.is_file() else []
    return found


def drop_strays(folder: Path) -> None:
    """Leave only the checkpoint that was reported: a search that goes on writes over what came after its last state."""
    timesteps = json.loads((folder / LINEAGE).read_text())["timesteps"]
    files.drop_older(folder, files.checkpoint_folder(folder, timesteps))


def _with_present(folder: Path, name: str, values: Values) -> list[dict[str, Any]]:
    """The lineage, with this trial as it is now."""
    found = lineage(folder)
    if not found or (found[-1]["trial"], found[-1]["values"]) != (name, values):
        since = files.newest_checkpoint(folder).state.timesteps if found else 0
        found.append({"trial": name, "since_timesteps": since, "values": dict(values)})
    return found
