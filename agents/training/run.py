"""What a training run is asked to do, how far it has come, and what came of it: plain data, without a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlctl.agents.served.card import SearchOrigin
from rlctl.agents.training.evaluations import Evaluation
from rlctl.agents.training.hosts import Hosts
from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.rollouts.tally import Tally
from rlctl.agents.training.trial import Course

__all__ = ["Ending", "Result", "Run", "Status"]


class Ending(StrEnum):
    """Why a run ended."""

    BUDGET = "budget spent"
    NO_GAIN = "no gain any more"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Run:
    """What to do.

    Attributes:
        algorithm: A key of `learners.CLASSES`.
        recipe: Hyperparameters, fitted to the budget; `n_timesteps` is the budget.
        hosts: What to learn on.
        courses: What to be compared on, see `evaluations`.
        folder: Of the run; made for a new one.
        seed: Decides network, hosts, loads and noise; with one thread and no time limit, every number.
        validation_seeds: Seeds of each course.
        max_seconds: Time, too, is limited; None for no limit.
        init: A model's file whose weights are begun with.
        resume: Go on in the folder.
        threads: Of torch.
        export: Write a bundle at the end.
        checkpoint_seconds: Between two checkpoints.
        arguments, command: For the folder: what the user asked for.
        search: Of which search it is a trial, for the card.
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
    resume: bool = False
    threads: int = 1
    export: bool = True
    checkpoint_seconds: float = 120.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    search: SearchOrigin | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """How far a run has come.

    Attributes:
        timesteps: Learned from so far.
        done_ratio: Of the budget, 0 to 1.
        seconds: Wall-clock time so far, over all sessions.
        doing: What else is worth telling, in a few words.
        evaluation: The last one.
    """

    timesteps: int
    done_ratio: float
    seconds: float
    doing: str
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run.

    Attributes:
        folder: Of the run.
        ending: Why it ended.
        timesteps, seconds: What it took, over all sessions.
        best: The best model's evaluation.
        bundle: The exported policy, if any.
        remarks: What its reader must know.
        tally: What became of the transitions, where they came from testbeds.
    """

    folder: Path
    ending: Ending
    timesteps: int
    seconds: float
    best: Evaluation
    bundle: Path | None
    remarks: tuple[str, ...] = ()
    tally: Tally | None = None
