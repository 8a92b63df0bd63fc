"""Ticks that are kept in memory, and written as a log in the end: those of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlctl.envs.ticklog import encode_line
from rlctl.log.record import Tick, tick_as_json


class MemoryRecorder:
    """Appends every tick to its list `ticks`; `header` is what the given function says at the first one."""

    def __init__(self, header: Callable[[Tick], Mapping[str, object]] = lambda _: {}) -> None:
        self.ticks: list[Tick] = []
        self.header: Mapping[str, object] = {}
        self._header_of = header

    def write(self, tick: Tick) -> None:
        """Append the tick to the list."""
        self.header = self.header or self._header_of(tick)
        self.ticks.append(tick)


def write_ticks(path: Path, ticks: Iterable[Tick], header: Mapping[str, object] | None = None) -> None:
    """Write a whole run as a tick log, under its header where there is one."""
    with path.open("wb") as file:
        if header:
            file.write(encode_line(header))
        file.writelines(encode_line(tick_as_json(tick)) for tick in ticks)
