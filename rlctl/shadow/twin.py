"""The loop closed: what a policy would have made of the log's load, in the simulator calibrated to the host.

The load trace is the log's, tick after tick, gaps left out; where a load was not measured the last one goes on. The
trace is as measured, so the noise of arrivals is in it twice (measured, and simulated): a little dark for all alike.
Every policy meets the same seeds, decides through the same shield, and is judged on the truth. The acting policy runs
too: it is what the others are compared with, and its run against the log is what says whether any of this is worth
anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rlctl.agents.policy import Policy
from rlctl.agents.seat import Seat
from rlctl.envs.arrays import Array, gaps_filled
from rlctl.envs.errors import ConfigError
from rlctl.envs.sim import seeds
from rlctl.envs.sim.plant import SimBatch
from rlctl.envs.sim.profile import HostProfile
from rlctl.envs.sim.surface import outside
from rlctl.envs.workload import Weight
from rlctl.safety.shield import Shield
from rlctl.shadow.columns import Columns, Subject
from rlctl.statistics.intervals import Estimate, mean_interval, share_over_seeds
from rlctl.statistics.paired import Difference, paired_difference


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One policy on all seeds.

    Attributes:
        violated_percent: Share of windows that missed the target, shape (seeds,).
        be_percent: CPUs that BE used, in percent of those that it could ever have, shape (seeds,).
        overridden_percent: Share of ticks in which the shield overrode it, shape (seeds,).
        windows: Of each seed.
    """

    violated_percent: Array
    be_percent: Array
    overridden_percent: Array
    failed: int
    windows: int

    @property
    def violations(self) -> Estimate:
        """Share of windows that missed the target, over seeds."""
        return share_over_seeds(self.violated_percent, self.windows)

    @property
    def be(self) -> Estimate:
        """BE's use, over seeds."""
        return mean_interval(self.be_percent, 0.0)

    @property
    def overridden(self) -> Estimate:
        """Share of ticks in which the shield decided, over seeds."""
        return mean_interval(self.overridden_percent, 0.0, 100.0)

    def more_violations(self, other: SimulatedRun) -> Difference:
        """Points of violations more than another's, seed by seed."""
        return paired_difference(self.violated_percent, other.violated_percent)

    def more_be(self, other: SimulatedRun) -> Difference:
        """Points of BE's CPUs more than another's, seed by seed."""
        return paired_difference(self.be_percent, other.be_percent)


@dataclass(frozen=True, slots=True)
class Simulation:
    """All policies in the simulator, with so many seeds each, and the remarks that a reader must know."""

    profile: HostProfile
    seeds: int
    acting: SimulatedRun
    shadows: dict[str, SimulatedRun]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Twin:
    """The log's host in the simulator; ConfigError for a profile of a host of another size.

    Args:
        subject: Of the log: its limits, shield, target and control period.
    """

    profile: HostProfile
    subject: Subject
    trace: Array

    def __post_init__(self) -> None:
        has, had = round(self.profile.be.host_cpus), self.subject.limits.cpus
        if has != had:
            raise ConfigError(
                f"profile {self.profile.name} is of a host with {has} CPUs for BE, the log of one with {had}; "
                "calibrate a scenario of your own, whose be.cpus are as many"
            )

    @property
    def host(self) -> HostProfile:
        """The profile with the log's target."""
        target = self.subject.target_seconds
        return self.profile if target is None else self.profile.but(target_seconds=target)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Where the log leaves the region that the profile was fitted in."""
        return tuple(outside(self.profile, float(self.trace.min()), float(self.trace.max())))

    def weight_of(self, policy: Policy) -> Weight:
        """BE's CPU weight under a policy: some lower the log's, none raises it."""
        logged = Weight.of(least=self.subject.limits.least_weight)
        return max(policy.weight, logged, key=list(Weight).index)  # the lowest stands last


def load_trace(columns: Columns) -> Array | None:
    """The load in each tick, shape (ticks,); None when no tick has one.

    A tick's reading is of the period before it, which moves the whole trace by one tick and matters to nobody.
    """
    return gaps_filled(columns.load_ratio) if np.isfinite(columns.load_ratio).any() else None


def simulate(
    build: Callable[[], Policy], twin: Twin, number: int, done: Callable[[], None] = lambda: None
) -> SimulatedRun:
    """Run one policy on the twin, built anew for each of so many seeds; `done` is called at the end."""
    policies = [build() for _ in range(number)]
    weight, taken = twin.weight_of(policies[0]), [seeds.evaluation(seed) for seed in range(number)]
    profile, period, ticks = twin.subject.profile, twin.subject.tick_seconds, len(twin.trace)
    limits = replace(twin.subject.limits, least_weight=weight.is_least)
    batch = SimBatch(twin.host, taken, lambda *_: twin.trace, ticks, period, weight=weight, limits=limits)
    seats = [Seat(policy, Shield(profile, limits), limits, period) for policy in policies]
    violated, used, overridden, failed = np.zeros(number), np.zeros(number), np.zeros(number), 0
    batch.apply([seat.start() for seat in seats])
    for _ in range(ticks):
        window = batch.step()
        violated += batch.truth().missed
        used += window.be_cpus
        readings = zip(seats, batch.telemetry(), batch.allocations, strict=True)
        decisions = [seat.decide(telemetry, current) for seat, telemetry, current in readings]
        overridden += [decision.verdict.overridden for decision in decisions]
        failed += sum(decision.failed for decision in decisions)
        batch.apply([decision.verdict.allocation for decision in decisions])
    done()
    return SimulatedRun(
        violated_percent=100.0 * violated / ticks,
        be_percent=100.0 * used / ticks / limits.cpus,
        overridden_percent=100.0 * overridden / ticks,
        failed=failed,
        windows=ticks,
    )
