"""How far the simulated shared link is from the measured sweep, figure by figure and by regime.

The sweep is tests/fixtures/surface/link_sweep.csv: memcached at two loads beside an upload job at the least CPU weight,
both behind `tc tbf rate 300mbit burst 128kb latency 50ms`, at some CPU quotas of the job (0: absent, -1: none).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.sim.fit import EDGE, SIDE, nelder_mead
from rlctl.envs.sim.physics import Hosts, Orders
from rlctl.envs.sim.profile import Constants, HostProfile, load_profile
from rlctl.envs.sim.residuals import WINDOWS, WITHIN_RATIO

__all__ = ["Regime", "Row", "by_regime", "fitted", "read_sweep", "show", "simulated", "tails_of", "within"]

Array = NDArray[np.float64]

SWEEP = Path(__file__).resolve().parents[2] / "tests/fixtures/surface/link_sweep.csv"
QUANTILES = (0.50, 0.95, 0.99)
SEEDS, SEEDS_TO_FIT = 100, 8
FITTED = (
    "base_seconds", "slice_seconds", "link_lc_bytes", "link_be_bytes", "link_burst_bytes", "link_queue_bytes",
)  # fmt: skip
BEGIN = dict(zip(FITTED, (0.8e-4, 0.004, 11e3, 48e6, 20e3, 45e6), strict=True))
INPUT_BYTES = 60e6  # what BE compresses in a second of CPU time: 12 MB/s at a quota of 20 %


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the sweep; `tails` are its p50, p95 and p99 in seconds, a lifted quota is infinite."""

    rps: float
    quota_cpus: float
    tails: tuple[float, ...]
    be_cpus: float
    be_bytes_per_second: float


class Regime(StrEnum):
    """What rules the LC's tail, by the measured p50."""

    ALONE = "BE absent"
    BELOW = "below saturation"
    SATURATED = "saturated"


def regime_of(row: Row) -> Regime:
    """The regime of a cell: where the link is full half of the replies take longer than the bucket's 50 ms."""
    if row.quota_cpus == 0.0:
        return Regime.ALONE
    return Regime.SATURATED if row.tails[0] > 0.05 else Regime.BELOW


def read_sweep(path: Path = SWEEP) -> list[Row]:
    """The cells in the order of the file."""
    with path.open(newline="") as file:
        lines = [{name: float(text) for name, text in line.items()} for line in csv.DictReader(file)]
    return [
        Row(
            line["rps"],
            np.inf if line["quota"] < 0.0 else line["quota"] / 100.0,
            tuple(line[f"p{100 * q:.0f}_ms"] / 1e3 for q in QUANTILES),
            line["be_cpus"],
            line["be_mb_per_second"] * 1e6,
        )
        for line in lines
    ]


def simulated(profile: HostProfile, rows: list[Row], q: float, seeds: int = SEEDS) -> tuple[Array, Array, Array]:
    """The q-quantile in seconds, BE's CPUs and BE's bytes of input per second of each cell: medians over hosts."""
    count = len(rows) * seeds
    constants = Constants.stack([profile] * count)
    vars(constants)["quantile_ratio"] = np.full(count, q)
    hosts = Hosts(constants, np.tile(np.arange(1, seeds + 1, dtype=np.uint64), len(rows)))
    quota = np.repeat([row.quota_cpus for row in rows], seeds)
    orders = Orders(quota, np.ones(count), quota == 0.0, constants.minimum_weight_ratio)
    rate = np.repeat([row.rps for row in rows], seeds)
    windows = [hosts.step(rate, orders) for _ in range(WINDOWS)][1:]
    most_cpus = constants.link_bytes_per_second / constants.link_be_bytes  # BE alone fills the link
    inputs = [window.be_work_ratio * np.minimum(most_cpus, 1.0) * INPUT_BYTES for window in windows]

    def median(columns: list[Array]) -> Array:
        return np.asarray(np.median(np.stack(columns).reshape(len(columns), len(rows), seeds), axis=(0, 2)))

    return (
        median([window.tail_latency_seconds for window in windows]),
        median([window.be_cpus for window in windows]),
        median(inputs),
    )


def tails_of(profile: HostProfile, rows: list[Row], seeds: int = SEEDS) -> Array:
    """Simulated p50, p95 and p99 of each cell, seconds, shape (3, cells)."""
    return np.stack([simulated(profile, rows, q, seeds)[0] for q in QUANTILES])


def within(tails: Array, rows: list[Row]) -> NDArray[np.bool_]:
    """Which simulated figures are right within a factor of two, shape (3, cells)."""
    return np.asarray(np.abs(np.log(tails / _measured(rows))) <= np.log(WITHIN_RATIO))


def by_regime(rows: list[Row]) -> dict[Regime, list[int]]:
    """Places of the cells of each regime."""
    return {regime: [place for place, row in enumerate(rows) if regime_of(row) is regime] for regime in Regime}


def fitted(rows: list[Row], calls: int = 400) -> HostProfile:
    """The shipped profile with its six constants fitted to these cells, from round numbers on."""
    begin = load_profile("capped-link").but(**BEGIN)
    start, target = np.log(list(BEGIN.values())), begin.lc.target_seconds
    measured = _measured(rows)

    def made(point: Array) -> HostProfile:
        return begin.but(**dict(zip(FITTED, np.exp(point).tolist(), strict=True)))

    def cost(point: Array) -> float:
        tails = tails_of(made(point), rows, SEEDS_TO_FIT)
        far = np.minimum(np.abs(np.log(tails / measured)), 2.0)
        beyond = np.where((tails <= target) == (measured <= target), 0.0, np.abs(np.log(tails / target)))
        outside = 1.0 / (1.0 + np.exp((np.log(WITHIN_RATIO) - far) / 0.1))  # counts cells beyond a factor of two
        return float((far + outside).mean() + SIDE * (1.0 - np.exp(-beyond[1] / EDGE)).mean())

    best, _, _ = nelder_mead(cost, start, calls)
    return made(best)


def _measured(rows: list[Row]) -> Array:
    return np.array([row.tails for row in rows]).T


def show(profile: HostProfile, rows: list[Row]) -> None:
    """Print every cell, then the share within a factor of two by regime."""
    print({name: float(f"{profile.values()[name]:.3g}") for name in FITTED})
    tails = tails_of(profile, rows)
    _, cpus, inputs = simulated(profile, rows, QUANTILES[1])
    good, target = within(tails, rows), profile.lc.target_seconds
    print("simulated / measured; ! beyond a factor of two")
    print("  rps quota            p50 ms            p95 ms            p99 ms     BE CPUs  BE MB/s in")
    for place, row in enumerate(rows):
        figures = "".join(
            f"{1e3 * tails[k, place]:8.2f}/{1e3 * row.tails[k]:<8g}{' ' if good[k, place] else '!'}" for k in range(3)
        )
        work = f"{cpus[place]:5.2f}/{row.be_cpus:.2f} {inputs[place] / 1e6:5.0f}/{row.be_bytes_per_second / 1e6:.0f}"
        print(f"{row.rps:5.0f} {100 * row.quota_cpus:4.0f}%{figures} {work}")
    measured = _measured(rows)
    print(
        f"\n| regime | cells | p50 | p95 | p99 within 2x | p95 on its side of {1e3 * target:g} ms |\n"
        + "|---" * 6
        + "|"
    )
    for name, places in [*by_regime(rows).items(), ("all", list(range(len(rows))))]:
        side = (tails[1, places] <= target) == (measured[1, places] <= target)
        shares = " | ".join(str(good[k, places].sum()) for k in range(3))
        print(f"| {name} | {len(places)} | {shares} | {side.sum()} |")
    print(f"within a factor of two: {good.sum()} of {good.size}")
