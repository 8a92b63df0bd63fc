"""Results on their way out: one JSON for one scenario or many, live or simulated, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlctl.bench.hosts import HostsOutcome
from rlctl.bench.live import Outcome
from rlctl.bench.sim import SimOutcome
from rlctl.envs.whole_file import write_whole

__all__ = ["results_as_json", "write_json"]


def results_as_json(outcomes: Sequence[Outcome | HostsOutcome | SimOutcome]) -> dict[str, object]:
    """The contract's JSON: one scenario by itself, several under `scenarios` by name."""
    if len(outcomes) == 1:
        return outcomes[0].as_json()
    return {"schema": 1, "scenarios": {outcome.plan.scenario.name: outcome.as_json() for outcome in outcomes}}


def write_json(outcomes: Sequence[Outcome | HostsOutcome | SimOutcome], path: Path) -> None:
    """Write the JSON, whole or not at all."""
    write_whole(path, json.dumps(results_as_json(outcomes), indent=1) + "\n")
