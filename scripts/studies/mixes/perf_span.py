"""What perf counts of one control group and all below it between two moments: of a run, from its begin to its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rlctl.envs.host.sensors.perf import perf_root
from rlctl.envs.host.sensors.perf_parse import Count, parse_line
from rlctl.envs.host.sensors.perf_process import start_perf
from rlctl.envs.telemetry import Missing, Reading, Value, Why

SPAN_EVENTS = (
    "task-clock", "context-switches", "cpu-migrations", "page-faults", "cycles", "stalled-cycles-frontend",
    "stalled-cycles-backend", "instructions", "branches", "branch-misses",
)  # fmt: skip
"""Those behind the metrics of BarbequeRTRM's tables."""

ANSWER_SECONDS = 10.0
"""For perf to open its counters on every CPU, and to print them."""


class PerfSpan:
    """One `perf stat` whose counters stand still until `begin` and again after `end`. A context manager.

    Where it cannot count, every event is missing with the reason: a measurement without perf still has its times.

    Args:
        group: The control group, by its path below the hierarchies' roots; it exists.
    """

    def __init__(
        self, group: str, events: Sequence[str] = SPAN_EVENTS, *, perf: str = "perf", proc: Path = Path("/proc")
    ) -> None:
        self._events = tuple(events)
        self._stack = contextlib.ExitStack()
        self._why = _unusable(group, perf, proc)
        if not self._why:
            try:
                self._start(group, perf)
            except OSError as error:
                self._why = f"perf cannot be started: {error.strerror}"

    def begin(self) -> None:
        """Count from now on."""
        self._order(b"enable\n")

    def end(self) -> Mapping[str, Reading]:
        """Stop counting, and end perf; how often every event was counted, or seconds for task-clock."""
        self._order(b"disable\n")
        if not self._why:
            self._process.send_signal(signal.SIGINT)  # it prints its counters and ends
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

    def _start(self, group: str, perf: str) -> None:
        self._printed = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        self._answers, answers = os.pipe2(os.O_CLOEXEC)
        self._stack.callback(os.close, self._orders)
        self._stack.callback(os.close, self._answers)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        control = ["--delay=-1", f"--control=fd:{orders},{answers}"]
        command = [perf, "stat", "-x;", "-a", *control, "--for-each-cgroup", group, "-e", ",".join(self._events)]
        try:
            self._process = start_perf(command, self._printed, (orders, answers))
        finally:
            os.close(orders)
            os.close(answers)
        self._stack.callback(self._process.wait)
        self._stack.callback(self._process.kill)

    def _order(self, order: bytes) -> None:
        if self._why:
            return
        answered = b""
        with contextlib.suppress(OSError):
            os.write(self._orders, order)
            if self._poll.poll(ANSWER_SECONDS * 1e3):
                answered = os.read(self._answers, 16)
        if not answered:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            first = self._text().decode(errors="replace").split("\n\n")[0]
            self._why = f"perf: {' '.join(first.split())[:300] or 'it does not answer'}"

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
