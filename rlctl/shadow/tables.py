"""A shadow report for people: tables, what the figures mean, and what they do not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

from rlctl.agents.catalogue import label
from rlctl.envs.errors import shown
from rlctl.report.table import render, span
from rlctl.shadow.estimates import LEAST_WINDOWS, MATCH_TICKS
from rlctl.shadow.gate import Check
from rlctl.shadow.report import Report, ShadowFigures
from rlctl.shadow.twin import SimulatedRun, Simulation
from rlctl.statistics.intervals import Estimate
from rlctl.statistics.paired import Difference

LOG_HEADER = (
    "policy", "same %", "95 %", "near %", "overridden %", "refused %", "95 %", "failed", "late", "drift %", "BE gain",
    "95 %", "assumed %",
)  # fmt: skip

LOG_LEGEND = (
    "same: it would have got what was in force, to 1 % of BE's CPUs; near: to one quota level. refused: overridden\n"
    "by guards that go by readings alone; the others count from what was in force, which was not the shadow's. BE\n"
    "gain: points of BE's CPUs that BE would have used more, each tick by itself: of a quota that held BE in\n"
    "proportion, else what it used; assumed: ticks in which BE was held and would have been given more. The shield\n"
    "let a shadow go one step beyond what was in force and no further: a gain is counted low, a loss in full. Ticks\n"
    "are autocorrelated; intervals are over blocks of 5 min."
)

MATCH_LEGEND = (
    f"by matching: windows before which the shadow would have had in force what was, for {MATCH_TICKS} ticks. Who\n"
    "acts is deterministic, so of the others nothing is known. Agreement is not random: policies agree where it is\n"
    "easy, so a low share says little, a high one speaks against the shadow."
)

SIM_LEGEND = (
    "simulator: the loop closed, on the log's load, behind the log's shield, all policies on the same seeds;\n"
    "intervals over seeds, differences seed by seed. Worth as much as the acting policy's run there is like the log."
)


def report_lines(report: Report) -> Iterator[str]:
    """The report, section by section."""
    yield from _head(report)
    yield ""
    yield render([LOG_HEADER, *(_log_row(name, one) for name, one in report.shadows.items())])
    yield LOG_LEGEND
    yield from _failures(report)
    yield ""
    yield render(list(_band_rows(report)))
    yield ""
    yield render(list(_match_rows(report)))
    yield MATCH_LEGEND
    yield ""
    if report.simulation is None:
        yield f"not judged in the simulator: {report.not_simulated}"
    else:
        yield from _simulated(report, report.simulation)


def gate_lines(checks: Mapping[str, Sequence[Check]]) -> Iterator[str]:
    """Yes or no for each shadow, every reason, and what there is to do."""
    for name, reasons in checks.items():
        yield ""
        passed = all(check.passed for check in reasons)
        yield f"promote {_label(name)}: {'yes' if passed else 'no'}"
        for check in reasons:
            yield f"  {'ok' if check.passed else 'NO':2}  {check.text}"
        if passed:
            yield f"  in the serve configuration, section policy:   name: {shown(name)}"
            yield "  then: systemctl reload rlctl"


def _head(report: Report) -> Iterator[str]:
    begin, end = map(_when, (report.from_seconds, report.to_seconds))
    acting = shown(report.acting)
    yield f"{report.source}: {report.ticks} ticks ({report.hours:.2f} h), {begin} to {end}, acting {acting}"
    missed = (
        "no window measured" if report.violation_percent is None else f"violations {_with(report.violation_percent)} %"
    )
    used = "BE's use not measured" if report.be_percent is None else f"BE uses {_with(report.be_percent)} % of its CPUs"
    yield f"acting, by the log: {missed}; {used}; overridden {_with(report.override_percent)} %"
    if report.unmeasured_windows:
        yield f"{report.unmeasured_windows} windows without a latency count neither way"
    if report.left_out_ticks:
        changed = "with another acting policy, shield, host or set of shadows"
        yield f"left out: {report.left_out_ticks} ticks {changed}"


def _log_row(name: str, one: ShadowFigures) -> tuple[str, ...]:
    gain = one.be_gain_points
    return (
        _label(name),
        f"{one.same_percent.mean:.1f}",
        _range(one.same_percent.ci95, 1),
        f"{one.near_percent.mean:.1f}",
        f"{one.override_percent.mean:.1f}",
        f"{one.refused_percent.mean:.1f}",
        _range(one.refused_percent.ci95, 1),
        str(one.failed),
        str(one.late),
        "-" if one.drift_percent is None else f"{one.drift_percent.mean:.2f}",
        "-" if gain is None else f"{gain.points.mean:+.2f}",
        "-" if gain is None else _range(gain.points.ci95, 2),
        "-" if gain is None else f"{gain.assumed_percent:.0f}",
    )


def _label(name: str) -> str:
    """A policy's name in a table; a log may be anybody's."""
    return shown(label(name))


def _failures(report: Report) -> Iterator[str]:
    for name, one in report.shadows.items():
        if one.first_failure:
            yield f"{_label(name)} failed first with: {shown(one.first_failure)}"


def _band_rows(report: Report) -> Iterator[tuple[str, ...]]:
    yield ("load %", "ticks", "acting missed %", *(f"{_label(name)} same %" for name in report.shadows))
    for band in report.load_bands:
        ends = (
            f"{band.from_percent:g}-{band.to_percent:g}"
            if math.isfinite(band.to_percent)
            else f"{band.from_percent:g} and more"
        )
        yield (
            ends,
            str(band.ticks),
            _or_dash(band.violation_percent, 2),
            *(_or_dash(band.same_percent[name], 1) for name in report.shadows),
        )


def _match_rows(report: Report) -> Iterator[tuple[str, ...]]:
    yield ("by matching", "windows", "of measured %", "missed %", "95 %")
    for name, one in report.shadows.items():
        matching, missed = one.matching, one.matching.violation_percent
        counts = str(matching.windows), f"{matching.matched_percent:.1f}"
        if missed is None:
            yield (_label(name), *counts, "the log does not allow it", f"below {LEAST_WINDOWS} windows")
        else:
            yield (_label(name), *counts, f"{missed.mean:.2f}", _range(missed.ci95, 2))


def _simulated(report: Report, simulation: Simulation) -> Iterator[str]:
    header = ("simulator", "missed %", "95 %", "more than acting", "95 %", "BE %", "BE gain", "95 %", "overridden %")
    acting = simulation.acting
    rows = [_sim_row(f"{_label(report.acting)} (acts)", acting, None, None)]
    rows += [
        _sim_row(_label(name), run, run.more_violations(acting), run.more_be(acting))
        for name, run in simulation.shadows.items()
    ]
    yield render([header, *rows])
    profile, (violations, be) = simulation.profile, report.off_points(acting)
    yield f"{profile.name} ({profile.digest}), {simulation.seeds} seeds x {acting.windows} windows"
    yield f"acting there against the log: violations {_signed(violations)} points, BE's use {_signed(be)} points"
    yield from simulation.remarks
    yield SIM_LEGEND


def _sim_row(name: str, run: SimulatedRun, more: Difference | None, gain: Difference | None) -> tuple[str, ...]:
    return (
        name,
        f"{run.violations.mean:.2f}",
        _range(run.violations.ci95, 2),
        "-" if more is None else f"{more.mean:+.2f}",
        "-" if more is None else _range(more.t95, 2),
        f"{run.be.mean:.1f}",
        "-" if gain is None else f"{gain.mean:+.2f}",
        "-" if gain is None else _range(gain.t95, 2),
        f"{run.overridden.mean:.1f}",
    )


def _when(wall_seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(wall_seconds))
    except (OverflowError, ValueError, OSError):
        return "a time that cannot be"


def _with(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f} [{_range(estimate.ci95, 2)}]"


def _range(interval: tuple[float, float], digits: int) -> str:
    return span(interval, f".{digits}f", "too short to tell")


def _or_dash(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _signed(value: float) -> str:
    return f"{value:+.2f}" if math.isfinite(value) else "unknown"
