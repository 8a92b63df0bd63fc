"""Live managers round by round: in each the same host has the same minutes for all, and so differences are paired.

The round is the unit of repetition: windows of one run are not independent, and a host is another one an hour later.
What the LC misses with BE frozen is nobody's doing: a round in which it does is marked, and its differences are left
out of what is claimed. Its runs stay in the file and in every mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlctl.agents import catalogue
from rlctl.bench.comparison import Comparison, compare_runs, correct
from rlctl.envs.errors import ConfigError, reading

CONTROL = "frozen"
"""The LC alone, in every round."""

HOLD_PERCENT = 97.0
"""QoS of a heuristic that is good enough to be the best by its BE."""

NO_HEURISTICS = frozenset({"none", "weights", "cpu-idle", "frozen", "static", "table"})
"""References; `table` is told what holds by a sweep of the host, and is compared with by itself."""

MEASURED = {"qos_guarantee_percent": "qos_percent", "be_throughput_percent": "be_percent"}
"""The metrics of a round, and what it calls them."""


class LiveRound(BaseModel):
    """One round on one host; keys are managers, in the order in which they ran.

    Attributes:
        host: Empty where it is this one.
        qos_percent: Windows that held the target.
        be_percent: BE's work by that of BE alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = ""
    qos_percent: dict[str, float]
    be_percent: dict[str, float]

    @property
    def is_marked(self) -> bool:
        """The LC missed a window with BE frozen; without that control nothing is known against the round."""
        return self.qos_percent.get(CONTROL, 100.0) < 100.0


class LiveRounds(BaseModel):
    """One scenario of a live result, as `rlctl bench --json` wrote it; what is not used here is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    plant: Literal["host"]
    scenario: str
    managers: dict[str, Any] = Field(min_length=1)
    rounds: tuple[LiveRound, ...]

    @property
    def marked(self) -> tuple[int, ...]:
        """Numbers of the rounds that are marked, from 1."""
        return tuple(number for number, one in enumerate(self.rounds, 1) if one.is_marked)

    def mean(self, manager: str) -> tuple[float, float]:
        """QoS and BE in percent over all rounds that it was measured in."""
        own = [one for one in self.rounds if manager in one.qos_percent]
        return fmean(one.qos_percent[manager] for one in own), fmean(one.be_percent[manager] for one in own)

    @property
    def best_heuristic(self) -> str:
        """The one with the most BE of those that held well, else with the most QoS; empty where none was measured."""

        def rank(name: str) -> tuple[bool, float]:
            qos, be = self.mean(name)
            held = qos >= HOLD_PERCENT
            return held, be if held else qos

        return max((name for name in self.managers if name in HEURISTICS), key=rank, default="")

    def baselines(self, against: str = "") -> tuple[str, ...]:
        """Whom the others are compared with: `weights`, `table` and the best heuristic, or whoever is asked for."""
        wanted = (against,) if against else ("weights", "table", self.best_heuristic)
        return tuple(dict.fromkeys(name for name in wanted if name in self.managers))

    def pairs(self, baseline: str) -> dict[str, Comparison]:
        """Every other manager against the baseline, over the rounds that both have and that are not marked."""
        found = [one for name in self.managers if name != baseline and (one := self._pair(name, baseline))]
        return {one.manager: one for one in correct(found)}

    def _pair(self, name: str, baseline: str) -> Comparison | None:
        both = [one for one in self.rounds if {name, baseline} <= one.qos_percent.keys()]
        if not (rounds := [one for one in both if not one.is_marked]):
            return None
        ours, base = (
            {metric: np.array([getattr(one, key)[who] for one in rounds]) for metric, key in MEASURED.items()}
            for who in (name, baseline)
        )
        return compare_runs(name, ours, base)


HEURISTICS = frozenset(catalogue.NAMES) - NO_HEURISTICS


def lowest_qos(results: Sequence[LiveRounds], manager: str) -> tuple[float, str]:
    """The least QoS that a manager has on any of the live hosts, in percent, and which host that is."""
    return min((one.mean(manager)[0], one.scenario) for one in results if manager in one.managers)


def read_rounds(path: Path) -> list[LiveRounds]:
    """The live scenarios of a result file.

    Raises:
        ConfigError: It cannot be read, or holds no rounds of a live host.
        PermissionMissing: It may not be read.
    """
    try:
        with reading(path):
            data = json.loads(path.read_text())
        return [LiveRounds.model_validate(one) for one in data.get("scenarios", {"": data}).values()]
    except (ValidationError, ValueError, AttributeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ConfigError(f"is not what `rlctl bench --plant host --json FILE` wrote: {why}", path) from error
