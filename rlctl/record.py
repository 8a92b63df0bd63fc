"""The record of every decision: one JSON object per tick, append-only, bounded, readable after a crash."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from rlctl.envs.allocation import UNLIMITED, Allocation
from rlctl.envs.telemetry import Missing, Quantile, Reading, Telemetry
from rlctl.safety.verdict import Verdict

__all__ = [
    "MemoryRecorder",
    "NullRecorder",
    "Recorder",
    "Tee",
    "Tick",
    "TickLog",
    "allocation_as_json",
    "read_ticks",
    "tick_as_json",
    "write_ticks",
]

log = logging.getLogger(__name__)

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


class TickLog:
    """A JSON-lines file that is rotated before it grows beyond a bound.

    A full disk costs records, never the loop: they are dropped, counted in `dropped`, and said once.

    Args:
        path: The file; `path.1` is the one before it, and so on.
        most_bytes: Size at which it is rotated.
        keep: Rotated files kept.

    Raises:
        OSError: The file cannot be opened at the start.
    """

    def __init__(self, path: Path, most_bytes: int = 16 << 20, keep: int = 4) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self.keep = keep
        self.dropped = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = self._opened()

    def write(self, tick: Tick) -> None:
        """Append one line with one system call, so that a crash tears at most the last one."""
        line = json.dumps(tick_as_json(tick), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            self._append(line)
        except OSError as error:
            if not self.dropped:
                log.warning("tick log %s: %s; records are dropped until it can be written again", self.path, error)
            self.dropped += 1

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self, line: bytes) -> None:
        file = self._file = self._file or self._opened()
        size = os.fstat(file.fileno()).st_size
        if size and size + len(line) > self.most_bytes:
            file, size = self._rotated(), 0
        if file.write(line) != len(line):
            file.truncate(size)  # half a line would spoil the next one too
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _opened(self) -> IO[bytes]:
        file = self.path.open("a+b", buffering=0)
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")  # ends the line that a crash tore
        return file

    def _rotated(self) -> IO[bytes]:
        self.close()
        for number in range(self.keep, 0, -1):
            newer = self.path if number == 1 else self._numbered(number - 1)
            if newer.exists():
                os.replace(newer, self._numbered(number))
        self._file = self._opened()
        return self._file

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def write_ticks(path: Path, ticks: Iterable[Tick]) -> None:
    """Write a whole run as a tick log."""
    with path.open("w") as file:
        file.writelines(json.dumps(tick_as_json(tick), separators=(",", ":")) + "\n" for tick in ticks)


def read_ticks(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a tick log; a line torn by a crash is passed over.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        for line in file:
            try:
                tick = json.loads(line)
            except ValueError:
                continue
            if isinstance(tick, dict):
                yield tick


def tick_as_json(tick: Tick) -> dict[str, Any]:
    """A tick as plain data; readings are `{"value", "age"}` or `{"missing", "detail"}`."""
    telemetry = tick.telemetry
    return {
        "tick": tick.index,
        "ts": round(tick.wall_seconds, 6),
        "time_seconds": _number(telemetry.time_seconds),
        "target_seconds": _number(telemetry.target_seconds),
        "slack_ratio": _number(telemetry.slack_ratio),
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
    }


def _reading(reading: Reading) -> dict[str, Any]:
    if isinstance(reading, Missing):
        return {"missing": reading.why, "detail": reading.detail}
    said: dict[str, Any] = {"value": _number(reading.value), "age": _number(reading.age_seconds)}
    if isinstance(reading, Quantile):
        said |= {"samples": reading.samples, "window": _number(reading.window_seconds)}
    return said


def allocation_as_json(allocation: Allocation) -> dict[str, Any]:
    """An allocation as plain data; a lifted quota is null."""
    quota = None if allocation.quota_cpus == UNLIMITED else round(allocation.quota_cpus, 6)
    return {"quota_cpus": quota, "cpuset_cpus": allocation.cpuset_cpus, "frozen": allocation.frozen}


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity; null is what is left."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")
