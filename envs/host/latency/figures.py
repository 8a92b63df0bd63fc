"""What a latency source knows, unchecked, and the one place that checks it and makes readings of it; JSON's members.

The rule: a stalled client or a dead LC is not good latency. Without a completed request there is no tail latency,
whatever the source says, nor with more failures than may lie above the quantile. The age of outstanding requests counts
then. Figures that grow old become missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from pydantic import model_validator

from rlctl.envs.host.decode import json_or_none, parse_quantity
from rlctl.envs.host.sensors.sensor import Window
from rlctl.envs.telemetry import MOST_LOAD_RATIO, Missing, Quantile, Reading, Value, Why
from rlctl.envs.workload import SLO
from rlctl.envs.yaml_edge import Name, Strict

# Every latency source gives these keys. `tail_is_lower_limit` is 1 while the tail is known to be at least what is
# reported, but not how much more (a histogram that ends below it).
PROVIDES = (
    "tail_latency_seconds",
    "oldest_request_seconds",
    "load_ratio",
    "offered_rps",
    "done_rps",
    "error_rps",
    "tail_is_lower_limit",
)

# No client waits an hour for an answer: beyond, the unit is mistaken or the figure is garbage.
LONGEST_SECONDS = 3600.0

MOST_RPS = 1e8

FIRST_ERROR_STATUS = 500
"""Of HTTP. Below, a request that failed is its client's fault, and was answered as it should be."""

UNKNOWN = Missing(Why.NOT_SUPPORTED, "this source cannot tell")


class TimeUnit(StrEnum):
    """The unit in which a source writes times."""

    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    MICROSECONDS = "microseconds"
    NANOSECONDS = "nanoseconds"

    @property
    def seconds(self) -> float:
        """One unit in seconds."""
        return {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}[self.value]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a source knows about one window; plain numbers, not yet judged.

    Attributes:
        end_seconds: Monotonic time at which the window ended.
        tail_seconds: The SLO's quantile of their latency.
        oldest_seconds: Age of the oldest outstanding request at the window's end; 0 when none is outstanding.
        gap: Why requests of the window are not in it: then there is no load. Empty where all are.
    """

    end_seconds: float
    window_seconds: float
    samples: int = 0
    tail_seconds: float | Missing = UNKNOWN
    oldest_seconds: float | Missing = UNKNOWN
    offered_rps: float | Missing = UNKNOWN
    done_rps: float | Missing = UNKNOWN
    error_rps: float | Missing = UNKNOWN
    tail_is_lower_limit: bool = False
    gap: str = ""


class Reporter:
    """Checks a source's figures, tick by tick, for its readings; those older than `stale_seconds` are missing.

    Attributes:
        window: Monotonic time at which the window of the last readings began, and at which it ended; None where there
            were none.
    """

    def __init__(self, source: str, slo: SLO, stale_seconds: float) -> None:
        self.window: Window | None = None
        self.source, self.slo, self.stale_seconds = source, slo, stale_seconds
        self._good_seconds = dict.fromkeys(PROVIDES, -math.inf)

    def readings(self, figures: Figures | Missing, now_seconds: float, failure: str = "") -> Mapping[str, Reading]:
        """The readings that PROVIDES names.

        Args:
            figures: The newest figures, or why there are none at all.
            failure: Why there are no newer ones, if the source failed since.
        """
        self.window = None
        if isinstance(figures, Figures):
            self.window = figures.end_seconds - figures.window_seconds, figures.end_seconds
        readings = self._judge(figures, now_seconds, failure)
        for name, reading in readings.items():
            if isinstance(reading, Value):
                self._good_seconds[name] = now_seconds - reading.age_seconds
            else:
                readings[name] = replace(reading, age_seconds=now_seconds - self._good_seconds[name])
        return readings

    def _judge(self, figures: Figures | Missing, now_seconds: float, failure: str) -> dict[str, Reading]:
        if isinstance(figures, Missing):
            return dict.fromkeys(PROVIDES, replace(figures, detail=self._named(figures.detail)))
        age_seconds = max(now_seconds - figures.end_seconds, 0.0)
        if not age_seconds <= self.stale_seconds:  # NaN, too, is no age
            why = f" ({failure})" if failure else ""
            silence = Missing(Why.STALE, f"{self.source}: nothing new for {age_seconds:.1f} s{why}")
            return dict.fromkeys(PROVIDES, silence)
        tail = self._tail(figures, age_seconds)
        if figures.gap:
            unknown = Missing(Why.NO_DATA, figures.gap)
            figures = replace(figures, offered_rps=unknown, done_rps=unknown)
        offered, done = (_checked(rps, MOST_RPS, age_seconds) for rps in (figures.offered_rps, figures.done_rps))
        limit = float(figures.tail_is_lower_limit)
        return {
            "tail_latency_seconds": tail,
            "oldest_request_seconds": _checked(figures.oldest_seconds, LONGEST_SECONDS, age_seconds),
            "load_ratio": self._load(offered if isinstance(offered, Value) else done),
            "offered_rps": offered,
            "done_rps": done,
            "error_rps": _checked(figures.error_rps, MOST_RPS, age_seconds),
            "tail_is_lower_limit": tail if isinstance(tail, Missing) else Value(limit, age_seconds),
        }

    def _named(self, detail: str) -> str:
        """With the source's name in front, unless it names the same file or address itself."""
        _, _, place = self.source.partition(" ")
        return detail if place and place in detail else f"{self.source}: {detail}"

    def _tail(self, figures: Figures, age_seconds: float) -> Reading:
        if isinstance(figures.tail_seconds, Missing) and figures.tail_seconds.why is not Why.NO_DATA:
            return figures.tail_seconds
        if figures.samples < 1 or isinstance(figures.tail_seconds, Missing):
            silence = f"{self.source}: {_silence(figures)} in {figures.window_seconds:.1f} s"
            reason = figures.tail_seconds.detail if isinstance(figures.tail_seconds, Missing) else ""
            return Missing(Why.NO_DATA, f"{silence} ({reason})" if reason and reason not in silence else silence)
        errors = _checked(figures.error_rps, MOST_RPS, age_seconds)
        if isinstance(errors, Missing) and errors.why is not Why.NOT_SUPPORTED:  # it has a counter, which says nothing
            return replace(errors, detail=f"{self.source}: nobody knows how many requests fail: {errors.detail}")
        total = max((rps for rps in (figures.done_rps, figures.error_rps) if isinstance(rps, float)), default=0.0)
        if isinstance(figures.error_rps, float) and figures.error_rps > (1.0 - self.slo.quantile) * total:
            failed = f"{figures.error_rps:.4g} of {total:.4g} requests a second failed"
            return Missing(Why.FAILING, f"{self.source}: {failed}, {1.0 - self.slo.quantile:.3g} of them may")
        tail = parse_quantity(figures.tail_seconds, LONGEST_SECONDS)
        if isinstance(tail, Why):
            return Missing(tail, f"{self.source}: a tail latency of {figures.tail_seconds!r} s")
        return Quantile(tail, age_seconds, figures.samples, figures.window_seconds)

    def _load(self, rps: Reading) -> Reading:
        """From what was offered; from what was done (which is less in overload) where the source sees only that."""
        if isinstance(rps, Missing):
            return rps
        if math.isinf(self.slo.max_load_rps):
            return Missing(Why.NOT_CONFIGURED, "slo.max_load_rps is to be learned")
        load = rps.value / self.slo.max_load_rps
        if load > MOST_LOAD_RATIO:
            doubt = f"{rps.value:g} rps, slo.max_load_rps is {self.slo.max_load_rps:g}: is that right?"
            return Missing(Why.ABSURD, f"{self.source}: {doubt}")
        return Value(load, rps.age_seconds)


class ReportedSource:
    """What a latency source derives from whose figures a `Reporter` judges."""

    _reporter: Reporter

    @property
    def window(self) -> Window | None:
        """When the window of the last readings began and ended."""
        return self._reporter.window


def _silence(figures: Figures) -> str:
    """Why nothing was completed, as far as the source can tell."""
    if isinstance(figures.oldest_seconds, float) and figures.oldest_seconds > 0.0:
        return f"no request completed, the oldest waits for {figures.oldest_seconds:.3g} s,"
    if isinstance(figures.offered_rps, float):
        return "no request was offered" if figures.offered_rps == 0.0 else "requests were offered, none completed"
    return "no request completed"


def _checked(number: float | Missing, most: float, age_seconds: float) -> Reading:
    if isinstance(number, Missing):
        return number
    checked = parse_quantity(number, most)
    return Missing(checked, f"{number!r}") if isinstance(checked, Why) else Value(checked, age_seconds)


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
