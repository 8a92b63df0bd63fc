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
    """

    turn: Turn
    metrics: Mapping[str, Reading]
    ended: Mapping[str, float]
    placements: Sequence[tuple[float, Mapping[str, Sequence[Any]]]]
    said: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """From a line's JSON; ValueError, LookupError, TypeError: it is not a run's."""
        metrics: dict[str, Reading] = {}
        for name, one in data["metrics"].items():
            is_missing = isinstance(one, dict)
            metrics[name] = Missing(Why(one["missing"]), one["detail"]) if is_missing else Value(float(one))
        placements = [(seconds, placed) for seconds, placed in data["placements"]]
        return cls(Turn(**data["turn"]), metrics, data["ended"], placements, data["said"])


def turns(cells: Sequence[Cell], runs: int, seed: int = 0) -> Iterator[Turn]:
    """Runs in pairs of managed and unmanaged, in random order, all cells once before any of them twice.

    A drift of the machine then meets both sides and all cells alike, also in a measurement that is ended early.
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

    def add(self, record: Record) -> None:
        """Append a run to the records, and to the file."""
        self.records.append(record)
        metrics = {name: reading_as_json(reading) for name, reading in record.metrics.items()}
        lines = [{**asdict(record), "metrics": metrics}]
        if self._header is not None:  # only now: a measurement whose first run fails leaves nothing to stumble over
            lines.insert(0, dict(self._header))
            self._header = None
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def _read(path: Path, plan: Mapping[str, Any]) -> list[Record]:
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    records: list[Record] = []
    header: Any = None
    for number, line in enumerate(text[:whole].decode(errors="replace").splitlines() or [""], start=1):
        try:
            if number == 1:
                header = json.loads(line)
                if header["format"] != FORMAT or "plan" not in header:
                    raise ValueError(header)
            else:
                records.append(Record.from_json(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"is no record of a measurement's run{REMOVE}", path, number) from error
    if header["plan"] != json.loads(json.dumps(plan)):
        raise ConfigError(f"has runs of another measurement{REMOVE}", path)
    if len(text) > whole:  # a line that was torn by a crash or a full disk: that run is made again
        os.truncate(path, whole)
    return records


def reading_as_json(reading: Reading) -> float | dict[str, str]:
    """The value, or why it is missing."""
    if isinstance(reading, Missing):
        return {"missing": reading.why.value, "detail": reading.detail}
    return reading.value
