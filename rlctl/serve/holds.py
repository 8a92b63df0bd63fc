"""What an operator asks of a running service: BE paused or limited for a time, times of a schedule.

What they said is kept in the state directory, so that a restart does not forget it. It can only restrict BE further:
each of it is a bound of the shield (`Shield.hold`).
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlctl.config.sections import ScheduleEntry
from rlctl.envs.allocation import Allocation, Limits, most_restrictive
from rlctl.envs.errors import ConfigError, HostError, on_one_line
from rlctl.envs.host.cgroup.journal import read_own
from rlctl.envs.whole_file import write_json
from rlctl.log.record import Tick
from rlctl.log.sentences import on_rein
from rlctl.safety.verdict import Bound, Reason

log = logging.getLogger("rlctl.serve")

HOLDS = "holds.json"
"""Below the state directory."""

MOST_BYTES = 1 << 16

PAUSE, LIMIT = "pause", "limit"
ENDS = {"resume": PAUSE, "release": LIMIT}
"""What takes back what."""

MOST_WHY = 200
"""Characters of a reason that are kept."""

MOST_SECONDS = 366 * 86400.0

KEPT_SECONDS = 600.0
"""For so long what is over by the wall clock is kept: that may be wrong for a moment, and is then set back."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One thing that somebody said, in Unix time; of each kind there is one at most.

    Attributes:
        kind: PAUSE or LIMIT.
        quota_cpus: The most that BE may have; 0 is a pause.
        until_seconds: None is until it is taken back.
    """

    kind: str
    quota_cpus: float
    who: str
    why: str
    since_seconds: float
    until_seconds: float | None = None

    def __str__(self) -> str:
        what = "paused" if self.kind == PAUSE else f"limited to {self.quota_cpus:g} CPU"
        until = "" if self.until_seconds is None else f" until {_local(self.until_seconds)}"
        return f"{what} by {self.who}{until}" + (f": {self.why}" if self.why else "")

    def bound(self, limits: Limits) -> Bound:
        """The most that it allows."""
        return Bound(self.kind, Reason.OPERATOR, _most(self.quota_cpus, limits), str(self))


class OperatorHolds:
    """Pauses, limits and the schedule in force: the loop reads them each tick, the control socket's thread writes them.

    A recorder.

    Args:
        state_directory: Keeps what is said; None keeps nothing.
        tick_seconds: Control period: how soon something said is in force, where nobody looks between the ticks.
        clock: Answers the Unix time by which holds end and the schedule goes.
    """

    def __init__(
        self,
        state_directory: Path | None,
        schedule: Sequence[ScheduleEntry],
        tick_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = None if state_directory is None else state_directory / HOLDS
        self._schedule, self._clock = tuple(schedule), clock
        self._patience_seconds = 3.0 * tick_seconds + 1.0
        self._news, self._keeping = threading.Condition(), threading.Lock()
        self._holds = {} if self._path is None else _load_holds(self._path, clock())
        # Since when holds are over, by the time since boot.
        self._over: dict[Hold, float] = {}
        # Numbers of requests: the last one made, taken by the loop, written by the loop.
        self._said, self._asked, self._in_force = 1, 0, 0
        # The same, taken and written by a look between two ticks.
        self._looked, self._held = 0, 0
        self._urgent = False
        self._tick: Tick | None = None
        self._applied: Allocation | None = None
        # BE's CPUs on this host, known from the first tick on.
        self._most_cpus = math.inf
        # Entries of the schedule that are in force now.
        self._times: tuple[ScheduleEntry, ...] = ()
        # Whether the file has all holds.
        self._is_kept = True
        for hold in self._standing().values():
            log.warning("BE is %s; `rlctl %s` ends it", hold, _end_of(hold))
        if self._schedule:
            # Of a container too, which is most often in UTC.
            log.info("schedule: its times are in %s", time.strftime("%Z (UTC%z)", time.localtime(clock())))

    def bounds(self, limits: Limits) -> tuple[Bound, ...]:
        """The bounds of this tick, from what was said and from the schedule."""
        up_seconds, self._most_cpus = time.clock_gettime(time.CLOCK_BOOTTIME), limits.cpus
        with self._news:
            standing, known = tuple(self._standing().values()), self._over
            over = self._over = {one: known.get(one, up_seconds) for one in self._holds.values() if one not in standing}
            forgotten = [one for one, since in over.items() if up_seconds - since >= KEPT_SECONDS]
            for hold in forgotten:
                del self._holds[hold.kind]
            self._asked, self._urgent = self._said, False
        # Logged outside the lock: a slow log must not keep a request waiting.
        for hold in over.keys() - known.keys():
            log.info("over: BE was %s", hold)
        if forgotten or not self._is_kept:
            self._keep()
        if self._schedule:
            # The host's zone may be another by now; a process reads it once.
            time.tzset()
        moment = datetime.datetime.fromtimestamp(self._clock())
        before, self._times = self._times, tuple(entry for entry in self._schedule if entry.covers(moment))
        _tell_times(before, self._times)
        return (
            *(hold.bound(limits) for hold in standing),
            *(_schedule_bound(entry, limits) for entry in self._times),
        )

    def write(self, tick: Tick) -> None:
        """Take note of what is in force."""
        # A request waits until what it asked for is written, so its answer tells what BE has.
        self._tick = tick
        # After a failed write it is not known what is in force.
        if tick.error:
            return
        with self._news:
            self._applied, self._in_force = tick.applied, self._asked
            self._news.notify_all()

    def urgent(self, limits: Limits) -> Allocation | None:
        """The most that BE may have by what was said, if somebody paused or limited it since the last look or tick."""
        # The usual case, fifty times a second: no lock is taken.
        if not self._urgent:
            return None
        with self._news:
            self._looked, holds, self._urgent = self._said, self._standing().values(), False
        return most_restrictive(limits.full, *(hold.bound(limits).most for hold in holds))

    def note_written(self, applied: Allocation) -> None:
        """What the last look asked for is in force, and BE has so much; what ends a hold waits for the tick."""
        with self._news:
            self._applied, self._held = applied, self._looked
            self._news.notify_all()

    def answer(self, request: Mapping[str, Any], who: str) -> dict[str, Any]:
        """Do what a request asks, and say what came of it.

        Raises:
            ConfigError: It asks for what there is not.
        """
        what, why = request.get("do"), on_one_line(str(request.get("why") or ""))[:MOST_WHY]
        if what in (PAUSE, LIMIT):
            said = self._hold(_asked_for(str(what), request, who, why, self._clock()))
        elif what in ENDS:
            said = self._end(ENDS[what], who)
        elif what == "status":
            said = ""
        else:
            raise ConfigError(f"unknown request {what!r}; known are pause, resume, limit, release, status")
        with self._news:
            holds = [asdict(hold) | {"text": str(hold)} for hold in self._standing().values()]
            tick, applied = self._tick, self._has()
        now = {"tick": tick.index, "policy": tick.policy, "be": applied} if tick and applied else None
        return {"ok": True, "said": said, "now": now, "holds": holds}

    def _hold(self, hold: Hold) -> str:
        with self._news:
            before = self._standing().get(hold.kind)
            self._holds = {**self._holds, hold.kind: hold}
        # A hold of the same kind replaces the one before; pause and limit stand side by side.
        said = f"BE is {hold}" + (f", in place of: {before}" if before else "")
        if hold.quota_cpus >= self._most_cpus:
            said += f"; that limits nothing: BE may have {self._most_cpus:g} CPU of this host anyway"
        log.warning("%s", said)
        return self._in_force_then(f"{said}; `rlctl {_end_of(hold)}` ends it", urgent=True)

    def _end(self, kind: str, who: str) -> str:
        with self._news:
            ended = self._standing().get(kind)
            self._holds = {other: hold for other, hold in self._holds.items() if other != kind}
        if ended is None:
            self._keep()  # without what is over
            return f"there was no {kind}"
        log.warning("%s ends: BE was %s", who, ended)
        return self._in_force_then(f"over: BE was {ended}")

    def _standing(self) -> dict[str, Hold]:
        """Holds that are not over."""
        now = self._clock()
        return {
            kind: hold for kind, hold in self._holds.items() if hold.until_seconds is None or hold.until_seconds > now
        }

    def _in_force_then(self, said: str, *, urgent: bool = False) -> str:
        """Wait until what is said now is in force, and say so; it is kept meanwhile.

        Args:
            urgent: It restricts BE, so that it need not wait for a tick.

        Raises:
            HostError: It is not in force yet, but will be as soon as it can.
        """
        with self._news:
            self._said += 1
            said_now, self._urgent = self._said, self._urgent or urgent
        trouble = self._keep()
        with self._news:
            # A fast guard may write a restriction between ticks; what frees BE always waits for a ruling.
            done = self._news.wait_for(
                lambda: max(self._in_force, self._held if urgent else 0) >= said_now, self._patience_seconds
            )
            applied = self._has()
        if not done:
            raise HostError(f"{said}; NOT in force yet, the loop is late or cannot write; BE has {applied}{trouble}")
        return f"{said}; BE has {applied}{trouble}"

    def _has(self) -> str | None:
        """What BE has now; None before the first write."""
        on = on_rein(self._tick.telemetry) if self._tick else ""
        return None if self._applied is None else f"{self._applied}{on}"

    def _keep(self) -> str:
        """Write what is said to its file; what a restart will not know of it, and why, empty where all is well."""
        if self._path is None:
            return ""
        try:
            # The loop and a request may both be here; the file must get the latest.
            with self._keeping:
                with self._news:
                    holds = [asdict(hold) for hold in self._holds.values()]
                write_json(self._path, {"schema": 1, "holds": holds}, lasting=True)
        except OSError as error:
            # Logged once; each tick tries again.
            if self._is_kept:
                log.error("%s: %s: a restart will not know what was said", error.filename, error.strerror)
            self._is_kept = False
            return f"; a restart will not know it: {error.strerror}"
        self._is_kept = True
        return ""


def _asked_for(kind: str, request: Mapping[str, Any], who: str, why: str, now: float) -> Hold:
    until = request.get("until")
    if until is not None:
        until = _number("until", until)
        if not now < until <= now + MOST_SECONDS:
            # A hold of more than a year is most likely a time in other units.
            raise ConfigError(f"until {_local(until)} is in the past, or more than a year away")
    quota = _number("quota_cpus", request.get("quota_cpus")) if kind == LIMIT else 0.0
    if kind == LIMIT and quota <= 0.0:
        raise ConfigError(f"a limit of {quota:g} CPU is none; `rlctl pause` takes all")
    return Hold(kind, quota, who, why, now, until)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        raise ConfigError(f"{name} {value!r} is no number")
    return float(value)


def _most(quota_cpus: float, limits: Limits) -> Allocation:
    """All CPUs under this quota, under none where it limits nothing; the safe allocation where it is 0."""
    # A quota of all CPUs would still be enforced period by period; none is freer and means the same.
    if quota_cpus >= limits.cpus:
        return limits.full
    return limits.clip(limits.full.but(quota_cpus=quota_cpus)) if quota_cpus else limits.safe


def _schedule_bound(entry: ScheduleEntry, limits: Limits) -> Bound:
    most = _most(entry.be_cpus, limits)
    return Bound("schedule", Reason.SCHEDULE, most, f"{entry.name}: {entry.be_cpus:g} CPU")


def _tell_times(before: Sequence[ScheduleEntry], now: Sequence[ScheduleEntry]) -> None:
    """Log which times of a schedule have begun and which are over."""
    for entry in before:
        if entry not in now:
            log.info("schedule: %s is over", entry.name)
    for entry in now:
        if entry not in before:
            log.info("schedule: %s begins, BE gets %g CPU at most until %s", entry.name, entry.be_cpus, entry.ends)


def _end_of(hold: Hold) -> str:
    return next(word for word, kind in ENDS.items() if kind == hold.kind)


def _local(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _load_holds(path: Path, now: float) -> dict[str, Hold]:
    """What was said before a restart. A file that cannot be read is a pause: who knows what it said."""
    try:
        plain = json.loads(read_own(path, MOST_BYTES))
        return {one["kind"]: _parse_hold(one, now) for one in plain["holds"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigError) as error:
        # Fail safe: the file may have held a pause.
        log.error("%s cannot be read, so BE is paused: %s", path, on_one_line(str(error)))
        return {PAUSE: Hold(PAUSE, 0.0, "rlctl", f"{path} cannot be read", now)}


def _parse_hold(plain: Mapping[str, Any], now: float) -> Hold:
    kind, until = plain["kind"], plain["until_seconds"]
    if kind not in (PAUSE, LIMIT):
        raise ValueError(f"{kind!r} is no kind of hold")
    quota = 0.0 if kind == PAUSE else _number("quota_cpus", plain["quota_cpus"])
    if quota < 0.0:
        raise ValueError(f"a limit of {quota:g} CPU")
    who, why = (on_one_line(str(plain[name]))[:MOST_WHY] for name in ("who", "why"))
    since = _number("since_seconds", plain["since_seconds"])
    until = None if until is None else _number("until_seconds", until)
    return Hold(kind, quota, who, why, min(since, now), until)
