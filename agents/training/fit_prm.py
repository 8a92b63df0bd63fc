"""PRM's step one: fit the threshold model to records of the LC running alone (thesis 3.1.2; eris analyze.py).

Records are CSV files with a header, or tick logs (JSON lines). CSV columns: `lc_cpus` or `util_percent` (100 is one
CPU), any of METRICS, and optionally `time_seconds`; others are passed over, and an empty cell is a missing reading.
sklearn is imported only when a mixture is fitted.
"""

from __future__ import annotations

import csv
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np

from rlctl.agents.managers.prm_model import Method, PrmModel, ThresholdBin
from rlctl.envs.arrays import Array
from rlctl.envs.errors import ConfigError, reading, require_installed
from rlctl.envs.log_lines import Damage, log_files, read_lines

log = logging.getLogger(__name__)

SEED = 1005  # analyze.py
BIN_PERCENT = 50.0  # width of a bin; analyze.py
MOST_COMPONENTS = 10  # analyze.py
OUTLIER_RATIO = 0.1  # analyze.py
LEAST_ROWS = 10
"""Intervals that a bin needs; our choice, a mixture of fewer says nothing."""

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


def fit(
    rows: Iterable[PrmRow],
    *,
    lc_cpus: float,
    method: Method = "gmm-strict",
    span_sigmas: float = 4.0,
    interval_seconds: float = 18.5,
) -> PrmModel:
    """Fit PRM's threshold model.

    Args:
        lc_cpus: CPUs that the LC has; the bins reach from half of them to one more than all.
        span_sigmas: Standard deviations from a component's mean to the fence (eris: 4, its WCA plugin: 3).
        interval_seconds: Rows with a time are averaged over it: thresholds for 18.5-s means must come from such.

    Raises:
        ConfigError: No rows, an impossible parameter, or sklearn is not installed.
    """
    records = list(rows)
    if not records:
        raise ConfigError("no record of the LC running alone; record with `--policy frozen` first")
    numbers = (lc_cpus, span_sigmas, interval_seconds)
    if method not in get_args(Method) or not all(math.isfinite(number) and number > 0.0 for number in numbers):
        raise ConfigError(f"fit needs positive numbers and a method of {', '.join(get_args(Method))}")
    intervals = _averaged(records, interval_seconds)
    edges = np.arange(lc_cpus * 50.0, (lc_cpus + 1.0) * 100.0, BIN_PERCENT).tolist()
    found = [_bin(low, low + BIN_PERCENT, intervals, method, span_sigmas) for low in edges]
    bins = tuple(bin_ for bin_ in found if bin_)
    if not bins:
        log.warning("no utilisation bin has %d intervals: the model holds the LC's maximum only", LEAST_ROWS)
    return PrmModel(
        lc_cpus=lc_cpus,
        lcutilmax_percent=max(row.util_percent for row in records),
        method=method,
        span_sigmas=span_sigmas,
        bins=bins,
    )


def fence(values: Sequence[float], method: Method, span_sigmas: float, *, above: bool = True) -> float:
    """The largest value that is still normal, or with `above=False` the smallest.

    A mixture of 1 to 10 Gaussians is chosen by BIC. "gmm-strict": each component proposes its mean plus the span, but
    not beyond its own members. Of the proposals the one that leaves out the largest share up to a tenth is taken,
    else the one that leaves out least. "gmm-origin": components are added from the top until they weigh more than a
    tenth; the one that did it proposes.

    Raises:
        ConfigError: sklearn is not installed.
    """
    signed = np.asarray(values, np.float64) * (1.0 if above else -1.0)
    scale = float(np.abs(signed).mean())
    if scale == 0.0 or float(np.ptp(signed)) == 0.0:
        return abs(float(signed[0]))
    # sklearn floors variances at an absolute 1e-6; without scaling that swamps CPU seconds per request.
    choose = _strict if method == "gmm-strict" else _origin
    return max(float(choose(signed / scale, span_sigmas)) * scale * (1.0 if above else -1.0), 0.0)


def _averaged(rows: Sequence[PrmRow], interval_seconds: float) -> list[PrmRow]:
    def interval(row: PrmRow) -> int:
        return int((row.time_seconds or 0.0) // interval_seconds)

    timed = [row for row in rows if row.time_seconds is not None]
    groups = [list(group) for _, group in groupby(timed, interval)]
    return [row for row in rows if row.time_seconds is None] + [_mean(group) for group in groups]


def _mean(rows: Sequence[PrmRow]) -> PrmRow:
    metrics = {name: [row.metrics[name] for row in rows if name in row.metrics] for name in METRICS}
    return PrmRow(
        float(np.mean([row.util_percent for row in rows])),
        {name: float(np.mean(values)) for name, values in metrics.items() if values},
        rows[-1].time_seconds,
    )


def _bin(low: float, high: float, rows: Sequence[PrmRow], method: Method, span_sigmas: float) -> ThresholdBin | None:
    members = [row for row in rows if low <= row.util_percent < high]

    def fences(names: Sequence[str], *, above: bool) -> dict[str, float]:
        columns = {name: [row.metrics[name] for row in members if name in row.metrics] for name in names}
        return {
            name: fence(values, method, span_sigmas, above=above)
            for name, values in columns.items()
            if len(values) >= LEAST_ROWS
        }

    upper, lower = fences(UPPER, above=True), fences(LOWER, above=False)
    if not upper and not lower:
        return None
    return ThresholdBin(low_percent=low, high_percent=high, rows=len(members), upper=upper, lower=lower)


def _strict(values: Array, span_sigmas: float) -> float:
    mixture = _mixture(values)
    labels = mixture.predict(values.reshape(-1, 1))
    proposals: list[float] = []
    for label in np.unique(labels):
        mean, deviation = float(mixture.means_[label, 0]), math.sqrt(mixture.covariances_[label, 0, 0])
        proposals.append(min(mean + span_sigmas * deviation, float(values[labels == label].max())))
    shares = {proposal: float(np.mean(values > proposal)) for proposal in proposals}
    allowed = [proposal for proposal, share in shares.items() if share <= OUTLIER_RATIO]
    return max(allowed, key=lambda p: shares[p]) if allowed else min(shares, key=lambda p: shares[p])


def _origin(values: Array, span_sigmas: float) -> float:
    mixture = _mixture(values)
    weight, fence_at = 0.0, 0.0
    for label in np.argsort(mixture.means_[:, 0])[::-1]:
        weight += mixture.weights_[label]
        fence_at = mixture.means_[label, 0] + span_sigmas * math.sqrt(mixture.covariances_[label, 0, 0])
        if weight > OUTLIER_RATIO:
            break
    return float(fence_at)


def _mixture(values: Array) -> Any:
    """The Gaussian mixture of least BIC; one-dimensional, fitted sklearn object."""
    require_installed("a threshold model", "baselines", "sklearn")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    column = values.reshape(-1, 1)
    most = min(MOST_COMPONENTS, len(np.unique(values)), len(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one that did not converge has a BIC all the same
        fitted = [GaussianMixture(count, random_state=SEED).fit(column) for count in range(1, most + 1)]
    return min(fitted, key=lambda mixture: mixture.bic(column))


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
            if (instructions := values.get("lc_instructions", math.nan)) > 0.0:
                values["mpki"] = values.get("lc_llc_load_misses", math.nan) * 1000.0 / instructions
            yield PrmRow(values["lc_cpus"] * 100.0, _metrics(values), time_seconds)


def _metrics(values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[name] for name in METRICS if math.isfinite(values.get(name, math.nan))}
