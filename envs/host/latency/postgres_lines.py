"""Tail latency from PostgreSQL's own log in JSON (`log_destination = jsonlog`, PostgreSQL 15 and later).

With `log_duration = on` each statement has a line that says how long it took, and its text stays out of the log. A
client that uses the extended protocol has three, for parse, bind and execute; the three are one request.
pg_stat_statements has means, extremes and a standard deviation: no tail.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from rlctl.envs.host.decode import parse_quantity
from rlctl.envs.host.latency.figures import LONGEST_SECONDS
from rlctl.envs.host.latency.json_object import lookup
from rlctl.envs.host.latency.line_formats import LineFormat, documents
from rlctl.envs.host.latency.window import Requests
from rlctl.envs.telemetry import Why

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
    """Statements, as the server has measured them.

    The time from when a server process has read the statement to when its answer is on the way. The wait of that
    process for a CPU before it reads is not included. A statement that a time-out or a shutdown has ended has no
    duration, and is the slowest of all.

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
