"""The `perf stat` child: how it is started, its pipe and its end, who starts it again when it dies, and what it prints.

That are frames: one interval's counts of every event and cgroup. JSON (`-j`, perf 6.0 and later) and CSV (`-x;`, the
only format of perf 5.15) give the same fields. Keys that are not known are passed over, lines that say nothing are
dropped, and "no number" stays apart by its cause.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from rlctl.envs.host import launch_barrier
from rlctl.envs.host.decode import first_line, json_or_none, parse_quantity
from rlctl.envs.telemetry import Missing, Why

_log = logging.getLogger(__name__)

PIPE_BYTES = 1 << 18  # a controller paused for minutes must not make perf wait in the middle of an interval
READ_BYTES = 1 << 16
LAST_WORDS_BYTES = 2000
END_SECONDS = 1.0

RAPID_SECONDS = 10.0  # a child that lived shorter has not worked at all
MOST_RAPID_DEATHS = 5
FIRST_WAIT_SECONDS = 1.0
MOST_WAIT_SECONDS = 60.0

NO_REASON = "Error:"  # a line of its own above the reason


def start_perf(command: Sequence[str], stderr: IO[bytes], pass_fds: Collection[int]) -> subprocess.Popen[bytes]:
    """Start perf as a child that dies with the thread that starts it, see `launch_barrier`."""
    with Path("/dev/zero").open("rb") as no_barrier:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", launch_barrier.__file__, str(os.getpid()), *command],
            stdin=no_barrier,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            env={**os.environ, "LC_ALL": "C"},  # perf prints decimal commas where the locale has them
            start_new_session=True,  # Ctrl-C is for whoever started it
        )


class PerfChild:
    """A running perf, which writes its intervals to a pipe that is read without ever waiting.

    The kernel ends it when the *thread* that started it ends (PDEATHSIG). A perf with file capabilities loses that; its
    next line into the closed pipe ends it by SIGPIPE.

    Raises:
        OSError: No process can be started at all.
    """

    def __init__(self, command: Sequence[str]) -> None:
        out, log = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out, False)
        with contextlib.suppress(OSError):  # above /proc/sys/fs/pipe-max-size: the ordinary size will do
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._out: int | None = out
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        try:
            self._process = start_perf([*command, "--log-fd", str(log)], self._words, [log])
        except OSError:
            os.close(out)
            self._words.close()
            raise
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        """Its process id; still set when it has ended."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def read(self) -> bytes:
        """All that it wrote since the last call, perhaps nothing."""
        chunks: list[bytes] = []
        while self._out is not None:
            try:
                chunk = os.read(self._out, READ_BYTES)
            except BlockingIOError:
                break
            chunks.append(chunk)
            if len(chunk) < READ_BYTES:  # drained, or at its end
                break
        return b"".join(chunks)

    def last_words(self) -> str:
        """What it wrote to stderr, at most 2,000 bytes; its exit code if that is nothing."""
        if self._words.closed:
            return "stopped"
        words = os.pread(self._words.fileno(), LAST_WORDS_BYTES, 0).decode(errors="replace").strip()
        return words or f"it ended with code {self._process.returncode} and said nothing"

    def stop(self) -> None:
        """End and reap it. Idempotent."""
        out, self._out = self._out, None
        if out is not None:
            os.close(out)
        for end in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_SECONDS)
        self._words.close()


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of perf's command line.

    Attributes:
        json: `-j`; perf 5.15 only knows `-x`.
        grouped: Cycles and instructions as one `{...}` group, scheduled together. Where there is no PMU such a group
            makes perf exit, while single events merely print `<not supported>` (measured, perf 6.1).
    """

    json: bool = True
    grouped: bool = True

    def after(self, words: str) -> Shape | None:
        """The shape to try instead, given perf's last words; None when the shape was not the trouble."""
        if self.json and "unknown switch `j'" in words:
            return replace(self, json=False)
        if self.grouped and "not supported" in words:
            return replace(self, grouped=False)
        return None


class PerfKeeper:
    """Starts perf, and starts it again when it dies.

    Args:
        start: Starts a child of a given shape; may raise OSError.

    Attributes:
        starts: How many children there have been; a change means that perf's clock began anew.
        trouble: Why there is no running child; None while there is one.
        gave_up: True after five children in a row died within ten seconds each; `trouble` then stays, until `stop`.
    """

    def __init__(self, start: Callable[[Shape], PerfChild], shape: Shape | None = None) -> None:
        self._start = start
        self.shape = shape or Shape()
        self.starts = 0
        self.trouble: Missing | None = None
        self.gave_up = False
        self._child: PerfChild | None = None
        self._born_seconds = 0.0
        self._rapid_deaths = 0
        self._retry_seconds = float("-inf")

    def read(self, now_seconds: float) -> bytes:
        """What perf wrote since the last call. A dead child is replaced once its back-off is over."""
        if self._child is None:
            if not self.gave_up and now_seconds >= self._retry_seconds:
                self._launch(now_seconds)
            return b""
        data = self._child.read()
        if self._child.poll() is not None:
            data += self._child.read()  # what it wrote between the two looks
            self._bury(self._child, now_seconds)
        return data

    def stop(self, trouble: Missing | None = None) -> None:
        """End the child, if any; the next `read` starts another, which is another perf: no death before counts."""
        child, self._child = self._child, None
        self.trouble, self.gave_up, self._rapid_deaths = trouble, False, 0
        self._retry_seconds = float("-inf")
        if child is not None:
            child.stop()

    def _launch(self, now_seconds: float) -> None:
        self.starts += 1
        self._born_seconds = now_seconds
        try:
            self._child = self._start(self.shape)
        except OSError as error:
            self._mourn(f"cannot be started: {error.strerror}", now_seconds)
        else:
            self.trouble = None

    def _bury(self, child: PerfChild, now_seconds: float) -> None:
        words = child.last_words()
        child.stop()
        self._child = None
        other = self.shape.after(words)
        if other is None:
            self._mourn(words, now_seconds)
        else:
            self.shape = other
            self._launch(now_seconds)

    def _mourn(self, words: str, now_seconds: float) -> None:
        rapid = now_seconds - self._born_seconds < RAPID_SECONDS
        self._rapid_deaths = self._rapid_deaths + 1 if rapid else 1
        self.gave_up = self._rapid_deaths >= MOST_RAPID_DEATHS
        wait_seconds = min(FIRST_WAIT_SECONDS * 2.0 ** (self._rapid_deaths - 1), MOST_WAIT_SECONDS)
        self._retry_seconds = now_seconds + wait_seconds
        self.trouble = Missing(_why(words, self.gave_up), f"perf: {first_line(words, NO_REASON)}")
        then = "no further try" if self.gave_up else f"next try in {wait_seconds:g} s"
        _log.warning("perf stat ended (%s); %s", first_line(words, NO_REASON), then)


_REFUSALS = ("permission", "not permitted", "paranoid", "access to performance monitoring")


def _why(words: str, gave_up: bool) -> Why:
    if any(refusal in words.lower() for refusal in _REFUSALS):
        return Why.NO_PERMISSION
    return Why.NOT_SUPPORTED if gave_up else Why.NO_DATA


MOST_LINE_BYTES = 4096  # real ones are below 400
_PMU = re.compile(r"^\w+/([^,/]+).*/\w*$")  # cpu_core/cycles/, as hybrid CPUs print it
_NO_NUMBER = {"<not supported>": Why.NOT_SUPPORTED, "<not counted>": Why.NOT_COUNTED}


@dataclass(frozen=True, slots=True)
class PerfLine:
    """One event of one cgroup in one interval.

    Attributes:
        stamp_seconds: End of the interval, since perf started.
        count: How often, or for how many seconds (task-clock), it was counted; or why not. Already scaled up by perf
            when it was multiplexed.
        running_ratio: Share of the interval in which the counter really ran.
    """

    stamp_seconds: float
    group: str
    event: str
    count: float | Why
    running_ratio: float


@dataclass(frozen=True, slots=True)
class Count:
    """An event's count over an interval, summed over the PMUs of a hybrid CPU."""

    count: float | Why
    running_ratio: float = 1.0

    def __add__(self, other: Count) -> Count:
        """The sum; where only one side is a number it is that, as a task that did not run there counted nothing."""
        if isinstance(self.count, Why) or isinstance(other.count, Why):
            return self if isinstance(other.count, Why) else other
        return Count(self.count + other.count, min(self.running_ratio, other.running_ratio))


@dataclass(frozen=True, slots=True)
class PerfInterval:
    """One interval of perf."""

    stamp_seconds: float
    seconds: float
    counts: dict[tuple[str, str], Count] = field(default_factory=dict)


def parse_line(line: bytes) -> PerfLine | None:
    """One line of `perf stat -I -j` or `-x;` with cgroups; None for a comment, a metric, and whatever is no count."""
    if len(line) > MOST_LINE_BYTES:
        return None
    text = line.decode(errors="replace").strip()
    fields = json_or_none(text) if text.startswith("{") else _from_csv(text)
    if not isinstance(fields, dict):
        return None
    stamp, running = parse_quantity(fields.get("interval")), parse_quantity(fields.get("pcnt-running"))
    event, group, raw = fields.get("event"), fields.get("cgroup"), fields.get("counter-value")
    if isinstance(stamp, Why) or not (isinstance(event, str) and isinstance(group, str) and isinstance(raw, str)):
        return None
    count: float | Why = _NO_NUMBER.get(raw.strip()) or parse_quantity(raw)
    if fields.get("unit") == "msec" and not isinstance(count, Why):
        count *= 1e-3
    return PerfLine(stamp, group, _plain(event), count, 1.0 if isinstance(running, Why) else running / 100.0)


_KEYS = ("interval", "counter-value", "unit", "event", "cgroup", "event-runtime", "pcnt-running")


def _from_csv(text: str) -> dict[str, str] | None:
    """perf-stat(1), "CSV FORMAT"; the cgroup stands behind the event, which the manual leaves out (measured)."""
    cells = text.split(";")
    return dict(zip(_KEYS, cells, strict=False)) if len(cells) >= len(_KEYS) else None


def _plain(event: str) -> str:
    if "/" in event and (pmu := _PMU.match(event)):
        return pmu[1]
    return event.partition(":")[0]


class FrameAssembler:
    """Puts lines together to frames, however the pipe cuts them.

    A frame is complete when every expected event has been seen, or when the next interval begins. So the counts of one
    frame, and its CPI, are always of the same interval.
    """

    def __init__(self, expected: Collection[tuple[str, str]]) -> None:
        self._expected = frozenset(expected)
        self._partial = b""
        self._frame: PerfInterval | None = None
        self._closed_seconds = 0.0

    def feed(self, data: bytes) -> list[PerfInterval]:
        """Take what the pipe gave; returns the frames that it completed, oldest first."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MOST_LINE_BYTES:
            self._partial = b""
        done: list[PerfInterval] = []
        for line in lines:
            parsed = parse_line(line)
            if parsed is not None and (parsed.group, parsed.event) in self._expected:
                done += self._add(parsed)
        return done

    def _add(self, line: PerfLine) -> list[PerfInterval]:
        done: list[PerfInterval] = []
        if self._frame is not None and line.stamp_seconds > self._frame.stamp_seconds:
            done.append(self._close(self._frame))
        if line.stamp_seconds <= self._closed_seconds:
            return done
        if self._frame is None:
            self._frame = PerfInterval(line.stamp_seconds, line.stamp_seconds - self._closed_seconds)
        counts, key = self._frame.counts, (line.group, line.event)
        count = Count(line.count, line.running_ratio)
        counts[key] = counts[key] + count if key in counts else count
        if len(counts) == len(self._expected):
            done.append(self._close(self._frame))
        return done

    def _close(self, frame: PerfInterval) -> PerfInterval:
        self._frame, self._closed_seconds = None, frame.stamp_seconds
        return frame
