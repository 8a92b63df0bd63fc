"""Tail latency from a file with a JSON line for each request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlctl.envs.host.decode import all_measured, json_or_none, measured
from rlctl.envs.host.latency.figures import FIRST_ERROR_STATUS, LONGEST_SECONDS, TimeUnit
from rlctl.envs.host.latency.json_object import column, lookup, members
from rlctl.envs.host.latency.lines import LineSource
from rlctl.envs.host.latency.window import Requests
from rlctl.envs.telemetry import Why
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import Name, Strict


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
                known = map(measured, raws)
                statuses = np.array([math.nan if isinstance(status, Why) else status for status in known])
            bad |= ~((statuses >= 100) & (statuses < FIRST_ERROR_STATUS))
        return int(bad.sum())


def documents(lines: bytes) -> list[object]:
    """Every line decoded; None for one that is no JSON. A thousand sound lines take one call of the decoder."""
    rows = [row for row in lines.split(b"\n") if row.strip()]
    together = json_or_none(b"[" + b",".join(rows) + b"]")
    if isinstance(together, list) and len(together) == len(rows):
        return together
    return [json_or_none(row) for row in rows]


class JsonlRequests(LineSource):
    """One JSON object per request, in a regular file, which may be rotated, truncated, or not exist yet."""

    def __init__(self, path: Path, slo: SLO, keys: RequestKeys | None = None, *, window_seconds: float = 1.0) -> None:
        super().__init__("jsonl", path, slo, window_seconds)
        self._keys = keys or RequestKeys()

    def parse(self, lines: bytes, seconds: float) -> Requests:  # noqa: ARG002 - a line has no time of its own
        """Latencies and failures of the lines that are objects with a latency."""
        rows, scale = documents(lines), self._keys.unit.seconds
        raws, most = column(rows, self._keys.latency), LONGEST_SECONDS / scale
        if (latencies := all_measured(raws, most)) is not None:  # all lines are sound, and cost a third
            return Requests((latencies * scale).tolist(), self._keys.failures(rows))
        each = [measured(raw, most) for raw in raws]
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
