"""Load over time: how many requests per second the generator should offer t seconds into a run.

A trace is a value: frozen, comparable, picklable, and `rate` depends on nothing but its argument, so that two managers
can be compared under the very same load.
"""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from rlctl.envs.errors import ConfigError, meant
from rlctl.envs.law import law

Load = TypeVar("Load")

CSV_HEADER = "time_seconds,rate_rps"
LARGEST = 1e12  # of a rate or a time: beyond it a slip of the pen, and arithmetic that overflows

MOST_RATIO = 2.0
"""A load beyond twice the LC's maximum is a percentage, or a rate, that was meant to be a share."""

RATE_KEYS = ("rate", "low", "high", "rates", "base", "peak")
"""Arguments of traces that are rates."""


class TraceError(ConfigError, ValueError):
    """A trace is wrong or cannot be read; a ValueError too, so that pydantic reports it with its field."""


class Trace(Protocol):
    """A load over time."""

    def rate(self, t_seconds: float) -> float:
        """Requests per second at `t_seconds` after the start of the run; never negative."""


@dataclass(frozen=True, slots=True)
class _Sinusoid:
    low_rps: float
    high_rps: float
    period_seconds: float

    def rate(self, t_seconds: float) -> float:
        share = (1.0 - math.cos(2.0 * math.pi * t_seconds / self.period_seconds)) / 2.0
        return self.low_rps + (self.high_rps - self.low_rps) * share


@dataclass(frozen=True, slots=True)
class _Steps:
    rates_rps: tuple[float, ...]
    step_seconds: float

    def rate(self, t_seconds: float) -> float:
        return self.rates_rps[math.floor(t_seconds / self.step_seconds) % len(self.rates_rps)]


@dataclass(frozen=True, slots=True)
class _Bursts:
    base_rps: float
    peak_rps: float
    every_seconds: float
    length_seconds: float
    seed: int

    def rate(self, t_seconds: float) -> float:
        period = math.floor(t_seconds / self.every_seconds)
        # A generator per period: the burst stands where it stands in whatever order times are asked for.
        place = random.Random(f"{self.seed}:{period}").random()
        inside = in_burst(t_seconds, period, place, self.every_seconds, self.length_seconds)
        return self.peak_rps if inside else self.base_rps


@dataclass(frozen=True, slots=True)
class _Replay:
    times_seconds: tuple[float, ...]
    rates_rps: tuple[float, ...]
    linear: bool

    def rate(self, t_seconds: float) -> float:
        after = bisect.bisect_right(self.times_seconds, t_seconds)
        if after == 0 or after == len(self.times_seconds):
            return self.rates_rps[max(after - 1, 0)]
        left = self.rates_rps[after - 1]
        if not self.linear:
            return left
        start, end = self.times_seconds[after - 1 : after + 1]
        share = (t_seconds - start) / (end - start)
        return left * (1.0 - share) + self.rates_rps[after] * share


def constant(rate: float) -> Trace:
    """The same rate (requests per second) all the time."""
    return _Steps((_number("rate", rate),), step_seconds=1.0)


def sinusoid(low: float, high: float, period: float) -> Trace:
    """A sine between `low` and `high` requests per second, at `low` when the run starts; `period` in seconds."""
    trace = _Sinusoid(_number("low", low), _number("high", high), _number("period", period, positive=True))
    if trace.low_rps > trace.high_rps:
        raise TraceError(f"low ({low:g}) is above high ({high:g})")
    return trace


def steps(rates: Sequence[float], step_seconds: float) -> Trace:
    """Each of `rates` (requests per second) for `step_seconds`, then again from the first."""
    if not isinstance(rates, list | tuple) or not rates:
        raise TraceError(f"rates: a list of rates is needed, not {rates!r}")
    return _Steps(tuple(_number("rates", rate) for rate in rates), _number("step_seconds", step_seconds, positive=True))


def bursts(base: float, peak: float, every: float, length: float, seed: int = 0) -> Trace:
    """`base` requests per second, with one burst of `peak` in each stretch of `every` seconds.

    Args:
        base: Rate between bursts, requests per second.
        peak: Rate within a burst, requests per second.
        every: Length of a stretch in seconds.
        length: Length of a burst in seconds, at most `every`.
        seed: Decides where in each stretch its burst begins; evenly spread.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TraceError(f"seed: a whole number is needed, not {seed!r}")
    every, length = _number("every", every, positive=True), _number("length", length, positive=True)
    if length > every:
        raise TraceError(f"a burst of {length:g} s does not fit into {every:g} s")
    return _Bursts(_number("base", base), _number("peak", peak), every, length, seed)


def csv_replay(path: Path | str, interpolation: Literal["linear", "hold"] = "linear") -> Trace:
    """A recorded load from a CSV file with the columns `time_seconds,rate_rps`.

    Before the first row its rate holds, after the last row the last rate; blank lines do not count.

    Args:
        path: The file; times must increase from row to row.
        interpolation: Between rows, a straight line or the earlier rate.

    Raises:
        TraceError: `path:line: what` for the first row that is wrong.
    """
    if interpolation not in ("linear", "hold"):
        raise TraceError(f"interpolation: linear or hold, not {interpolation!r}")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), start=1))
    rows = [(number, line) for number, line in lines if line]
    if not rows or rows[0][1].replace(" ", "") != CSV_HEADER:
        raise TraceError(f"the first line must be {CSV_HEADER}", path, rows[0][0] if rows else 1)
    points = [_csv_row(path, number, line) for number, line in rows[1:]]
    if not points:
        raise TraceError("there are no rows", path, rows[0][0])
    for (earlier, later), (number, _) in zip(itertools.pairwise(points), rows[2:], strict=True):
        if later[0] <= earlier[0]:
            raise TraceError(f"time {later[0]:g} does not come after {earlier[0]:g}", path, number)
    times, rates = zip(*points, strict=True)
    return _Replay(times, rates, interpolation == "linear")


@law
def in_burst(time: Any, stretch: Any, place: Any, every: Any, length: Any) -> Any:
    """Whether a time lies within the burst of its stretch: there is one in each, at a random place. Broadcasts.

    Args:
        time: Seconds since the start.
        stretch: Number of the stretch of `every` seconds that the time lies in.
        place: Where in it the burst begins, from 0 (at once) to 1 (as late as it still fits), drawn for the stretch.
        every: Length of a stretch in seconds.
        length: Length of a burst in seconds.
    """
    begin = stretch * every + place * (every - length)
    return (begin <= time) & (time < begin + length)


def from_config(config: Mapping[str, Any]) -> Trace:
    """Build a trace from a mapping such as `{"kind": "sinusoid", "low": 120, "high": 480, "period": 30}`.

    The kinds are constant, sinusoid, steps, bursts and csv_replay; the other keys are the arguments of the function
    of that name.

    Raises:
        TraceError: Unknown kind, unknown or missing key, or a value that is impossible.
    """
    return built(config, KINDS)


def built(config: Mapping[str, Any], kinds: Mapping[str, Callable[..., Load]], others: Iterable[str] = ()) -> Load:
    """A load from a mapping with its `kind` and the arguments of what builds that kind.

    Args:
        config: Mapping with `kind` and the arguments.
        kinds: What builds each kind, by its name.
        others: Further kinds to tell of where there is no such kind.

    Raises:
        TraceError: Unknown kind, unknown or missing key, or a value that is impossible.
    """
    options = {str(key): value for key, value in config.items()}
    kind = options.pop("kind", None)
    build = kinds.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise TraceError(f"kind: one of {', '.join((*kinds, *others))} is needed, not {kind!r}")
    _check_keys(str(kind), build, options)
    try:
        return build(**options)
    except TypeError as error:
        raise TraceError(f"{kind}: a value is of another type than its key takes: {error}") from error


def shares_from_config(config: Mapping[str, Any]) -> Trace:
    """As `from_config`, of a mapping whose rates are shares of the LC's maximum load, up to `MOST_RATIO`.

    Raises:
        TraceError: As `from_config`, or a rate that can be no share.
    """
    trace = from_config(config)
    for key in RATE_KEYS:
        rates = config.get(key, ())
        highest = max(rates) if isinstance(rates, list | tuple) and rates else rates
        if highest and highest > MOST_RATIO:
            raise TraceError(f"{key}: {share_beyond(highest)}")
    if isinstance(trace, _Replay) and (highest := max(trace.rates_rps)) > MOST_RATIO:
        raise TraceError(share_beyond(highest), str(config["path"]))
    return trace


def share_beyond(value: float) -> str:
    """What to say of a load that is beyond `MOST_RATIO`."""
    hint = f" (a percentage? write {value / 100:.2f})" if value <= 100.0 * MOST_RATIO else ""
    return f"{value:g} is above {MOST_RATIO:g}; a share of the LC's maximum load is needed{hint}"


def _check_keys(kind: str, build: Callable[..., object], options: Mapping[str, object]) -> None:
    """Check that a kind of load takes these keys, and is given all that it needs."""
    parameters = inspect.signature(build).parameters
    for key in options:
        if key not in parameters:
            raise TraceError(f"{kind}: unknown key '{key}'{meant(key, parameters, 'it takes')}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise TraceError(f"{kind}: key '{key}' is missing; it takes {', '.join(parameters)}")


KINDS: Mapping[str, Callable[..., Trace]] = {
    build.__name__: build for build in (constant, sinusoid, steps, bursts, csv_replay)
}


def _number(name: str, value: object, *, positive: bool = False) -> float:
    """The value as a float, if it is a usable number (hence not NaN), zero or more (or, if asked, above zero)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise TraceError(f"{name}: a number is needed, not {value!r}")
    if value < 0 or (positive and value == 0):
        raise TraceError(f"{name}: {value:g} is not {'positive' if positive else 'zero or more'}")
    return float(value)


def _csv_row(path: Path | str, number: int, line: str) -> tuple[float, float]:
    try:
        time_seconds, rate_rps = map(float, line.split(","))
    except ValueError as error:
        raise TraceError(f"two numbers are needed, not {line[:60]!r}", path, number) from error
    if not (abs(time_seconds) <= LARGEST and 0 <= rate_rps <= LARGEST):
        raise TraceError(f"a finite time and a rate of zero or more are needed, not {line[:60]!r}", path, number)
    return time_seconds, rate_rps
