"""What a line of a text log says of a request: by a JSON path or a regular expression, with presets for programs."""

from __future__ import annotations

import math
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, repeat

import numpy as np

from rlctl.envs.errors import ConfigError
from rlctl.envs.host.decode import all_measured, json_or_none, parse_quantity
from rlctl.envs.host.latency.figures import FIRST_ERROR_STATUS, LONGEST_SECONDS, TimeUnit, column, lookup, members
from rlctl.envs.telemetry import Why
from rlctl.envs.yaml_edge import Name, Strict

# Of `log_format rlctl '$msec $status $request_time';`, the shortest that says all; `access_log` has no `buffer=`.
NGINX_PATTERN = r"^(?P<msec>\d+\.\d{3}) (?P<status>\d{3}) (?P<latency>\d+\.\d{3})$"

_FAILED = b"%d" % FIRST_ERROR_STATUS


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that were completed in a batch.

    Attributes:
        latencies: In seconds, oldest first, each finite and not negative.
        rejected: Lines in which no latency could be found.
        weight: Requests that each of them stands for, where only a part of a burst was looked at.
    """

    latencies: Sequence[float] = ()
    errors: int = 0
    rejected: int = 0
    weight: int = 1


class LineFormat(ABC):
    """How the requests in the lines of a log are read.

    Attributes:
        kind: What the source is called in messages.
        unfit: Why no line has a latency, for the operator.
        run: Lines in a row that tell of one request together.
    """

    kind = "text"
    unfit = ""
    run = 1

    @abstractmethod
    def parse(self, lines: bytes, span_seconds: float) -> Requests:
        """The requests in some whole lines; those that say that they are older than so long do not count."""

    def look(self, lines: bytes, span_seconds: float) -> Requests:
        """The same of lines that `parse` is yet to be given."""
        return self.parse(lines, span_seconds)


class RequestKeys(Strict):
    """Dotted paths into one request's object.

    Attributes:
        latency: The member that says how long the request took, a dotted path.
        ok: The member that is true when it succeeded; without it and `status` every line is a success.
        status: The member with its HTTP status: 500 and above is a failure, and so is none.
        unit: Of `latency`: `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
    """

    latency: Name = "latency_seconds"
    ok: Name | None = None
    status: Name | None = None
    unit: TimeUnit = TimeUnit.SECONDS

    def failures(self, rows: Sequence[object]) -> int:
        """How many requests of some lines failed."""
        if self.ok is None and self.status is None:
            return 0
        bad = np.zeros(len(rows), bool)
        if self.ok is not None:
            bad |= np.array([not ok for ok in column(rows, self.ok)], bool)
        if self.status is not None:
            raws = column(rows, self.status)
            if (statuses := all_measured(raws)) is None:
                known = map(parse_quantity, raws)
                statuses = np.array([math.nan if isinstance(status, Why) else status for status in known])
            bad |= ~((statuses >= 100) & (statuses < FIRST_ERROR_STATUS))
        return int(bad.sum())


# Stands between two lines that are decoded together. No line has it, so that it is found there only if each line is a
# document by itself: halves of one, with a line of two beside them, would be as many documents as lines.
_BETWEEN = secrets.token_hex(8)
_JOINT = f',"{_BETWEEN}",'.encode()


def documents(lines: bytes) -> list[object]:
    """Every line decoded; None for one that is no JSON. A thousand sound lines take one call of the decoder."""
    rows = [row for row in lines.split(b"\n") if row.strip()]
    together = json_or_none(b"[" + _JOINT.join(rows) + b"]")
    each_by_itself = isinstance(together, list) and len(together) == 2 * len(rows) - 1
    if isinstance(together, list) and each_by_itself and together[1::2] == [_BETWEEN] * (len(rows) - 1):
        return together[::2]
    return [json_or_none(row) for row in rows]


class JsonRequests(LineFormat):
    """One JSON object for each request."""

    kind = "jsonl"

    def __init__(self, keys: RequestKeys | None = None) -> None:
        self._keys = keys or RequestKeys()

    def parse(self, lines: bytes, span_seconds: float) -> Requests:  # noqa: ARG002 - a line has no time of its own
        """Latencies and failures of the lines that are objects with a latency."""
        rows, scale = documents(lines), self._keys.unit.seconds
        raws, most = column(rows, self._keys.latency), LONGEST_SECONDS / scale
        if (latencies := all_measured(raws, most)) is not None:  # all lines are sound, and cost a third
            return Requests((latencies * scale).tolist(), self._keys.failures(rows))
        each = [parse_quantity(raw, most) for raw in raws]
        known = [latency * scale for latency in each if not isinstance(latency, Why)]
        if not known:
            self.unfit = self._complaint(rows[0])
        sound = [row for row, latency in zip(rows, each, strict=True) if not isinstance(latency, Why)]
        return Requests(known, self._keys.failures(sound), len(rows) - len(known))

    def _complaint(self, row: object) -> str:
        """Why there is no latency in a line."""
        if not isinstance(row, Mapping):
            return "its lines are no JSON objects"
        raw = lookup(row, self._keys.latency)
        if raw is None:
            return f"no {self._keys.latency!r} in its lines; there is: {members(row)}"
        return f"{self._keys.latency!r} is {str(raw)[:60]!r} in its lines, no latency in {self._keys.unit}"


class PatternLines(LineFormat):
    r"""A regular expression that is found once in the line of each request.

    Args:
        pattern: With a group `latency` (or `seconds`) and, where the log has them, `status` (HTTP's) and `msec` (when
            the request ended, in seconds since the epoch: a line that comes late then counts for its own time). `^` and
            `$` are a line's ends, and nothing may match a line break (`[ \t]`, not `\s`).
        unit: Of the latency.
        wall_clock: The clock of `msec`.

    Raises:
        ConfigError: The pattern is no regular expression, or lacks the group.
    """

    def __init__(
        self, pattern: str, unit: TimeUnit = TimeUnit.SECONDS, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._pattern, self._scale, self._wall_clock = compile_pattern(pattern), unit.seconds, wall_clock
        self.unfit = "the pattern fits none of its lines; see lc.latency.pattern"
        groups = self._pattern.groupindex
        self._latency = groups.get("latency", groups.get("seconds", 0)) - 1
        self._msec, self._status = (groups[name] - 1 if name in groups else None for name in ("msec", "status"))

    def parse(self, lines: bytes, span_seconds: float) -> Requests:
        """The requests that some lines tell of; column by column, as that is five times as fast."""
        rows = self._pattern.findall(lines)
        columns: list[Sequence[bytes]] = [rows] if self._pattern.groups == 1 else list(zip(*rows, strict=True))
        if not rows:
            return Requests(rejected=lines.count(b"\n"))
        latencies = [latency * self._scale for latency in _numbers(columns[self._latency])]
        oldest = self._wall_clock() - span_seconds
        ended = repeat(math.inf) if self._msec is None else _numbers(columns[self._msec])
        failed = repeat(False) if self._status is None else map(_has_failed, columns[self._status])
        fits = [0.0 <= latency <= LONGEST_SECONDS for latency in latencies]
        counts = [fit and not end < oldest for fit, end in zip(fits, ended, strict=False)]
        return Requests(
            list(compress(latencies, counts)),
            sum(compress(failed, counts)),
            max(lines.count(b"\n") - sum(fits), 0),
        )


def nginx_lines(wall_clock: Callable[[], float] = time.time) -> PatternLines:
    """Nginx's access log, by `$request_time`.

    It runs from the first byte of the request to the last byte of the answer, in steps of 1 ms: a slow client counts as
    a slow server. nginx sets the clock of both ends once per round of its event loop. What a worker serves by itself
    (static files, its own CPU) is often 0 ms, however long it waited. It tells of what nginx waits for, such as an
    upstream; for the rest take a client's figures.
    """
    lines = PatternLines(NGINX_PATTERN, wall_clock=wall_clock)
    lines.kind, lines.unfit = "nginx", "its lines are of another log_format: set ours, or take `kind: text`"
    return lines


def _numbers(cells: Sequence[bytes]) -> list[float]:
    """Each cell as a float, NaN for what is none."""
    try:
        return list(map(float, cells))
    except ValueError:
        return [math.nan if isinstance(number := parse_quantity(cell), Why) else number for cell in cells]


def _has_failed(status: bytes) -> bool:
    return len(status) == 3 and status >= _FAILED


def compile_pattern(pattern: str) -> re.Pattern[bytes]:
    """A log's pattern; ConfigError: it is no regular expression, or lacks the group `latency`."""
    try:
        found = re.compile(pattern.encode(), re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"the log pattern {pattern!r} is no regular expression: {error}") from error
    if not {"latency", "seconds"} & set(found.groupindex):
        raise ConfigError(f"the log pattern {pattern!r} needs a group (?P<latency>...) for how long a request took")
    return found


# src/backend/tcop/postgres.c, check_log_duration and its callers: what was done follows where the text is logged too.
_DURATION = re.compile(r"duration: (\d+\.\d{3}) ms(?:  (parse|bind|execute|statement|fastpath function call)\b)?")

SERVER_FAULTS = ("08", "25P03", "40", "53", "55P03", "57", "58", "F0", "XX")
"""Beginnings of SQLSTATEs that blame the server, not the statement, for a missing answer. They are time-outs and
shutdowns (57), too few resources (53), deadlocks (40), locks not available (55P03). Others are the client's, as HTTP's
400 is."""

_TRANSLATED = re.compile(r"[^:]{1,40}: \d+[.,]\d{3} \S+")

UNFIT = "no line has a statement's duration: set log_duration = on, update_process_title = on, lc_messages = 'C'"

MOST_SESSIONS = 10_000
"""Whose parse and bind wait for their execute; of more, the longest unheard of are forgotten."""


class PostgresLines(LineFormat):
    """Statements in PostgreSQL's own log in JSON (`log_destination = jsonlog`, PostgreSQL 15 and later).

    With `log_duration = on` each statement has a line that says how long it took, and its text stays out of the log. A
    client that uses the extended protocol has three, for parse, bind and execute; the three are one request.
    pg_stat_statements has means, extremes and a standard deviation: no tail.

    Statements are as the server has measured them. The time from when a server process has read the statement to when
    its answer is on the way. The wait of that process for a CPU before it reads is not included. A statement that a
    time-out or a shutdown has ended has no duration, and is the slowest of all.

    Args:
        one_in: Statements that each logged one stands for: 1 / log_transaction_sample_rate.
    """

    kind = "postgres"
    run = 30  # parse, bind and execute of a statement are near to each other, though other sessions come between

    def __init__(self, one_in: int = 1) -> None:
        self._one_in = one_in
        self._prepared: OrderedDict[object, dict[str, float]] = OrderedDict()
        self._failed = 0

    def parse(self, lines: bytes, span_seconds: float) -> Requests:  # noqa: ARG002 - a line has no time of its own
        """Statements and failures that some lines tell of; checkpoints and connections are no requests."""
        latencies: list[float] = []
        malformed = 0
        for row in documents(lines):
            message = lookup(row, "message")
            if not isinstance(message, str):
                malformed += 1
            elif found := _DURATION.match(message):
                step = found[2] or _step(lookup(row, "ps"))
                took = parse_quantity(found[1], LONGEST_SECONDS * 1e3)
                if not step or isinstance(took, Why):
                    malformed += 1
                elif step in ("parse", "bind"):
                    self._prepare(lookup(row, "session_id"), step, took * 1e-3)
                else:
                    prepared = self._prepared.pop(lookup(row, "session_id"), {})
                    latencies.append(took * 1e-3 + sum(prepared.values()))
            elif _TRANSLATED.match(message) and lookup(row, "context") is None:  # a function's own words have one
                malformed += 1
            elif str(lookup(row, "state_code") or "").startswith(SERVER_FAULTS):
                self._failed += 1
        self.unfit = UNFIT if malformed else "all its statements were ended by the server"
        # all failures are logged, and one statement in so many
        failed, self._failed = divmod(self._failed, self._one_in)
        return Requests(latencies, failed, failed + malformed, weight=self._one_in)

    def look(self, lines: bytes, span_seconds: float) -> Requests:
        """The newest statements, by the steps that this look sees of them; what waits for the next reading waits on."""
        kept, self._prepared, self._failed = (self._prepared, self._failed), OrderedDict(), 0
        found = self.parse(lines, span_seconds)
        self._prepared, self._failed = kept
        return found

    def _prepare(self, session: object, step: str, took_seconds: float) -> None:
        """Keep a step for the execute that it belongs to; a parse begins anew."""
        steps = self._prepared.setdefault(session, {})
        if step == "parse":
            steps.clear()
        steps[step] = took_seconds
        self._prepared.move_to_end(session)
        if len(self._prepared) > MOST_SESSIONS:
            self._prepared.popitem(last=False)


def _step(process_title: object) -> str:
    """What a duration without the statement's text belongs to, by what the process called itself then."""
    title = process_title if isinstance(process_title, str) else ""
    return {"PARSE": "parse", "BIND": "bind", "": ""}.get(title, "statement")
