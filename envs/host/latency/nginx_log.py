"""Tail latency from nginx's access log, by `$request_time`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from itertools import compress, repeat
from pathlib import Path

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.decode import measured
from rlctl.envs.host.latency.figures import FIRST_ERROR_STATUS, LONGEST_SECONDS
from rlctl.envs.host.latency.lines import LineSource
from rlctl.envs.host.latency.window import Requests
from rlctl.envs.telemetry import Why
from rlctl.envs.workload import SLO

# The shortest format that says all; give it to `access_log FILE rlctl;` without `buffer=`.
LOG_FORMAT = "log_format rlctl '$msec $status $request_time';"

# Finds its fields. For another format: `seconds` is needed, `msec` and `status` are welcome.
LOG_PATTERN = r"^(?P<msec>\d+\.\d{3}) (?P<status>\d{3}) (?P<seconds>\d+\.\d{3})$"


_FAILED = b"%d" % FIRST_ERROR_STATUS


class NginxLog(LineSource):
    r"""The SLO's quantile over the requests that nginx logged in the last seconds.

    `$request_time` runs from the first byte of the request to the last byte of the answer, in steps of 1 ms: a slow
    client counts as a slow server. A log holds completed requests only; in overload its tail comes too late.
    Both ends are read from a clock that nginx sets once per round of its event loop: what a worker serves by itself
    (static files, its own CPU) is often 0 ms, however long it waited. It tells of what nginx waits for, such as an
    upstream; for the rest take a client's figures.
    With `$msec` a line that comes late (a buffered log, a paused controller) counts for its own time, not for now.

    Args:
        path: The log; it may be rotated, truncated, or not exist yet.
        pattern: Regular expression with a group `seconds` that is found once in each line; `^` and `$` are a line's
            ends, and nothing in it may match a line break (`[ \t]`, not `\s`).
        wall_clock: The clock of `$msec`.

    Raises:
        ConfigError: The pattern is no regular expression, or lacks the group.
    """

    unfit = "the pattern fits none of its lines; set log_format, or lc.latency.pattern"

    def __init__(
        self,
        path: Path,
        slo: SLO,
        *,
        pattern: str = LOG_PATTERN,
        window_seconds: float = 1.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._pattern = compiled(pattern)
        super().__init__("nginx", path, slo, window_seconds)
        self._seconds = self._pattern.groupindex["seconds"] - 1
        self._msec, self._status = self._column("msec"), self._column("status")
        self._window_seconds, self._wall_clock = window_seconds, wall_clock

    def parse(self, lines: bytes, seconds: float) -> Requests:
        """The requests that some lines tell of; column by column, as that is five times as fast."""
        rows = self._pattern.findall(lines)
        columns: list[Sequence[bytes]] = [rows] if self._pattern.groups == 1 else list(zip(*rows, strict=True))
        if not rows:
            return Requests(rejected=lines.count(b"\n"))
        latencies = _numbers(columns[self._seconds])
        oldest = self._wall_clock() - max(self._window_seconds, seconds)
        ended = repeat(math.inf) if self._msec is None else _numbers(columns[self._msec])
        failed = repeat(False) if self._status is None else map(_has_failed, columns[self._status])
        fits = [0.0 <= latency <= LONGEST_SECONDS for latency in latencies]
        counts = [fit and not end < oldest for fit, end in zip(fits, ended, strict=False)]
        return Requests(
            list(compress(latencies, counts)),
            sum(compress(failed, counts)),
            max(lines.count(b"\n") - sum(fits), 0),
        )

    def _column(self, name: str) -> int | None:
        group = self._pattern.groupindex.get(name)
        return None if group is None else group - 1


def _numbers(column: Sequence[bytes]) -> list[float]:
    """Each cell as a float, NaN for what is none."""
    try:
        return list(map(float, column))
    except ValueError:
        return [math.nan if isinstance(number := measured(cell), Why) else number for cell in column]


def _has_failed(status: bytes) -> bool:
    return len(status) == 3 and status >= _FAILED


def compiled(pattern: str) -> re.Pattern[bytes]:
    """A log's pattern; ConfigError: it is no regular expression, or lacks the group `seconds`."""
    try:
        found = re.compile(pattern.encode(), re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"the log pattern {pattern!r} is no regular expression: {error}") from error
    if "seconds" not in found.groupindex:
        raise ConfigError(f"the log pattern {pattern!r} needs a group (?P<seconds>...) for $request_time")
    return found
