"""What a training run is asked to do, how far it has come, and what came of it: plain data, without a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlctl.agents.served.card import SearchOrigin
from rlctl.agents.training.evaluations import METRICS, Evaluation
from rlctl.agents.training.host_kinds import Hosts
from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.rollouts.tally import Tally
from rlctl.agents.training.trial import Course


class Ending(StrEnum):
    """Why a run ended."""

    BUDGET = "budget spent"
    NO_GAIN = "no gain any more"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a training run has to do.

    Attributes:
        recipe: Hyperparameters, fitted to the budget; `n_timesteps` is the budget in control periods.
        seed: Decides network, hosts, loads and noise; with one thread and no time limit, every number.
        inputs: Files of the user's that courses follow from: the folder keeps copies.
        search: The search that this is a trial of, for the card.
    """

    algorithm: str
    recipe: Recipe
    hosts: Hosts
    courses: tuple[Course, ...]
    folder: Path
    seed: int = 0
    validation_seeds: int = 16
    max_seconds: float | None = None
    init: Path | None = None
    inputs: tuple[Path, ...] = ()
    resume: bool = False
    threads: int = 1
    export: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    search: SearchOrigin | None = None


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """How far a run has come.

    Attributes:
        done_ratio: Share of the budget that is spent, 0 to 1.
        seconds: Wall-clock time so far, over all sessions.
    """

    timesteps: int
    done_ratio: float
    seconds: float
    activity: str
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What came of a run; `tally` says what became of transitions that came from testbeds."""

    run: TrainingRun
    ending: Ending
    timesteps: int
    seconds: float
    best: Evaluation
    bundle: Path | None
    remarks: tuple[str, ...] = ()
    tally: Tally | None = None

    def as_json(self) -> dict[str, object]:
        """As `rlctl train --json` writes it; `scripts.studies.results` reads it back."""
        validation = {
            name: {metric: getattr(trial, metric).round(6).tolist() for metric in METRICS}
            for name, trial in self.best.trials.items()
        }
        return {
            "folder": str(self.run.folder),
            "seed": self.run.seed,
            "ending": str(self.ending),
            "timesteps": self.timesteps,
            "seconds": round(self.seconds, 1),
            "bundle": str(self.bundle) if self.bundle else None,
            "merit": round(self.best.merit, 4),
            "validation": validation,
            "remarks": list(self.remarks),
            "rollouts": self.tally.as_json() if self.tally else None,
        }
