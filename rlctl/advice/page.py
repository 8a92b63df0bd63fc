"""Advice as one page that one can take to a meeting: text, HTML and plain data, all of the same sections."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape

import numpy as np

from rlctl.advice.advice import HOSTS, STRETCH_SECONDS, Advice, Option, Range
from rlctl.advice.watched import Watched
from rlctl.report.table import render

SCHEMA = 1

FEWEST_ALONE = 60
"""Ticks with BE at its minimum, from which on something can be said of the LC alone."""

ROOM = 1.25
"""A target by the LC's own tail: with less room every window that is a little slow is a miss."""

POOR_PERCENT = 60.0
"""Hosts that come within 2x of fewer windows than this explain a log poorly."""


@dataclass(frozen=True, slots=True)
class Section:
    """A title, sentences, and perhaps a table whose first row is its header."""

    title: str
    lines: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()


def sections(source: str, advice: Advice) -> tuple[Section, ...]:
    """The page on one host."""
    return (
        Section(source, tuple(_seen(advice.watched))),
        Section("What BE could have had", tuple(_could(advice)), tuple(_rows(advice.options))),
        Section("What would have gone wrong", tuple(_wrong(advice))),
        Section("What the log supports", tuple(_supports(advice.watched))),
    )


def total(advised: Sequence[tuple[str, Advice]]) -> Section:
    """Several hosts together, each under the policy that is best there."""
    rows = [("host", "policy", "QoS %", "BE %", "BE CPUs", "95 %")]
    cpus = np.zeros(3)
    for source, advice in advised:
        if (one := advice.best) is None:
            rows.append((source, "none", "-", "-", "0", "-"))
            continue
        cpus += (one.be_cpus.mean, one.be_cpus.low, one.be_cpus.high)
        rows.append((source, one.policy, *_figures(one.qos_percent, 2)[:1], *_figures(one.be_percent, 1)[:1],
                     *_figures(one.be_cpus, 2)))  # fmt: skip
    mean, low, high = cpus
    line = f"{len(advised)} hosts: {24 * mean:.0f} CPU-hours of BE a day ({24 * low:.0f} to {24 * high:.0f})"
    return Section("All hosts", (line,), tuple(rows))


def text(page: Sequence[Section]) -> str:
    """The page for a terminal."""
    parts = []
    for section in page:
        table = ["", render(section.rows), ""] if section.rows else []
        parts.append("\n".join([section.title, "-" * len(section.title), *table, *section.lines]))
    return "\n\n".join(parts)


def html(page: Sequence[Section]) -> str:
    """The page as a file that needs nothing but itself."""
    body = "\n".join(_html_of(section) for section in page)
    style = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}td,th{padding:.2em .8em;"
    style += "text-align:right;border-bottom:1px solid #ccc}td:first-child,th:first-child{text-align:left}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>rlctl advise</title>'
        f"<style>{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def as_json(source: str, advice: Advice) -> dict[str, object]:
    """The page as plain data."""
    watched, load = advice.watched, advice.watched.max_load
    return {
        "schema": SCHEMA,
        "log": source,
        "hours": round(watched.hours, 4),
        "ticks": len(watched.wall_seconds),
        "acting": list(watched.acting),
        "shield": advice.shield,
        "within_twice_percent": round(advice.within_twice_percent, 2),
        "allowed_percent": advice.allowed_percent,
        "best": advice.best.policy if advice.best else None,
        "options": [asdict(option) for option in advice.options],
        "alone": _alone(watched),
        "max_load_rps": {"at_least": load.cautious_rps, "at_most": load.highest_rps},
    }


def _seen(watched: Watched) -> Iterator[str]:
    record, load = watched.record, 100.0 * watched.load_ratio
    limits, quantile = record.limits, 100.0 * record.quantile_ratio
    yield (
        f"{watched.hours:.2f} h of {record.tick_seconds:g}-s ticks under {', '.join(watched.acting)}; "
        f"BE may have {limits.cpus:g} CPU, the LC has {limits.lc_cpus:g}; target p{quantile:g} of "
        f"{1e3 * record.target_seconds:g} ms"
    )
    low, high = np.nanquantile(load, (0.05, 0.95)) if np.isfinite(load).any() else (np.nan, np.nan)
    known = np.isfinite(watched.latency_ratio)
    held = 100.0 * float((watched.latency_ratio[known] <= 1.0).mean()) if known.any() else np.nan
    used = float(np.nanmean(record.be_cpus)) if np.isfinite(record.be_cpus).any() else np.nan
    yield f"load {low:.0f} to {high:.0f} % of the maximum; held in {held:.1f} % of windows, BE used {used:.2f} CPUs"


def _could(advice: Advice) -> Iterator[str]:
    near, weight = advice.within_twice_percent, "BE at the kernel's minimum weight"
    yield (
        f"by {HOSTS} simulated hosts that explain the log: their tails are within 2x in {near:.0f} % of its windows; "
        f"shield {advice.shield}, {weight}; 95 %: what so many of them lie between"
    )
    if near < POOR_PERCENT:
        yield "these hosts explain the log poorly: take the figures as a guess"
    if not (advice.watched.record.be_cpus > 0.1 * advice.watched.record.limits.cpus).any():
        yield "BE never ran beside the LC in this log: what it does to the LC is not known, and the intervals are wide"
    yield (
        f"best with at most {advice.allowed_percent:g} % of windows missed: {advice.best.policy}"
        if advice.best
        else f"nobody keeps to {advice.allowed_percent:g} % of windows missed"
    )


def _rows(options: Sequence[Option]) -> Iterator[tuple[str, ...]]:
    yield ("policy", "QoS %", "95 %", "BE %", "95 %", "BE CPUs", "95 %")
    for one in options:
        figures = (_figures(one.qos_percent, 2), _figures(one.be_percent, 1), _figures(one.be_cpus, 2))
        yield (one.policy, *(cell for pair in figures for cell in pair))


def _figures(one: Range, digits: int) -> tuple[str, str]:
    return f"{one.mean:.{digits}f}", f"{one.low:.{digits}f} to {one.high:.{digits}f}"


def _wrong(advice: Advice) -> Iterator[str]:
    one = advice.best or advice.options[0]
    if not one.worst:
        yield f"under {one.policy}: nothing to speak of"
    for stretch in one.worst:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stretch.begins_seconds))
        yield (
            f"under {one.policy}, from {at}: {stretch.missed_percent:.0f} % of {STRETCH_SECONDS:g} s missed, "
            f"at a load of {stretch.load_percent:.0f} %"
        )


def _alone(watched: Watched) -> dict[str, float] | None:
    """The LC's own tail and misses where BE had its minimum; None where that is too short to tell."""
    latency = watched.latency_ratio[watched.alone & np.isfinite(watched.latency_ratio)]
    if len(latency) < FEWEST_ALONE:
        return None
    return {
        "windows": len(latency),
        "tail_seconds_99_percent": float(np.quantile(latency, 0.99)) * watched.record.target_seconds,
        "missed_percent": 100.0 * float((latency > 1.0).mean()),
    }


def _supports(watched: Watched) -> Iterator[str]:
    if alone := _alone(watched):
        tail = alone["tail_seconds_99_percent"]
        yield (
            f"target: alone, 99 % of windows stay below {1e3 * tail:.2f} ms: no target below {1e3 * ROOM * tail:.2f} ms"
        )
        missed = alone["missed_percent"]
        yield (
            f"error budget: alone it misses {missed:.2f} % of windows"
            + (f": no budget below {2.0 * missed:.2g} %" if missed else ", in so many as there were: any budget")
        )
    else:
        yield f"target, error budget: BE had its minimum in fewer than {FEWEST_ALONE} windows: watch with it frozen"
    yield str(watched.max_load)


def _html_of(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    for place, row in enumerate(section.rows):
        cell = "td" if place else "th"
        cells = "".join(f"<{cell}>{escape(one)}</{cell}>" for one in row)
        parts.append(("" if place else "<table>") + f"<tr>{cells}</tr>")
    parts += ["</table>"] if section.rows else []
    return "\n".join([*parts, *(f"<p>{escape(line)}</p>" for line in section.lines)])
