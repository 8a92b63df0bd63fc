"""Tail latency from a file with a JSON line for each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.decode import json_or_none, measured
from rlctl.envs.host.latency.figures import FIRST_ERROR_STATUS, LONGEST_SECONDS, TimeUnit
from rlctl.envs.host.latency.json_object import lookup, members
from rlctl.envs.host.latency.lines import LineSource
from rlctl.envs.host.latency.window import Requests
from rlctl.envs.telemetry import Why
from rlctl.envs.workload import SLO


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """Dotted paths into one request's object; without `ok` and `status` every line is a success.

    Attributes:
        ok: What is there is true when the request succeeded.
        status: What is there is its HTTP status, and it failed from 500 on, or without one.
    """

    latency: str = "latency_seconds"
    ok: str | None = None
    status: str | None = None
    unit: TimeUnit = TimeUnit.SECONDS

    def failed(self, row: object) -> bool:
        """Whether the request of a line did."""
        if self.ok is not None and not lookup(row, self.ok):
            return True
        if self.status is None:
            return False
        status = measured(lookup(row, self.status))
        return isinstance(status, Why) or not 100 <= status < FIRST_ERROR_STATUS


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
        latencies: list[float] = []
        errors = 0
        for row in rows:
            latency = measured(lookup(row, self._keys.latency), LONGEST_SECONDS / scale)
            if not isinstance(latency, Why):
                latencies.append(latency * scale)
                errors += self._keys.failed(row)
        if rows and not latencies:
            self.unfit = self._complaint(rows[0])
        return Requests(latencies, errors, len(rows) - len(latencies))

    def _complaint(self, row: object) -> str:
        """Why there is no latency in a line."""
        if not isinstance(row, Mapping):
            return "its lines are no JSON objects"
        raw = lookup(row, self._keys.latency)
        if raw is None:
            return f"no {self._keys.latency!r} in its lines; there is: {members(row)}"
        return f"{self._keys.latency!r} is {str(raw)[:60]!r} in its lines, no latency in {self._keys.unit}"
