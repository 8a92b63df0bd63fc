"""The profiles of the shield, as YAML: four ship, and an operator may write another."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from rlctl.envs.errors import ConfigError, PolicyError
from rlctl.envs.yaml_edge import load_model, shipped_or_own
from rlctl.safety.constants import GuardConstants
from rlctl.safety.gates import LoadGate, Overrun, SlackGate
from rlctl.safety.growth import Ceiling, GrowthRate, SlackFloor, SlackHold
from rlctl.safety.guard import Guard
from rlctl.safety.harm import HarmEvidence
from rlctl.safety.memory_guards import MemoryBandwidthGuard, MemoryPressureGuard
from rlctl.safety.trust import SensorGuard, Trust
from rlctl.safety.user_guard import UserGuard, build_user_guard

SEMANTICS = 1
"""Bumped when a guard forbids something else under the same constants; part of every digest."""

DEFAULT = "measured"
"""The profile where nobody names one."""


class Profile(GuardConstants, strict=True):
    """Every constant of the shipped guards. None has a default: a profile says all it means.

    But for `measured` and two guards that take sensors which not every host has: without their section they are off.
    """

    # Not a field: no file of constants and no log names code.
    _own: tuple[UserGuard, ...] = PrivateAttr(())

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
        # Logs, metrics and the memory of a shield tell guards apart by their names.
        names = [guard.name for guard in changed.guards()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PolicyError(f"two guards are called '{twice[0]}'; rename yours")
        return changed

    def guards(self) -> tuple[Guard[Any], ...]:
        """The shipped guards with these constants, and those of a user behind them."""
        trust = Trust(self.max_age_seconds, self.min_samples)
        # What follows from what: lost sensors first, since the others judge by them.
        return (
            SensorGuard(trust),
            LoadGate(self, trust),
            SlackGate(self, trust),
            SlackFloor(self, trust),
            SlackHold(self, trust),
            *self._memory_guards(trust),
            Overrun(self.gap_seconds),
            GrowthRate(self, trust),
            Ceiling(self.ceiling_ratio),
            *(() if self.control_windows is None else (HarmEvidence(self, trust),)),
            *self._own,
        )

    def _memory_guards(self, trust: Trust) -> Iterator[Guard[Any]]:
        if self.memory_pressure is not None:
            yield MemoryPressureGuard(self.memory_pressure, self.gap_seconds, trust)
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
