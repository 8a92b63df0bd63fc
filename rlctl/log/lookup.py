"""Which tick of a log somebody means: the last one, one at a time, or one by its number."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rlctl.envs.replay import Damage
from rlctl.log.reader import LoggedTick, read_log

_AGO = re.compile(r"-(\d{1,9}(?:\.\d{1,6})?)([smhd])")
_INDEX = re.compile(r"(?:tick\s+|#)(\d{1,12})")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of a letter behind a number."""


@dataclass(frozen=True, slots=True)
class TickPlace:
    """What to look for in a log: a Unix time in seconds, or a tick's number in its run; with neither the last tick."""

    wall_seconds: float | None = None
    index: int | None = None

    def off(self, logged: LoggedTick) -> float:
        """How far a tick is from it: in seconds or ticks, negative before it."""
        if self.index is not None:
            return float(logged.tick.index - self.index)
        return 0.0 if self.wall_seconds is None else logged.tick.wall_seconds - self.wall_seconds


@dataclass(frozen=True, slots=True)
class Nearest:
    """The tick of a log that is nearest to a moment, how far off it is (`TickPlace.off`), and the tick after it."""

    logged: LoggedTick
    following: LoggedTick | None
    off: float


def parse_moment(text: str, now_seconds: float | None = None) -> TickPlace:
    """`14:03:22` (the last time it was so), an ISO date and time, `-90s`, `tick 1234` or `#1234`; empty is the last.

    Times without a zone are local; now is Unix time, None asks the clock. ValueError if the text is none of these.
    """
    text, now = text.strip(), time.time() if now_seconds is None else now_seconds
    if not text:
        return TickPlace()
    if match := _INDEX.fullmatch(text):
        return TickPlace(index=int(match[1]))
    if match := _AGO.fullmatch(text):
        return TickPlace(wall_seconds=now - float(match[1]) * UNITS[match[2]])
    try:
        return TickPlace(
            wall_seconds=_clock(text, now) if re.match(r"\d\d?:", text) else datetime.fromisoformat(text).timestamp()
        )
    except (ValueError, OverflowError):
        raise ValueError(
            f"'{text}' is not a time: give 14:03:22, 2026-01-31T14:03:22, -90s (s, m, h or d), or `tick 1234`"
        ) from None


def find(paths: Sequence[Path], moment: TickPlace, damaged: Callable[[Damage], None]) -> Nearest | None:
    """The tick nearest to a moment, of two as near the later one; None when the log holds no tick.

    Args:
        paths: Files, oldest first. They are read newest first, and only as far as need be.
    """
    best: Nearest | None = None
    newer: LoggedTick | None = None  # the first tick of the file after
    for path in reversed(paths):
        here: Nearest | None = None
        begins: LoggedTick | None = None
        for one, after in itertools.pairwise(itertools.chain(read_log([path], damaged), [newer])):
            if one is None:
                continue
            begins = begins or one
            if here is None or abs(moment.off(one)) <= abs(here.off):
                here = Nearest(one, after, moment.off(one))
        if here and (best is None or abs(here.off) < abs(best.off)):
            best = here
        if best and begins and _nothing_older_is_nearer(moment, best, begins):
            break
        newer = begins or newer
    return best


def _nothing_older_is_nearer(moment: TickPlace, best: Nearest, begins: LoggedTick) -> bool:
    """Nothing older can be nearer."""
    return best.off == 0.0 or (moment.index is None and moment.off(begins) <= 0.0)


def _clock(text: str, now_seconds: float) -> float:
    clock = datetime.strptime(
        text if text.count(":") == 2 else f"{text}:00", "%H:%M:%S" + (".%f" if "." in text else "")
    )
    year, month, day = time.localtime(now_seconds)[:3]
    at = clock.hour, clock.minute, clock.second, 0, 0, -1  # summer time or not, as on that day
    then, yesterday = (time.mktime((year, month, day - back, *at)) + 1e-6 * clock.microsecond for back in (0, 1))
    return then if then <= now_seconds else yesterday
