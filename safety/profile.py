"""The constants of the guards, as YAML: four profiles ship, and an operator may write another."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, model_validator

from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.yaml_edge import Strict, load_model, shipped_or_own
from rlctl.safety.gates import LoadGate, SlackGate
from rlctl.safety.growth import Ceiling, GrowthRate, SlackFloor, SlackHold
from rlctl.safety.guard import Guard
from rlctl.safety.harm import MOST_WINDOWS, HarmEvidence
from rlctl.safety.memory_guards import MemoryBandwidthGuard, MemoryPressureGuard
from rlctl.safety.overrun import Overrun
from rlctl.safety.trust import SensorGuard, Trust
from rlctl.safety.user_guard import UserGuard, build_user_guard

SEMANTICS = 1
"""Bumped when a guard forbids something else under the same constants; part of every digest."""

DEFAULT = "measured"
"""The profile where nobody names one."""

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


class Profile(Strict, strict=True):
    """Every constant of the shipped guards. None has a default: a profile says all it means.

    But for `measured` and two guards that take sensors which not every host has: without their section they are off.

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
    # Not a field: no file of constants and no log names code.
    _own: tuple[UserGuard, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _in_order(self) -> Profile:
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
    def growth_when_well(self) -> tuple[float, float]:
        """The growth rate where all has been well, a share per second, and the time that it takes: for ever if none."""
        if self.measured is None:
            return self.growth_ratio_per_second, math.inf
        return self.measured.well_ratio_per_second, self.measured.well_seconds

    @property
    def digest(self) -> str:
        """Twelve hex digits over the constants (not the name) and SEMANTICS; equal digests forbid the same.

        A guard that is off is left out: so profiles keep the digest that they had before there was one.
        """
        constants = self.model_dump(exclude={"name"}, exclude_none=True) | {"semantics": SEMANTICS}
        if self._own:
            constants["own"] = [guard.digest for guard in self._own]
        return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def strict_digest(self) -> str:
        """The digest of the same guards where no evidence waives them: whoever was trained under it meets no others."""
        if self.measured is None or self.measured.control_windows is None:
            return self.digest
        return self.model_copy(update={"measured": self.measured.model_copy(update={"control_windows": None})}).digest

    def scale_time(self, time_scale: float) -> Profile:
        """The same profile on a trace that runs `time_scale` times as fast.

        Divides the poll and the cool-down only. Ages, gaps, the growth rate and the memory of strikes (the time that
        it takes to grow back) are those of sensors and host, which do not run faster.

        Raises:
            ConfigError: A scale that is not a positive number.
        """
        if not (math.isfinite(time_scale) and time_scale > 0.0):
            raise ConfigError(f"a time scale of {time_scale} is not positive; 1 is real time")
        # seconds / time_scale: the load moves so much faster, and a poll or a cool-down covers the same stretch of it.
        return self.model_copy(
            update={
                "poll_seconds": self.poll_seconds / time_scale,
                "cool_down_seconds": self.cool_down_seconds / time_scale,
            }
        )

    @property
    def own(self) -> tuple[UserGuard, ...]:
        """Guards of a user beside the shipped ones."""
        return self._own

    def with_guards(self, *guards: Guard[Any]) -> Profile:
        """The same with guards of a user's, which can only tighten; PolicyError: two guards have one name."""
        changed = self.model_copy()
        changed._own = (*self._own, *(one if isinstance(one, UserGuard) else UserGuard.of(one) for one in guards))
        # Log, metrics and digest tell guards apart by their names.
        # Logs, metrics and the memory of a shield tell guards apart by their names.
        names = [guard.name for guard in changed.guards()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PolicyError(f"two guards are called '{twice[0]}'; rename yours")
        return changed

    def guards(self) -> tuple[Guard[Any], ...]:
        """The shipped guards with these constants, and those of a user behind them."""
        trust, poll = Trust(self.max_age_seconds, self.min_samples), self.poll_seconds
        # What follows from what: lost sensors first, since the others judge by them.
        return (
            SensorGuard(trust),
            LoadGate(self.load_suspend_ratio, self.load_resume_ratio, self.least_gap_ratio, poll, trust),
            SlackGate(
                self.slack_suspend_ratio,
                self.suspend_after_strikes,
                self.forget_strikes_seconds,
                self.cool_down_seconds,
                poll,
                self.gap_seconds,
                trust,
            ),
            SlackFloor(self.slack_floor_ratio, poll, trust, self.floor_cpus, self.floor_ratio),
            SlackHold(self.slack_hold_ratio, poll, trust),
            *self._memory_guards(trust),
            Overrun(self.gap_seconds),
            GrowthRate(
                self.growth_ratio_per_second,
                self.growth_cpuset_cpus,
                self.growth_gap_seconds,
                *self.growth_when_well,
                trust,
            ),
            Ceiling(self.ceiling_ratio),
            *self._harm_evidence(trust),
            *self._own,
        )

    def _harm_evidence(self, trust: Trust) -> Iterator[HarmEvidence]:
        if self.measured is not None and self.measured.control_windows is not None:
            yield HarmEvidence(
                self.measured.control_windows,
                self.slack_suspend_ratio,
                self.load_suspend_ratio,
                self.forget_strikes_seconds,
                self.measured.well_seconds,
                self.gap_seconds,
                trust,
            )

    def _memory_guards(self, trust: Trust) -> Iterator[Guard[Any]]:
        if (pressure := self.memory_pressure) is not None:
            shares = pressure.hold_ratio, pressure.suspend_ratio
            yield MemoryPressureGuard(
                *shares, pressure.after_ticks, pressure.calm_seconds, self.gap_seconds, trust
            )  # fmt: skip
        if self.memory_bandwidth is not None:
            yield MemoryBandwidthGuard(self.memory_bandwidth.limit_ratio, trust)


def load_profile(name_or_path: str | Path) -> Profile:
    """A shipped profile by its name, or a YAML file by its path.

    Args:
        name_or_path: "measured", "responsive", "knee", "heracles", or the path of a YAML file.

    Raises:
        ConfigError: No such profile, or a constant that is missing, unknown or impossible, with file and line.
        PermissionMissing: The file may not be read.
    """
    return load_model(Profile, shipped_or_own(name_or_path, "safety", "safety profile"))


def load_shield(source: str, *, strict: bool = False) -> Profile:
    """As `load_profile`, with guards of a user's: `measured+FILE.py:CLASS`, `mine.yaml+ENTRY-POINT`.

    Only for what a command line or the service's configuration names, as a guard is code.

    Args:
        strict: Only code that nobody but root and this process' user can write.

    Raises:
        ConfigError: As `load_profile`.
        PolicyError: A guard cannot be loaded or made.
    """
    # A file may have a plus in its own path.
    name, *guards = [source] if Path(source).is_file() else source.split("+")
    profile = load_profile(name)
    return profile.with_guards(*(build_user_guard(one, strict=strict) for one in guards)) if guards else profile
