"""The answers of shadows as a log: a line a tick with the answers of all, rotated and bounded as the tick log.

One line serves all shadows. The tick itself stands there once, and a crash tears all of a tick or nothing. So policies
are compared on the same ticks. A line has what a report needs of the tick too: tick logs are rotated away within hours,
and a promotion looks back on days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from rlctl.envs.allocation import Allocation
from rlctl.envs.errors import ConfigError
from rlctl.envs.replay import Damage, allocation_of, read_lines
from rlctl.envs.ticklog import LOG_NAME, numbered_files
from rlctl.log.record import allocation_as_json
from rlctl.log.writer import LogWriter
from rlctl.safety.growth import GrowthRate, SlackHold

SHADOW_LOG_NAME = "shadow.jsonl"
"""Name of its newest file, which lies beside the tick log by default."""

FROM_WHAT_IS_IN_FORCE = frozenset({GrowthRate.name, SlackHold.name})
"""Guards whose bound is what is in force, or a step more."""

Logged = Annotated[Allocation, PlainValidator(allocation_of), PlainSerializer(allocation_as_json)]
Seconds = Annotated[FiniteFloat, PlainSerializer(lambda seconds: round(seconds, 6))]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shadow would have proposed at a tick, and what the shield would have allowed; aliases are the log's keys.

    Attributes:
        proposed: Its proposal; the safe allocation when it had no usable answer.
        allowed: What the shield would have let through of it.
        failed: Why there was no usable answer; empty when there was one.
        drift: What of the tick the policy's training never had; empty when nothing, or nothing is known of it.
    """

    proposed: Annotated[Logged, Field(alias="asked")]
    allowed: Annotated[Logged, Field(alias="got")]
    cpu_seconds: Seconds
    guards: tuple[str, ...] = ()
    failed: str = ""
    late: bool = False
    drift: str = ""

    @property
    def overridden(self) -> bool:
        """The shield would not have let it through as it was, whatever the service held BE to."""
        return bool(self.guards) and self.proposed != self.allowed

    @property
    def refused(self) -> bool:
        """A guard that goes by readings alone would not have let it through as it was."""
        # The other guards count from what is in force, which is the acting policy's work: a shadow that would give BE
        # twice as much exceeds them in every tick, and would in the first few only if it acted.
        return any(guard not in FROM_WHAT_IS_IN_FORCE for guard in self.guards)


@dataclass(frozen=True, slots=True)
class Watched:
    """One tick of the stream, and every shadow's answer to it, by the shadow's name; aliases are the log's keys.

    Attributes:
        run: A few letters that tell runs of the service apart.
        wall_seconds: Wall clock, Unix time in seconds.
        load_ratio, be_cpus: Load, and CPUs that BE used, in the period before; None when they are not known.
        met: The window before held the target; None when nothing was measured.
        overridden: The shield did not let the acting policy's proposal through as it was; not the service alone.
    """

    index: Annotated[int, Field(alias="tick")]
    wall_seconds: Annotated[Seconds, Field(alias="ts")]
    run: str
    acting: str
    load_ratio: Annotated[FiniteFloat | None, Field(alias="load")]
    met: bool | None
    be_cpus: FiniteFloat | None
    applied: Logged
    overridden: bool
    answers: Mapping[str, Answer]
    header: Annotated[Mapping[str, Any], Field(exclude=True)] = field(default_factory=dict)


_LINE = TypeAdapter(Watched)


def watched_as_json(watched: Watched) -> dict[str, object]:
    """A watched tick as plain data; what is not known is null, and an answer lacks what it has nothing of."""
    plain: dict[str, object] = _LINE.dump_python(watched, mode="json", by_alias=True, exclude_defaults=True)
    return plain


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


def beside(log: Path) -> Path:
    """Where the shadow log of a tick log is by default.

    Args:
        log: The tick log's newest file, or its directory, which may not be there yet.
    """
    is_file = log.is_file() or log.name.startswith(LOG_NAME)
    return (log.parent if is_file else log) / SHADOW_LOG_NAME


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
            yield replace(_LINE.validate_python(line.content), header=header)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            details = error.errors() if isinstance(error, ValidationError) else []
            why = ", ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details) or str(error)
            damaged(Damage(line.path, line.number, f"not a line of a shadow log: {why}"))
