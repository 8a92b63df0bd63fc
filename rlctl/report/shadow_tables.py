"""A shadow report for people: tables, what the figures mean, and what they do not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

from rlctl.agents.catalogue import label
from rlctl.bench.intervals import Estimate
from rlctl.envs.errors import shown
from rlctl.report.page import render
from rlctl.report.shadow_gate import Check
from rlctl.report.shadow_report import Report, ShadowFigures
from rlctl.report.table import span

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


def report_lines(report: Report) -> Iterator[str]:
    """The report, section by section."""
    yield from _head(report)
    yield ""
    yield render([LOG_HEADER, *(_log_row(name, one) for name, one in report.shadows.items())])
    yield LOG_LEGEND
    yield from _failures(report)
    yield ""
    yield render(list(_band_rows(report)))


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
