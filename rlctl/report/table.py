"""Results as a table that a terminal or a README can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rlctl.agents.catalogue import label
from rlctl.bench.comparison import Bootstrapped, Comparison, Difference, aggregate, compare, improvement
from rlctl.bench.intervals import span
from rlctl.bench.rounds import LiveRounds, lowest_qos
from rlctl.bench.score import Score, SimOutcome

HEADER = (
    "manager", "QoS %", "95 %", "BE %", "95 %", "EMU %", "mean worst x", "recover s", "frozen %", "changes",
    "override %", "decide ms",
)  # fmt: skip
REQUEST = ("us/request", "x frozen")

LEGEND = (
    "EMU: LC load + BE work; worst x: worst window by the target; recover s: longest violation; changes: of BE's\n"
    "allocation; override %: ticks that the shield decided; decide ms: p99 of the controller's own, not the LC's;\n"
    "us/request: the LC's CPU time by its requests; x frozen: that by the one under `frozen` in the same repeat"
)
"""What the columns mean, beneath a table in a terminal."""

ROUNDS_LEGEND = (
    "less X: points, paired by round, 95 % by Student's t; x: BE by X's; * this and the bootstrap leave out zero,\n"
    "after Holm's correction for all differences from X on this host"
)
"""What the columns of live rounds mean."""

MANY_WINDOWS = 10_000
"""From so many windows on, a tenth of a percent of QoS is more than the interval is wide."""


def percent(value: float, decimals: int) -> str:
    """A share in percent that reads 100 or 0 only when it is."""
    step = 10.0**-decimals
    return f"{min(max(value, step), 100.0 - step) if 0.0 < value < 100.0 else value:.{decimals}f}"


def score_rows(scores: Mapping[str, Score], weights: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, ...]]:
    """One row per manager, header first: QoS and BE with intervals, then what explains them.

    With BE's CPU weight by manager the second column is that. Live runs have the CPU time of a request, too.
    """
    live = any(getattr(score, "request_cpu_microseconds", None) for score in scores.values())
    rows: list[tuple[str, ...]] = [(*HEADER, *REQUEST) if live else HEADER]
    digits = 2 if any(score.samples >= MANY_WINDOWS for score in scores.values()) else 1
    for name, one in scores.items():
        rows.append(
            (
                label(name),
                percent(one.qos_guarantee_percent.mean, digits),
                span(one.qos_guarantee_percent.ci95, f".{digits}f", "one run", "-"),
                f"{one.be_throughput_percent.mean:.1f}",
                span(one.be_throughput_percent.ci95, ".1f", "one run", "-"),
                f"{one.emu_percent.mean:.0f}",
                f"{one.worst_window_over_target.mean:.1f}",
                f"{one.time_to_recover_seconds.mean:.1f}",
                f"{one.frozen_percent.mean:.0f}",
                f"{one.reconfigurations.mean:.0f}",
                f"{one.shield_override_percent.mean:.1f}",
                f"{1e3 * one.decision_seconds_p99:.2f}",
                *(_request_cells(one) if live else ()),
            )
        )
    if not weights:
        return rows
    column = ("BE weight", *(weights[name] for name in scores))
    return [(row[0], weight, *row[1:]) for row, weight in zip(rows, column, strict=True)]


def _request_cells(one: Score) -> tuple[str, str]:
    used, ratio = (getattr(one, name, None) for name in ("request_cpu_microseconds", "request_cpu_ratio"))
    return (
        f"{used.mean:.0f}" if used else "-",
        f"{ratio.mean:.2f} ({span(ratio.ci95, '.2f', 'one run', '-')})" if ratio else "-",
    )


def suite_rows(suite: Mapping[str, Mapping[str, Score]]) -> list[tuple[str, ...]]:
    """One row per manager, header first, one column per scenario: QoS %, BE % and its 95 % half-width.

    Scores come by scenario and manager; every scenario has the same managers.
    """
    rows: list[tuple[str, ...]] = [("manager", *suite, "mean QoS", "mean BE")]
    for name in next(iter(suite.values())):
        each = [scores[name] for scores in suite.values()]
        qos = [one.qos_guarantee_percent.mean for one in each]
        be = [one.be_throughput_percent for one in each]
        halves = [f" ±{one.half95:.1f}" if math.isfinite(one.half95) else "" for one in be]
        cells = [f"{percent(q, 2)} / {b.mean:.1f}{half}" for q, b, half in zip(qos, be, halves, strict=True)]
        rows.append((label(name), *cells, percent(sum(qos) / len(qos), 2), f"{sum(b.mean for b in be) / len(be):.1f}"))
    return rows


Rows = list[tuple[str, ...]]

SUMMARY = (
    "manager", "QoS % 1 s", "95 %", "QoS % 15 s", "95 %", "BE %", "95 %", "EMU %", "mean worst x", "recover s",
    "frozen %", "suspensions", "changes", "override %",
)  # fmt: skip


MEANS = (
    ("emu_percent", ".0f"), ("worst_window_over_target", ".1f"), ("time_to_recover_seconds", ".1f"),
    ("frozen_percent", ".0f"), ("suspensions", ".0f"), ("reconfigurations", ".0f"), ("shield_override_percent", ".1f"),
)  # fmt: skip
"""Metrics of the last columns, each a mean over seeds, and their formats."""


def fine_percent(value: float) -> str:
    """A share in percent with three decimals from 99.9, where they matter."""
    return percent(value, 3 if 99.9 <= value < 100.0 else 2)


def summary_rows(result: SimOutcome) -> Rows:
    """One row per manager: QoS both ways and BE with their 95 % intervals, then what explains them."""
    return [SUMMARY, *(_summary_row(result, name) for name in result.managers)]


def _summary_row(result: SimOutcome, name: str) -> tuple[str, ...]:
    qos = [result.estimate(name, metric) for metric in ("qos_guarantee_percent", "qos_15s_percent")]
    be = result.estimate(name, "be_throughput_percent")
    return (
        name,
        *(cell for one in qos for cell in (fine_percent(one.mean), "-".join(map(fine_percent, one.ci95)))),
        f"{be.mean:.1f}",
        span(be.ci95, ".1f", "one seed", "-"),
        *(format(result.estimate(name, metric).mean, form) for metric, form in MEANS),
    )


def paired_rows(result: SimOutcome, baseline: str) -> Rows:
    """Every other manager's row: differences with both intervals, BE as a multiple; KeyError: no such baseline."""
    return difference_rows(f"less {baseline}", compare(result, baseline))


def difference_rows(title: str, comparisons: Sequence[Comparison]) -> Rows:
    """A row for each comparison, under its manager's name."""
    header = (
        title, "QoS 1 s, points", "t 95 %", "bootstrap 95 %", "QoS 15 s, points", "bootstrap 95 %",
        "BE, points", "t 95 %", "bootstrap 95 %", "BE x", "bootstrap 95 %",
    )  # fmt: skip
    return [header, *map(_paired_row, comparisons)]


def aggregate_rows(results: Sequence[SimOutcome], baseline: str) -> Rows:
    """One row per manager over all scenarios and seeds, which all have the same managers: see `comparison`."""
    beats = f"P(> {baseline})"
    rows: Rows = [("manager", "QoS %, IQM", "95 %", beats, "95 %", "BE %, IQM", "95 %", beats, "95 %")]
    for name in results[0].managers:
        row = [name]
        for metric, decimals in (("qos_guarantee_percent", 2), ("be_throughput_percent", 1)):
            row += _aggregate_cells(aggregate(results, name, metric), decimals)
            if name == baseline:
                row += ("-", "-")
            else:
                row += _aggregate_cells(improvement(results, name, baseline, metric), 2)
        rows.append(tuple(row))
    return rows


def _aggregate_cells(one: Bootstrapped, decimals: int) -> tuple[str, str]:
    return f"{one.value:.{decimals}f}", span(one.bootstrap95, f".{decimals}f", "-", "-")


def round_rows(result: LiveRounds, baselines: Sequence[str]) -> Rows:
    """One row per live manager, header first: means over all rounds, the worst one, what it differs by, round by round.

    Raises:
        KeyError: A baseline was not measured.
    """
    pairs = {baseline: result.pairs(baseline) for baseline in baselines}
    columns = [f"{what} less {baseline}" for baseline in baselines for what in ("QoS", "BE")]
    many = len(result.rounds) > 1
    rows: Rows = [("manager", "QoS %", *(("worst round",) if many else ()), "BE %", *columns)]
    for name in result.managers:
        own = [one.qos_percent[name] for one in result.rounds if name in one.qos_percent]
        if own:
            qos, be = result.mean(name)
            cells = [_pair_cells(paired.get(name)) for paired in pairs.values()]
            worst = (percent(min(own), 1),) if many else ()
            rows.append((label(name), percent(qos, 1), *worst, f"{be:.1f}", *sum(cells, ())))
    return rows


def _pair_cells(one: Comparison | None) -> tuple[str, ...]:
    if one is None:
        return "-", "-"
    ratio = f", x {one.be_ratio.value:.2f}" if math.isfinite(one.be_ratio.value) else ""
    cells = [f"{_starred(each, 1)} ({_ends(each.t95, 1)})" for each in one.differences.values()]
    return cells[0], cells[1] + ratio


def live_hosts_rows(results: Sequence[LiveRounds]) -> Rows:
    """One row per manager, header first: QoS and BE in percent on each live host, and the lowest QoS of all."""
    rows: Rows = [("manager", *(one.scenario for one in results), "lowest QoS %", "where")]
    for name in dict.fromkeys(name for one in results for name in one.managers):
        means = [one.mean(name) if name in one.managers else None for one in results]
        cells = ["-" if mean is None else f"{percent(mean[0], 1)} / {mean[1]:.1f}" for mean in means]
        least, where = lowest_qos(results, name)
        rows.append((label(name), *cells, percent(least, 1), where))
    return rows


def _paired_row(one: Comparison) -> tuple[str, ...]:
    qos, qos_15s, be = (
        (_starred(difference, decimals), _ends(difference.t95, decimals), _ends(difference.bootstrap95, decimals))
        for difference, decimals in zip(one.differences.values(), (2, 2, 1), strict=True)
    )
    ratio = one.be_ratio.value
    return (
        one.manager,
        *qos,
        qos_15s[0],
        qos_15s[2],
        *be,
        f"{ratio:.2f}" if math.isfinite(ratio) else "-",
        span(one.be_ratio.bootstrap95, ".2f", "-", "-"),
    )


def _starred(difference: Difference, decimals: int) -> str:
    """The mean, with a star when it is clear and no interval reads as 0 to 0: what cannot be shown is not claimed."""
    shown = all(any(round(end, decimals) for end in span) for span in (difference.t95, difference.bootstrap95))
    return _signed(difference.mean, decimals) + (" *" if difference.is_clear and shown else "")


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+.{decimals}f}"
    return text[1:] if not float(text) else text  # neither +0.00 nor -0.00


def _ends(interval: tuple[float, float], decimals: int) -> str:
    if not all(map(math.isfinite, interval)):
        return "one seed"
    if interval[0] == interval[1]:
        return "no spread" if interval[0] else "none seen"  # an interval of no width would claim more
    return f"{_signed(interval[0], decimals)} to {_signed(interval[1], decimals)}"
