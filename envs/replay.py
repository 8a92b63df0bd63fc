"""A recorded run as a Plant: what the sensors said once, said again tick by tick."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import Action
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError, PermissionMissing
from rlctl.envs.host_env import HostEnv
from rlctl.envs.observation import LAGS
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry, Value, Why
from rlctl.envs.workload import Weight

__all__ = ["RecordedTick", "ReplayHost", "ReplayPlant", "read_tick_log"]


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """One line of a tick log, as far as a replay needs it.

    Attributes:
        telemetry: What the sensors said.
        before: The allocation that was in force then.
        applied: What was in force afterwards.
    """

    telemetry: Telemetry
    before: Allocation
    applied: Allocation


class ReplayPlant:
    """A recorded run, one tick per control period.

    The telemetry comes as it was recorded, whatever is applied: what another allocation would have done to the LC and
    to BE is not modelled. So a replay tests how a policy reacts to real readings, not how well it would have done; and
    a reward over it pays for the BE work that was done then.

    Args:
        path: A tick log, JSON lines as `rlctl serve` writes them.
        limits: Of the host it was recorded on; None takes the largest cpuset in the log for all CPUs.
        tick_seconds: Control period; None takes the median time between two ticks.

    Raises:
        ConfigError: The file is absent or holds no tick, or a line of it is none.
        PermissionMissing: The file may not be read.
    """

    def __init__(self, path: Path | str, limits: Limits | None = None, tick_seconds: float | None = None) -> None:
        self.ticks = read_tick_log(Path(path))
        if not self.ticks:
            raise ConfigError("no tick is recorded here; give the log of a longer run", path)
        self.limits = limits or _limits_of(self.ticks)
        self.tick_seconds = tick_seconds or _period_of(self.ticks)
        self._current = self.limits.clip(self.ticks[0].before)
        self._place = -1

    @property
    def current(self) -> Allocation:
        """What was applied last; it has no effect."""
        return self._current

    @property
    def ended(self) -> bool:
        """The last recorded tick has been reached; it is repeated from then on."""
        return self._place >= len(self.ticks) - 1

    @property
    def recorded(self) -> RecordedTick:
        """The tick of now, with the allocations that were in force then."""
        return self.ticks[max(self._place, 0)]

    def reset(self, seed: int | None = None) -> None:  # noqa: ARG002 - there is no chance in it
        """Before the first tick."""
        self._place = -1

    def read(self) -> Telemetry:
        """The recorded readings; before the first period those of the first tick."""
        return self.recorded.telemetry

    def apply(self, allocation: Allocation) -> Allocation:
        """Only remembered."""
        self._current = self.limits.clip(allocation)
        return self._current

    def set_weight(self, weight: Weight) -> None:
        """Without effect."""

    def wait(self) -> int:
        """The next tick; none is ever missed."""
        self._place = min(self._place + 1, len(self.ticks) - 1)
        return 0

    def close(self) -> None:
        """Nothing to put back."""


class ReplayHost(HostEnv):
    """`rlctl/ReplayHost-v0`: `HostEnv` over a tick log; truncated at its last tick.

    Args:
        path, limits, tick_seconds: As of `ReplayPlant`.
        lags, render_mode: As of `HostEnv`.
    """

    plant: ReplayPlant

    def __init__(
        self,
        path: Path | str,
        limits: Limits | None = None,
        tick_seconds: float | None = None,
        lags: Sequence[int] = LAGS,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(ReplayPlant(path, limits, tick_seconds), lags, render_mode)

    def step(self, action: Action) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """As of `HostEnv`; the recording is over at its last tick."""
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self.plant.ended, info


def read_tick_log(path: Path) -> tuple[RecordedTick, ...]:
    """The ticks of a log; a last line that a crash tore is passed over.

    Raises:
        ConfigError: The file is absent, or a line is no tick.
        PermissionMissing: The file may not be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except PermissionError as error:
        raise PermissionMissing(f"{path}: may not be read") from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path) from error
    *lines, torn = text.split("\n")
    lines += [torn] if _is_json(torn) else []
    return tuple(_tick(line, path, number) for number, line in enumerate(lines, 1) if line.strip())


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _tick(line: str, path: Path, number: int) -> RecordedTick:
    try:
        said = json.loads(line)
        telemetry = Telemetry(
            time_seconds=float(said["time_seconds"]),
            target_seconds=float(said["target_seconds"]),
            **{name: _reading(one) for name, one in said["readings"].items()},
            counters={name: _reading(one) for name, one in said["counters"].items()},
        )
        return RecordedTick(telemetry, _allocation(said["before"]), _allocation(said["applied"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"no tick of a tick log ({why}); remove the line, or give another log", path, number
        ) from error


def _reading(said: Mapping[str, Any]) -> Reading:
    if "missing" in said:
        return Missing(Why(said["missing"]), str(said.get("detail", "")))
    value, age = said["value"], said["age"]
    if value is None:
        return Missing(Why.ABSURD, "recorded as not finite")
    age_seconds = math.inf if age is None else float(age)
    if "samples" in said:
        return Quantile(float(value), age_seconds, int(said["samples"]), float(said["window"]))
    return Value(float(value), age_seconds)


def _allocation(said: Mapping[str, Any]) -> Allocation:
    quota = said["quota_cpus"]
    return Allocation(UNLIMITED if quota is None else float(quota), int(said["cpuset_cpus"]), bool(said["frozen"]))


def _limits_of(ticks: tuple[RecordedTick, ...]) -> Limits:
    return Limits(cpus=max(max(tick.before.cpuset_cpus, tick.applied.cpuset_cpus) for tick in ticks))


def _period_of(ticks: tuple[RecordedTick, ...]) -> float:
    times = [tick.telemetry.time_seconds for tick in ticks]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return statistics.median(gaps) if gaps else 1.0
