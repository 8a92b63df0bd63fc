"""Runs cases side by side and says of each when BE was where it had to be, and whether the originals came back."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.envs.errors import RlctlError
from rlctl.report.page import render
from tests.faults.cases import Case, Fault
from tests.faults.judging import CPU_SLACK_SECONDS, judge, rulings
from tests.faults.kills import Kill
from tests.faults.link_kills import LinkKill
from tests.faults.pace import Pace
from tests.faults.stage import Stage

HEADER = ("case", "BE there after, s", "of", "freer", "CPU beyond, s", "unseen, s", "originals", "the log says")
MOST_WORDS = 68

SEEN_CPU_SECONDS = 3.0
"""SECURITY.md: a CPU-second too much suspends BE; and what it uses until that is read, and the tick is over."""

_MESSAGE = re.compile(r"\d\d:\d\d:\d\d |rlctl")  # rather than the configuration in effect


@dataclass(frozen=True, slots=True)
class Row:
    """One case's result.

    Attributes:
        case: Its name.
        seconds: Until BE was at or below the verdict; infinite if it never was, NaN if it could not be run.
        freer: How many times BE was freer than the verdict in force.
        originals: All settings of both groups came back byte for byte.
        says: What the log says.
        bound_seconds: What was promised for `seconds`.
        excess_seconds: CPU time that BE used beyond what the verdicts allow.
        gap_seconds: The longest time for which nobody looked at BE.
        busy: Why nobody can say whether all holds; empty if one can.
        counted_late: The seconds count from the stall of the client that follows the fault.
        skipped: Why it was not run; empty if it was.
        wrong: What does not hold; empty if all does.
    """

    case: str
    seconds: float
    freer: int
    originals: bool
    says: str
    bound_seconds: float = math.nan
    excess_seconds: float = math.nan
    gap_seconds: float = math.nan
    busy: str = ""
    counted_late: bool = False
    skipped: str = ""
    wrong: str = ""


def run(cases: Sequence[Case | Kill | LinkKill], pace: Pace, say: Callable[[str], None]) -> list[Row]:
    """Run cases side by side.

    Args:
        cases: Which.
        pace: How fast this machine is.
        say: Takes a line of progress.

    Returns:
        A row for each, in the same order.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(pace.jobs) as pool:
        futures = [pool.submit(_row, case, pace, stop) for case in cases]
        pending, done = set(futures), 0
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    done += 1
                    say(f"{done}/{len(cases)} {_in_words(future.result())}")
        except BaseException:  # Ctrl-C: those that run take their groups away before they end
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    cells = [HEADER, *map(_cells, rows)]
    width = max(len(row[-1]) for row in cells)
    return render([(*row[:-1], row[-1].ljust(width)) for row in cells])


def as_json(rows: Sequence[Row], pace: Pace, host: Mapping[str, object]) -> str:
    """The same for a program."""
    plain = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in one.items()}
        for one in map(asdict, rows)
    ]
    return json.dumps({"schema": 1, **host, "pace": asdict(pace), "cases": plain}, indent=1) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    if row.skipped:
        return row.case, *["-"] * 6, f"not run: {row.skipped}"
    words = (row.wrong or row.busy or row.says)[:MOST_WORDS]
    if math.isnan(row.seconds):
        return row.case, *["?"] * 6, words
    seconds = f"{row.seconds:.2f}" + ("*" if row.counted_late else "")
    often = "never" if not row.freer else f"{row.freer} times"
    measures = (f"{one:.2f}" if math.isfinite(one) else "-" for one in (row.excess_seconds, row.gap_seconds))
    bound = f"{row.bound_seconds:g}" if math.isfinite(row.bound_seconds) else "-"
    return row.case, seconds, bound, often, *measures, "yes" if row.originals else "NO", words


def _in_words(row: Row) -> str:
    if row.skipped:
        return f"{row.case}: not run: {row.skipped}"
    verdict = f"; WRONG: {row.wrong}" if row.wrong else f"; {row.busy}" if row.busy else ""
    return f"{row.case}: {row.seconds:.2f} s{verdict}"


def _row(case: Case | Kill | LinkKill, pace: Pace, stop: threading.Event) -> Row:
    """One case, whatever becomes of it."""
    if lack := case.lacks():
        return Row(case.name, math.nan, 0, False, "", skipped=lack)
    try:
        if isinstance(case, Kill | LinkKill):
            return _gone(case, pace, stop)
        return _tried(case, pace, stop)
    except (RlctlError, OSError) as error:
        return Row(case.name, math.nan, 0, False, "", wrong=f"could not be run: {error}")


def _gone(kill: Kill | LinkKill, pace: Pace, stop: threading.Event) -> Row:
    """What counts as the originals of a testbed or a link is that nothing of it is left."""
    seconds, says = kill.tried(pace, stop)
    slow = f"nothing was left after {seconds:.2f} s only" if seconds > pace.patience_seconds else ""
    return Row(kill.name, seconds, 0, originals=True, says=says, wrong=slow)


def _tried(case: Case, pace: Pace, stop: threading.Event) -> Row:
    name = f"rlctl-faults-{os.getpid()}-{case.name}"
    with Stage(name, pace, endpoint=case.endpoint, hold=case.hold, stop=stop) as stage:
        begun = time.monotonic()
        stage.serve(case.config(stage), case.inside, case.path(stage))
        stage.until(lambda: stage.taken_since(begun), "BE taken over")
        stage.await_free()
        fault = case.act(stage)
        case.end(stage)
        return _judged(case, stage, fault)


def _judged(case: Case, stage: Stage, fault: Fault) -> Row:
    logs = sorted(path for path in (stage.folder / "log").glob("*.jsonl") if not path.is_symlink())
    ruled, ticks = rulings(logs)
    watched = fault.at_seconds, fault.until_seconds
    judged = judge(
        stage.onlooker.samples, ruled, fault.wanted, fault.counted_seconds, watched, fault.excused, stays=fault.stays
    )  # fmt: skip
    says = _said(case.says, stage.folder, [tick for tick in ticks if tick["time_seconds"] >= fault.at_seconds])
    changed = stage.changed()
    seconds, freer, bound = judged.seconds, judged.freer, case.promise.seconds(stage.pace)
    excess, gap, error = judged.excess_seconds, judged.gap_seconds, stage.onlooker.error
    # Where nobody looked for long, or the service had no CPU, lateness says nothing of what it does.
    busy_because = {
        f"nobody looked at BE for {gap:.2f} s": gap > stage.pace.gap_seconds,
        f"BE was late by {seconds - bound:.2f} s, rlctl waited {judged.waited_seconds:.2f} s for a CPU": (
            bound < seconds < bound + judged.waited_seconds
        ),
        f"the task that left had {judged.excess_before_seconds:.2f} s of CPU too much by then": (
            case.escapes and seconds > bound and judged.excess_before_seconds < SEEN_CPU_SECONDS
        ),
    }
    why_busy = next((text for text, true in busy_because.items() if true), "")
    faults = {
        f"who watches BE has failed: {error}": bool(error),
        "BE never came to the verdict": seconds == math.inf and not (why_busy and case.escapes),
        f"BE was not there within {bound:g} s, but after {seconds:.2f}": bound < seconds < math.inf and not why_busy,
        f"BE was freer than the verdict {freer} times, first {judged.first}": freer > 0,
        f"BE used {excess:.2f} s of CPU more than it may": excess > CPU_SLACK_SECONDS and not case.escapes,
        f"not put back: {', '.join(changed)}": bool(changed),
        f"nothing in the log says {case.says!r}": bool(case.says) and not says and not (why_busy and case.escapes),
    }
    wrong = "; ".join(text for text, true in faults.items() if true)
    busy = f"too busy to judge: {why_busy}" if why_busy and not wrong else ""
    return Row(
        case.name, seconds, freer, not changed, says, bound, excess, gap, busy, case.counted_late, wrong=wrong
    )  # fmt: skip


def _said(pattern: str, folder: Path, ticks: Sequence[Mapping[str, Any]]) -> str:
    """The first line of the ticks or the service that matches; of a long one what is around the match."""
    wanted = re.compile(pattern)
    for line in (*_of_ticks(ticks), *_of_service(folder)):
        if found := wanted.search(line):
            colon = line.rfind(": ", 0, found.start()) if found.end() > MOST_WORDS else -1
            return line[colon + 2 if colon >= 0 else 0 :][:MOST_WORDS].strip()
    return ""


def _of_service(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("serve-*.err")):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            yield from (line for line in lines if _MESSAGE.match(line))


def _of_ticks(ticks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    offset = time.time() - time.monotonic()
    for tick in ticks:
        for name in ("error", "fallback", "note"):
            yield str(tick.get(name, ""))
        yield from (f"{bound['reason']}: {bound['detail']}" for bound in tick["bounds"])
        yield from tick.get("events", ())
        yield f"the clock is {(tick['ts'] - tick['time_seconds'] - offset) / 3600.0:+.0f} h off"
