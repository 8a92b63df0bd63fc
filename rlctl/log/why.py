"""One tick of a log in plain words: which one is meant, its readings, proposal, verdict, write, and the effect."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rlctl.envs.errors import printable
from rlctl.envs.log_lines import Damage
from rlctl.envs.telemetry import LC_WAITING, OF_EACH_LC, READINGS, Missing, Quantile, Reading, Telemetry
from rlctl.log.reader import LoggedTick, read_log
from rlctl.log.record import Tick, tick_as_json
from rlctl.log.sentences import decision_sentence, on_rein

WIDTH = 9
"""Columns of the words at the left."""

MOST_SHOWN = 8
"""Of the applications, by name."""


def in_plain_words(nearest: Nearest, moment: TickPlace) -> Iterator[str]:
    """A decision, line by line, for people."""
    logged, tick = nearest.logged, nearest.logged.tick
    yield f"tick {tick.index} at {clock(tick.wall_seconds)}{_distance(nearest.off, moment)}, {logged.where}"
    yield from _row("acted", acting_policy(tick))
    yield from _row("seen", *_reading_lines(tick.telemetry))
    yield from _row("missing", *_missing_lines(tick.telemetry))
    yield from _row("before", str(tick.before) + on_rein(tick.telemetry))
    yield from _row("between", *_between_lines(tick))
    note = f" ({printable(tick.note)})" if tick.note else ""
    yield from _row("asked", f"{tick.proposed}{on_rein(tick.telemetry)}{note}")
    yield from _row("verdict", *_verdict_lines(tick))
    yield from _row("written", *_write_lines(tick))
    yield from _row("shares", *shares_in_words(tick))
    yield from _row("effect", *_effect_lines(logged, nearest.following))
    yield from _row(
        "took",
        f"{tick.read_seconds * 1e3:.1f} ms to read, {tick.decision_seconds * 1e3:.1f} ms to decide, "
        f"{tick.tick_seconds * 1e3:.1f} ms in all; {tick.missed_deadlines} deadlines missed since the start",
    )
    yield from _row("under", *_header_lines(logged.header))


def as_json(nearest: Nearest) -> dict[str, Any]:
    """The same for programs."""
    logged, following = nearest.logged, nearest.following
    return {
        "schema": 1,
        "file": str(logged.path),
        "line": logged.number,
        "off": nearest.off,
        "header": dict(logged.header),
        "tick": tick_as_json(logged.tick),
        "next": tick_as_json(following.tick) if following and _succeeds(logged, following) else None,
    }


def clock(wall_seconds: float) -> str:
    """Unix time as local date and time, to the millisecond."""
    try:
        return datetime.fromtimestamp(wall_seconds).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"Unix time {wall_seconds:g}"


def reading_in_words(name: str, reading: Reading) -> str:
    """A reading in the unit that people use, or why it is missing."""
    if isinstance(reading, Missing):
        return printable(f"{reading.why}: {reading.detail}" if reading.detail else reading.why)
    return _quantity(name, reading.value)


def shares_in_words(tick: Tick) -> Iterator[str]:
    """How BE's applications divide what is applied, who has most first."""
    placed = {name: one for name, one in tick.shares.items() if one is not None}
    for name, one in sorted(placed.items(), key=lambda item: -item[1].cpus)[:MOST_SHOWN]:
        yield f"{printable(name)}: {one.cpus:.2f} CPU on {printable(one.cluster)}, mode {one.mode}"
    if len(placed) > MOST_SHOWN:
        yield f"and {len(placed) - MOST_SHOWN} more"
    if deferred := [printable(name) for name in tick.shares if name not in placed]:
        more = f" and {len(deferred) - MOST_SHOWN} more" if len(deferred) > MOST_SHOWN else ""
        yield f"deferred: {', '.join(deferred[:MOST_SHOWN])}{more}"


def _row(word: str, *lines: str) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{'' if number else word:<{WIDTH}}{line}"


def _distance(off: float, moment: TickPlace) -> str:
    if moment == TickPlace():
        return " (the last)"
    side = "before" if off < 0.0 else "after"
    if moment.index is not None:
        return f" ({abs(off):.0f} ticks {side} the one asked for, which is not recorded)" if off else ""
    return f" ({_time(abs(off))} {side} the time asked for)"


def _time(seconds: float) -> str:
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def acting_policy(tick: Tick) -> str:
    """Who decided, and why it was not the policy that was to."""
    acting = printable(tick.acting or tick.policy)
    if tick.fallback:
        return f"{acting}, not policy {printable(tick.policy)}: {printable(tick.fallback)}"
    return acting if acting == printable(tick.policy) else f"{acting}, under policy {printable(tick.policy)}"


def _reading_lines(telemetry: Telemetry) -> Iterator[str]:
    slack = telemetry.slack_ratio
    target = telemetry.target_in_words
    whose = ruling(telemetry)
    yield whose + (
        f"slack {slack * 100.0:.1f} % of the target of {target}" if slack is not None else f"no slack to {target}"
    )
    for name, reading in _readings(telemetry):
        if isinstance(reading, Missing) or (name == "tail_latency_seconds" and LC_WAITING in telemetry.counters):
            continue
        basis = ""
        if isinstance(reading, Quantile):
            basis = f" of {reading.samples} requests in {reading.window_seconds:g} s"
        yield f"{printable(name)} {_quantity(name, reading.value)}{basis}, {reading.age_seconds:.2f} s old"


def ruling(telemetry: Telemetry) -> str:
    """Whose latency and target these are, where there are several LCs; empty where there is one."""
    return f"LC {printable(telemetry.ruling)}: " if telemetry.ruling else ""


def _missing_lines(telemetry: Telemetry) -> Iterator[str]:
    for name, reading in _readings(telemetry):
        if isinstance(reading, Missing):
            yield f"{printable(name)}: {reading_in_words(name, reading)}"


def _readings(telemetry: Telemetry) -> Iterator[tuple[str, Reading]]:
    yield from ((name, getattr(telemetry, name)) for name in READINGS)
    yield from telemetry.counters.items()


def _quantity(name: str, value: float) -> str:
    if name == "lc_alive":
        return "yes" if value >= 0.5 else "no"
    if name.endswith(("_seconds", "_seconds_per_request")):
        return f"{value * 1e3:.3g} ms"
    if name.endswith("_ratio") or name == "be_work_rate":
        return f"{value * 100.0:.1f} %"
    return f"{value:.2f} CPU" if name.endswith("_cpus") else f"{value:.4g}"


def _between_lines(tick: Tick) -> Iterator[str]:
    """What happened before the period was over."""
    if tick.alarm:
        verdict = "; false: the target was met all the same" if tick.false_alarm else ""
        yield f"{printable(str(tick.alarm))}{verdict}"
    yield from map(printable, tick.events)


def _verdict_lines(tick: Tick) -> Iterator[str]:
    yield f"{tick.verdict.allocation}{on_rein(tick.telemetry)}: {decision_sentence(tick)}"
    for bound in tick.verdict.binding:
        detail = f": {printable(bound.detail)}" if bound.detail else ""
        yield f"  guard {printable(bound.guard)} ({bound.reason}) allows {bound.most}{detail}"


def _write_lines(tick: Tick) -> Iterator[str]:
    if tick.error:
        yield f"failed: {printable(tick.error)}"
        yield f"read back {tick.applied}"
        return
    wanted, applied = tick.verdict.allocation, tick.applied
    if tick.be_vanished:
        yield f"nothing: no BE group is left; the next one begins with {applied}"
    elif str(applied) == str(wanted):
        yield f"{wanted}{on_rein(tick.telemetry)}, read back the same"
    else:
        yield f"read back {applied}, {'tighter' if applied.at_most(wanted) else 'freer'} than the verdict"


def _succeeds(logged: LoggedTick, following: LoggedTick) -> bool:
    """It is a later tick of the same run, however many in between are lost."""
    return following.tick.index > logged.tick.index


def _effect_lines(logged: LoggedTick, following: LoggedTick | None) -> Iterator[str]:
    if following is None:
        yield "not known: this is the last tick of the log"
        return
    tick, later = logged.tick, following.tick
    if not _succeeds(logged, following):
        yield "not known: the run ended with this tick"
        return
    lost = later.index - tick.index - 1
    passed = later.telemetry.time_seconds - tick.telemetry.time_seconds
    yield f"{passed:.1f} s later" + (f", at tick {later.index} ({lost} between are not recorded)" if lost else "")
    for name in ("tail_latency_seconds", "load_ratio", "be_cpus"):
        before, after, whose = tick.telemetry, later.telemetry, ""
        if name in OF_EACH_LC and before.ruling and after.ruling:
            whose, lc = ruling(before), before.ruling  # another one may be the worst off by now
            before, after = before.lcs.get(lc, before), after.lcs.get(lc, after)
        then, now = getattr(before, name), getattr(after, name)
        yield f"{whose}{name} {reading_in_words(name, then)} -> {reading_in_words(name, now)}"


def _header_lines(header: Mapping[str, Any]) -> Iterator[str]:
    shield, policy = header.get("shield"), header.get("policy")
    if not (isinstance(shield, Mapping) and isinstance(policy, Mapping)):
        yield "not known: the log has no header here"
        return
    yield printable(
        f"shield {shield.get('name')} ({shield.get('digest')}), policy {policy.get('name')} ({policy.get('hash')}), "
        f"ticks of {header.get('tick_seconds')} s, rlctl {header.get('rlctl')}"
    )


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
