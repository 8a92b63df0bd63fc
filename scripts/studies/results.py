"""What training runs came to, from their `rlctl train --json`: one table over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rlctl.agents.training.evaluations import METRICS
from rlctl.envs.yaml_edge import load_model

YARDSTICK, MOST_LOST_POINTS = "feedforward", 0.25
"""Whom a policy that ships must not fall behind in any scenario, and by how much less QoS it still does not."""

STOPPED = "stopped"
"""How a run ended that somebody ended: it goes on when it is asked for again."""


class Result(BaseModel):
    """One run, as `TrainingResult.as_json` wrote it.

    Attributes:
        merit: By which policies are compared, see `rlctl.agents.training.evaluations`; the larger is the better.
        validation: Scores of its best model, by scenario and metric, a value per seed.
    """

    model_config = ConfigDict(frozen=True)

    folder: Path
    seed: int
    ending: str
    timesteps: int
    seconds: float
    bundle: Path | None
    merit: float
    validation: dict[str, dict[str, tuple[float, ...]]] = Field(min_length=1)

    @property
    def is_finished(self) -> bool:
        """True when its policy is there and it was not ended early."""
        return self.ending != STOPPED and self.bundle is not None and (self.bundle / "card.json").is_file()

    def mean(self, metric: str) -> float:
        """One of METRICS, mean over scenarios and seeds."""
        return float(np.mean([np.mean(one[metric]) for one in self.validation.values()]))


class _File(BaseModel):
    runs: tuple[Result, ...] = Field(min_length=1, max_length=1)


def read_result(file: Path) -> Result:
    """The one run that a file of `rlctl train --json` is about.

    Raises:
        ConfigError: There is no such file, or it is of another kind.
    """
    return load_model(_File, file).runs[0]  # JSON is YAML


def worse(evaluation: Path, shield: str) -> list[str]:
    """Scenarios of an `rlctl evaluate --json` in which a bundle holds less QoS than it may, each in words."""
    rows = json.loads(evaluation.read_text())["shields"][shield]["differences"]
    points = {row["scenario"]: row["qos_guarantee_percent"]["mean"] for row in rows if row["against"] == YARDSTICK}
    return [
        f"{scenario}: {lost:+.2f} points of QoS against {YARDSTICK}, down to -{MOST_LOST_POINTS:g} are put up with"
        for scenario, lost in points.items()
        if lost < -MOST_LOST_POINTS
    ]


def seed_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row per run, then their mean and standard deviation.

    Args:
        results: One or more runs of one algorithm on the same scenarios.
    """
    rows: list[tuple[str, ...]] = [("run", "seed", "QoS %", "BE %", "override %", "merit", "timesteps", "minutes")]
    scores = np.array([(*map(one.mean, METRICS), one.merit) for one in results])
    for one, values in zip(results, scores, strict=True):
        numbers = f"{one.timesteps:,}", f"{one.seconds / 60.0:.1f}"
        rows.append((one.folder.name, str(one.seed), *_cells(values), *numbers))
    rows.append(("mean", "", *_cells(scores.mean(axis=0)), "", ""))
    if len(results) > 1:
        rows.append(("sd", "", *_cells(scores.std(axis=0, ddof=1)), "", ""))
    return rows


def _cells(scores: Any) -> list[str]:
    return [f"{value:.{digits}f}" for value, digits in zip(scores, (3, 2, 2, 2), strict=True)]
