"""What a training run is asked to do, how far it has come, and what came of it: plain data, without a learner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlctl.agents.served.card import SearchOrigin
from rlctl.agents.training.evaluations import METRICS, Evaluation
from rlctl.agents.training.host_kinds import Hosts
from rlctl.agents.training.recipe import Recipe
from rlctl.agents.training.trial import Course
from rlctl.envs.whole_file import write_json

ROLLOUTS = "rollouts.json"
"""File with a `Tally` in the folder of a run."""

SIMULATED = "simulated"
"""Kind of a testbed without a live host."""


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


@dataclass(slots=True)
class HostTally:
    """What became of one testbed's transitions.

    Attributes:
        kind: SIMULATED, or the scenario of a live one.
        lost: Those that it was asked for and that never came: what it had of them is gone with it. An upper bound.
        losses: How often it was lost.
    """

    kind: str
    learned: int = 0
    lost: int = 0
    losses: int = 0


@dataclass(slots=True)
class Tally:
    """What became of the transitions of all testbeds of a run, by the testbed's name."""

    hosts: dict[str, HostTally] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> HostTally:
        """A testbed's; it is added if it is new."""
        return self.hosts.setdefault(name, HostTally(kind))

    def total(self, what: str) -> int:
        """The sum of one count over all testbeds."""
        return sum(getattr(one, what) for one in self.hosts.values())

    def line(self) -> str:
        """All testbeds in one line, for the user."""
        return (
            f"rollouts: {len(self.hosts)} testbeds, {self.total('losses')} losses; {self.total('learned'):,} "
            f"transitions learned from, at most {self.total('lost'):,} lost"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A table with a row per testbed, header first."""
        rows = [(name, *map(str, asdict(one).values())) for name, one in self.hosts.items()]
        return [("testbed", *(one.name for one in fields(HostTally))), *rows]

    def as_json(self) -> dict[str, Any]:
        """All counts by the testbed's name."""
        return {name: asdict(one) for name, one in self.hosts.items()}

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        write_json(folder / ROLLOUTS, self.as_json())

    @classmethod
    def read(cls, folder: Path) -> Tally:
        """What an earlier session of the run wrote, of what is counted today; empty when none did."""
        file, known = folder / ROLLOUTS, [one.name for one in fields(HostTally)]
        kept = json.loads(file.read_text()) if file.is_file() else {}
        return cls({name: HostTally(**{key: one[key] for key in known if key in one}) for name, one in kept.items()})


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
        """As `rlctl train --json` writes it; `scripts.studies.jobs` reads it back."""
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
