"""The screen of `rlctl top`: rows of words made from the last ticks of a log."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlctl.envs.errors import printable
from rlctl.envs.reins import waits_of
from rlctl.envs.telemetry import LC_WAITING, Missing, Quantile, Value, number
from rlctl.log.reader import usual_gap
from rlctl.log.record import Tick, tick_as_json
from rlctl.log.sentences import decision_sentence, on_rein, reason_code, waiting_sentence
from rlctl.log.why import acting_policy, clock, reading_in_words, ruling, shares_in_words

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-=+*#@"
"""For a terminal that cannot show the others."""

WORD_COLUMNS = 10
SPARK_TARGETS = 2.0
"""The sparkline of the latency ends at so many times the target; half of its height is the target."""

STALE_TICKS = 3.0
STALE_SECONDS = 2.0
"""A log is stale when the next tick is overdue by both."""


class Mood(StrEnum):
    """How a row is meant, for those who show colours."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """One line of the screen: a word at the left, and what there is to say."""

    word: str
    text: str
    mood: Mood = Mood.PLAIN

    def wrap(self, columns: int) -> list[ScreenRow]:
        """The row as several where its text does not fit into so many columns, broken between words."""
        wide = max(1, columns - WORD_COLUMNS)
        lines = [self.text] if len(self.text) <= wide else textwrap.wrap(self.text, wide)
        return [ScreenRow("" if number else self.word, line, self.mood) for number, line in enumerate(lines)]

    def plain(self) -> str:
        """The row as a line."""
        return f"{self.word:<{WORD_COLUMNS}}{self.text}".rstrip()


def rows(
    ticks: Sequence[Tick],
    now_seconds: float,
    columns: int = 80,
    blocks: str = BLOCKS,
    changes: Sequence[tuple[float, str]] = (),
) -> list[ScreenRow]:
    """The whole screen, row by row.

    Args:
        now_seconds: Unix time, by which the last tick has an age.
        columns: Characters of a row.
        changes: The last lines of the service's log: Unix time and words.
    """
    if not ticks:
        return [ScreenRow("tick", "no tick is recorded yet", Mood.WARN)]
    last = ticks[-1]
    return [
        _tick(ticks, now_seconds),
        ScreenRow("acting", acting_policy(last), Mood.WARN if last.fallback else Mood.PLAIN),
        _slack(last),
        _load(last),
        *_waits(last),
        *_history(ticks, columns, blocks),
        _be(last),
        *(ScreenRow("" if number else "shares", line) for number, line in enumerate(shares_in_words(last))),
        *_verdict(last),
        *(
            ScreenRow("" if number else "changes", f"{clock(when).partition(' ')[2].partition('.')[0]} {text}")
            for number, (when, text) in enumerate(changes)
        ),
        *([ScreenRow("error", printable(last.error), Mood.BAD)] if last.error else ()),
        *_counters(ticks),
    ]


def as_json(ticks: Sequence[Tick], now_seconds: float, damaged: int) -> dict[str, Any]:
    """The same for programs."""
    return {
        "schema": 1,
        "ticks": len(ticks),
        "age_seconds": max(0.0, now_seconds - ticks[-1].wall_seconds) if ticks else None,
        "stale": is_stale(ticks, now_seconds),
        "damaged": damaged,
        "counts": {name: sum(map(counts, ticks)) for name, counts in _COUNTS.items()},
        "last": tick_as_json(ticks[-1]) if ticks else None,
    }


def is_stale(ticks: Sequence[Tick], now_seconds: float) -> bool:
    """The next tick is overdue: the service hangs, or has ended."""
    if not ticks:
        return True
    age = now_seconds - ticks[-1].wall_seconds
    return age > STALE_TICKS * _period(ticks) and age > STALE_SECONDS + _period(ticks)


def sparkline(values: Sequence[float | None], most: float, columns: int, blocks: str = BLOCKS) -> str:
    """Numbers as a line of bars, the newest at the right.

    Args:
        values: Oldest first; where there are more than columns each bar is the largest of several. None is a gap.
        most: What the highest bar stands for; more is shown as much.
    """
    bars = min(len(values), max(1, columns))
    groups = (values[place * len(values) // bars : (place + 1) * len(values) // bars] for place in range(bars))
    return "".join(_bar([value for value in group if value is not None], most, blocks) for group in groups)


def _bar(known: Sequence[float], most: float, blocks: str) -> str:
    if not known or not most > 0.0:
        return " "
    share = max(known) / most
    return blocks[-1] if share >= 1.0 else blocks[max(0, int(share * len(blocks)))] if share == share else " "


def _tick(ticks: Sequence[Tick], now_seconds: float) -> ScreenRow:
    last = ticks[-1]
    age = max(0.0, now_seconds - last.wall_seconds)
    if is_stale(ticks, now_seconds):
        return ScreenRow(
            "tick", f"STALE: the last, {last.index}, is {age:.0f} s old, of {clock(last.wall_seconds)}", Mood.BAD
        )
    return ScreenRow("tick", f"{last.index} at {clock(last.wall_seconds)}, {age:.1f} s ago")


def _slack(last: Tick) -> ScreenRow:
    slack, whose = last.telemetry.slack_ratio, ruling(last.telemetry)
    target = f"target {last.telemetry.target_in_words}"
    latency = last.telemetry.latency_seconds
    if slack is None or isinstance(latency, Missing):
        why = reading_in_words("latency", latency) if isinstance(latency, Missing) else "no target"
        return ScreenRow("slack", f"{whose}unknown, {target}; latency {why}", Mood.BAD)
    waiting = LC_WAITING in last.telemetry.counters
    samples = f" of {latency.samples} requests" if isinstance(latency, Quantile) and not waiting else ""
    measured = f"latency {last.telemetry.latency_in_words}{samples}, {latency.age_seconds:.1f} s old"
    return ScreenRow(
        "slack",
        f"{whose}{slack * 100.0:.1f} %, {target}; {measured}",
        Mood.BAD if slack < 0.0 else Mood.WARN if slack < 0.1 else Mood.GOOD,
    )


def _load(last: Tick) -> ScreenRow:
    load = last.telemetry.load_ratio
    unknown = "unknown, " if isinstance(load, Missing) else ""
    lc_cpus = reading_in_words("lc_cpus", last.telemetry.lc_cpus)
    rest = "" if isinstance(last.telemetry.lc_cpus, Missing) else f" of the maximum; the LC uses {lc_cpus}"
    return ScreenRow("load", unknown + reading_in_words("load_ratio", load) + ("" if unknown else rest))


def _waits(last: Tick) -> Iterator[ScreenRow]:
    """What the LC waits for, and the setting that helps where it waits for long."""
    if waits := waits_of(last.telemetry):
        sentence = waiting_sentence(last.telemetry, frozen=last.before.frozen)
        shares = ", ".join(f"{what} {share:.0%}" for what, share in waits.items() if share >= 0.01)
        yield ScreenRow("LC waits", f"for {shares or 'next to nothing'}", Mood.WARN if sentence else Mood.PLAIN)
        if sentence:
            yield ScreenRow("", sentence.partition(": ")[2])


def _history(ticks: Sequence[Tick], columns: int, blocks: str) -> Iterator[ScreenRow]:
    """Latency and BE's use over the last minutes, as wide as the screen."""
    wide = max(1, columns - WORD_COLUMNS - 1)
    by_target = [tick.telemetry.latency_ratio for tick in ticks]
    missed = [one for one in by_target if one is not None and one > 1.0]
    minutes = max(0.0, ticks[-1].wall_seconds - ticks[0].wall_seconds) / 60.0
    yield ScreenRow("latency", sparkline(by_target, SPARK_TARGETS, wide, blocks), Mood.BAD if missed else Mood.GOOD)
    yield ScreenRow("", f"the last {minutes:.1f} min; half of the height is the target")
    used = [number(tick.telemetry.be_cpus) for tick in ticks]
    if (most := max((one for one in used if one is not None), default=None)) is not None:
        yield ScreenRow("BE used", sparkline(used, most, wide, blocks))
        yield ScreenRow("", f"all of the height is {most:.2f} CPU")


def _be(last: Tick) -> ScreenRow:
    used = last.telemetry.be_cpus
    use = f"; used {used.value:.2f} CPU" if isinstance(used, Value) else ""
    has = f"{last.applied}{on_rein(last.telemetry)}"
    return ScreenRow("BE", has + use, Mood.WARN if last.applied.frozen else Mood.PLAIN)


def _verdict(last: Tick) -> Iterator[ScreenRow]:
    """Who decided and why; what was asked for where the verdict is another; the detail of the guard that counts."""
    mood = Mood.WARN if last.verdict.binding else Mood.GOOD
    yield ScreenRow("decision", decision_sentence(last), mood)
    if last.verdict.overridden:
        asked = f"asked for {last.proposed}" + (f" ({printable(last.note)})" if last.note else "")
        yield ScreenRow("", f"{asked}, allowed {last.verdict.allocation}")
    if (cause := last.verdict.cause()) is not None:
        yield ScreenRow("", reason_code(cause) + (f" ({printable(cause.detail)})" if cause.detail else ""))


_COUNTS: dict[str, Callable[[Tick], bool]] = {
    "over target": lambda tick: tick.telemetry.missed is True,
    "without latency": lambda tick: tick.telemetry.missed is None,
    "overridden": lambda tick: tick.verdict.overridden,
    "frozen": lambda tick: tick.applied.frozen,
    "fallback": lambda tick: bool(tick.fallback),
    "write errors": lambda tick: bool(tick.error),
}


def _counters(ticks: Sequence[Tick]) -> Iterator[ScreenRow]:
    counts = [f"{sum(map(count, ticks))} {name}" for name, count in _COUNTS.items()]
    yield ScreenRow("counts", f"of the last {len(ticks)} ticks")
    yield ScreenRow("", ", ".join(counts[:3]))
    yield ScreenRow("", ", ".join(counts[3:]))
    yield ScreenRow("", f"{ticks[-1].missed_deadlines} deadlines missed since the start")


def _period(ticks: Sequence[Tick]) -> float:
    return usual_gap([tick.wall_seconds for tick in itertools.islice(ticks, max(0, len(ticks) - 30), None)])
