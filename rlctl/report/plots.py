"""Figures of one run in the manner of the thesis' 5.3 to 5.7."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.bench.score import LiveRun
from rlctl.envs.telemetry import number_or_nan
from rlctl.log.record import Tick
from rlctl.report.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LC, _BE, _TARGET, _SUSPENDED = "#1f5f99", "#d9822b", "#b3261e", "#e6e1f2"


def plot_run(run: LiveRun, path: Path, cpus: int) -> None:
    """Load, latency against the target, CPU use, and allocation over time, as PNG; suspensions are shaded.

    BE could have `cpus`, the top of the allocation's axis.
    """
    figure, axes, seconds = panels(run.ticks, 4, 8.0)
    _load(axes[0], seconds, run.ticks)
    draw_latency(axes[1], seconds, run.ticks)
    _use(axes[2], seconds, run.ticks)
    _allocation(axes[3], seconds, run.ticks, cpus)
    axes[0].set_title(f"{run.manager}: BE {100 * run.be_work_ratio:.1f} % of running alone", loc="left")
    figure.savefig(path, dpi=110)


def _load(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    loads = [number_or_nan(tick.telemetry.load_ratio) for tick in ticks]
    axis.plot(seconds, [100 * load for load in loads], color=_LC)
    axis.set_ylabel("load, %")
    axis.set_ylim(0, max([115.0, *(110.0 * load for load in loads if math.isfinite(load))]))


def draw_latency(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    """The tail latency over time on a log axis, and the target as a dashed line."""
    target = ticks[0].telemetry.target_seconds * 1e3
    axis.plot(seconds, [1e3 * number_or_nan(tick.telemetry.latency_seconds) for tick in ticks], color=_LC)
    axis.axhline(target, color=_TARGET, lw=1, ls="--", label=f"target {target:g} ms")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="y", which="minor", labelsize=7)
    axis.set_ylabel("tail latency, ms")
    axis.legend(loc="upper right", fontsize=8)


def _use(axis: Axes, seconds: list[float], ticks: Sequence[Tick]) -> None:
    axis.plot(seconds, [number_or_nan(tick.telemetry.lc_cpus) for tick in ticks], color=_LC, label="LC")
    axis.plot(seconds, [number_or_nan(tick.telemetry.be_cpus) for tick in ticks], color=_BE, label="BE")
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


def panels(ticks: Sequence[Tick], number: int, height_inches: float) -> tuple[Figure, Sequence[Axes], list[float]]:
    """Panels over the seconds since the first tick, shaded from a tick that froze BE to the one that let it go."""
    figure = new_figure(9, height_inches)
    axes: Sequence[Axes] = figure.subplots(number, 1, sharex=True)
    seconds = [tick.telemetry.time_seconds - ticks[0].telemetry.time_seconds for tick in ticks]
    spans = zip(ticks, seconds, [*seconds[1:], seconds[-1]], strict=True)
    for frozen, group in itertools.groupby(spans, lambda span: span[0].applied.frozen):
        if frozen:
            stretch = list(group)
            for axis in axes:
                axis.axvspan(stretch[0][1], stretch[-1][2], color=_SUSPENDED, lw=0, zorder=0)
    for axis in axes:
        axis.margins(x=0)
    axes[-1].set_xlabel("seconds")
    return figure, axes, seconds
