"""A recorded run: the sound lines of its tick log, and a Plant whose readings come again tick by tick."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rlctl.envs.actions import ALL_CPUS, Action
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.errors import ConfigError, reading
from rlctl.envs.host_env import HostEnv
from rlctl.envs.observation import LAGS
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import (
    LOGGED_OF_EACH_LC,
    OF_EACH_LC,
    Missing,
    Quantile,
    Reading,
    Telemetry,
    Value,
    Why,
    worst_of,
)
from rlctl.envs.ticklog import LOG_NAME, MOST_LINE_BYTES, decode_line, numbered_files
from rlctl.envs.workload import Weight


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """One line of a tick log, as far as a replay needs it."""

    telemetry: Telemetry
    before: Allocation
    applied: Allocation


class ReplayPlant:
    """A recorded run, one tick per control period.

    The telemetry comes as it was recorded, whatever is applied: what another allocation would have done to the LC and
    to BE is not modelled. So a replay tests how a policy reacts to real readings, not how well it would have done. A
    reward over it pays for the BE work that was done then.

    Args:
        log: A tick log, JSON lines as `rlctl serve` writes them: a file, or the directory of all its files.
        limits: Of the host it was recorded on; None takes the largest cpuset in the log for all CPUs.
        tick_seconds: Control period; None takes the median time between two ticks.

    Raises:
        ConfigError: The log is absent or holds no tick, or a line of it is none.
        PermissionMissing: The log may not be read.
    """

    def __init__(self, log: Path | str, limits: Limits | None = None, tick_seconds: float | None = None) -> None:
        self.ticks = read_tick_log(Path(log))
        if not self.ticks:
            raise ConfigError("no tick is recorded here; give the log of a longer run", log)
        self.limits = limits or limits_of(one for tick in self.ticks for one in (tick.before, tick.applied))
        self.tick_seconds = tick_seconds or usual_gap([tick.telemetry.time_seconds for tick in self.ticks])
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

    def reset(self, seed: int | None = None) -> None:  # noqa: ARG002 - there is no chance in it
        """Before the first tick."""
        self._place = -1

    def read(self) -> Telemetry:
        """The recorded readings; before the first period those of the first tick."""
        return self.ticks[max(self._place, 0)].telemetry

    def apply(self, allocation: Allocation) -> Allocation:
        """Remembered as `current`; the recording goes on as it is."""
        self._current = self.limits.clip(allocation)
        return self._current

    def set_weight(self, weight: Weight) -> None:
        """Without effect on a recording."""

    def wait(self) -> int:
        """The next tick; none is ever missed."""
        self._place = min(self._place + 1, len(self.ticks) - 1)
        return 0

    def close(self) -> None:
        """Nothing to put back."""


class ReplayHost(HostEnv):
    """`rlctl/ReplayHost-v0`: `HostEnv` over a tick log; truncated at its last tick.

    Args:
        path: A tick log: a file, or the directory of all its files.
        limits, tick_seconds: As of `ReplayPlant`.
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
        self.observer.learns = False  # what was recorded says nothing of what an agent asks for here

    def step(self, action: Action) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """As of `HostEnv`; the recording is over at its last tick."""
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self.plant.ended, info


def read_tick_log(path: Path) -> tuple[RecordedTick, ...]:
    """The ticks of a log, a file or a directory; a last line that a crash tore is passed over, and so are headers.

    Raises:
        ConfigError: The log is absent, or a line is no tick.
        PermissionMissing: The log may not be read.
    """
    ticks = []
    for line in read_lines(log_files(path), _refuse):
        if line.is_header:
            continue
        try:
            telemetry, *parts = telemetry_of(line.content), line.content["before"], line.content["applied"]
            ticks.append(RecordedTick(telemetry, *map(allocation_of, parts)))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            missing = " is missing" if isinstance(error, KeyError) else ""
            _refuse(Damage(line.path, line.number, f"{error}{missing}"))
    return tuple(ticks)


def telemetry_of(data: Mapping[str, Any]) -> Telemetry:
    """The telemetry of a tick in a log; ValueError, TypeError, KeyError, AttributeError, OverflowError: it is none."""
    telemetry = Telemetry(
        time_seconds=float(data["time_seconds"]),
        target_seconds=float(data["target_seconds"]),
        **{name: _reading(one) for name, one in data["readings"].items()},
        counters={name: _reading(one) for name, one in data["counters"].items()},
        rein=Rein(data.get("rein", Rein.CPU)),
    )
    if not data.get("lcs"):
        return telemetry
    shared = {name: one for name, one in telemetry.counters.items() if name not in LOGGED_OF_EACH_LC}
    others = telemetry.but(counters=shared)
    return worst_of({
        str(name): _of_lc(telemetry if name == data.get("lc") else others, one) for name, one in data["lcs"].items()
    })  # fmt: skip


def _of_lc(shared: Telemetry, data: Mapping[str, Any]) -> Telemetry:
    readings = {name: _reading(data["readings"][name]) for name in OF_EACH_LC}
    counters = {**shared.counters, **{name: _reading(one) for name, one in data.get("counters", {}).items()}}
    return shared.but(target_seconds=float(data["target_seconds"]), counters=counters, **readings)


def allocation_of(data: Mapping[str, Any]) -> Allocation:
    """An allocation as it stands in a log; ValueError, TypeError, KeyError, OverflowError: it is none."""
    quota, cpuset_cpus = data["quota_cpus"], int(data["cpuset_cpus"])
    if cpuset_cpus > ALL_CPUS:
        raise ValueError(f"no host has {cpuset_cpus:.3g} CPUs")
    return Allocation(UNLIMITED if quota is None else float(quota), cpuset_cpus, bool(data["frozen"]))


def limits_of(allocations: Iterable[Allocation]) -> Limits:
    """What a log without a header shows of its host: the largest cpuset is taken for all CPUs."""
    return Limits(cpus=max(one.cpuset_cpus for one in allocations))


def _refuse(damage: Damage) -> None:
    why = f"not a tick of a tick log ({damage.what}); remove the line, or give another log"
    raise ConfigError(why, damage.path, damage.number)


def _reading(data: Mapping[str, Any]) -> Reading:
    age = data.get("age")
    age_seconds = math.inf if age is None else float(age)
    if "missing" in data:
        return Missing(Why(data["missing"]), str(data.get("detail", "")), age_seconds)
    value = float(data["value"])
    if "samples" in data:
        return Quantile(value, age_seconds, int(data["samples"]), float(data["window"]))
    return Value(value, age_seconds)


def usual_gap(times: Sequence[float]) -> float:
    """The usual time between two ticks, by when each was, in seconds; 1 where there is only one."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return statistics.median(gaps) if gaps else 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """One sound line of a log.

    Attributes:
        number: Number of the line in its file, from 1.
        content: The object, without its checksum.
        unbroken: No line between it and the one before is damaged.
    """

    path: Path
    number: int
    content: Mapping[str, Any]
    unbroken: bool = True

    @property
    def is_header(self) -> bool:
        """It tells of the ticks after it, and is none."""
        return "log" in self.content


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be believed, by its number from 1."""

    path: Path
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.what}"


def log_files(path: Path) -> tuple[Path, ...]:
    """The files of a log, oldest first: all of a directory, or one file alone.

    Raises:
        ConfigError: There is no log.
        PermissionMissing: The directory may not be read.
    """
    if not path.is_dir():
        return (path,)
    files = numbered_files(path / LOG_NAME)
    if not files:
        raise ConfigError(f"holds no {LOG_NAME}: has `rlctl serve` run with this log directory?", path)
    return files


def read_lines(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[Line]:
    """The whole lines of a log, oldest file first; damaged lines are reported and passed over.

    Raises:
        ConfigError: None of the files is there, or one cannot be read.
        PermissionMissing: One may not be read.
    """
    unbroken = True
    with contextlib.ExitStack() as stack:
        for path, file in _open_files(paths, stack):
            has_checksums = False
            for number, raw in _raw_lines(path, file):
                try:
                    content, checked = decode_line(raw)
                    if has_checksums and not checked:
                        raise ValueError("has no checksum, unlike the lines before it")
                except ValueError as error:
                    if raw.endswith(b"\n"):  # else it is being written, or was cut off by a crash: the end, not damage
                        damaged(Damage(path, number, str(error)))
                    unbroken = False
                    continue
                yield Line(path, number, content, unbroken)
                has_checksums, unbroken = has_checksums or checked, True


def _open_files(paths: Iterable[Path], stack: contextlib.ExitStack) -> list[tuple[Path, IO[bytes]]]:
    """Files of a log that may be rotated just now, each opened once, oldest first."""
    files: dict[tuple[int, int], tuple[Path, IO[bytes]]] = {}
    absent = None
    for path in reversed(tuple(paths)):  # rotation moves files from new names to old ones: so none slips through
        with reading(path):
            try:
                file = stack.enter_context(path.open("rb"))
            except FileNotFoundError:
                absent = path
                continue
        status = os.fstat(file.fileno())
        files.setdefault((status.st_dev, status.st_ino), (path, file))
    if absent and not files:
        raise ConfigError("there is no such log: has `rlctl serve` run with this log directory?", absent)
    return list(reversed(files.values()))


def _raw_lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, none longer than MOST_LINE_BYTES."""
    number = 0
    with reading(path):
        while raw := file.readline(MOST_LINE_BYTES):
            number += 1
            rest = raw
            while len(rest) == MOST_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MOST_LINE_BYTES)
            if raw.strip():
                yield number, raw if rest is raw else raw[:-1] + b"\n"  # too long: cut, and so damaged
