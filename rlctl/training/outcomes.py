"""What training runs came to, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rlctl.agents.training.training_run import TrainingResult

__all__ = ["rows"]


def rows(results: Sequence[TrainingResult]) -> list[tuple[str, ...]]:
    """QoS %, BE % and overrides % on each course: a row per run, header first, then their mean and spread."""
    names = list(results[0].best.trials)
    table: list[tuple[str, ...]] = [("run", *names, "mean", "merit")]
    for one in results:
        best = one.best
        cells = [
            f"{trial.qos_percent.mean():.2f} / {trial.be_percent.mean():.1f} / {trial.override_percent.mean():.1f}"
            for trial in best.trials.values()
        ]
        mean = f"{best.qos_percent:.2f} / {best.be_percent:.1f} / {best.override_percent:.1f}"
        table.append((one.run.folder.name, *cells, mean, f"{best.merit:.1f}"))
    if len(results) > 1:
        table.append(_spread_row(results, names))
    return table


def _spread_row(results: Sequence[TrainingResult], names: Sequence[str]) -> tuple[str, ...]:
    def span(values: Sequence[float], digits: int) -> str:
        return f"{np.mean(values):.{digits}f} ±{np.std(values, ddof=1):.{digits}f}"

    best = [one.best for one in results]
    cells = [
        span([float(one.trials[name].qos_percent.mean()) for one in best], 2)
        + " / "
        + span([float(one.trials[name].be_percent.mean()) for one in best], 1)
        for name in names
    ]
    mean = span([one.qos_percent for one in best], 2) + " / " + span([one.be_percent for one in best], 1)
    return ("mean ± sd", *cells, mean, span([one.merit for one in best], 1))
