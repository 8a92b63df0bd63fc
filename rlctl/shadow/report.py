"""What a report finds: each shadow against the acting policy, by the log and in the simulator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlctl.shadow.columns import Columns, Flags, Floats, ShadowColumns
from rlctl.shadow.estimates import (
    APART_SECONDS,
    Gain,
    Matching,
    be_gain,
    blocks_of,
    matching,
    mean_over_blocks,
    share_over_blocks,
)
from rlctl.shadow.sim import SimulatedRun, Simulation
from rlctl.statistics.intervals import Estimate

__all__ = ["Band", "Match", "Report", "ShadowFigures", "report_of"]

BANDS = (0.0, 20.0, 40.0, 60.0, 80.0, 100.0, math.inf)
"""Ends of the load bands, percent of the LC's maximum."""


@dataclass(frozen=True, slots=True)
class Band:
    """Ticks at a load between two ends, percent of the LC's maximum.

    Attributes:
        low, high: The ends; the lower one belongs to it.
        ticks: How many there are.
        violated_percent: Share of their windows that missed the target; NaN when none was measured.
        same_percent: Share in which each shadow would have got what was in force; NaN without a tick.
    """

    low: float
    high: float
    ticks: int
    violated_percent: float
    same_percent: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """One shadow by the log.

    Attributes:
        same: Share of ticks in which it would have got what was in force, percent.
        near: The same to one quota level.
        overridden: Share of ticks in which the shield would have decided, percent.
        refused: The same by guards that go by readings alone; see `rlctl.shadow.watching.Answer`.
        failed, late: Ticks without a usable answer, and those of them for want of time.
        error_percent: Share of the ticks of the former.
        first_failure: What the first one was.
        strange: Share of ticks unlike its training, percent; None for a policy that was not trained.
        gain: BE's gain; None when BE's use was never measured.
        matching: Violations by matching.
        guards: How often each guard would have overridden it.
    """

    same: Estimate
    near: Estimate
    overridden: Estimate
    refused: Estimate
    failed: int
    late: int
    error_percent: float
    first_failure: str
    strange: Estimate | None
    gain: Gain | None
    matching: Matching
    guards: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Match:
    """The acting policy's simulated run against the log.

    Attributes:
        violations_off: Points of violations that the simulator has more; NaN when the log measured none.
        be_off: Points of BE's CPUs that BE uses more there; NaN when the log does not say.
    """

    violations_off: float
    be_off: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything.

    Attributes:
        source: Where it was read.
        acting: Name of the acting policy.
        ticks, hours, tick_seconds: How much was watched, and the control period.
        left_out: Ticks before them, with another acting policy, shield, host or set of shadows.
        from_seconds, to_seconds: Unix time of the first and the last tick.
        unmeasured: Windows without a latency, which count neither way.
        violations: Share of the measured windows that missed the target, percent; None when none was measured.
        be: BE's use in percent of its CPUs; None when it was never measured.
        overridden: Share of ticks in which the shield decided over the acting policy, percent.
        bands: By load.
        shadows: By name.
        simulation: All policies in the simulator; None when there is none.
        not_simulated: Why not.
    """

    source: str
    acting: str
    ticks: int
    hours: float
    tick_seconds: float
    left_out: int
    from_seconds: float
    to_seconds: float
    unmeasured: int
    violations: Estimate | None
    be: Estimate | None
    overridden: Estimate
    bands: tuple[Band, ...]
    shadows: Mapping[str, ShadowFigures]
    simulation: Simulation | None = None
    not_simulated: str = ""

    @property
    def match(self) -> Match:
        """The simulator against the log; NaN throughout without a simulation."""
        if self.simulation is None:
            return Match(math.nan, math.nan)
        acting = self.simulation.acting
        return Match(_off(acting.violations, self.violations), _off(acting.be, self.be))

    def as_json(self) -> dict[str, object]:
        """Everything as plain data; what is not known is null."""
        return {
            "schema": 1,
            "source": self.source,
            "acting": self.acting,
            "ticks": self.ticks,
            "hours": round(self.hours, 4),
            "tick_seconds": self.tick_seconds,
            "left_out_ticks": self.left_out,
            "from_seconds": self.from_seconds,
            "to_seconds": self.to_seconds,
            "unmeasured_windows": self.unmeasured,
            "violation_percent": self.violations and self.violations.as_json(),
            "be_percent": self.be and self.be.as_json(),
            "override_percent": self.overridden.as_json(),
            "load_bands": [_band_as_json(band) for band in self.bands],
            "shadows": {name: _figures_as_json(one) for name, one in self.shadows.items()},
            "simulator": self._simulation_as_json(),
        }

    def _simulation_as_json(self) -> dict[str, object]:
        simulation, match = self.simulation, self.match
        if simulation is None:
            return {"ran": False, "why": self.not_simulated}
        return {
            "ran": True,
            "profile": simulation.profile.name,
            "profile_digest": simulation.profile.digest,
            "seeds": simulation.seeds,
            "remarks": list(simulation.remarks),
            "violations_off_points": _number(match.violations_off),
            "be_off_points": _number(match.be_off),
            "acting": _run_as_json(simulation.acting),
            "shadows": {
                name: _run_as_json(run)
                | {
                    "more_violation_points": run.more_violations(simulation.acting).as_json(),
                    "be_gain_points": run.more_be(simulation.acting).as_json(),
                }
                for name, run in simulation.shadows.items()
            },
        }


def report_of(columns: Columns, source: str, simulation: Simulation | None, not_simulated: str) -> Report:
    """The report on some ticks.

    Args:
        columns: The ticks, at least one.
        source: Where they were read.
        simulation: All policies in the simulator, or None.
        not_simulated: Why not.
    """
    blocks, apart = blocks_of(columns), APART_SECONDS / columns.subject.tick_seconds

    def share(flags: Flags) -> Estimate:
        return share_over_blocks(flags.astype(float), blocks, apart)

    def figures(name: str, one: ShadowColumns) -> ShadowFigures:
        return ShadowFigures(
            same=share(one.same),
            near=share(one.near),
            overridden=share(one.overridden),
            refused=share(one.refused),
            failed=int(one.failed.sum()),
            late=int(one.late.sum()),
            error_percent=100.0 * float(one.failed.mean()),
            first_failure=one.first_failure,
            strange=share(one.strange) if columns.subject.shadows[name][1] else None,
            gain=be_gain(columns, one),
            matching=matching(columns, one),
            guards=one.guards,
        )

    measured, used = np.isfinite(columns.met), np.isfinite(columns.be_cpus)
    be_percent = 100.0 * columns.be_cpus / columns.subject.limits.cpus
    return Report(
        source=source,
        acting=columns.subject.acting,
        ticks=columns.ticks,
        hours=columns.hours,
        tick_seconds=columns.subject.tick_seconds,
        left_out=columns.left_out,
        from_seconds=float(columns.wall_seconds[0]),
        to_seconds=float(columns.wall_seconds[-1]),
        unmeasured=int((~measured).sum()),
        violations=share_over_blocks(1.0 - columns.met, blocks, apart) if measured.any() else None,
        be=mean_over_blocks(be_percent, blocks, low=0.0) if used.any() else None,
        overridden=share(columns.overridden),
        bands=tuple(_band(columns, low, high) for low, high in itertools.pairwise(BANDS)),
        shadows={name: figures(name, one) for name, one in columns.shadows.items()},
        simulation=simulation,
        not_simulated=not_simulated,
    )


def _band(columns: Columns, low: float, high: float) -> Band:
    load = 100.0 * columns.load_ratio
    inside = (load >= low) & (load < high)  # False for NaN
    met = columns.met[inside]
    return Band(
        low=low,
        high=high,
        ticks=int(inside.sum()),
        violated_percent=_percent(1.0 - met[np.isfinite(met)]),
        same_percent={name: _percent(one.same[inside].astype(float)) for name, one in columns.shadows.items()},
    )


def _percent(values: Floats) -> float:
    return 100.0 * float(values.mean()) if len(values) else math.nan


def _off(simulated: Estimate, logged: Estimate | None) -> float:
    return math.nan if logged is None else simulated.mean - logged.mean


def _number(value: float, digits: int = 4) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _band_as_json(band: Band) -> dict[str, object]:
    return {
        "from_percent": band.low,
        "to_percent": _number(band.high),
        "ticks": band.ticks,
        "violation_percent": _number(band.violated_percent),
        "same_percent": {name: _number(value) for name, value in band.same_percent.items()},
    }


def _figures_as_json(one: ShadowFigures) -> dict[str, object]:
    return {
        "same_percent": one.same.as_json(),
        "near_percent": one.near.as_json(),
        "override_percent": one.overridden.as_json(),
        "refused_percent": one.refused.as_json(),
        "failed": one.failed,
        "late": one.late,
        "error_percent": round(one.error_percent, 6),
        "first_failure": one.first_failure,
        "drift_percent": one.strange and one.strange.as_json(),
        "be_gain_points": one.gain
        and one.gain.points.as_json() | {"assumed_percent": round(one.gain.assumed_percent, 4)},
        "matching": {
            "windows": one.matching.windows,
            "matched_percent": round(one.matching.matched_percent, 4),
            "violation_percent": one.matching.violations and one.matching.violations.as_json(),
            "why_not": one.matching.why,
        },
        "guards": dict(one.guards),
    }


def _run_as_json(run: SimulatedRun) -> dict[str, object]:
    return {
        "violation_percent": run.violations.as_json(),
        "be_percent": run.be.as_json(),
        "override_percent": run.overridden.as_json(),
        "failed": run.failed,
    }
