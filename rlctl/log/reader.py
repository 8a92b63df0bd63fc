"""A tick log read back: every tick as it was recorded, under the header in force, and the loads that it shows."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from rlctl.envs.actions import ALL_CPUS
from rlctl.envs.allocation import UNLIMITED, Allocation, Limits
from rlctl.envs.applications import Placement
from rlctl.envs.errors import RlctlError, printable
from rlctl.envs.host.max_load import MaxLoad, window_of
from rlctl.envs.log_lines import Damage, Line, read_lines
from rlctl.envs.observation import MOST_PRICE
from rlctl.envs.reins import Rein
from rlctl.envs.telemetry import (
    BUSIEST_THREAD,
    LOGGED_OF_EACH_LC,
    OF_EACH_LC,
    Missing,
    Quantile,
    Reading,
    Telemetry,
    Value,
    Why,
    offered_rps,
    worst_of,
)
from rlctl.envs.yaml_edge import Strict
from rlctl.log.record import Tick
from rlctl.safety.profile import Profile
from rlctl.safety.symptoms import Alarm, Sign
from rlctl.safety.verdict import Bound, Reason, Verdict


@dataclass(frozen=True, slots=True)
class LoggedTick:
    """One tick of a log, with the place of its line.

    Attributes:
        tick: The tick; of the shield's bounds only those that the proposal exceeded are recorded.
        header: Content of the last header before it; empty when there is none.
        unbroken: No line between it and the one before is damaged.
    """

    tick: Tick
    path: Path
    number: int
    header: Mapping[str, Any] = field(default_factory=dict)
    first: bool = False
    unbroken: bool = True

    @property
    def where(self) -> str:
        """File and line, as compilers name them."""
        return f"{self.path}:{self.number}"


class TickReader:
    """Makes ticks of the lines of a log, given in order, each tick with the header that is in force."""

    def __init__(self) -> None:
        self._header: Mapping[str, Any] = {}
        self._first, self._unbroken = False, True

    def read(self, line: Line) -> LoggedTick | None:
        """The tick of a line, None for a header; ValueError says what is wrong with a line that is no tick."""
        self._unbroken = self._unbroken and line.unbroken
        if line.is_header:
            self.pass_header(line.content)
            self._first = True
            return None
        try:
            tick = _tick(line.content)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            self.pass_damage()
            missing = " is missing" if isinstance(error, KeyError) else ""
            raise ValueError(f"not a tick: {error}{missing}") from error
        logged = LoggedTick(tick, line.path, line.number, self._header, self._first, self._unbroken)
        self._first, self._unbroken = False, True
        return logged

    def pass_header(self, content: Mapping[str, Any]) -> None:
        """Take over a header whose own tick is not read."""
        self._header, self._first = content, False

    def pass_damage(self) -> None:
        """Lines before the next one are damaged, or were not read."""
        self._unbroken = False


def read_log(paths: Iterable[Path], damaged: Callable[[Damage], None]) -> Iterator[LoggedTick]:
    """Every tick of a log, oldest file first; damaged lines are reported and left out."""
    reader = TickReader()
    for line in read_lines(paths, damaged):
        try:
            logged = reader.read(line)
        except ValueError as error:
            damaged(Damage(line.path, line.number, str(error)))
            continue
        if logged is not None:
            yield logged


def usual_gap(times: Sequence[float]) -> float:
    """The usual time between two ticks, by when each was, in seconds; 1 where there is only one."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return statistics.median(gaps) if gaps else 1.0


def finite(value: object) -> float:
    """A number of a log; ValueError or TypeError if it is none, not finite, or larger than what is recorded."""
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or abs(number) >= 1e15:
        raise ValueError(f"{value!r} is not a number that rlctl records")
    return number


def _tick(plain: Mapping[str, Any]) -> Tick:
    proposed = allocation_of(plain["proposed"])
    bounds = tuple(_bound(one) for one in plain["bounds"])
    return Tick(
        index=_whole(plain["tick"]),
        wall_seconds=finite(plain["ts"]),
        telemetry=telemetry_of(plain),
        before=allocation_of(plain["before"]),
        proposed=proposed,
        verdict=Verdict(allocation_of(plain["verdict"]), proposed, bounds),
        applied=allocation_of(plain["applied"]),
        policy=str(plain["policy"]),
        note=str(plain["note"]),
        error=str(plain["error"]),
        read_seconds=finite(plain["read_seconds"]),
        decision_seconds=finite(plain["decision_seconds"]),
        tick_seconds=finite(plain["tick_seconds"]),
        missed_deadlines=_whole(plain["missed_deadlines"]),
        acting=str(plain.get("acting", "")),
        fallback=str(plain.get("fallback", "")),
        events=tuple(map(str, plain.get("events", ()))),
        shares={str(name): _placement(one) for name, one in plain.get("shares", {}).items()},
        alarm=_alarm(plain["alarm"]) if "alarm" in plain else None,
        price=_price(plain.get("price", 1.0)),
        least_weight=None if (least := plain.get("least_weight")) is None else bool(least),
    )


def telemetry_of(data: Mapping[str, Any]) -> Telemetry:
    """The telemetry of a tick in a log; ValueError, TypeError, KeyError, AttributeError, OverflowError: it is none."""
    telemetry = Telemetry(
        time_seconds=float(data["time_seconds"]),
        target_seconds=float(data["target_seconds"]),
        **{name: _reading(one) for name, one in data["readings"].items()},
        counters={name: _reading(one) for name, one in data["counters"].items()},
        rein=Rein(data.get("rein", Rein.CPU)),
    )
    if not data.get("lcs"):
        return telemetry
    shared = {name: one for name, one in telemetry.counters.items() if name not in LOGGED_OF_EACH_LC}
    others = telemetry.but(counters=shared)
    return worst_of({
        str(name): _of_lc(telemetry if name == data.get("lc") else others, one) for name, one in data["lcs"].items()
    })  # fmt: skip


def _of_lc(shared: Telemetry, data: Mapping[str, Any]) -> Telemetry:
    readings = {name: _reading(data["readings"][name]) for name in OF_EACH_LC}
    counters = {**shared.counters, **{name: _reading(one) for name, one in data.get("counters", {}).items()}}
    return shared.but(target_seconds=float(data["target_seconds"]), counters=counters, **readings)


def allocation_of(data: Mapping[str, Any]) -> Allocation:
    """An allocation as it stands in a log; ValueError, TypeError, KeyError, OverflowError: it is none."""
    quota, cpuset_cpus = data["quota_cpus"], int(data["cpuset_cpus"])
    if cpuset_cpus > ALL_CPUS:
        raise ValueError(f"no host has {cpuset_cpus:.3g} CPUs")
    return Allocation(UNLIMITED if quota is None else float(quota), cpuset_cpus, bool(data["frozen"]))


def _reading(data: Mapping[str, Any]) -> Reading:
    age = data.get("age")
    age_seconds = math.inf if age is None else float(age)
    if "missing" in data:
        return Missing(Why(data["missing"]), str(data.get("detail", "")), age_seconds)
    value = float(data["value"])
    if "samples" in data:
        return Quantile(value, age_seconds, int(data["samples"]), float(data["window"]))
    return Value(value, age_seconds)


def _price(value: object) -> float:
    if not 1.0 / MOST_PRICE <= (price := finite(value)) <= MOST_PRICE:
        raise ValueError(f"{value!r} is not a price of a violation")
    return price


def _alarm(plain: Mapping[str, Any]) -> Alarm:
    times = finite(plain["after_seconds"]), finite(plain["took_seconds"])
    return Alarm(Sign(plain["sign"]), str(plain["detail"]), *times, str(plain["error"]), str(plain.get("lc", "")))


def _placement(plain: Sequence[Any] | None) -> Placement | None:
    if plain is None:
        return None
    mode, cluster, cpus = plain
    return Placement(_whole(mode), str(cluster), finite(cpus))


def _bound(plain: Mapping[str, Any]) -> Bound:
    return Bound(str(plain["guard"]), Reason(plain["reason"]), allocation_of(plain["most"]), str(plain["detail"]))


def _whole(value: object) -> int:
    number = int(finite(value))
    if number < 0:
        raise ValueError(f"{value!r} is not a number that rlctl records")
    return number


class _Limits(Strict):
    """`rlctl.envs.allocation.Limits` of some host that can be."""

    cpus: int = Field(ge=1, le=ALL_CPUS)
    lc_cpus: float = Field(gt=0.0, le=ALL_CPUS)
    min_quota_cpus: float = Field(gt=0.0, le=ALL_CPUS)
    levels: int = Field(ge=1, le=ALL_CPUS)
    exclusive_cpus: int = Field(0, ge=0, le=ALL_CPUS)
    least_weight: bool = False
    can_freeze: bool = True


def limits_in(header: Mapping[str, Any]) -> Limits | None:
    """The host's limits that a header names; None when it names none that can be."""
    try:
        return Limits(**_Limits.model_validate(header.get("limits")).model_dump())
    except (ValueError, RlctlError):
        return None


def profile_in(header: Mapping[str, Any]) -> Profile | None:
    """The safety profile that a header holds; None when there is none, or it is not one of this rlctl."""
    try:
        return Profile.model_validate(header["shield"]["profile"])
    except (KeyError, TypeError, ValueError):
        return None


def run_in(header: Mapping[str, Any]) -> tuple[object, ...]:
    """What two headers of the same run have in common, and no others."""
    return tuple(repr(header.get(name)) for name in ("boot_id", "pid", "started"))


ONLY = "the LC"
"""Name of an LC that is the only one: a log does not say it."""

_BETWEEN = Missing(Why.GONE, "between two runs")


class LoggedLoad:
    """Learns of a log, tick by tick, what `slo.max_load_rps: auto` would have learned.

    Attributes:
        loads: By the LC's name; empty before the first tick under a header that names the host. A log does not say
            which CPUs each of several LCs may use: all of theirs count for each.
        ticks: How many were seen.
    """

    def __init__(self) -> None:
        self.loads: dict[str, MaxLoad] = {}
        self.ticks = 0

    def observe(self, logged: LoggedTick) -> None:
        """Learn from a tick."""
        if (limits := limits_in(logged.header)) is None:
            return
        telemetry, held = logged.tick.telemetry, limits.is_least(logged.tick.before)
        for name, lc in ((name or ONLY, lc) for name, lc in telemetry.lcs.items()):
            load = self.loads.get(name)
            if load is None or (logged.first and load.lc_cpus != limits.lc_cpus):
                load = self.loads[name] = MaxLoad(printable(name), limits.lc_cpus)
            now = telemetry.time_seconds
            if logged.first:  # what goes on over several windows does not go on over a restart
                load.observe(now, _BETWEEN, _BETWEEN, None, be_held=False)
            rps = offered_rps(lc.counters)
            load.observe(now, rps, lc.lc_cpu_seconds_per_request, lc.latency_ratio, be_held=held,
                         busiest=lc.counters.get(BUSIEST_THREAD, _BETWEEN), window_seconds=window_of(lc))  # fmt: skip
        self.ticks += 1
