"""What training runs came to, from their `rlctl train --json`: one table over seeds, and the best by validation score.

Validation seeds are training seeds: what selects a policy must not be what it is reported on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rlctl.envs.errors import ConfigError
from rlctl.envs.yaml_edge import load_yaml, validated

__all__ = ["STOPPED", "Result", "best", "read_result", "seed_rows"]

STOPPED = "stopped"
"""How a run ended that somebody ended: it goes on when it is asked for again."""


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True)


class Validation(_Read):
    """One scenario's scores on validation seeds.

    Attributes:
        qos_percent: Windows that held the target, shape (seeds,).
        be_percent: BE work, by BE running alone, shape (seeds,).
        override_percent: Ticks in which the shield changed what was asked for, shape (seeds,).
    """

    qos_percent: tuple[float, ...] = Field(min_length=1)
    be_percent: tuple[float, ...] = Field(min_length=1)
    override_percent: tuple[float, ...] = Field(min_length=1)


class Result(_Read):
    """What a training run wrote about itself when it ended.

    Attributes:
        folder: Of the run.
        seed: Drew the initial network and the training hosts.
        ending: Why it ended.
        timesteps, seconds: What it took.
        bundle: The exported policy, if any.
        merit: By which policies are compared, see `rlctl.agents.training.evaluations`; the larger is the better.
        validation: Scores of its best model by scenario.
    """

    folder: Path
    seed: int
    ending: str
    timesteps: int
    seconds: float
    bundle: Path | None
    merit: float
    validation: dict[str, Validation] = Field(min_length=1)

    @property
    def is_finished(self) -> bool:
        """True when its policy is there and it was not ended early."""
        return self.ending != STOPPED and self.bundle is not None and (self.bundle / "card.json").is_file()

    @property
    def qos_percent(self) -> float:
        """Windows that held the target, mean over seeds and scenarios."""
        return float(np.mean([np.mean(one.qos_percent) for one in self.validation.values()]))

    @property
    def be_percent(self) -> float:
        """BE work by BE running alone, mean over seeds and scenarios."""
        return float(np.mean([np.mean(one.be_percent) for one in self.validation.values()]))

    @property
    def override_percent(self) -> float:
        """Ticks in which the shield changed the proposal, mean over seeds and scenarios."""
        return float(np.mean([np.mean(one.override_percent) for one in self.validation.values()]))


class _File(_Read):
    runs: tuple[Result, ...] = Field(min_length=1, max_length=1)


def read_result(file: Path) -> Result:
    """The one run that a file of `rlctl train --json` is about.

    Raises:
        ConfigError: There is no such file, or it is of another kind.
    """
    data, _ = load_yaml(file)  # JSON is YAML
    return validated(_File, data, file).runs[0]


def best(results: Sequence[Result]) -> Result:
    """The run of the largest merit on validation seeds; of equal ones the first.

    Raises:
        ConfigError: There is none.
    """
    if not results:
        raise ConfigError("no training run is finished; run the script again without --install-only")
    return max(results, key=lambda one: one.merit)


def seed_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row per run, then their mean and standard deviation; the best one is marked.

    Args:
        results: Of one algorithm on the same scenarios; at least one.
    """
    winner = best(results)
    rows: list[tuple[str, ...]] = [
        ("run", "seed", "QoS %", "BE %", "override %", "merit", "timesteps", "minutes", "best")
    ]
    for one in results:
        numbers = (f"{one.timesteps:,}", f"{one.seconds / 60.0:.1f}", "*" if one is winner else "")
        rows.append((one.folder.name, str(one.seed), *_cells(_scores(one)), *numbers))
    scores = np.array([_scores(one) for one in results])
    rows.append(("mean", "", *_cells(scores.mean(axis=0)), "", "", ""))
    if len(results) > 1:
        rows.append(("sd", "", *_cells(scores.std(axis=0, ddof=1)), "", "", ""))
    return rows


def _scores(one: Result) -> tuple[float, ...]:
    return one.qos_percent, one.be_percent, one.override_percent, one.merit


def _cells(scores: Any) -> list[str]:
    return [f"{value:.{digits}f}" for value, digits in zip(scores, (3, 2, 2, 2), strict=True)]
