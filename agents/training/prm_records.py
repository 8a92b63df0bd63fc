"""Records that PRM's thresholds are fitted to: CSV files with a header, or tick logs (JSON lines).

CSV columns: `lc_cpus` or `util_percent` (100 is one CPU), any of METRICS, and optionally `time_seconds`; others are
passed over, and an empty cell is a missing reading.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.envs.errors import ConfigError, reading
from rlctl.envs.ticklog import Damage, log_files, read_lines

UPPER = ("cpi", "lc_cpu_seconds_per_request", "mpki", "l2spki", "mspki")
LOWER = ("mb",)
METRICS = UPPER + LOWER
"""Metrics with a fence above; with one below."""

IDLE_BE_CPUS = 0.02
"""BE use below which the LC counts as alone: the quota's minimum and the cost of reading it."""


@dataclass(frozen=True, slots=True)
class PrmRow:
    """One record of the LC.

    Attributes:
        util_percent: CPU use of the LC, 100 being one CPU.
        metrics: Values by name of METRICS; those that were missing are absent.
        time_seconds: End of the interval; None when the rows are intervals already.
    """

    util_percent: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    time_seconds: float | None = None


def read_rows(path: Path, damaged: Callable[[Damage], None] = lambda _: None) -> list[PrmRow]:
    """The records of a CSV file, or of a tick log the ticks in which BE did not run; ConfigError names a wrong line.

    Args:
        path: A file, or the directory of a tick log.
        damaged: Is told of each line of a log that cannot be believed.
    """
    rows = list(_from_ticks(path, damaged) if path.is_dir() or _holds_json(path) else _from_csv(path))
    if not rows:
        raise ConfigError("holds no record of the LC running alone; record with `--policy frozen`", path)
    return rows


def _holds_json(path: Path) -> bool:
    with reading(path), path.open("rb") as file:
        return next((line for line in file if line.strip()), b"").lstrip().startswith(b"{")


def _from_csv(path: Path) -> Iterator[PrmRow]:
    try:
        with reading(path):
            reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot be read as text: {error}", path) from error
    try:
        columns = set(reader.fieldnames or ())
        if not columns & {"lc_cpus", "util_percent"}:
            raise ConfigError("has neither a column lc_cpus nor util_percent in its header", path, 1)
        for record in reader:
            cells = {key: _cell(path, reader.line_num, key, text) for key, text in record.items() if key and text}
            util = cells["util_percent"] if "util_percent" in cells else cells.get("lc_cpus", math.nan) * 100.0
            if math.isfinite(util):
                yield PrmRow(util, _metrics(cells), cells.get("time_seconds"))
    except csv.Error as error:
        raise ConfigError(f"is no CSV: {error}", path, reader.line_num) from error


def _cell(path: Path, line: int, column: str, text: str) -> float:
    if column not in {"lc_cpus", "util_percent", "time_seconds", *METRICS}:
        return math.nan
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"column {column}: {text!r} is no number", path, line) from error
    if not math.isfinite(value) or value < 0.0:
        raise ConfigError(f"column {column}: {text!r} cannot be; leave it empty if it is missing", path, line)
    return value


def _from_ticks(path: Path, damaged: Callable[[Damage], None]) -> Iterator[PrmRow]:
    for line in read_lines(log_files(path), damaged):
        if line.is_header:
            continue
        tick = line.content
        try:
            readings = {**tick["counters"], **tick["readings"]}
            known = {name: reading.get("value") for name, reading in readings.items()}
            values = {name: float(value) for name, value in known.items() if value is not None}
            alone = tick["before"]["frozen"] or values.get("be_cpus", math.inf) <= IDLE_BE_CPUS
            time_seconds = float(tick["time_seconds"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError("is no tick of a tick log", line.path, line.number) from error
        if alone and math.isfinite(values.get("lc_cpus", math.nan)):
            if (instructions := values.get("instructions", math.nan)) > 0.0:
                values["mpki"] = values.get("llc_misses", math.nan) * 1000.0 / instructions
            yield PrmRow(values["lc_cpus"] * 100.0, _metrics(values), time_seconds)


def _metrics(values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[name] for name in METRICS if math.isfinite(values.get(name, math.nan))}
