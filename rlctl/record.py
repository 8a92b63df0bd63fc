"""The record of every decision: one JSON object per tick, append-only, sealed, bounded, readable after a crash."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.applications import Placement
from rlctl.envs.several import OF_EACH_LC, SeveralTelemetry
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry
from rlctl.envs.ticklog import Damage, last_checksum, opened, read_lines, seal
from rlctl.safety.verdict import Verdict

__all__ = [
    "MemoryRecorder",
    "NullRecorder",
    "Recorder",
    "SealedLog",
    "Shares",
    "Tee",
    "Tick",
    "TickLog",
    "allocation_as_json",
    "read_ticks",
    "tick_as_json",
    "write_ticks",
]

log = logging.getLogger(__name__)

Shares = Mapping[str, Placement | None]
"""Placements by application; None for one that is deferred."""

READINGS = tuple(name for name in Telemetry.__slots__ if name not in {"time_seconds", "target_seconds", "counters"})


@dataclass(frozen=True, slots=True)
class Tick:
    """One control period, from reading to reading back.

    Attributes:
        index: Number of the tick since the start, from 0.
        wall_seconds: Wall clock (Unix time), for people; everything else runs on `telemetry.time_seconds`.
        telemetry: What the sensors said of the period before.
        before: The allocation in force then.
        proposed: What the policy asked for.
        verdict: What the shield made of it.
        applied: What was read back after the write.
        policy: Who decided.
        note: Why, in its own words.
        error: What went wrong in writing, or empty.
        read_seconds, decision_seconds, tick_seconds: Time for the sensors; to observe, decide and rule; for all of it.
        missed_deadlines: Deadlines missed since the start.
        acting: Name of who decided this tick where that may be another than `policy`: it, a heuristic, or "safe".
        fallback: Why it was not the policy, or empty.
        events: What happened to the host's groups, a line `kind: text` for each; see `rlctl.envs.host.events`.
        shares: How BE's applications divide what is applied; None for one that is deferred.
    """

    index: int
    wall_seconds: float
    telemetry: Telemetry
    before: Allocation
    proposed: Allocation
    verdict: Verdict
    applied: Allocation
    policy: str
    note: str = ""
    error: str = ""
    read_seconds: float = 0.0
    decision_seconds: float = 0.0
    tick_seconds: float = 0.0
    missed_deadlines: int = 0
    acting: str = ""
    fallback: str = ""
    events: tuple[str, ...] = ()
    shares: Shares = field(default_factory=dict)


class Recorder(Protocol):
    """Takes every tick."""

    def write(self, tick: Tick) -> None:
        """Record a tick; never raises, for the loop must go on."""
        ...


class NullRecorder:
    """Keeps nothing."""

    def write(self, tick: Tick) -> None:
        """Nothing."""


class MemoryRecorder:
    """Keeps every tick in `ticks`."""

    def __init__(self) -> None:
        self.ticks: list[Tick] = []

    def write(self, tick: Tick) -> None:
        """Keep it."""
        self.ticks.append(tick)


class Tee:
    """Hands each tick to several recorders, in order."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def write(self, tick: Tick) -> None:
        """Pass it on."""
        for recorder in self._recorders:
            recorder.write(tick)


T = TypeVar("T")


class SealedLog(Generic[T]):
    """A JSON-lines file that is rotated before it grows beyond a bound; see `rlctl.envs.ticklog` for its lines.

    All files together never take more than `(keep + 1) * most_bytes`. A full disk costs records, never the loop: they
    are dropped, counted in `dropped`, and said once.

    Args:
        path: The file; `path.1` is the one before it, and so on.
        as_json: A record as plain data.
        most_bytes: Size at which it is rotated.
        keep: Rotated files kept; others are removed.

    Attributes:
        header: What a header says, asked for with the record that it comes before: at the start, in each new file, and
            where records were dropped. None writes none.

    Raises:
        OSError: The file cannot be opened at the start.
    """

    def __init__(
        self, path: Path, as_json: Callable[[T], Mapping[str, object]], most_bytes: int = 16 << 20, keep: int = 4
    ) -> None:
        self.path = path
        self._as_json = as_json
        self.most_bytes = most_bytes
        self.keep = keep
        self.dropped = 0
        self.header: Callable[[T], Mapping[str, object]] | None = None
        self._headed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = self._opened()
        self._checksum = last_checksum(path) or (last_checksum(self._numbered(1)) if not path.stat().st_size else "")
        self._remove_surplus()

    def write(self, record: T) -> None:
        """Append one line with one system call, so that a crash tears at most the last one."""
        try:
            self._append(record)
        except (OSError, ValueError) as error:
            if not self.dropped:
                log.warning("%s: %s; records are dropped until it can be written again", self.path, error)
            self.dropped += 1
            self._headed = False

    def renew_header(self) -> None:
        """Write a header before the next record: what it says has changed."""
        self._headed = False

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self, record: T) -> None:
        file = self._file = self._file or self._opened()
        status = os.fstat(file.fileno())
        if not status.st_nlink:  # somebody removed it: what is written there is lost, and takes up the disk
            file, status = self._reopened()
        lines, checksum = self._sealed(record)
        size = status.st_size
        if size and size + len(lines) > self.most_bytes:
            file, size = self._rotated(), 0
            lines, checksum = self._sealed(record)
        if len(lines) > self.most_bytes:
            raise OSError(errno.EFBIG, f"a record of {len(lines)} bytes is longer than a whole file may be")
        if file.write(lines) != len(lines):
            file.truncate(size)  # half a line would spoil the next one too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._checksum, self._headed = checksum, True

    def _sealed(self, record: T) -> tuple[bytes, str]:
        """The record's line, after a header where one is due, and the checksum to go on with."""
        header, checksum = b"", self._checksum
        if self.header and not self._headed:
            header, checksum = seal(self.header(record), checksum)
        line, checksum = seal(self._as_json(record), checksum)
        return header + line, checksum

    def _opened(self) -> IO[bytes]:
        file = self.path.open("a+b", buffering=0)
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")  # ends the line that a crash tore
        return file

    def _reopened(self) -> tuple[IO[bytes], os.stat_result]:
        self.close()
        self._headed = False
        file = self._file = self._opened()
        return file, os.fstat(file.fileno())

    def _rotated(self) -> IO[bytes]:
        self.close()
        for number in range(self.keep, 0, -1):
            newer = self.path if number == 1 else self._numbered(number - 1)
            if newer.exists():
                os.replace(newer, self._numbered(number))
        self._remove_surplus()
        return self._reopened()[0]

    def _remove_surplus(self) -> None:
        """Remove what an earlier run kept in more or larger files, the oldest first."""
        left = self.most_bytes * self.keep
        for number in sorted(self._numbers()):
            path = self._numbered(number)
            with contextlib.suppress(OSError):  # gone, or not ours to remove: no reason to stop
                left -= path.stat().st_size
                if number > self.keep or left < 0:
                    path.unlink()

    def _numbers(self) -> Iterator[int]:
        prefix = f"{self.path.name}."
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path.parent):
                number = name.removeprefix(prefix)
                if name.startswith(prefix) and number.isascii() and number.isdecimal() and number[0] != "0":
                    yield int(number)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class TickLog(SealedLog[Tick]):
    """The log of every tick.

    Args:
        path, most_bytes, keep: As of `SealedLog`.

    Raises:
        OSError: The file cannot be opened at the start.
    """

    def __init__(self, path: Path, most_bytes: int = 16 << 20, keep: int = 4) -> None:
        super().__init__(path, tick_as_json, most_bytes, keep)


def write_ticks(path: Path, ticks: Iterable[Tick]) -> None:
    """Write a whole run as a tick log."""
    checksum = ""
    with path.open("wb") as file:
        for tick in ticks:
            line, checksum = seal(tick_as_json(tick), checksum)
            file.write(line)


def read_ticks(path: Path, damaged: Callable[[Damage], None] | None = None) -> Iterator[dict[str, Any]]:
    """The objects of one file of a tick log, headers left out; damaged lines are told and passed over.

    Args:
        path: The file.
        damaged: Told of every damaged line and every gap; by default they are logged.

    Raises:
        ConfigError: The file is not there or cannot be read.
        PermissionMissing: The file may not be read.
    """
    with contextlib.ExitStack() as stack:
        for line in read_lines(opened([path], stack), damaged or _warn):
            if not line.is_header:
                yield dict(line.said)


def tick_as_json(tick: Tick) -> dict[str, Any]:
    """A tick as plain data; readings are `{"value", "age"}` or `{"missing", "detail", "age"}`.

    Numbers keep all their digits: a replay shall come to the same verdicts. What is not finite is "nan", "inf" or
    "-inf", for JSON has no such numbers; an age of null is infinite.
    """
    telemetry = tick.telemetry
    return {
        "tick": tick.index,
        "ts": round(tick.wall_seconds, 6),
        "time_seconds": _number(telemetry.time_seconds),
        "target_seconds": _number(telemetry.target_seconds),
        "slack_ratio": _finite(telemetry.slack_ratio),
        "readings": {name: _reading(getattr(telemetry, name)) for name in READINGS},
        "counters": {name: _reading(reading) for name, reading in telemetry.counters.items()},
        "before": allocation_as_json(tick.before),
        "proposed": allocation_as_json(tick.proposed),
        "verdict": allocation_as_json(tick.verdict.allocation),
        "bounds": [
            {"guard": b.guard, "reason": b.reason, "most": allocation_as_json(b.most), "detail": b.detail}
            for b in tick.verdict.decisive
        ],
        "applied": allocation_as_json(tick.applied),
        "policy": tick.policy,
        "note": tick.note,
        "error": tick.error,
        "read_seconds": round(tick.read_seconds, 6),
        "decision_seconds": round(tick.decision_seconds, 6),
        "tick_seconds": round(tick.tick_seconds, 6),
        "missed_deadlines": tick.missed_deadlines,
        "acting": tick.acting,
        "fallback": tick.fallback,
        "events": list(tick.events),
    } | _further(tick)


def _further(tick: Tick) -> dict[str, Any]:
    """What only ticks with applications or with several LCs have."""
    telemetry = tick.telemetry
    said: dict[str, Any] = {}
    if tick.shares:
        said["shares"] = {name: _placement(one) for name, one in tick.shares.items()}
    if isinstance(telemetry, SeveralTelemetry):
        said["lc"] = telemetry.ruling
        said["lcs"] = {
            name: {
                "target_seconds": _number(one.target_seconds),
                "readings": {reading: _reading(getattr(one, reading)) for reading in OF_EACH_LC},
            }
            for name, one in telemetry.lcs.items()
        }
    return said


def _warn(damage: Damage) -> None:
    log.warning("%s", damage)


def _reading(reading: Reading) -> dict[str, Any]:
    if isinstance(reading, Missing):
        return {"missing": reading.why, "detail": reading.detail, "age": _age(reading.age_seconds)}
    said: dict[str, Any] = {"value": _number(reading.value), "age": _age(reading.age_seconds)}
    if isinstance(reading, Quantile):
        said |= {"samples": reading.samples, "window": _number(reading.window_seconds)}
    return said


def allocation_as_json(allocation: Allocation) -> dict[str, Any]:
    """An allocation as plain data; a lifted quota is null."""
    quota = None if allocation.quota_cpus == UNLIMITED else float(allocation.quota_cpus)
    return {"quota_cpus": quota, "cpuset_cpus": allocation.cpuset_cpus, "frozen": allocation.frozen}


def _placement(placement: Placement | None) -> list[object] | None:
    """Working mode, cluster, CPUs: short, as a log holds one for each application and tick."""
    return None if placement is None else [placement.mode, placement.cluster, round(placement.cpus, 4)]


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _age(seconds: float) -> float | str | None:
    return None if seconds == math.inf else _number(seconds)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
