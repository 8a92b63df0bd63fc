"""What perf counts of one control group and all below it between two moments: of a run, from its begin to its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rlctl.envs.host.sensors.perf import perf_root
from rlctl.envs.host.sensors.perf_process import Count, parse_line
from rlctl.envs.telemetry import Missing, Reading, Value, Why

SPAN_EVENTS = (
    "task-clock", "context-switches", "cpu-migrations", "page-faults", "cycles", "stalled-cycles-frontend",
    "stalled-cycles-backend", "instructions", "branches", "branch-misses",
)  # fmt: skip
"""Those behind the metrics of BarbequeRTRM's tables."""

ANSWER_SECONDS = 10.0
"""For perf to open its counters on every CPU, and to print them."""


class PerfSpan:
    """One `perf stat` from `begin` to `end`, which counts for as long as the `cat` that it runs. A context manager.

    Where it cannot count, every event is missing with the reason: a measurement without perf still has its times.

    Args:
        group: The control group, by its path below the hierarchies' roots; it exists.
    """

    def __init__(
        self, group: str, events: Sequence[str] = SPAN_EVENTS, *, perf: str = "perf", proc: Path = Path("/proc")
    ) -> None:
        self._events, self._why = tuple(events), _unusable(group, perf, proc)
        counted = ["-a", "--for-each-cgroup", group, "-e", ",".join(self._events)]
        self._command = [perf, "stat", "-x;", *counted, "--", "cat"]
        self._stack = contextlib.ExitStack()
        self._printed = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it

    def begin(self) -> None:
        """Count from now on: cat answers once perf has opened its counters and let it run."""
        if self._why:
            return
        process = self._process = self._stack.enter_context(
            subprocess.Popen(
                self._command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed,
                env={**os.environ, "LC_ALL": "C"},  # perf prints decimal commas where the locale has them
                start_new_session=True,  # Ctrl-C is for whoever started it
            )
        )  # fmt: skip
        self._stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"\n")
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0] or not process.stdout.read(1):
            first = self._text().decode(errors="replace").split("\n\n")[0]
            self._why = f"perf: {' '.join(first.split())[:300] or 'it does not answer'}"

    def end(self) -> Mapping[str, Reading]:
        """End cat, and with it perf; how often every event was counted, or seconds for task-clock."""
        if not self._why:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                self._why = f"perf did not end in {ANSWER_SECONDS:g} s"
        if self._why:
            return dict.fromkeys(self._events, Missing(Why.NOT_SUPPORTED, self._why))
        counts: dict[str, Count] = {}
        for line in self._text().splitlines():
            parsed = parse_line(b"0;" + line)  # without -I there is no column for the time
            if parsed is not None:
                count = Count(parsed.count, parsed.running_ratio)
                counts[parsed.event] = counts[parsed.event] + count if parsed.event in counts else count
        return {event: _reading(counts.get(event)) for event in self._events}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _text(self) -> bytes:
        return os.pread(self._printed.fileno(), 1 << 20, 0)


def _unusable(group: str, perf: str, proc: Path) -> str:
    if shutil.which(perf) is None:
        return f"no {perf} on PATH"
    root = perf_root(proc)
    if root is None or not (root / group).is_dir():
        return f"perf looks for groups below {root}, where there is no {group}"
    return ""


def _reading(count: Count | None) -> Reading:
    if count is None:
        return Missing(Why.NO_DATA, "perf did not print it")
    if isinstance(count.count, Why):
        return Missing(count.count, f"perf: {count.count.value}")
    return Value(count.count)
