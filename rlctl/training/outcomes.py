"""What training runs came to, as rows of a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rlctl.agents.training.run import Result
    from rlctl.training.plan import TrainingPlan

__all__ = ["as_json", "rows"]


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One row per run, then their mean and spread."""
    names = list(results[0].best.trials)
    told: list[tuple[str, ...]] = [("run", *names, "mean", "merit")]
    for one in results:
        cells = [
            f"{trial.qos_percent.mean():.2f} / {trial.be_percent.mean():.1f} / {trial.override_percent.mean():.1f}"
            for trial in one.best.trials.values()
        ]
        best = one.best
        mean = f"{best.qos_percent:.2f} / {best.be_percent:.1f} / {best.override_percent:.1f}"
        told.append((one.folder.name, *cells, mean, f"{best.merit:.1f}"))
    if len(results) > 1:
        told.append(_spread_row(results, names))
    return told


def _spread_row(results: Sequence[Result], names: Sequence[str]) -> tuple[str, ...]:
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


def as_json(plans: Sequence[TrainingPlan], results: Sequence[Result]) -> dict[str, object]:
    """What `rlctl train --json` writes; `scripts.studies.results` reads it back."""
    return {
        "schema": 1,
        "algorithm": plans[0].asked.algorithm,
        "runs": [
            {
                "folder": str(one.folder),
                "seed": plan.asked.seed,
                "ending": str(one.ending),
                "timesteps": one.timesteps,
                "seconds": round(one.seconds, 1),
                "bundle": str(one.bundle) if one.bundle else None,
                "merit": round(one.best.merit, 4),
                "validation": {
                    name: {
                        "qos_percent": trial.qos_percent.round(6).tolist(),
                        "be_percent": trial.be_percent.round(6).tolist(),
                        "override_percent": trial.override_percent.round(6).tolist(),
                    }
                    for name, trial in one.best.trials.items()
                },
                "remarks": list(one.remarks),
                "rollouts": one.tally.as_json() if one.tally else None,
            }
            for plan, one in zip(plans, results, strict=False)
        ],
    }
