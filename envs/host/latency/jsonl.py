"""Tail latency from a file or FIFO of JSON lines: one line per request, or one per interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlctl.envs.host.decode import json_or_none, measured
from rlctl.envs.host.latency.figures import LONGEST_SECONDS, PROVIDES, Figures, Reporter, TimeUnit
from rlctl.envs.host.latency.follow import Follower
from rlctl.envs.host.latency.keys import FigureKeys, lookup, members
from rlctl.envs.host.latency.window import SampleWindow
from rlctl.envs.telemetry import Missing, Reading, Why
from rlctl.envs.workload import SLO

__all__ = ["JsonlIntervals", "JsonlRequests", "RequestKeys", "documents"]


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """Dotted paths into one request's object.

    Attributes:
        latency: How long it took.
        ok: Truthy when it succeeded; None if every line is a success.
        unit: Unit of `latency`.
    """

    latency: str = "latency_seconds"
    ok: str | None = None
    unit: TimeUnit = TimeUnit.SECONDS


def documents(lines: bytes) -> list[object]:
    """Every line decoded; None for one that is no JSON. A thousand sound lines take one call of the decoder."""
    rows = [row for row in lines.split(b"\n") if row.strip()]
    together = json_or_none(b"[" + b",".join(rows) + b"]")
    if isinstance(together, list) and len(together) == len(rows):
        return together
    return [json_or_none(row) for row in rows]


class JsonlRequests:
    """The SLO's quantile over the requests of the last seconds, from one JSON line per request.

    Such a file holds completed requests only; in overload its tail comes too late, see `oldest_request_seconds`.

    Args:
        path: A regular file or a FIFO; it may be rotated, truncated, or not exist yet.
        slo: The LC's objective.
        keys: Which member is which.
        window_seconds: Length of the window.
    """

    provides = (*PROVIDES, "rejected_rps")

    def __init__(self, path: Path, slo: SLO, keys: RequestKeys | None = None, *, window_seconds: float = 1.0) -> None:
        self.name = f"jsonl {path}"
        self._keys = keys or RequestKeys()
        self._follower = Follower(path)
        self._window = SampleWindow(window_seconds, slo.quantile)
        self._reporter = Reporter(self.name, slo, stale_seconds=float("inf"))  # the window ends with every tick
        self._unfit = ""

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The window's figures as readings."""
        lines = self._follower.read()
        if isinstance(lines, Missing):
            self._window.add(now_seconds, [])
            return {**self._reporter.readings(lines, now_seconds), "rejected_rps": lines}
        found = documents(lines)
        latencies, errors = self._requests(found)
        self._window.add(now_seconds, latencies, errors, rejected=len(found) - len(latencies))
        figures = Missing(Why.MALFORMED, self._unfit) if self._window.unfit else self._window.figures()
        return {**self._reporter.readings(figures, now_seconds), "rejected_rps": self._window.rejected_rps()}

    def close(self) -> None:
        """Close the file."""
        self._follower.close()

    def _requests(self, found: Sequence[object]) -> tuple[list[float], int]:
        latencies: list[float] = []
        errors = 0
        scale = self._keys.unit.seconds
        for document in found:
            latency = measured(lookup(document, self._keys.latency), LONGEST_SECONDS / scale)
            if not isinstance(latency, Why):
                latencies.append(latency * scale)
                errors += self._keys.ok is not None and not lookup(document, self._keys.ok)
        if found and not latencies:
            self._unfit = self._complaint(found[0])
        return latencies, errors

    def _complaint(self, document: object) -> str:
        """Why there is no latency in a line."""
        if not isinstance(document, Mapping):
            return "its lines are no JSON objects"
        raw = lookup(document, self._keys.latency)
        if raw is None:
            return f"no {self._keys.latency!r} in its lines; there is: {members(document)}"
        return f"{self._keys.latency!r} is {str(raw)[:60]!r} in its lines, no latency in {self._keys.unit}"


class JsonlIntervals:
    """The newest record of a file to which a client writes one JSON line per interval.

    Of several records between two ticks the last counts: let the client's interval be the control period.

    Args:
        path: A regular file or a FIFO; it may be rotated, truncated, or not exist yet.
        slo: The LC's objective.
        keys: Which member is which figure; `keys.tail` must be the quantile that the SLO names.
        window_seconds: Length of an interval, if the records do not say.
        stale_seconds: A record older than this is missing.
    """

    provides = PROVIDES

    def __init__(
        self, path: Path, slo: SLO, keys: FigureKeys, *, window_seconds: float = 1.0, stale_seconds: float = 3.0
    ) -> None:
        self.name = f"jsonl {path}"
        self._keys, self._window_seconds = keys, window_seconds
        self._follower = Follower(path)
        self._reporter = Reporter(self.name, slo, stale_seconds)
        self._latest: Figures | Missing = Missing(Why.NO_DATA, "no record yet")

    def read(self, now_seconds: float) -> Mapping[str, Reading]:
        """The newest record's figures as readings."""
        lines = self._follower.read()
        if isinstance(lines, Missing):
            if isinstance(self._latest, Missing):
                self._latest = lines
        elif lines.strip():
            document = documents(lines)[-1]
            self._latest = self._keys.figures(document, now_seconds, self._window_seconds)
        return self._reporter.readings(self._latest, now_seconds)

    def close(self) -> None:
        """Close the file."""
        self._follower.close()
