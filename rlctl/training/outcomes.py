"""What training runs came to, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlctl.agents.training.evaluations import METRICS

if TYPE_CHECKING:
    from rlctl.agents.training.training_run import TrainingResult

DIGITS = (2, 1, 1)
"""Behind the point, of each of METRICS."""


def rows(results: Sequence[TrainingResult]) -> list[tuple[str, ...]]:
    """QoS %, BE % and overrides % on each course: a row per run, header first, then their mean and spread."""
    best = [one.best for one in results]
    names = list(best[0].trials)
    table: list[tuple[str, ...]] = [("run", *names, "mean", "merit")]
    for run, one in zip(results, best, strict=True):
        cells = [_cell(getattr(trial, name).mean() for name in METRICS) for trial in one.trials.values()]
        table.append((run.run.folder.name, *cells, _cell(map(one.mean, METRICS)), f"{one.merit:.1f}"))
    if len(best) > 1:
        spread = [[[getattr(one.trials[name], metric).mean() for one in best] for metric in METRICS] for name in names]
        spread.append([[one.mean(metric) for one in best] for metric in METRICS])
        table.append(("mean ± sd", *map(_spread, spread), _spread([[one.merit for one in best]], (1,))))
    return table


def _cell(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.{digits}f}" for value, digits in zip(values, DIGITS, strict=True))


def _spread(values: Sequence[Sequence[float]], digits: Sequence[int] = DIGITS[:2]) -> str:
    """QoS and BE over runs; of overrides the runs' own cells say enough."""
    each = zip(values, digits, strict=False)
    return " / ".join(f"{np.mean(one):.{digit}f} ±{np.std(one, ddof=1):.{digit}f}" for one, digit in each)
