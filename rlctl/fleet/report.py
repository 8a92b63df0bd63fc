"""What `rlctl fleet` leaves in its report folder: tables, JSON, and the fleet over the day as a figure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlctl.agents.catalogue import label
from rlctl.envs.whole_file import write_json
from rlctl.fleet.fleet_score import as_json, percent_of_stretches
from rlctl.fleet.plan import STRETCH_SECONDS
from rlctl.fleet.simulation import FleetOutcome
from rlctl.fleet.table import tables
from rlctl.report.figures import COLOURS, FAINT, new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_report(outcome: FleetOutcome, folder: Path) -> None:
    """Write `fleet.json`, `tables.md` and, last, `day.png` into a folder; RlctlError: matplotlib is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "fleet.json", as_json(outcome))
    (folder / "tables.md").write_text(tables(outcome) + "\n")
    (folder / "day.png").write_bytes(png(day_figure(outcome)))


def day_figure(outcome: FleetOutcome) -> Figure:
    """Misses, BE throughput and load of the whole fleet over the day."""
    figure = new_figure(9, 7)
    axes: Sequence[Axes] = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    hours = (np.arange(outcome.plan.stretches) + 0.5) * STRETCH_SECONDS / 3600.0
    for (name, result), colour in zip(outcome.results.items(), itertools.cycle(COLOURS), strict=False):
        tally = result.tally
        axes[0].plot(hours, 100.0 - percent_of_stretches(tally.missed), color=colour, lw=1.2, label=label(name))
        axes[1].plot(hours, percent_of_stretches(tally.be_work), color=colour, lw=1.2)
    axes[2].plot(hours, percent_of_stretches(next(iter(outcome.results.values())).tally.load), color=FAINT)
    for axis, title in zip(axes, ("QoS, % of windows", "BE throughput, %", "load, %"), strict=True):
        axis.set_ylabel(title)
        axis.margins(x=0)
        axis.grid(alpha=0.3)
    axes[2].set_ylim(0, 100)
    axes[2].set_xlabel("hour of the day (UTC)")
    plan = outcome.plan
    axes[0].set_title(f"fleet {plan.fleet.name}: {plan.hosts} hosts, seed {plan.seed}", loc="left", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure
