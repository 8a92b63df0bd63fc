"""What a fleet came to under a manager: QoS, BE throughput and machines saved, over all hosts and kind by kind.

A host is the unit of repetition: the windows of one host depend on one another. Host k is the same under every manager,
so managers are compared host by host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl import __version__
from rlctl.agents.catalogue import label
from rlctl.fleet.config import TICK_SECONDS, Fleet
from rlctl.fleet.control import Tally
from rlctl.fleet.hosts import Roster
from rlctl.fleet.run import STRETCH_SECONDS, FleetOutcome
from rlctl.statistics.bootstrap import bca_interval, expanded_z, resample_weights
from rlctl.statistics.seeds import share_over_seeds

__all__ = [
    "HELD_PERCENT",
    "Figures",
    "FleetScore",
    "Spread",
    "as_json",
    "figures_of",
    "groups_of",
    "over_hosts",
    "percent_of_stretches",
    "score",
]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

HELD_PERCENT = 99.0
"""A host that holds the target in fewer windows is one to look at."""

RESAMPLES = 2000
"""Bootstrap samples; a fleet has many hosts, and 10,000 of them would take more memory than the simulation."""


class Spread(NamedTuple):
    """A mean over hosts with its 95 % interval; endless for a single host."""

    mean: float
    low: float
    high: float

    def as_json(self) -> dict[str, object]:
        """By name; what is endless is null."""
        ends = [round(end, 4) if math.isfinite(end) else None for end in (self.low, self.high)]
        return {"mean": round(self.mean, 4), "ci95": ends}


@dataclass(frozen=True, slots=True)
class Figures:
    """Each host under one manager; arrays of shape (hosts,).

    Attributes:
        qos_percent: Windows that held the target.
        be_percent: BE work, by BE running alone on this host.
        load_percent: Load, by the LC's maximum.
        machines: BE work in standard machines: work ratio x CPUs that BE keeps busy alone / CPUs of the machine.
        worst_ratio: The worst window, by the target.
        override_percent, frozen_percent, failed_percent, strange_percent: Ticks, as in `Tally`.
        windows: Of each host.
    """

    qos_percent: Array
    be_percent: Array
    load_percent: Array
    machines: Array
    worst_ratio: Array
    override_percent: Array
    frozen_percent: Array
    failed_percent: Array
    strange_percent: Array
    windows: int


@dataclass(frozen=True, slots=True)
class FleetScore:
    """Some hosts of a fleet under one manager; shares in percent.

    Attributes:
        hosts: How many.
        qos, be, emu: Means over hosts; EMU is load and BE work.
        machines: Sum over hosts.
        worst_host_percent: QoS of the host with the least.
        below_percent: Hosts below HELD_PERCENT.
        worst_ratio: The worst window of all, by the target.
        override_percent, frozen_percent, failed_percent, strange_percent: Of all ticks.
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
        """By name."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: value.as_json() if isinstance(value, Spread) else round(value, 4) for name, value in values.items()
        }


def figures_of(tally: Tally, alone_cpus: Array, machine_cpus: float) -> Figures:
    """What a tally comes to.

    Args:
        tally: Shape (stretches, hosts).
        alone_cpus: CPUs that BE keeps busy alone, shape (hosts,).
        machine_cpus: Of the standard machine.
    """
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
        override_percent=percent(tally.overridden),
        frozen_percent=percent(tally.frozen),
        failed_percent=percent(tally.failed),
        strange_percent=percent(tally.strange),
        windows=windows,
    )


def score(figures: Figures, which: Flags) -> FleetScore:
    """Some hosts, at least one, shape (hosts,)."""

    def mean(values: Array) -> float:
        return float(values[which].mean())

    f, number = figures, int(which.sum())
    machines = over_hosts(f.machines[which])
    return FleetScore(
        hosts=number,
        qos=_qos(f.qos_percent[which], f.windows),
        be=over_hosts(f.be_percent[which]),
        emu=over_hosts((f.be_percent + f.load_percent)[which]),
        machines=Spread(*(number * one for one in machines)),
        worst_host_percent=float(f.qos_percent[which].min()),
        below_percent=100.0 * float(np.mean(f.qos_percent[which] < HELD_PERCENT)),
        worst_ratio=float(f.worst_ratio[which].max()),
        override_percent=mean(f.override_percent),
        frozen_percent=mean(f.frozen_percent),
        failed_percent=mean(f.failed_percent),
        strange_percent=mean(f.strange_percent),
    )


def over_hosts(values: Array) -> Spread:
    """Mean with its BCa bootstrap interval over hosts, 95 %."""
    mean, number = float(values.mean()), len(values)
    if number == 1:
        return Spread(mean, -math.inf, math.inf)
    if np.ptp(values) == 0.0:
        return Spread(mean, mean, mean)
    samples = resample_weights(number, 0, RESAMPLES) @ values
    left_out = (values.sum() - values) / (number - 1)
    low, high = bca_interval(mean, samples, left_out, expanded_z(number))
    return Spread(mean, low, high)


def _qos(percent: Array, windows: int) -> Spread:
    """Where no two hosts differ, as when nobody missed anything, a bootstrap would know no doubt: Wilson's does."""
    if np.ptp(percent) > 0.0:
        found = over_hosts(percent)
        return Spread(found.mean, max(found.low, 0.0), min(found.high, 100.0))
    estimate = share_over_seeds(percent, windows)
    return Spread(estimate.mean, *estimate.ci95)


def percent_of_stretches(sums: Array) -> Array:
    """Of the ticks of each stretch, over all hosts: shape (stretches,), of sums of shape (stretches, hosts)."""
    percent: Array = 100.0 * np.ascontiguousarray(sums).mean(axis=1) * (TICK_SECONDS / STRETCH_SECONDS)
    return percent


def groups_of(fleet: Fleet, roster: Roster) -> dict[str, Flags]:
    """Kinds that have a host, by name; then hosts that policies learnt on kinds of, and those of which they did not."""
    untrained = np.array([bool(kind.untrained) for kind in fleet.kinds])[roster.kinds]
    groups = {kind.name: roster.kinds == place for place, kind in enumerate(fleet.kinds)}
    groups |= {"trained on": ~untrained, "never trained on": untrained}
    return {name: which for name, which in groups.items() if which.any()}


def as_json(outcome: FleetOutcome) -> dict[str, object]:
    """The outcome; `cost` is what no two runs share."""
    plan, fleet = outcome.plan, outcome.plan.fleet
    groups = groups_of(fleet, outcome.roster)
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
            kind.name: {"cpus": kind.host.be.host_cpus, "untrained": list(kind.untrained)} for kind in fleet.kinds
        },
        "managers": {name: _manager_as_json(outcome, name, groups) for name in outcome.runs},
        "cost": cost_as_json(outcome),
    }


def _manager_as_json(outcome: FleetOutcome, name: str, groups: Mapping[str, Flags]) -> dict[str, object]:
    run = outcome.runs[name]
    figures = figures_of(run.tally, outcome.alone_cpus, outcome.plan.fleet.machine_cpus)
    everywhere = np.ones(outcome.plan.hosts, np.bool_)
    return {
        "label": label(name),
        **score(figures, everywhere).as_json(),
        "groups": {group: score(figures, which).as_json() for group, which in groups.items()},
        "day": {
            name: [round(one, 6) for one in percent_of_stretches(sums).tolist()]
            for name, sums in (("missed", run.tally.missed), ("be", run.tally.be_work), ("load", run.tally.load))
        },
        "per_host": {
            "qos_percent": [round(one, 6) for one in figures.qos_percent.tolist()],
            "be_percent": [round(one, 6) for one in figures.be_percent.tolist()],
        },
        "remarks": list(run.remarks),
    }


def cost_as_json(outcome: FleetOutcome) -> dict[str, object]:
    """Time and memory of the run."""
    return {
        "wall_seconds": round(outcome.wall_seconds, 3),
        "workers": outcome.workers,
        "cpu_seconds": {
            name: round(sum(cost.cpu_seconds for cost in run.costs), 3) for name, run in outcome.runs.items()
        },
        "peak_bytes": max(cost.peak_bytes for run in outcome.runs.values() for cost in run.costs),
    }
