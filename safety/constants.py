"""The constants of the guards, as one section of YAML: a `Profile` is these and the guards that they make."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from rlctl.envs.yaml_edge import Strict

MOST_WINDOWS = 60.0
"""Windows of either kind that evidence of harm remembers, the older ones ever less."""

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0, le=86400.0)]


class MemoryPressure(Strict, strict=True):
    """Constants of the guard against an LC that waits for memory; see `rlctl.safety.memory_guards.MemoryPressureGuard`.

    Attributes:
        hold_ratio: Share of the time with the LC stalled above which nothing grows, and after `after_ticks` BE shrinks.
        suspend_ratio: Above it for as many ticks BE is suspended.
        after_ticks: Ticks in a row.
        calm_seconds: Time below `hold_ratio` after which BE is let go.
    """

    hold_ratio: Share
    suspend_ratio: Share
    after_ticks: int = Field(ge=1, le=1000)
    calm_seconds: Seconds

    @model_validator(mode="after")
    def _in_order(self) -> MemoryPressure:
        if self.hold_ratio > self.suspend_ratio:
            raise ValueError("hold_ratio is above suspend_ratio: BE would be suspended before it is held; lower it")
        return self


class MemoryBandwidth(Strict, strict=True):
    """Constants of the guard against memory bandwidth near its peak.

    Attributes:
        limit_ratio: Share of the peak of the busiest socket above which BE shrinks.
    """

    limit_ratio: Share


class FollowRange(Strict, strict=True):
    """How far two constants may follow what the host was seen to do; they begin at those of the profile.

    Attributes:
        least_gap_ratio: How near to `load_suspend_ratio` BE may run again where the load wavers by less.
        well_ratio_per_second: Share of BE's CPUs by which its quota, and its cpuset, may grow each second, where
            `well_seconds` without a miss are saved.
        well_seconds: This time, which each miss costs anew; up to five times of it are saved, and a time scale does not
            divide it.
        control_windows: Where BE has the least CPU weight, the slack guards and the growth rate hold it only on
            evidence of harm, see `rlctl.safety.harm`. So many windows with BE held have to be known before a miss may
            count as the LC's own. None: they hold it as under any weight.
    """

    least_gap_ratio: Share
    well_ratio_per_second: Share
    well_seconds: Seconds
    control_windows: float | None = Field(default=None, ge=1.0, le=MOST_WINDOWS)


class GuardConstants(Strict, strict=True):
    """What the shipped guards judge by.

    Attributes:
        name: Shown in logs and results.
        poll_seconds: Time between two judgements of load and slack; 0 judges every tick. Lost sensors are judged
            every tick all the same.
        load_suspend_ratio: Load above which BE is suspended.
        load_resume_ratio: Load below which it may run again.
        slack_suspend_ratio: Slack below which a judgement is a strike; not below 0.
        suspend_after_strikes: Number of strikes that suspend BE; with fewer it gets the minimum.
        forget_strikes_seconds: Time without a strike after which all are forgotten; at 0 only strikes in a row count.
        cool_down_seconds: How long BE stays suspended after the last of these strikes.
        slack_hold_ratio: Slack below which BE may not grow.
        slack_floor_ratio: Slack below which BE goes down to the floor.
        floor_cpus: The floor in CPUs, where it is less than `floor_ratio` of the host.
        floor_ratio: The floor as a share of BE's CPUs (`be.cpus`, else all), where it is less than `floor_cpus`.
        growth_ratio_per_second: Share of BE's CPUs by which its quota may grow each second.
        growth_cpuset_cpus: CPUs by which BE's cpuset may grow each tick.
        growth_gap_seconds: Most time between two readings that earns growth.
        ceiling_ratio: Share of BE's CPUs that its quota never exceeds.
        max_age_seconds: Oldest reading that is believed.
        min_samples: Fewest requests behind a tail latency that is believed.
        gap_seconds: Most time between two readings that counts towards the cool-down.
        measured: What of these follows the host, and how far; None is nothing.
        memory_pressure: The guard against an LC that waits for memory; None is off.
        memory_bandwidth: The guard against memory bandwidth near its peak; None is off.
    """

    name: str = Field(min_length=1)
    poll_seconds: Seconds
    load_suspend_ratio: Share
    load_resume_ratio: Share
    slack_suspend_ratio: float = Field(ge=0.0, le=1.0)
    suspend_after_strikes: int = Field(ge=1, le=10)
    forget_strikes_seconds: Seconds
    cool_down_seconds: Seconds
    slack_hold_ratio: float = Field(ge=0.0, le=1.0)
    slack_floor_ratio: float = Field(ge=0.0, le=1.0)
    floor_cpus: float = Field(gt=0.0)
    floor_ratio: Share
    growth_ratio_per_second: Share
    growth_cpuset_cpus: int = Field(ge=1)
    growth_gap_seconds: float = Field(gt=0.0, le=60.0)
    ceiling_ratio: Share
    max_age_seconds: float = Field(gt=0.0, le=3600.0)
    min_samples: int = Field(ge=1)
    gap_seconds: float = Field(gt=0.0, le=3600.0)
    measured: FollowRange | None = None
    memory_pressure: MemoryPressure | None = None
    memory_bandwidth: MemoryBandwidth | None = None

    @model_validator(mode="after")
    def _in_order(self) -> GuardConstants:
        if self.load_resume_ratio > self.load_suspend_ratio:
            raise ValueError("load_resume_ratio is above load_suspend_ratio: BE would flap; lower it")
        if not self.slack_suspend_ratio <= self.slack_floor_ratio <= self.slack_hold_ratio:
            raise ValueError(
                "slack_suspend_ratio, slack_floor_ratio and slack_hold_ratio must not descend; reorder them"
            )
        if self.measured is not None and self.measured.well_ratio_per_second < self.growth_ratio_per_second:
            raise ValueError("measured.well_ratio_per_second is below growth_ratio_per_second; raise it")
        return self

    @property
    def least_gap_ratio(self) -> float:
        """How near `load_resume_ratio` may come to `load_suspend_ratio`."""
        if self.measured is None:
            return self.load_suspend_ratio - self.load_resume_ratio
        return self.measured.least_gap_ratio

    @property
    def well_ratio_per_second(self) -> float:
        """The growth rate where all has been well for `well_seconds`, a share per second."""
        return self.growth_ratio_per_second if self.measured is None else self.measured.well_ratio_per_second

    @property
    def well_seconds(self) -> float:
        """The time that this takes: for ever where nothing follows the host."""
        return math.inf if self.measured is None else self.measured.well_seconds

    @property
    def control_windows(self) -> float | None:
        """Of the evidence that waives guards; None where nothing does."""
        return None if self.measured is None else self.measured.control_windows
