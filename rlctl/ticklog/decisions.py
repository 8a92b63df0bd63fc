"""A tick log read back: every tick as it was recorded, under the header that was in force."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.envs.applications import Placement
from rlctl.envs.replay import allocation_of, telemetry_of
from rlctl.envs.ticklog import Damage, Line, read_lines
from rlctl.loop.record import Tick
from rlctl.safety.verdict import Bound, Reason, Verdict

__all__ = ["Decision", "decision_of", "read_decisions", "shown"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One tick of a log.

    Attributes:
        tick: The tick; of the shield's bounds only those that the proposal exceeded are recorded.
        path: The file.
        number: The line in it, from 1.
        header: What the last header before it says; empty when there is none.
        first: It is the first one after its header.
        unbroken: Nothing is known to be damaged or missing between it and the line before.
    """

    tick: Tick
    path: Path
    number: int
    header: Mapping[str, Any] = field(default_factory=dict)
    first: bool = False
    unbroken: bool = True

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}:{self.number}"


def read_decisions(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[Decision]:
    """Every tick of a log; damage is told and passed over.

    Args:
        paths: Files, oldest first.
        damaged: Told of every line that is damaged or no tick, and of every gap.

    Raises:
        ConfigError: None of the files is there, or one cannot be read.
        PermissionMissing: One may not be read.
    """
    header: Mapping[str, Any] = {}
    first, unbroken = False, True
    for line in read_lines(paths, damaged):
        unbroken = unbroken and line.unbroken
        if line.is_header:
            header, first = line.content, True
            continue
        try:
            yield decision_of(line, header, first=first, unbroken=unbroken)
            first, unbroken = False, True
        except ValueError as error:
            damaged(Damage(line.path, line.number, str(error)))
            unbroken = False


def decision_of(line: Line, header: Mapping[str, Any], *, first: bool = False, unbroken: bool = True) -> Decision:
    """A line of a log as a tick.

    Raises:
        ValueError: It is none, with what is wrong.
    """
    try:
        tick = _tick(line.content)
    except KeyError as error:
        raise ValueError(f"is no tick: {error} is missing") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"is no tick: {error}") from error
    return Decision(tick, line.path, line.number, header, first, unbroken)


def shown(text: str) -> str:
    """Text of a log, for a terminal: what would steer it, or cannot be printed at all, becomes `?`."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _tick(said: Mapping[str, Any]) -> Tick:
    proposed = allocation_of(said["proposed"])
    bounds = tuple(_bound(one) for one in said["bounds"])
    return Tick(
        index=_whole(said["tick"]),
        wall_seconds=_finite(said["ts"]),
        telemetry=telemetry_of(said),
        before=allocation_of(said["before"]),
        proposed=proposed,
        verdict=Verdict(allocation_of(said["verdict"]), proposed, bounds),
        applied=allocation_of(said["applied"]),
        policy=str(said["policy"]),
        note=str(said["note"]),
        error=str(said["error"]),
        read_seconds=_finite(said["read_seconds"]),
        decision_seconds=_finite(said["decision_seconds"]),
        tick_seconds=_finite(said["tick_seconds"]),
        missed_deadlines=_whole(said["missed_deadlines"]),
        acting=str(said.get("acting", "")),
        fallback=str(said.get("fallback", "")),
        events=tuple(map(str, said.get("events", ()))),
        shares={str(name): _placement(one) for name, one in said.get("shares", {}).items()},
    )


def _placement(said: Sequence[Any] | None) -> Placement | None:
    if said is None:
        return None
    mode, cluster, cpus = said
    return Placement(_whole(mode), str(cluster), _finite(cpus))


def _bound(said: Mapping[str, Any]) -> Bound:
    return Bound(str(said["guard"]), Reason(said["reason"]), allocation_of(said["most"]), str(said["detail"]))


def _finite(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or abs(number) >= 1e15:
        raise ValueError(f"{value!r} is no such number")
    return number


def _whole(value: object) -> int:
    number = int(_finite(value))
    if number < 0:
        raise ValueError(f"{value!r} is no such number")
    return number
