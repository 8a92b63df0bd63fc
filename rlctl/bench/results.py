"""The JSON of a benchmark: one format for one scenario or many, live or simulated."""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.bench.hosts import LiveOutcome
from rlctl.bench.suite import SimOutcome


def results_as_json(outcomes: Sequence[LiveOutcome | SimOutcome]) -> dict[str, object]:
    """The contract's JSON: one scenario by itself, several under `scenarios` by name."""
    if len(outcomes) == 1:
        return outcomes[0].as_json()
    return {"schema": 1, "scenarios": {outcome.scenario: outcome.as_json() for outcome in outcomes}}
