"""Tail latency from an endpoint that answers with a JSON object, and the members of such objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import model_validator

from rlctl.envs.host.decode import json_or_none, parse_quantity
from rlctl.envs.host.latency.figures import LONGEST_SECONDS, MOST_RPS, UNKNOWN, Figures, TimeUnit
from rlctl.envs.telemetry import Missing, Why
from rlctl.envs.yaml_edge import Name, Strict

# Of a message to the operator; a document may have thousands of members.
MOST_NAMES, MOST_CHARACTERS = 8, 200


class FigureKeys(Strict):
    """Dotted paths into a JSON object (`latency.p95`, `workers.0.rps`); None for what it does not hold.

    Attributes:
        tail: The SLO's quantile of latency over the endpoint's last window.
        samples: Requests completed in that window. Without it, `done_rps` times the window stands in.
        oldest: Age of the oldest outstanding request.
        offered_rps: Requests that came, per second.
        done_rps: Requests that were completed, per second. Without it, `samples` by the window stands in.
        error_rps: Requests that failed, per second; in every answer, or there is no tail.
        window: Length of the window; without it `window_seconds` counts.
        stamp: Anything that changes with every new set of figures; while it stays, the figures grow old. Without it an
            endpoint that repeats itself for ever cannot be told from one that is steady.
        unit: Of the times that it gives, the window too: `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
    """

    tail: Name
    samples: Name | None = None
    oldest: Name | None = None
    offered_rps: Name | None = None
    done_rps: Name | None = None
    error_rps: Name | None = None
    window: Name | None = None
    stamp: Name | None = None
    unit: TimeUnit = TimeUnit.SECONDS

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if self.samples is None and self.done_rps is None:
            raise ValueError("needs 'samples' or 'done_rps', else nobody knows how far to trust the tail")
        return self

    def figures(self, document: object, end_seconds: float, window_seconds: float) -> Figures | Missing:
        """The figures in one decoded JSON value; `window_seconds` is for a document that does not say."""
        if not isinstance(document, dict):
            return Missing(Why.MALFORMED, "not a JSON object")
        window = self._number(document, self.window, LONGEST_SECONDS, self.unit.seconds)
        length = window_seconds if isinstance(window, Missing) else window
        done = self._number(document, self.done_rps, MOST_RPS)
        samples = self._number(document, self.samples, MOST_RPS)
        if self.samples is None and not isinstance(done, Missing):
            samples = done * length
        if self.done_rps is None and not isinstance(samples, Missing) and length > 0.0:
            done = samples / length
        tail = self._number(document, self.tail, LONGEST_SECONDS, self.unit.seconds)
        if isinstance(samples, Missing) and not isinstance(tail, Missing):
            tail = samples  # a quantile of nobody knows how many requests is none
        return Figures(
            end_seconds=end_seconds,
            window_seconds=length,
            samples=0 if isinstance(samples, Missing) else round(samples),
            tail_seconds=tail,
            oldest_seconds=self._number(document, self.oldest, LONGEST_SECONDS, self.unit.seconds),
            offered_rps=self._number(document, self.offered_rps, MOST_RPS),
            done_rps=done,
            error_rps=self._number(document, self.error_rps, MOST_RPS),
        )

    def _number(
        self, document: Mapping[str, object], key: str | None, most: float, scale: float = 1.0
    ) -> float | Missing:
        if key is None:
            return UNKNOWN
        raw = lookup(document, key)
        if raw is None:
            return _lacking(key, document)
        number = parse_quantity(raw, most / scale)
        return Missing(number, f"{key!r} is {str(raw)[:60]!r}") if isinstance(number, Why) else number * scale


def _lacking(key: str, document: object) -> Missing:
    return Missing(Why.NO_DATA, f"{key!r} is absent or null; there is: {members(document)}")


def members(document: object) -> str:
    """The first names in a JSON object, for an operator who looks for the right one."""
    names = [str(name) for name in document] if isinstance(document, Mapping) else []
    more = ", ..." if len(names) > MOST_NAMES else ""
    return (", ".join(names[:MOST_NAMES]) + more)[:MOST_CHARACTERS] or "nothing"


def lookup(document: object, dotted: str) -> object:
    """The value at a dotted path; whole numbers index lists; None when the path leads nowhere."""
    for step in dotted.split("."):
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal():
            document = document[int(step)] if int(step) < len(document) else None
        else:
            return None
    return document


def column(documents: Sequence[object], dotted: str) -> Sequence[object]:
    """`lookup` in each of several documents; objects that are alike, as the lines of a log are, take a tenth of it."""
    values: Any = documents
    try:
        for step in dotted.split("."):
            values = [value[step] for value in values]
    except (KeyError, TypeError):  # one lacks it; it is no object, or a list
        return [lookup(document, dotted) for document in documents]
    return values  # type: ignore[no-any-return]


class JsonDigest:
    """Turns one answer after the other into figures.

    Args:
        keys: Which member is which figure; `keys.tail` must be the quantile that the SLO names.
        window_seconds: Length of the endpoint's window, if it does not say.
    """

    def __init__(self, keys: FigureKeys, window_seconds: float) -> None:
        self._keys, self._window_seconds = keys, window_seconds
        self._stamp: object = None
        self._stamp_seconds = 0.0

    def __call__(self, body: bytes, now_seconds: float) -> Figures | Missing:
        """Figures of an answer that arrived at a monotonic time, as old as their stamp."""
        document = json_or_none(body)
        found = None if self._keys.stamp is None else lookup(document, self._keys.stamp)
        stamp = None if found is None else json.dumps(found)  # as text: NaN is no NaN, and would be new each time
        if self._keys.stamp is not None and stamp is None and isinstance(document, dict):
            return _lacking(self._keys.stamp, document)  # else figures that stand still would be new ones for ever
        if stamp is None or stamp != self._stamp:
            self._stamp, self._stamp_seconds = stamp, now_seconds
        return self._keys.figures(document, self._stamp_seconds, self._window_seconds)
