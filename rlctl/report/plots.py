"""Figures in the manner of the thesis' 5.3 to 5.7, and QoS against BE throughput for all managers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.bench.score import Run, Score
from rlctl.envs.telemetry import Missing, Reading
from rlctl.loop.record import Tick
from rlctl.report.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_run", "plot_shares", "plot_summary"]

_LC, _BE, _TARGET, _SUSPENDED = "#1f5f99", "#d9822b", "#b3261e", "#e6e1f2"
_APPLICATIONS = ("#d9822b", "#1f5f99", "#6a9f58", "#8e6bb0", "#b3261e", "#7f7f7f")
_NAN = float("nan")


def plot_run(run: Run, path: Path, cpus: int) -> None:
    """Load, latency against the target, CPU use, and allocation over time; suspensions are shaded.

    Args:
        run: One run.
        path: PNG to write.
        cpus: CPUs that BE could have, the top of the allocation's axis.
    """
    figure = new_figure(9, 8)
    axes: Sequence[Axes] = figure.subplots(4, 1, sharex=True)
    begin = run.ticks[0].telemetry.time_seconds
    seconds = [tick.telemetry.time_seconds - begin for tick in run.ticks]
    _load(axes[0], seconds, run.ticks)
    _latency(axes[1], seconds, run.ticks)
    _use(axes[2], seconds, run.ticks)
    _allocation(axes[3], seconds, run.ticks, cpus)
    for axis in axes:
        _shade(axis, seconds, run.ticks)
        axis.margins(x=0)
    axes[3].set_xlabel("seconds")
    axes[0].set_title(f"{run.manager}: BE {100 * run.be_work_ratio:.1f} % of running alone", loc="left")
    figure.savefig(path, dpi=110)


def plot_shares(ticks: Sequence[Tick], threads: Mapping[float, Mapping[str, int]], path: Path, title: str) -> None:
    """Latency against the target, each application's share of BE's budget over time, and threads that were counted.

    Args:
        ticks: One run; applications that have the same name but for their pids are one.
        threads: Threads by application, by time on the ticks' clock; empty leaves that out.
        path: PNG to write.
        title: Of the figure.
    """
    figure = new_figure(9, 7 if threads else 5.5)
    axes: Sequence[Axes] = figure.subplots(3 if threads else 2, 1, sharex=True)
    begin = ticks[0].telemetry.time_seconds
    seconds = [tick.telemetry.time_seconds - begin for tick in ticks]
    shares = [_cpus_by_name(tick) for tick in ticks]
    names = list(dict.fromkeys(name for one in shares for name in one))
    _latency(axes[0], seconds, ticks)
    each = [[one.get(name, 0.0) for one in shares] for name in names]
    axes[1].stackplot(seconds, *each, labels=names, step="post", colors=_APPLICATIONS, alpha=0.8)
    axes[1].set_ylabel("share of BE's budget, CPUs")
    axes[1].legend(loc="upper right", fontsize=8)
    for axis in axes:
        _shade(axis, seconds, ticks)
        axis.margins(x=0)
    for name in dict.fromkeys(name for one in threads.values() for name in one):
        counted = [(time - begin, one[name]) for time, one in threads.items() if name in one]
        axes[-1].step(*zip(*counted, strict=True), where="post", label=f"{name}: threads in /proc", color=_LC)
        axes[-1].set_ylabel("threads")
        axes[-1].legend(loc="upper right", fontsize=8)
    axes[-1].set_xlabel("seconds")
    axes[0].set_title(title, loc="left", fontsize=10)
    figure.savefig(path, dpi=110)


def _cpus_by_name(tick: Tick) -> dict[str, float]:
    """CPUs by application, nothing while BE is suspended."""
    found: dict[str, float] = {}
    for key, placement in tick.shares.items():
        name = key.rpartition(":")[2]
        cpus = 0.0 if placement is None or tick.applied.frozen else placement.cpus
        found[name] = found.get(name, 0.0) + cpus
    return found


def plot_summary(scores: Mapping[str, Score], path: Path, title: str) -> None:
    """QoS guarantee against BE throughput, with 95 % intervals; up and to the right is better."""
    figure = new_figure(9, 5.5)
    axis: Axes = figure.subplots()
    for name, marker in zip(scores, itertools.cycle("osD^vPX*<>hp"), strict=False):
        be, qos = scores[name].be_throughput_percent, scores[name].qos_guarantee_percent
        bars = {"xerr": _bars(be.mean, be.ci95), "yerr": _bars(qos.mean, qos.ci95)}
        axis.errorbar(be.mean, qos.mean, **bars, fmt=marker, ms=6, lw=0.8, capsize=2, label=name)
    axis.set_xlabel("BE throughput, % of BE running alone")
    axis.set_ylabel("QoS guarantee, % of windows within target")
    axis.set_title(title, loc="left", fontsize=10)
    most = max(one.be_throughput_percent.mean for one in scores.values())
    axis.set_xlim(-2, max(1.25 * most, 10.0))
    axis.set_ylim(top=101)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=110)


def _load(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    axis.plot(seconds, [100 * _number(tick.telemetry.load_ratio) for tick in ticks], color=_LC)
    axis.set_ylabel("load, %")
    axis.set_ylim(0, 115)


def _latency(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    target = ticks[0].telemetry.target_seconds * 1e3
    axis.plot(seconds, [1e3 * _number(tick.telemetry.latency_seconds) for tick in ticks], color=_LC)
    axis.axhline(target, color=_TARGET, lw=1, ls="--", label=f"target {target:g} ms")
    axis.set_yscale("log")
    for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        which("{x:g}")
    axis.tick_params(axis="y", which="minor", labelsize=7)
    axis.set_ylabel("tail latency, ms")
    axis.legend(loc="upper right", fontsize=8)


def _use(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    axis.plot(seconds, [_number(tick.telemetry.lc_cpus) for tick in ticks], color=_LC, label="LC")
    axis.plot(seconds, [_number(tick.telemetry.be_cpus) for tick in ticks], color=_BE, label="BE")
    axis.set_ylabel("CPUs used")
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper right", fontsize=8)


def _allocation(axis: Axes, seconds: list[float], ticks: Sequence[Tick], cpus: int) -> None:
    quota = [0.0 if tick.applied.frozen else min(tick.applied.quota_cpus, cpus) for tick in ticks]
    axis.step(seconds, quota, where="post", color=_BE, label="quota (0: suspended)")
    if cpus > 1:
        axis.step(
            seconds, [tick.applied.cpuset_cpus for tick in ticks], where="post", color="grey", lw=1, label="cpuset"
        )
    axis.set_ylabel("BE allocation, CPUs")
    axis.set_ylim(0, cpus * 1.1)
    axis.legend(loc="upper right", fontsize=8)


def _shade(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    """Grey where BE was suspended, from the tick that froze it to the tick that let it go."""
    ends = [*seconds[1:], seconds[-1]]
    spans = zip(ticks, seconds, ends, strict=True)
    for frozen, group in itertools.groupby(spans, lambda span: span[0].applied.frozen):
        if frozen:
            stretch = list(group)
            axis.axvspan(stretch[0][1], stretch[-1][2], color=_SUSPENDED, lw=0, zorder=0)


def _number(reading: Reading) -> float:
    return _NAN if isinstance(reading, Missing) else reading.value


def _bars(mean: float, interval: tuple[float, float]) -> Any:
    """Distances to both ends; none for a single run, whose interval is endless."""
    low, high = interval
    if not math.isfinite(high - low):
        return [[0.0], [0.0]]
    return [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]  # the last bit may be on the wrong side
