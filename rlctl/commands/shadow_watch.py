"""`rlctl shadow watch`: the tick log followed, every tick put to the shadows, their answers recorded."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.agents import catalogue
from rlctl.agents.policy import Policy
from rlctl.commands.arguments import distinct_policies
from rlctl.commands.outputs import print_json
from rlctl.envs.errors import ConfigError
from rlctl.envs.ticklog import LOG_NAME, decode_line
from rlctl.log.stderr import log_to_stderr
from rlctl.log.tail import LogTail
from rlctl.loop.stopping import Request, stop_on_signals
from rlctl.report.shadow_log import ShadowLog, beside
from rlctl.report.shadow_watch import Shadows, Watched
from rlctl.serve.notify import notify

log = logging.getLogger("rlctl.report.shadow_watch")

POLL_SECONDS = 1.0
SUMMARY_SECONDS = 60.0
LAST_BYTES = 1 << 16


def run(args: argparse.Namespace) -> int:
    """Run the command, until a signal comes or the time is over."""
    log_to_stderr(logging.INFO)
    out = args.out or beside(args.log)
    if out.is_dir():
        raise ConfigError("is a folder; name a file for --out", out)
    if out.name.startswith(LOG_NAME) or out.resolve() == args.log.resolve():
        raise ConfigError("is a tick log, and the acting loop's; name another file for --out", out)
    ends = time.monotonic() + args.duration if args.duration else float("inf")
    with stop_on_signals() as stop, contextlib.ExitStack() as leaving:
        shadows = Shadows(policies_of(args.policy))
        leaving.callback(shadows.close)
        last = _last_said(out)
        record = leaving.enter_context(contextlib.closing(ShadowLog(out, args.rotate_bytes, args.keep)))
        notify("READY=1")
        tail = _open_log(args.log, stop, ends)
        if tail is None:
            return 0
        leaving.callback(tail.close)
        _watch(tail, shadows, record, _Summary(as_json=args.json), last, stop, ends)
    return 0


def policies_of(names: Sequence[str]) -> list[Policy]:
    """The policies of these names, no two of which may be the same."""
    return [catalogue.build(name) for name in distinct_policies("--policy", names)]


def _open_log(path: Path, stop: Request, ends: float) -> LogTail | None:
    """The log's end; waits for a log that is yet to be begun. None when told to stop before."""
    told = False
    while not stop.is_set() and time.monotonic() < ends:
        newest = path / LOG_NAME if path.is_dir() else path
        if newest.exists() or not newest.parent.is_dir():
            return LogTail(path)
        if not told:
            log.info("waiting for %s", newest)
        told = True
        stop.wait(POLL_SECONDS)
    return None


def _watch(
    tail: LogTail,
    shadows: Shadows,
    record: ShadowLog,
    summary: _Summary,
    last: _Said | None,
    stop: Request,
    ends: float,
) -> None:
    """What the end of the log held already warms the shadows up; said is only what an earlier watch did not say.

    Without one nothing of it is: shadows that have just begun are colder than the policy that acts.
    """
    warming = [watched for decision in tail.poll() if (watched := shadows.see(decision))]
    for watched in _unsaid(warming, last):
        record.write(watched)
        summary.add(watched)
    names = ", ".join(catalogue.label(one.policy.name) for one in shadows.shadows)
    log.info("watching with %s, warm after %d ticks; answers go to %s", names, shadows.ticks, record.path)
    while True:
        summary.tell(shadows, record, tail)
        left = ends - time.monotonic()
        if left <= 0.0 or stop.wait(min(POLL_SECONDS, left)):
            break
        for decision in tail.poll():
            if watched := shadows.see(decision):
                record.write(watched)
                summary.add(watched)
    summary.tell(shadows, record, tail, last=True)


@dataclass(slots=True)
class _Summary:
    """A line now and then."""

    as_json: bool
    ticks: int = 0
    behind_seconds: float = 0.0
    same: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    _due: float = 0.0

    def add(self, watched: Watched) -> None:
        self.ticks += 1
        self.behind_seconds = max(time.time() - watched.wall_seconds, 0.0)
        for name, answer in watched.answers.items():
            self.same[name] += answer.allowed == watched.applied
            self.failed[name] += bool(answer.failed)

    def tell(self, shadows: Shadows, record: ShadowLog, tail: LogTail, *, last: bool = False) -> None:
        """Once a minute, and at the end."""
        now = time.monotonic()
        if not (last or now >= self._due):
            return
        self._due = now + SUMMARY_SECONDS
        names = [one.policy.name for one in shadows.shadows]
        counts = {"damaged": tail.damaged, "unruled": shadows.unruled, "dropped": record.dropped}
        if self.as_json:
            answers = {name: {"equal": self.same[name], "failed": self.failed[name]} for name in names}
            seen = {"ts": round(time.time(), 3), "ticks": self.ticks, "behind_seconds": round(self.behind_seconds, 3)}
            print_json({**seen, **counts, "shadows": answers})
        elif self.ticks or last:
            share = 100.0 / max(self.ticks, 1)
            of_each = [
                f"{catalogue.label(name)} agrees in {share * self.same[name]:.1f} %, failed in {self.failed[name]}"
                for name in names
            ]
            problems = [f"{count} {what}" for what, count in counts.items() if count]
            told = [f"{self.ticks} ticks, {self.behind_seconds:.1f} s behind", *of_each, *problems]
            log.info("%s", "; ".join(told))


_Said = tuple[str, int, float]
"""Run and number of a tick, and its Unix time."""


def _unsaid(seen: Sequence[Watched], last: _Said | None) -> Sequence[Watched]:
    """What came after the last tick that was said; by the clock where that is no longer in sight."""
    if last is None:
        return ()
    after = [number for number, one in enumerate(seen, 1) if (one.run, one.index) == last[:2]]
    return seen[after[-1] :] if after else [one for one in seen if one.wall_seconds > last[2]]


def _last_said(out: Path) -> _Said | None:
    """The last tick that an earlier watch recorded, if there was one."""
    for path in (out, out.with_name(f"{out.name}.1")):
        for raw in reversed(_end_of(path).splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # torn, or a header
                said = decode_line(raw)[0]
                return str(said["run"]), int(said["tick"]), float(said["ts"])
    return None


def _end_of(path: Path) -> bytes:
    """The last lines of a file; nothing where there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - LAST_BYTES, 0))
        return file.read()
    return b""
