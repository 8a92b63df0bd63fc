"""A measurement in words and as JSON: what was scaled, the tables, and what the allocator chose."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from rlctl.envs.telemetry import Missing
from rlctl.report.page import render
from scripts.studies.mixes.measurement import Measurement, pairs_of, sides_by_cell
from scripts.studies.mixes.metrics import METRICS
from scripts.studies.mixes.plan import Cell, Log, Record, reading_as_json
from scripts.studies.mixes.table import CellMetrics, estimates_of, metric_rows, missing_lines, speed_up, speed_up_rows

MORE_SPEED_UPS = ("ctx", "mig")

LEGEND = (
    "U: unmanaged, M: managed; half-widths by Student's t. Speed-ups are (U - M) / U of the means, ± the half-width\n"
    "of the 95 % interval of the pairs' differences: above 0 is better managed"
)


def scaling(measurement: Measurement) -> list[str]:
    """What the published quotas have become here."""
    ground, config = measurement.ground, measurement.config
    lines = [
        f"managed: {ground}; {ground.quota_cpus:.3g} CPUs for the {config.published_cpus:g} published, so quotas "
        f"are multiplied by {measurement.cpus_scale:.4g}; threads as published; leftover: {measurement.leftover}; "
        f"quota period {measurement.quota_period_us / 1e3:g} ms"
    ]
    for name, one in config.applications.items():
        modes = ", ".join(
            f"AWM{index} {mode.cpus:.3f} CPU {mode.threads} thread{'s' if mode.threads > 1 else ''}"
            for index, mode in enumerate(one.working_modes(measurement.cpus_scale))
        )
        what = " ".join(one.command or ()) or f"{one.workload}, {one.work} items"
        lines.append(f"{name} ({what}): {modes}; unmanaged {one.threads} thread{'s' if one.threads > 1 else ''}")
    return lines


def report_lines(measurement: Measurement, log: Log, *, tables: bool = True) -> Iterator[str]:
    """The report, line by line; without tables of each cell's metrics it has the speed-ups alone."""
    cells = sides_by_cell(measurement, log)
    yield from scaling(measurement)
    if not cells:
        yield "no pair of runs is complete"
        return
    for cell in measurement.cells:
        if tables and cell.name in cells:
            yield ""
            yield from _cell(cell, cells[cell.name], pairs_of(log, cell, measurement.runs))
    yield ""
    yield render(speed_up_rows(cells, MORE_SPEED_UPS))
    yield LEGEND
    yield from dict.fromkeys(line for sides in cells.values() for line in missing_lines(sides))


def _choices(cell: Cell, managed: Sequence[Record]) -> Iterator[str]:
    """What the allocator chose at the begin, and in how many runs; and how often it chose anew afterwards."""
    first = Counter(_chosen(cell, record) for record in managed if record.placements)
    for modes, number in first.most_common():
        yield f"chosen at the begin in {number} of {len(managed)} runs: {modes}"
    changes = fmean(len(record.placements) - 1 for record in managed)
    yield f"chosen anew {changes:.1f} times a run, as instances ended"


def as_json(measurement: Measurement, log: Log, kind: str) -> dict[str, Any]:
    """The result as --json writes it; the kind is `mix` or `burst`."""
    cells = sides_by_cell(measurement, log)
    return {
        "schema": 1,
        "measure": kind,
        "runs": measurement.runs,
        "managed_cpus": measurement.ground.quota_cpus,
        **measurement.as_plan(),
        "cpus_scale": measurement.cpus_scale,
        "results": {
            cell.name: {
                "pairs": len(pairs := pairs_of(log, cell, measurement.runs)),
                "metrics": dict(_metrics_json(cells[cell.name])),
                "choices": dict(Counter(_chosen(cell, m) for _, m in pairs)),
            }
            for cell in measurement.cells
            if cell.name in cells
        },
    }


def _cell(cell: Cell, sides: CellMetrics, pairs: Sequence[tuple[Record, Record]]) -> Iterator[str]:
    yield f"{cell.name}: {_counted(cell.instances)}; {len(pairs)} pair{'s' if len(pairs) > 1 else ''} of runs"
    yield render(metric_rows(estimates_of(sides)))
    yield from _choices(cell, [m for _, m in pairs])


def _chosen(cell: Cell, record: Record) -> str:
    """Modes by application, such as `2 bodytrack AWM2, 1 ferret AWM2, 1 ferret deferred`."""
    placed = record.placements[0][1] if record.placements else {}
    counts: Counter[str] = Counter()
    for application, count in cell.instances.items():
        for number in range(1, count + 1):
            one = placed.get(f"{application}-{number}")
            counts[f"{application} AWM{one[0]}" if one else f"{application} deferred"] += 1
    return _counted(counts)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _metrics_json(sides: CellMetrics) -> Iterator[tuple[str, Any]]:
    estimates = estimates_of(sides)
    for metric in METRICS:
        one = sides[metric.name]
        if isinstance(one, Missing):
            yield metric.name, reading_as_json(one)
            continue
        unmanaged, managed = estimates[metric.name]
        gain = speed_up(metric, one)
        better = gain and {
            "percent": round(gain.mean, 4),
            "half95": round(gain.half95, 4) if math.isfinite(gain.half95) else None,
        }
        yield metric.name, {"unmanaged": unmanaged.as_json(), "managed": managed.as_json(), "speed_up": better}
