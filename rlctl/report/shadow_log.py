"""The answers of shadows as a log: a line a tick with the answers of all, rotated and bounded as the tick log.

One line serves all shadows. The tick itself stands there once, and a crash tears all of a tick or nothing. So policies
are compared on the same ticks. A line has what a report needs of the tick too: tick logs are rotated away within hours,
and a promotion looks back on days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlctl.envs.errors import ConfigError
from rlctl.envs.replay import Damage, allocation_of, read_lines
from rlctl.envs.ticklog import LOG_NAME, numbered_files
from rlctl.log.reader import finite
from rlctl.log.record import allocation_as_json
from rlctl.log.writer import LogWriter
from rlctl.report.shadow_watch import Answer, Watched

SHADOW_LOG_NAME = "shadow.jsonl"
"""Name of its newest file, which lies beside the tick log by default."""


def beside(log: Path) -> Path:
    """Where the shadow log of a tick log is by default.

    Args:
        log: The tick log's newest file, or its directory, which may not be there yet.
    """
    is_file = log.is_file() or log.name.startswith(LOG_NAME)
    return (log.parent if is_file else log) / SHADOW_LOG_NAME


class ShadowLog(LogWriter[Watched]):
    """The log of every watched tick; its arguments are those of `LogWriter`."""

    def __init__(self, path: Path, most_bytes: int = 16 << 20, keep: int = 4) -> None:
        super().__init__(path, watched_as_json, most_bytes, keep)
        self.header = lambda watched: watched.header
        self._told: Mapping[str, Any] | None = None

    def write(self, record: Watched) -> None:
        """Append one line; a header before it wherever the tick log had another."""
        if record.header is not self._told:
            self._told = record.header
            self.renew_header()
        super().write(record)


def watched_as_json(watched: Watched) -> dict[str, object]:
    """A watched tick as plain data; what is not known is null."""
    return {
        "tick": watched.index,
        "ts": round(watched.wall_seconds, 6),
        "run": watched.run,
        "acting": watched.acting,
        "load": watched.load_ratio,
        "met": watched.met,
        "be_cpus": watched.be_cpus,
        "applied": allocation_as_json(watched.applied),
        "overridden": watched.overridden,
        "answers": {name: _answer_as_json(answer) for name, answer in watched.answers.items()},
    }


def shadow_files(path: Path) -> tuple[Path, ...]:
    """The files of a shadow log, oldest first, by its newest file or the directory that holds it.

    Raises:
        ConfigError: There is none of them.
        PermissionMissing: The directory may not be read.
    """
    newest = path / SHADOW_LOG_NAME if path.is_dir() else path
    if not (files := numbered_files(newest) if newest.parent.is_dir() else ()):
        raise ConfigError("there is no shadow log; `rlctl shadow watch` writes one, or name policies to ask", newest)
    return files


def read_watched(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[Watched]:
    """Every watched tick of a shadow log, oldest file first; damaged lines are reported and left out."""
    header: Mapping[str, Any] = {}
    for line in read_lines(paths, damaged):
        if line.is_header:
            header = line.content
            continue
        try:
            yield _watched(line.content, header)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            damaged(Damage(line.path, line.number, f"not a line of a shadow log: {error}"))


def _answer_as_json(answer: Answer) -> dict[str, object]:
    plain: dict[str, object] = {
        "asked": allocation_as_json(answer.proposed),
        "got": allocation_as_json(answer.allowed),
        "cpu_seconds": round(answer.cpu_seconds, 6),
    }
    rest = {"guards": list(answer.guards), "failed": answer.failed, "late": answer.late, "drift": answer.drift}
    return plain | {name: value for name, value in rest.items() if value}


def _watched(plain: Mapping[str, Any], header: Mapping[str, Any]) -> Watched:
    return Watched(
        run=str(plain["run"]),
        index=int(plain["tick"]),
        wall_seconds=finite(plain["ts"]),
        acting=str(plain["acting"]),
        load_ratio=_known(plain["load"]),
        met=None if plain["met"] is None else bool(plain["met"]),
        be_cpus=_known(plain["be_cpus"]),
        applied=allocation_of(plain["applied"]),
        overridden=bool(plain["overridden"]),
        answers={str(name): _answer(one) for name, one in plain["answers"].items()},
        header=header,
    )


def _answer(plain: Mapping[str, Any]) -> Answer:
    return Answer(
        proposed=allocation_of(plain["asked"]),
        allowed=allocation_of(plain["got"]),
        guards=tuple(map(str, plain.get("guards", ()))),
        failed=str(plain.get("failed", "")),
        late=bool(plain.get("late", False)),
        cpu_seconds=finite(plain["cpu_seconds"]),
        drift=str(plain.get("drift", "")),
    )


def _known(value: object) -> float | None:
    return None if value is None else finite(value)
