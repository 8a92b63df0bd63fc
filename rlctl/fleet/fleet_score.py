"""What a fleet came to under a manager: QoS, BE throughput and machines saved, over all hosts and kind by kind.

A host is the unit of repetition: the windows of one host depend on one another. Host k is the same under every manager,
so managers are compared host by host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlctl import __version__
from rlctl.agents.catalogue import label
from rlctl.envs.arrays import Array, Flags
from rlctl.fleet.config import TICK_SECONDS, Fleet
from rlctl.fleet.plan import STRETCH_SECONDS
from rlctl.fleet.roster import Roster
from rlctl.fleet.simulation import FleetOutcome, Tally
from rlctl.statistics.intervals import share_over_seeds
from rlctl.statistics.paired import bca_interval, expanded_z, resample_weights

HELD_PERCENT = 99.0
"""A host that holds the target in fewer windows is one to look at."""

RESAMPLES = 2000
"""Bootstrap samples; a fleet has many hosts, and 10,000 of them would take more memory than the simulation."""


class Spread(NamedTuple):
    """A mean over hosts with its 95 % interval, which is infinite for a single host."""

    mean: float
    low: float
    high: float

    def as_json(self) -> dict[str, object]:
        """Mean and interval by name; an infinite end is null."""
        ends = [round(end, 4) if math.isfinite(end) else None for end in (self.low, self.high)]
        return {"mean": round(self.mean, 4), "ci95": ends}


@dataclass(frozen=True, slots=True)
class Figures:
    """Each host under one manager; arrays of shape (hosts,).

    Attributes:
        be_percent: BE work as a share of BE running alone on this host.
        load_percent: Load as a share of the LC's maximum.
        machines: BE work in standard machines: work ratio x CPUs that BE keeps busy alone / CPUs of the machine.
        worst_ratio: Latency of the worst window as a multiple of the target.
        ticks_percent: Ticks that were overridden, frozen, failed and strange, by these names of `Tally`.
    """

    qos_percent: Array
    be_percent: Array
    load_percent: Array
    machines: Array
    worst_ratio: Array
    ticks_percent: Mapping[str, Array]
    windows: int


@dataclass(frozen=True, slots=True)
class FleetScore:
    """Some hosts of a fleet under one manager; shares in percent.

    Attributes:
        qos: Windows that held the target, mean over hosts.
        emu: LC load and BE work together, mean over hosts.
        machines: Standard machines saved, sum over hosts.
    """

    hosts: int
    qos: Spread
    be: Spread
    emu: Spread
    machines: Spread
    worst_host_percent: float
    below_percent: float
    worst_ratio: float
    override_percent: float
    frozen_percent: float
    failed_percent: float
    strange_percent: float

    def as_json(self) -> dict[str, object]:
        """All attributes by name, rounded."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: value.as_json() if isinstance(value, Spread) else round(value, 4) for name, value in values.items()
        }


def figures_of(tally: Tally, alone_cpus: Array, machine_cpus: float) -> Figures:
    """Each host's figures from a tally of shape (stretches, hosts); alone BE keeps `alone_cpus` busy, (hosts,)."""
    windows = round(len(tally.missed) * STRETCH_SECONDS / TICK_SECONDS)

    def percent(sums: Array) -> Array:
        # Column by column, so that a host's last digits do not depend on which others there are.
        return np.array([100.0 * column.sum() / windows for column in np.ascontiguousarray(sums.T)])

    be = percent(tally.be_work)
    return Figures(
        qos_percent=100.0 - percent(tally.missed),
        be_percent=be,
        load_percent=percent(tally.load),
        machines=be / 100.0 * alone_cpus / machine_cpus,
        worst_ratio=tally.worst_ratio.max(axis=0),
        ticks_percent={name: percent(getattr(tally, name)) for name in ("overridden", "frozen", "failed", "strange")},
        windows=windows,
    )


def figures_by_manager(outcome: FleetOutcome) -> Iterator[tuple[str, Figures]]:
    """Every manager's name and figures, in the plan's order."""
    for name, result in outcome.results.items():
        yield name, figures_of(result.tally, outcome.alone_cpus, outcome.plan.fleet.machine_cpus)


def score(figures: Figures, which: Flags | None = None) -> FleetScore:
    """Score all hosts, or those in `which`, at least one; bool, shape (hosts,)."""
    which = np.ones(len(figures.qos_percent), np.bool_) if which is None else which
    f, number = figures, int(which.sum())
    machines = over_hosts(f.machines[which])
    ticks = {name: float(percent[which].mean()) for name, percent in f.ticks_percent.items()}
    return FleetScore(
        hosts=number,
        qos=_qos(f.qos_percent[which], f.windows),
        be=over_hosts(f.be_percent[which]),
        emu=over_hosts((f.be_percent + f.load_percent)[which]),
        machines=Spread(*(number * end for end in machines)),
        worst_host_percent=float(f.qos_percent[which].min()),
        below_percent=100.0 * float(np.mean(f.qos_percent[which] < HELD_PERCENT)),
        worst_ratio=float(f.worst_ratio[which].max()),
        override_percent=ticks["overridden"],
        frozen_percent=ticks["frozen"],
        failed_percent=ticks["failed"],
        strange_percent=ticks["strange"],
    )


def over_hosts(values: Array) -> Spread:
    """The mean of one value per host with its BCa bootstrap interval, 95 %."""
    mean, number = float(values.mean()), len(values)
    if number == 1:
        return Spread(mean, -math.inf, math.inf)
    if np.ptp(values) == 0.0:
        return Spread(mean, mean, mean)
    samples = resample_weights(number, RESAMPLES) @ values
    left_out = (values.sum() - values) / (number - 1)
    low, high = bca_interval(mean, samples, left_out, expanded_z(number))
    return Spread(mean, low, high)


def _qos(percent: Array, windows: int) -> Spread:
    """QoS over hosts, within [0, 100].

    Where no two hosts differ, as when none missed a window, a bootstrap interval has no width; Wilson's has one.
    """
    if np.ptp(percent) > 0.0:
        spread = over_hosts(percent)
        return Spread(spread.mean, max(spread.low, 0.0), min(spread.high, 100.0))
    estimate = share_over_seeds(percent, windows)
    return Spread(estimate.mean, *estimate.ci95)


def percent_of_stretches(sums: Array) -> Array:
    """Share of each stretch's ticks over all hosts, shape (stretches,); from sums of shape (stretches, hosts)."""
    percent: Array = 100.0 * np.ascontiguousarray(sums).mean(axis=1) * (TICK_SECONDS / STRETCH_SECONDS)
    return percent


def groups_of(fleet: Fleet, roster: Roster) -> dict[str, Flags]:
    """Groups of hosts by name: each kind that has a host, then kinds that policies were trained on, then the others."""
    untrained = np.array([bool(kind.untrained) for kind in fleet.kinds])[roster.kinds]
    groups = {kind.name: roster.kinds == place for place, kind in enumerate(fleet.kinds)}
    groups |= {"trained on": ~untrained, "never trained on": untrained}
    return {name: which for name, which in groups.items() if which.any()}


def as_json(outcome: FleetOutcome) -> dict[str, object]:
    """The outcome by name; of equal plans all but `cost` is equal."""
    plan, fleet = outcome.plan, outcome.plan.fleet
    return {
        "schema": 1,
        "fleet": fleet.name,
        "fleet_digest": fleet.digest,
        "hosts": plan.hosts,
        "hours": plan.stretches * STRETCH_SECONDS / 3600.0,
        "seed": plan.seed,
        "shield": plan.shield.name,
        "shield_digest": plan.shield.digest,
        "tick_seconds": TICK_SECONDS,
        "machine_cpus": fleet.machine_cpus,
        "rlctl": __version__,
        "kinds": {
            kind.name: {"cpus": kind.drawn_from.be.host_cpus, "untrained": list(kind.untrained)} for kind in fleet.kinds
        },
        "managers": {name: _manager_as_json(outcome, name, figures) for name, figures in figures_by_manager(outcome)},
        "cost": cost_as_json(outcome),
    }


def _manager_as_json(outcome: FleetOutcome, name: str, figures: Figures) -> dict[str, object]:
    result = outcome.results[name]
    groups = groups_of(outcome.plan.fleet, outcome.roster)
    sums = {"missed": result.tally.missed, "be": result.tally.be_work, "load": result.tally.load}
    return {
        "label": label(name),
        **score(figures).as_json(),
        "groups": {group: score(figures, which).as_json() for group, which in groups.items()},
        "day": {curve: _rounded(percent_of_stretches(each)) for curve, each in sums.items()},
        "per_host": {"qos_percent": _rounded(figures.qos_percent), "be_percent": _rounded(figures.be_percent)},
        "remarks": list(result.remarks),
    }


def _rounded(values: Array) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def cost_as_json(outcome: FleetOutcome) -> dict[str, object]:
    """Time and memory that the simulation took."""
    costs = {name: result.costs for name, result in outcome.results.items()}
    return {
        "wall_seconds": round(outcome.wall_seconds, 3),
        "workers": outcome.workers,
        "cpu_seconds": {name: round(sum(cost.cpu_seconds for cost in each), 3) for name, each in costs.items()},
        "peak_bytes": max(cost.peak_bytes for each in costs.values() for cost in each),
    }
