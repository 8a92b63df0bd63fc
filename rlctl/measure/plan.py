"""What is run in which order, and the record of what has been run: `runs.jsonl`, a line per run, for going on later."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.errors import ConfigError
from rlctl.envs.telemetry import Missing, Reading, Value, Why
from rlctl.envs.testbed.tunable import RESULT_BEGINS, parse_result
from rlctl.measure.run import Run

__all__ = ["Cell", "Log", "Record", "Turn", "turns"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """What is compared managed and unmanaged: a mix, or a number of instances.

    Attributes:
        name: Shown in tables.
        instances: How many of each application.
    """

    name: str
    instances: Mapping[str, int]

    @property
    def size(self) -> int:
        """All instances."""
        return sum(self.instances.values())


@dataclass(frozen=True, slots=True)
class Turn:
    """One run to be made.

    Attributes:
        cell: The cell's name.
        repeat: From 0.
        managed: Or not.
    """

    cell: str
    repeat: int
    managed: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One run that was made.

    Attributes:
        turn: Which.
        metrics: By the names of `rlctl.measure.metrics`.
        ended: Seconds to the end, by instance.
        placements: As in Run, each as [mode, cluster, CPUs].
        said: What instances of the benchmarks said of themselves, as `TunableResult`, by instance.
        throttled_seconds: As in Run.
    """

    turn: Turn
    metrics: Mapping[str, Reading]
    ended: Mapping[str, float]
    placements: Sequence[tuple[float, Mapping[str, Sequence[Any]]]]
    said: Mapping[str, Mapping[str, Any]]
    throttled_seconds: float

    @classmethod
    def of(cls, turn: Turn, run: Run) -> Record:
        """A run that has just been made.

        Raises:
            TestbedError: An instance of a benchmark did not say what it has done.
        """
        placements = [
            (at, {name: (one.mode, one.cluster, one.cpus) for name, one in placed.items()})
            for at, placed in run.placements
        ]
        ended = {one.name: one.seconds for one in run.ended}
        said = {one.name: asdict(parse_result(one.said)) for one in run.ended if one.said.startswith(RESULT_BEGINS)}
        return cls(turn, run.metrics, ended, placements, said, run.throttled_seconds)


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
        folder: Made if it is not there; None keeps the runs in memory alone.
        plan: What is measured, as JSON; a record of another plan is not gone on with.
        resume: Go on with the record that is there, rather than refuse to write over it.

    Attributes:
        records: All runs so far.

    Raises:
        ConfigError: There is a record and `resume` is False, or it is of another plan or damaged.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path | None, plan: Mapping[str, Any], *, resume: bool = False) -> None:
        self.records: list[Record] = []
        self._path = folder / "runs.jsonl" if folder else None
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            if not resume:
                raise ConfigError("runs are recorded here already: go on with --resume, or name another folder", folder)
            self.records = _read(self._path, plan)
        else:
            self._append({"format": FORMAT, "plan": plan})

    @property
    def done(self) -> frozenset[Turn]:
        """Runs that need not be made."""
        return frozenset(record.turn for record in self.records)

    def add(self, record: Record) -> None:
        """Keep a run."""
        self.records.append(record)
        self._append(_as_json(record))

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _read(path: Path, plan: Mapping[str, Any]) -> list[Record]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):  # torn by a crash or a full disk: that run is made again
        path.write_text("".join(lines[:-1]), encoding="utf-8")
        lines.pop()
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
            raise ConfigError("is no record of a measurement", path, number) from error
    if not lines:
        raise ConfigError("is no record of a measurement", path, 1)
    return records


def _as_json(record: Record) -> dict[str, Any]:
    return {**asdict(record), "metrics": {name: _shown(one) for name, one in record.metrics.items()}}


def _shown(reading: Reading) -> float | dict[str, str]:
    if isinstance(reading, Missing):
        return {"missing": reading.why.value, "detail": reading.detail}
    return reading.value


def _from_json(data: Mapping[str, Any]) -> Record:
    metrics = {
        name: Missing(Why(one["missing"]), one["detail"]) if isinstance(one, dict) else Value(float(one))
        for name, one in data["metrics"].items()
    }
    return Record(
        Turn(**data["turn"]),
        metrics,
        data["ended"],
        [(at, placed) for at, placed in data["placements"]],
        data["said"],
        data["throttled_seconds"],
    )
