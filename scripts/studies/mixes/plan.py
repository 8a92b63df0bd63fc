"""What is run in which order, and the record of what has been run: `runs.jsonl`, a line per run, for going on later."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.errors import ConfigError
from rlctl.envs.telemetry import Missing, Reading, Value, Why

FORMAT = 1
REMOVE = "; remove it, or name another folder"


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of the tables, compared managed and unmanaged: how many instances of each application."""

    name: str
    instances: Mapping[str, int]

    @property
    def size(self) -> int:
        """Number of all instances together."""
        return sum(self.instances.values())


@dataclass(frozen=True, slots=True)
class Turn:
    """One run to be made of a cell, by its name; repeats count from 0."""

    cell: str
    repeat: int
    managed: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One run that was made, a line of the log.

    Attributes:
        ended: Seconds from the begin of the run to the end of each instance, in the order of their ends.
        placements: Managed: what the allocator chose, at the seconds when it was something else than before; by
            instance, without those that were deferred, each as [mode, cluster, CPUs].
        said: `TunableResult` of the benchmarks, by instance.
        throttled_seconds: Managed: how long quotas held CPUs' run queues back, all instances together.
    """

    turn: Turn
    metrics: Mapping[str, Reading]
    ended: Mapping[str, float]
    placements: Sequence[tuple[float, Mapping[str, Sequence[Any]]]]
    said: Mapping[str, Mapping[str, Any]]
    throttled_seconds: float


def turns(cells: Sequence[Cell], runs: int, seed: int = 0) -> Iterator[Turn]:
    """Runs in pairs of managed and unmanaged, in random order, all cells once before any of them twice.

    A drift of the machine then meets both sides and all cells alike, and whoever ends it early has them balanced.
    """
    chance = random.Random(seed)
    for repeat in range(runs):
        for cell in cells:
            first = chance.random() < 0.5
            yield Turn(cell.name, repeat, first)
            yield Turn(cell.name, repeat, not first)


class Log:
    """The record of a measurement in a folder.

    Args:
        folder: Created where it is missing; None holds the runs in memory alone.
        plan: What is measured, as JSON; a record of another plan is not resumed.
        resume: Continue the record that is there, rather than refuse to write over it.

    Raises:
        ConfigError: There is a record and `resume` is False, or it is of another plan or damaged.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path | None, plan: Mapping[str, Any], *, resume: bool = False) -> None:
        self.records: list[Record] = []
        self._path = folder / "runs.jsonl" if folder else None
        self._header: Mapping[str, Any] | None = {"format": FORMAT, "plan": plan}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            if not resume:
                raise ConfigError("runs are recorded here already: go on with --resume, or name another folder", folder)
            self.records, self._header = _read(self._path, plan), None

    @property
    def done(self) -> frozenset[Turn]:
        """Runs that need not be made."""
        return frozenset(record.turn for record in self.records)

    def add(self, record: Record) -> None:
        """Append a run to the records, and to the file."""
        self.records.append(record)
        metrics = {name: reading_as_json(reading) for name, reading in record.metrics.items()}
        if self._header is not None:  # only now: a measurement whose first run fails leaves nothing to stumble over
            self._append(self._header)
            self._header = None
        self._append({**asdict(record), "metrics": metrics})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _read(path: Path, plan: Mapping[str, Any]) -> list[Record]:
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    lines = text[:whole].decode(errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            if number > 1:
                records.append(_from_json(data))
            elif data["format"] != FORMAT or data["plan"] != json.loads(json.dumps(plan)):
                raise ConfigError(
                    "is the record of another measurement: give its options again, or another folder", path
                )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"is no record of a measurement{REMOVE}", path, number) from error
    if not lines:
        raise ConfigError(f"is no record of a measurement{REMOVE}", path, 1)
    if whole < len(text):  # torn by a crash or a full disk: that run is made again
        os.truncate(path, whole)
    return records


def reading_as_json(reading: Reading) -> float | dict[str, str]:
    """The value, or why it is missing."""
    if isinstance(reading, Missing):
        return {"missing": reading.why.value, "detail": reading.detail}
    return reading.value


def _from_json(data: Mapping[str, Any]) -> Record:
    metrics = {
        name: Missing(Why(one["missing"]), one["detail"]) if isinstance(one, dict) else Value(float(one))
        for name, one in data["metrics"].items()
    }
    placements = [(seconds, placed) for seconds, placed in data["placements"]]
    return Record(Turn(**data["turn"]), metrics, data["ended"], placements, data["said"], data["throttled_seconds"])
