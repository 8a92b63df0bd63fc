"""Tables of a simulator benchmark as rows of text, for Markdown and HTML alike; the first row is the header."""

from __future__ import annotations

import math

from rlctl.bench.comparison import Comparison, compare
from rlctl.bench.suite import SuiteResult
from rlctl.statistics.paired import Difference

__all__ = ["paired_rows", "percent", "summary_rows"]

Rows = list[tuple[str, ...]]

SUMMARY = (
    "manager", "QoS % 1 s", "95 %", "QoS % 15 s", "95 %", "BE %", "95 %", "EMU %", "mean worst x", "recover s",
    "frozen %", "suspensions", "changes", "override %",
)  # fmt: skip


def percent(value: float) -> str:
    """A share in percent that reads 100 or 0 only when it is; three decimals from 99.9, where they matter."""
    decimals = 3 if 99.9 <= value < 100.0 else 2
    step = 10.0**-decimals
    if 0.0 < value < 100.0:
        value = min(max(value, step), 100.0 - step)
    return f"{value:.{decimals}f}"


def summary_rows(result: SuiteResult) -> Rows:
    """One row per manager: QoS both ways and BE with their 95 % intervals, then what explains them."""
    rows: Rows = [SUMMARY]
    for name in result.managers:

        def mean(metric: str, form: str, name: str = name) -> str:
            return format(result.estimate(name, metric).mean, form)

        def with_interval(metric: str, name: str = name) -> tuple[str, str]:
            return _with_interval(result, name, metric)

        rows.append(
            (
                name,
                *with_interval("qos_guarantee_percent"),
                *with_interval("qos_15s_percent"),
                *with_interval("be_throughput_percent"),
                mean("emu_percent", ".0f"),
                mean("worst_window_over_target", ".1f"),
                mean("time_to_recover_seconds", ".1f"),
                mean("frozen_percent", ".0f"),
                mean("suspensions", ".0f"),
                mean("reconfigurations", ".0f"),
                mean("shield_override_percent", ".1f"),
            )
        )
    return rows


def paired_rows(result: SuiteResult, baseline: str) -> Rows:
    """One row per other manager: differences with both intervals, and BE as a multiple of the baseline's.

    Raises:
        KeyError: The baseline was not measured.
    """
    header = (
        f"less {baseline}", "QoS 1 s, points", "t 95 %", "bootstrap 95 %", "QoS 15 s, points", "bootstrap 95 %",
        "BE, points", "t 95 %", "bootstrap 95 %", "BE x", "bootstrap 95 %",
    )  # fmt: skip
    return [header, *(_paired_row(one) for one in compare(result, baseline))]


def _paired_row(one: Comparison) -> tuple[str, ...]:
    return (
        one.manager,
        _starred(one.qos, 2),
        _span(one.qos.t95, 2),
        _span(one.qos.bootstrap95, 2),
        _starred(one.qos_15s, 2),
        _span(one.qos_15s.bootstrap95, 2),
        _starred(one.be, 1),
        _span(one.be.t95, 1),
        _span(one.be.bootstrap95, 1),
        f"{one.be_ratio.ratio:.2f}" if math.isfinite(one.be_ratio.ratio) else "-",
        _ratio_span(one.be_ratio.bootstrap95),
    )


def _with_interval(result: SuiteResult, name: str, metric: str) -> tuple[str, str]:
    estimate = result.estimate(name, metric)
    if metric == "be_throughput_percent":
        return f"{estimate.mean:.1f}", _plain_span(estimate.ci95)
    return percent(estimate.mean), f"{percent(estimate.ci95[0])}-{percent(estimate.ci95[1])}"


def _starred(difference: Difference, decimals: int) -> str:
    """The mean, with a star when it is clear and no interval reads as 0 to 0: what cannot be shown is not claimed."""
    shown = all(any(round(end, decimals) for end in span) for span in (difference.t95, difference.bootstrap95))
    return _signed(difference.mean, decimals) + (" *" if difference.is_clear and shown else "")


def _signed(value: float, decimals: int) -> str:
    text = f"{value:+.{decimals}f}"
    return text[1:] if not float(text) else text  # neither +0.00 nor -0.00


def _span(interval: tuple[float, float], decimals: int) -> str:
    if not all(map(math.isfinite, interval)):
        return "one seed"
    if interval == (0.0, 0.0):
        return "none seen"  # equal on every seed; an interval of no width would claim more
    return f"{_signed(interval[0], decimals)} to {_signed(interval[1], decimals)}"


def _plain_span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.1f}-{interval[1]:.1f}" if math.isfinite(interval[1]) else "one seed"


def _ratio_span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f}-{interval[1]:.2f}" if all(map(math.isfinite, interval)) else "-"
