"""Advice as one page that one can take to a meeting: text, HTML and plain data, all of the same sections."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

import numpy as np

from rlctl.envs.arrays import Array
from rlctl.log.reader import ONLY
from rlctl.report.advice import HOSTS, SETTLE_TICKS, Advice, AdviceData, Option, Range, Unanswered
from rlctl.report.page import Grid, Heading, Part

SCHEMA = 1

FEWEST_ALONE = 60
"""Ticks with BE at its minimum, from which on something can be said of the LC alone."""

Answers = Sequence[tuple[str, Advice | Unanswered]]
"""Logs, each with what came of it."""

ROOM = 1.25
"""A target by the LC's own tail: with less room every window that is a little slow is a miss."""

POOR_PERCENT = 60.0
"""Hosts that come within 2x of fewer windows than this explain a log poorly."""

UNEXPLAINED_POINTS = 1.0
"""Windows that the LC missed by itself, beyond what these hosts miss under anybody, did not come of the load."""


def page_of(answers: Answers) -> list[Part]:
    """The page on some hosts: of each, and of several a table of all."""
    page = [part for source, answer in answers for part in parts_on(source, answer)]
    return [*page, *total(answers)] if len(answers) > 1 else page


def parts_on(source: str, answer: Advice | Unanswered) -> list[Part]:
    """The page on one host."""
    if isinstance(answer, Unanswered):
        return [Heading(source), f"no advice: {answer.reason}"]
    title = "What BE could have had"
    return [
        Heading(source),
        "\n".join(_seen(answer.watched)),
        Heading(title, 3),
        Grid(tuple(_rows(answer.options)), title),
        "\n".join(_could(answer)),
        Heading("What would have gone wrong", 3),
        "\n".join(_wrong(answer)),
        Heading("What the log supports", 3),
        "\n".join(_supports(answer.watched)),
    ]


def total(answers: Answers) -> list[Part]:
    """Several hosts together, each under the policy and the shield that are best there."""
    rows = [("host", "policy", "shield", "QoS %", "BE %", "BE CPU-hours a day", "95 %")]
    lines = [_total_line(answers)]
    for source, answer in answers:
        if isinstance(answer, Unanswered):
            rows.append((source, "no advice", "-", "-", "-", "-", "-"))
            lines.append(f"{source}: {answer.reason}")
        elif one := answer.best:
            shares = _figures(one.qos_percent, 2)[0], _figures(one.be_percent, 1)[0]
            rows.append((source, one.policy, one.shield, *shares, *_figures(one.be_cpu_hours_a_day, 1)))
        else:
            rows.append((source, "none", "-", "-", "-", "0.0", "-"))
    return [Heading("All hosts"), Grid(rows, "All hosts"), "\n".join(lines)]


def _total_line(answers: Answers) -> str:
    day, unanswered = be_cpu_hours_a_day(answers), _unanswered(answers)
    return (
        f"hosts: {len(answers) - unanswered}; CPU-hours of BE a day: {day.mean:.0f} ({day.low:.0f} to {day.high:.0f}, "
        "the intervals added up)" + (f"; no advice on {unanswered} more" if unanswered else "")
    )


def be_cpu_hours_a_day(answers: Answers) -> Range:
    """CPU-hours of BE in 24 hours, each host under its best; intervals are added up, as if all hosts erred alike."""
    best = [one.be_cpu_hours_a_day for _, answer in answers if isinstance(answer, Advice) and (one := answer.best)]
    mean, low, high = (sum((getattr(one, name) for one in best), 0.0) for name in ("mean", "low", "high"))
    return Range(mean, low, high)


def _unanswered(answers: Answers) -> int:
    return sum(isinstance(answer, Unanswered) for _, answer in answers)


def plain_of(answers: Answers) -> dict[str, object]:
    """The page as plain data: of one host, or of several with their total."""
    hosts = [as_json(source, answer) for source, answer in answers]
    if len(hosts) == 1:
        return hosts[0]
    day = asdict(be_cpu_hours_a_day(answers))
    together = {"hosts": len(hosts), "unanswered": _unanswered(answers), "be_cpu_hours_a_day": day}
    return {"schema": SCHEMA, "hosts": hosts, "total": together}


def as_json(source: str, answer: Advice | Unanswered) -> dict[str, object]:
    """The page on one host as plain data."""
    if isinstance(answer, Unanswered):
        return {"schema": SCHEMA, "log": source, "error": answer.reason}
    watched, best = answer.watched, answer.best
    return {
        "schema": SCHEMA,
        "log": source,
        "hours": round(watched.hours, 4),
        "ticks": len(watched.wall_seconds),
        "earlier_ticks": watched.earlier_ticks,
        "lived_through": _lived(watched),
        "compared_ticks": len(watched.record.compared),
        "acting": list(watched.acting),
        "within_twice_percent": round(answer.within_twice_percent, 2),
        "allowed_percent": answer.allowed_percent,
        "best": {"policy": best.policy, "shield": best.shield} if best else None,
        "options": [
            asdict(option) | {"be_cpu_hours_a_day": asdict(option.be_cpu_hours_a_day)} for option in answer.options
        ],
        "alone": _alone(watched),
        "max_load_rps": _max_load(watched),
    }


def _max_load(watched: AdviceData) -> dict[str, object]:
    """What is known of the only LC's maximum load, or of each LC's by its name."""
    plain: dict[str, object] = {
        load.lc: {"at_least": load.cautious_rps, "at_most": load.highest_rps, "borne_out": load.borne_out}
        for load in watched.max_loads
    }
    return cast("dict[str, object]", plain.get(ONLY, plain))


def _lived(watched: AdviceData) -> dict[str, object]:
    """What was lived through again, with the pieces in which it lies in the log."""
    ticks = watched.lived
    pieces = np.split(ticks, np.flatnonzero(np.diff(ticks) > 1) + 1)
    return {
        "ticks": len(ticks),
        "counted_ticks": int(np.count_nonzero(watched.counted)),
        "percent": 100.0 * len(ticks) / len(watched.load_ratio),
        "pieces": [{"begins_seconds": float(watched.wall_seconds[piece[0]]), "ticks": len(piece)} for piece in pieces],
    }


def _seen(watched: AdviceData) -> Iterator[str]:
    record = watched.record
    limits, quantile = record.limits, 100.0 * record.quantile_ratio
    yield (
        f"{watched.hours:.2f} h of {record.tick_seconds:g}-s ticks under {', '.join(watched.acting)}; "
        f"BE may have {limits.cpus:g} CPU, the LC has {limits.lc_cpus:g}; target p{quantile:g} of "
        f"{1e3 * record.target_seconds:g} ms" + (", auto (proposed)" if watched.proposed else "")
    )
    known = np.isfinite(watched.missed)
    held = 100.0 * float(1.0 - watched.missed[known].mean()) if known.any() else np.nan
    used = float(np.nanmean(record.be_cpus)) if np.isfinite(record.be_cpus).any() else np.nan
    load = _loads(watched.load_ratio)
    yield f"load {load} of the maximum; held in {held:.1f} % of windows, BE used {used:.2f} CPUs"
    if watched.earlier_ticks:
        yield f"{watched.earlier_ticks} earlier ticks are of another host, period or target, and left out"


def _loads(ratios: Array) -> str:
    known = 100.0 * ratios[np.isfinite(ratios)]
    low, high = np.quantile(known, (0.05, 0.95)) if known.size else (np.nan, np.nan)
    return f"{low:.0f} to {high:.0f} %"


def _could(advice: Advice) -> Iterator[str]:
    near, watched = advice.within_twice_percent, advice.watched
    yield (
        f"by {HOSTS} simulated hosts that explain the log: their tails are within 2x in {near:.0f} % of the "
        f"{len(watched.record.compared)} windows compared; BE at the kernel's minimum weight; 95 %: what so many of "
        "them lie between"
    )
    yield _lived_line(watched)
    yield "CPU-hours a day: what BE would use in 24 h with the loads of what was lived through"
    if near < POOR_PERCENT:
        yield "these hosts explain the log poorly: take the figures as a guess"
    missed = (_alone(watched) or {}).get("missed_percent", 0.0)
    least = min((100.0 - one.qos_percent.mean for one in advice.options), default=100.0)
    if missed > least + UNEXPLAINED_POINTS:
        yield (
            f"the LC alone missed {missed:.1f} % of windows in this log, and at least {least:.1f} % on these hosts: "
            "the tables leave out what caused the difference"
        )
    if not (watched.record.be_cpus > 0.1 * watched.record.limits.cpus).any():
        yield "BE never ran beside the LC in this log: what it does to the LC is not known, and the intervals are wide"
    yield (
        f"best with at most {advice.allowed_percent:g} % of windows missed: {_named(advice.best)}"
        if advice.best
        else f"no policy stays within {advice.allowed_percent:g} % of windows missed"
    )


def _rows(options: Sequence[Option]) -> Iterator[tuple[str, ...]]:
    yield ("policy", "shield", "QoS %", "95 %", "BE %", "95 %", "BE CPU-hours a day", "95 %")
    for one in options:
        figures = (_figures(one.qos_percent, 2), _figures(one.be_percent, 1), _figures(one.be_cpu_hours_a_day, 1))
        yield (one.policy, one.shield, *(cell for pair in figures for cell in pair))


def _lived_line(watched: AdviceData) -> str:
    count, ticks = len(watched.load_ratio), watched.lived
    if len(ticks) == count:
        return "lived through: all of the log"
    hours = len(ticks) * watched.record.tick_seconds / 3600.0
    pieces = np.count_nonzero(np.diff(ticks) > 1) + 1
    return (
        f"lived through: {hours:.2f} of {watched.hours:.2f} h ({100.0 * len(ticks) / count:.1f} %), in {pieces} pieces "
        f"evenly spread over the log, with loads of {_loads(watched.load_ratio[ticks])}; the first {SETTLE_TICKS} "
        "ticks of every later piece do not count; the intervals say nothing of the rest"
    )


def _named(option: Option) -> str:
    return f"{option.policy} (shield {option.shield})"


def _figures(one: Range, digits: int) -> tuple[str, str]:
    return f"{one.mean:.{digits}f}", f"{one.low:.{digits}f} to {one.high:.{digits}f}"


def _wrong(advice: Advice) -> Iterator[str]:
    one = advice.best or max(advice.options, key=lambda option: option.qos_percent.mean)
    if not one.worst:
        yield f"under {_named(one)}: nothing to speak of"
    for stretch in one.worst:
        at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(stretch.begins_seconds))
        yield (
            f"under {_named(one)}, from {at}: {stretch.missed_percent:.0f} % of {stretch.seconds:g} s missed, "
            f"at a load of {stretch.load_percent:.0f} %"
        )
    if (lived := len(advice.watched.lived)) < (count := len(advice.watched.load_ratio)):
        yield f"only the {100.0 * lived / count:.1f} % of the log that were lived through were looked at"


def _alone(watched: AdviceData) -> dict[str, Any] | None:
    """The LC's own tail and misses where BE had its minimum; None where that is too short to tell.

    No tail where more than one window in a hundred has only a lower limit of it.
    """
    latency, missed = (one[watched.alone & ~np.isnan(one)] for one in (watched.latency_ratio, watched.missed))
    if len(latency) < FEWEST_ALONE:
        return None
    tail = float(np.quantile(latency, 0.99, method="higher"))
    return {
        "windows": len(missed),
        "tail_seconds_99_percent": tail * watched.record.target_seconds if tail < math.inf else None,
        "missed_percent": 100.0 * float(missed.mean()),
    }


def _supports(watched: AdviceData) -> Iterator[str]:
    if alone := _alone(watched):
        if tail := alone["tail_seconds_99_percent"]:
            least = f"{1e3 * tail:.2f} ms: no target below {1e3 * ROOM * tail:.2f} ms"
            yield f"target: alone, 99 % of windows stay below {least}"
        else:
            yield "target: of too many tails alone only a lower limit is known"
        missed = alone["missed_percent"]
        least = f"no budget below {2.0 * missed:.2g} %" if 2.0 * missed < 100.0 else "none fits; choose a larger target"
        yield f"error budget: the LC alone misses {missed:.2f} % of windows: {least if missed else 'any budget'}"
    else:
        yield f"target, error budget: BE had its minimum in fewer than {FEWEST_ALONE} windows: watch with it frozen"
    yield from map(str, watched.max_loads)
