"""Table: for each load the largest quota that a sweep of this very host found to hold. No model, no feedback.

It is rlctl's own: the simplest rule that knows the host, and so what any cleverer policy has to beat.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from rlctl.agents.managers.manager import Manager
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits, most_restrictive
from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import Telemetry, number
from rlctl.envs.whole_file import write_whole
from rlctl.envs.yaml_edge import Strict, load_model

WAY_OUT = "`rlctl calibrate --config SCENARIO --out PROFILE` sweeps this host and writes one beside the profile"

Levels = tuple[tuple[float, float, int], ...]
"""Load as a share of the LC's maximum, quota in CPUs, CPUs that it was held on; quota 0 where none was held."""

MOST_SHORTER = 1e-6
"""Of a target: a difference that is the rounding of milliseconds."""


class Level(Strict):
    """What held at one load that was swept.

    Attributes:
        load_ratio: Share of the LC's maximum load.
        quota_cpus: The largest quota that held; that of the whole cpuset means none is needed, 0 that BE must not run.
        cpuset_cpus: CPUs that BE had, the safest first.
    """

    load_ratio: float = Field(gt=0.0)
    quota_cpus: float = Field(ge=0.0)
    cpuset_cpus: int = Field(ge=1)

    def allocation(self, limits: Limits) -> Allocation:
        """What BE gets at this load."""
        if self.quota_cpus == 0.0:
            return limits.safe
        lifted = self.quota_cpus >= self.cpuset_cpus
        return Allocation(UNLIMITED if lifted else self.quota_cpus, self.cpuset_cpus)


class QuotaTable(Strict):
    """A sweep's outcome, as `rlctl calibrate` writes it.

    Attributes:
        kind: What the file is.
        source: Where and on what it was swept.
        target_milliseconds: Tail latency of which each level held .8.
        max_load_rps: Load that counts as 1.0; the serve configuration's has to be the same.
        be_weight: BE's CPU weight in the sweep; with another one the levels say nothing.
        lc_cpus: CPUs that the LC ran on.
        be_cpus: CPUs that BE may be given.
        rein: What moved BE's level in the sweep; levels of the CPUs hold nothing on another.
        levels: By ascending load.
    """

    kind: Literal["quota-table"] = "quota-table"
    source: str
    target_milliseconds: float = Field(gt=0.0)
    max_load_rps: float = Field(gt=0.0)
    be_weight: str
    lc_cpus: float = Field(gt=0.0)
    be_cpus: int = Field(ge=1)
    rein: Rein = Rein.CPU
    levels: tuple[Level, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if any(later.load_ratio <= earlier.load_ratio for earlier, later in pairwise(self.levels)):
            raise ValueError("levels must ascend by load_ratio; sweep the host anew")
        if any(max(level.quota_cpus, level.cpuset_cpus) > self.be_cpus for level in self.levels):
            raise ValueError(f"a level has more CPUs than be_cpus, {self.be_cpus}; sweep the host anew")
        return self

    def write(self, path: Path) -> None:
        """Write the table as YAML, whole or not at all."""
        data = self.model_dump(mode="json")
        text = yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)
        write_whole(path, "# Written by `rlctl calibrate`, for the manager `table`.\n" + text)


@dataclass(kw_only=True, eq=False)
class Table(Manager):
    """Looks the load up among those that were swept; behind the shield, as it is rlctl's own.

    Args:
        file: A table that `rlctl calibrate` wrote.
        levels: The levels themselves, in place of a file: load, quota and cpuset of each.
    """

    name, moves_reins = "table", True
    shielded = True
    needs = ("load_ratio",)
    file: str | None = None
    levels: Levels | None = None

    def __post_init__(self) -> None:
        self._swept: QuotaTable | None = None
        if (self.file is None) == (self.levels is None):
            raise PolicyError(f"{self.name} needs option `file`, a table of this host's sweep: {WAY_OUT}")
        if self.file is not None:
            self._swept = read_table(self.file)
            self.moves_reins = self._swept.rein is not Rein.CPU
            self._levels: Sequence[Level] = self._swept.levels
            self.levels = tuple((one.load_ratio, one.quota_cpus, one.cpuset_cpus) for one in self._levels)
        else:
            self._levels = _levels(self.levels or ())
        self._loads = [level.load_ratio for level in self._levels]

    def begin(self) -> Allocation:
        """The safe allocation, until the load is known; PolicyError: the table is of a host with other CPUs."""
        self._require_this_host()
        return self.limits.safe

    def decide(self, telemetry: Telemetry) -> tuple[Allocation, str]:
        """What both swept loads around the present one held; PolicyError: the table is of a host with other CPUs."""
        self._require_this_host()  # a reload and a fallback go on after a start that failed
        load = number(telemetry.load_ratio)
        if load is None:
            return self.limits.safe, "load unknown: frozen"
        swept = self._swept
        if swept and telemetry.target_seconds < swept.target_milliseconds / 1e3 * (1.0 - MOST_SHORTER):
            return self.limits.safe, f"swept for a target of {swept.target_milliseconds:g} ms, not for less: frozen"
        # quota = min(quota at the next swept load above, at the next one below): between two loads the interference
        # may set in anywhere (docs/measured/simulator.md, 1), so no straight line is drawn. Below the lowest the LC
        # needs less than there; above the highest nothing is known.
        above = bisect_left(self._loads, load)
        if above == len(self._levels):
            return self.limits.safe, f"load {load:.2f} is above all that were swept: frozen"
        around = self._levels[max(above - 1, 0)], self._levels[above]
        allocation = most_restrictive(*(level.allocation(self.limits) for level in around))
        return allocation, f"load {load:.2f}, swept {' and '.join(f'{level.load_ratio:g}' for level in around)}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What it looks up, and where that is from."""
        levels = ", ".join(
            f"load {level.load_ratio:g}: {level.quota_cpus:.3g} CPU on {level.cpuset_cpus}" for level in self._levels
        )
        origin = f"; {self._swept.source}" if self._swept else ""
        return (f"largest quota that held .8 of the target at {levels or 'no load'}{origin}",)

    def _require_this_host(self) -> None:
        if (swept := self._swept) is not None:
            # A sweep holds for the CPUs it was made on: with others the levels are another host's.
            here = self.limits.cpus, self.limits.lc_cpus
            if here != (swept.be_cpus, swept.lc_cpus):
                there = f"swept with {swept.be_cpus} CPUs for BE and {swept.lc_cpus:g} for the LC"
                raise PolicyError(f"{there}, here it is {here[0]} and {here[1]:g}; {WAY_OUT}", self.file)


def read_table(file: str) -> QuotaTable:
    """What a file holds; PolicyError, with the way to another, where it is no table."""
    try:
        return load_model(QuotaTable, Path(file))
    except ConfigError as error:
        raise PolicyError(f"{error}; {WAY_OUT}") from error


def _levels(plain: Levels) -> list[Level]:
    try:
        levels = [Level(load_ratio=load, quota_cpus=quota, cpuset_cpus=cpus) for load, quota, cpus in plain]
    except (TypeError, ValueError, ValidationError) as error:
        raise PolicyError(f"table: levels is {plain!r}; give [load, quota in CPUs, CPUs] for each") from error
    return sorted(levels, key=lambda level: level.load_ratio)
