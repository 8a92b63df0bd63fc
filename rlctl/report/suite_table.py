"""Tables of a simulator benchmark as rows of text, for Markdown and HTML alike; the first row is the header."""

from __future__ import annotations

import math

from rlctl.bench.comparison import Comparison, compare
from rlctl.bench.intervals import Estimate
from rlctl.bench.paired import Difference
from rlctl.bench.sim_outcome import SimOutcome
from rlctl.report.table import percent, span

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


def _range(one: Estimate) -> str:
    return f"{fine_percent(one.ci95[0])}-{fine_percent(one.ci95[1])}"


def summary_rows(result: SimOutcome) -> Rows:
    """One row per manager: QoS both ways and BE with their 95 % intervals, then what explains them."""
    return [SUMMARY, *(_summary_row(result, name) for name in result.managers)]


def _summary_row(result: SimOutcome, name: str) -> tuple[str, ...]:
    qos = [result.estimate(name, metric) for metric in ("qos_guarantee_percent", "qos_15s_percent")]
    be = result.estimate(name, "be_throughput_percent")
    return (
        name,
        *(cell for one in qos for cell in (fine_percent(one.mean), _range(one))),
        f"{be.mean:.1f}",
        span(be.ci95, ".1f", "one seed", "-"),
        *(format(result.estimate(name, metric).mean, form) for metric, form in MEANS),
    )


def paired_rows(result: SimOutcome, baseline: str) -> Rows:
    """Every other manager's row: differences with both intervals, BE as a multiple; KeyError: no such baseline."""
    header = (
        f"less {baseline}", "QoS 1 s, points", "t 95 %", "bootstrap 95 %", "QoS 15 s, points", "bootstrap 95 %",
        "BE, points", "t 95 %", "bootstrap 95 %", "BE x", "bootstrap 95 %",
    )  # fmt: skip
    return [header, *(_paired_row(one) for one in compare(result, baseline))]


def _paired_row(one: Comparison) -> tuple[str, ...]:
    qos, qos_15s, be = (
        (_starred(difference, decimals), _ends(difference.t95, decimals), _ends(difference.bootstrap95, decimals))
        for difference, decimals in ((one.qos, 2), (one.qos_15s, 2), (one.be, 1))
    )
    ratio = one.be_ratio.ratio
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
    if interval == (0.0, 0.0):
        return "none seen"  # equal on every seed; an interval of no width would claim more
    return f"{_signed(interval[0], decimals)} to {_signed(interval[1], decimals)}"
