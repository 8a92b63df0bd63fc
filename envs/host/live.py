"""The live host as a Plant: sensors in, control groups out, real time between."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rlctl.envs.allocation import Allocation
from rlctl.envs.applications import Placement
from rlctl.envs.errors import CgroupGone, RlctlError
from rlctl.envs.host.cgroup.actuator import BeActuator
from rlctl.envs.host.cgroup.emergency import EmergencyPlan
from rlctl.envs.host.events import BE_VANISHED, Events, Seldom
from rlctl.envs.host.latency.newest import Windowed
from rlctl.envs.host.max_load import MaxLoad, is_crowded, window_of
from rlctl.envs.host.poller import Poller
from rlctl.envs.host.process import read_task
from rlctl.envs.host.quiet import QuietTimes
from rlctl.envs.host.reins.reins import Reins
from rlctl.envs.host.sensors.cpu import GroupCpus, cpu_seconds_per_request
from rlctl.envs.host.sensors.cpu_time import request_cost
from rlctl.envs.host.sensors.of_groups import ABSENT, SENSED
from rlctl.envs.host.sensors.sensor import Sensor
from rlctl.envs.telemetry import (
    BE_ALLOWED,
    BE_SHARE,
    BUSIEST_THREAD,
    COUNTERS_OF_EACH_LC,
    MAX_LOAD,
    OF_EACH_LC,
    READINGS,
    TARGET_PROPOSED,
    Missing,
    Reading,
    Telemetry,
    Value,
    Why,
    offered_rps,
    worst_of,
)
from rlctl.envs.workload import SLO, Weight

log = logging.getLogger(__name__)

_FIELDS = frozenset(READINGS)

ESCAPED_CPUS = 0.1
"""BE used so much more than it may: it is worth a look whether somebody has left its groups."""


class Divider(Protocol):
    """Divides BE's budget among child groups of BE's; `rlctl.serve.sharing.Sharing` is one."""

    @property
    def shares(self) -> Mapping[str, Placement | None]:
        """Placements by application; None for one that is deferred."""

    def look(self) -> None:
        """See who came and who left."""

    def share(self, budget: Allocation) -> object:
        """Divide a budget that is in force."""

    def pop_regrouped(self) -> bool:
        """Whether the watchdog needs another plan since the last call."""


@dataclass(frozen=True, slots=True)
class Lc:
    """A latency-critical service and its readers.

    Attributes:
        slo: Objective of its tail latency, and its maximum load.
        sensors: Readers of its latency and its group. Those of the first LC are joined by the readers of BE and the
            host; a later one overrides an earlier one's field. Of further LCs only the fields of `OF_EACH_LC` and the
            counters of `COUNTERS_OF_EACH_LC` count.
        max_load: What is learned of its maximum load: where the objective has none, the load is a share of that, and
            else what the objective says is held against it. None: nothing is learned.
    """

    name: str
    slo: SLO
    sensors: Sequence[Sensor]
    max_load: MaxLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveParts:
    """What a live host may have beside its LCs and its BE.

    Attributes:
        absent: Why there are no readings of some names; see `rlctl.envs.host.sensors.of_groups.absent_readings`.
        events: What happens to BE's groups; None is a queue of its own.
        follow: Looks for groups that came or went, given the time; True when BE's are others now, and there may be more
            to do.
        reins: Carry BE's level; by default the CPUs alone.
        be_returns: It may find groups of BE, which may be without any for a while; else the end of the last one is the
            end of the run.
        sharing: Divides what is in force among BE's applications. The verdict holds even if that fails.
        sleep: Spends so many seconds of `wait`; may return early.
        watch: Spends them in its place, and looks at the host meanwhile.
        replan: Takes a new emergency plan whenever BE's groups are others; the lease's `replan`.
    """

    absent: Mapping[str, str] = field(default_factory=dict)
    events: Events | None = None
    follow: Callable[[float], bool] | None = None
    sharing: Divider | None = None
    sleep: Callable[[float], object] = time.sleep
    watch: Poller | None = None
    replan: Callable[[EmergencyPlan], object] | None = None
    reins: Reins | None = None
    be_returns: bool = True


class LiveHost:
    """One or several LCs and the BE groups of this host.

    The telemetry is that of the first LC; of several, that of the one that is worst off, see `worst_of`.

    Args:
        close: Called once by `close`: restores what was touched and stops what was started.

    Attributes:
        actuator: As given, for who asks what it can do or would write.
        reins: What the actuator writes, and what holds BE beside it.
        sharing: As given; may be exchanged between two ticks.
        watch: As given; nobody looks until somebody sets its `look`.
    """

    def __init__(
        self,
        lcs: Sequence[Lc],
        actuator: BeActuator,
        tick_seconds: float,
        close: Callable[[], None],
        parts: LiveParts | None = None,
    ) -> None:
        parts = parts or LiveParts()
        self._first, *self._others = lcs
        self.actuator, self.reins = actuator, parts.reins or Reins(actuator)
        self.limits, self.slo, self.tick_seconds = actuator.limits, self._first.slo, tick_seconds
        self.absent = dict(parts.absent)
        self.sharing = parts.sharing
        self._events = parts.events or Events()
        self.watch = parts.watch
        self._be_returns = parts.follow is not None and parts.be_returns
        self._follow, self._replan = parts.follow, parts.replan
        self._sleep = parts.watch.sleep if parts.watch else parts.sleep
        self._close: Callable[[], None] | None = close
        self._undivided = Seldom(logging.ERROR)
        self._plan_is_old = False
        self._unfollowed: Exception | None = None
        self._be_vanished = False
        self._escaped: frozenset[int] = frozenset()
        self._next_killed = 0  # number of the process that is looked at next, see `_release_killed`
        self._doubts: dict[str, str] = {}
        self._quiet: dict[str, QuietTimes] = {}
        self.applied = False  # whether BE has, or may have, what this host wrote
        self.begin: Callable[[], object] = lambda: None  # is called before that
        self.lc_cpus_known = True  # else limits are guesses, and what is learned under them is nobody's
        self._proposed: set[str] = set()  # names of the LCs whose target rlctl proposed
        self.inherited = False  # whether BE was restricted before, by a controller that was killed
        self._current = self.reins.read_level()
        self._allowed_cpus = self.reins.cpus.usable_cpus
        self._verdict = self._current  # of the last tick, whatever came between
        self._between = False
        self._begun_seconds = time.monotonic()
        self._cut_seconds = math.inf  # when BE was cut in the midst of the period
        self._deadline = self._begun_seconds + tick_seconds

    @property
    def current(self) -> Allocation:
        """The allocation in force, as last read back."""
        return self._current

    def reset(self, seed: int | None = None) -> None:  # noqa: ARG002 - a live host has none
        """Let the next period begin now; rates and windows of what was before are read, and nobody learns of them."""
        for lc in (self._first, *self._others):
            _readings(lc)
        self._deadline = time.monotonic() + self.tick_seconds

    def read(self) -> Telemetry:
        """Read all sensors; raises what went wrong with following the groups before."""
        if self._unfollowed is not None:
            raise self._unfollowed
        now, self._between = time.monotonic(), False
        readings = self._readings(self._first, now)
        self._explain(readings)
        self._derive(readings)
        self._tell_escaped(readings)
        known = {name: readings.pop(name) for name in _FIELDS & readings.keys()}
        own = Telemetry(now, self.slo.target_seconds, **known, counters=readings, rein=self.reins.in_hand)
        first = self._rescale_load(self._first, own, readings)
        telemetry = worst_of({self._first.name: first} | {lc.name: self._of_other(lc, first) for lc in self._others})
        ran_ratio = min((self._cut_seconds - self._begun_seconds) / max(now - self._begun_seconds, 1e-3), 1.0)
        self.reins.look(telemetry, self._verdict, ran_ratio)
        return telemetry

    @property
    def learned(self) -> tuple[MaxLoad, ...]:
        """What is learned of the LCs, for who keeps it."""
        return tuple(lc.max_load for lc in (self._first, *self._others) if lc.max_load)

    def set_target(self, lc: str, target_seconds: float) -> None:
        """Hold an LC to a target that rlctl proposed, from the next tick on."""
        for place, one in enumerate(lcs := [self._first, *self._others]):
            if one.name == lc:
                lcs[place] = replace(one, slo=replace(one.slo, target_seconds=target_seconds))
                if one.max_load is not None and target_seconds != one.slo.target_seconds:
                    one.max_load.forget_tails()
        self._first, *self._others = lcs
        self.slo = self._first.slo
        self._proposed.add(lc)
        if self.watch:
            self.watch.lcs[lc].set_target(target_seconds)

    def note_cut(self) -> None:
        """An alarm takes BE down now, in the midst of a period: what it shows is of the time before."""
        self._cut_seconds = min(self._cut_seconds, time.monotonic())

    def apply(self, allocation: Allocation) -> Allocation:
        """As `Plant.apply` has it; after a CgroupError `current` holds what was read back, as far as it could be.

        Only the first call after `read` is a tick's.
        """
        self._divide(lambda sharing: sharing.look())  # newcomers' originals are journalled before they are touched
        before, between, order = self.reins.cpus.usable_cpus, self._between, self.actuator.order
        if not self.applied:
            self.begin()
        self._between = self.applied = True
        if not between:
            self._begun_seconds, self._cut_seconds = time.monotonic(), math.inf
        try:
            self._current = self.reins.apply(allocation, new_tick=not between)
            self._be_vanished = False
        except CgroupGone:
            if not self._be_returns:
                raise
            self._current = self.reins.cpus = self.limits.safe  # nobody is there; whoever comes begins with it
            self._tell_vanished()
        except Exception:
            self._current = self.reins.read_level()
            raise
        finally:  # of the next window a part has passed, in which what was in force before still was
            self._allowed_cpus = max(self._allowed_cpus if between else before, self.reins.cpus.usable_cpus)
            self._verdict = self._verdict if between else self._current
            self._plan_is_old |= self.actuator.order != order
        self._undivided.tell(self._divide(lambda sharing: sharing.share(self.reins.cpus)))
        self._renew_plan()
        return self._current

    @property
    def be_share(self) -> float | None:
        """BE's share of a CPU that it and the LC both want, by their weights; None where that cannot be told."""
        return self.actuator.effective_share()

    @property
    def shares(self) -> Mapping[str, Placement | None]:
        """BE's applications and their placements; None for one that is deferred."""
        return self.sharing.shares if self.sharing else {}

    def has_processes(self) -> bool:
        """Whether a process is in one of BE's groups, or below; also where a group does not let it be seen."""
        try:
            return any(group.has_processes() for group in self.actuator.groups)
        except RlctlError:  # a group that vanished meanwhile, which the next look does not have
            return True

    def events(self) -> tuple[str, ...]:
        """What happened to the groups since the last call: foreign writes, groups that came or went, tighter parents.

        Each is one line that begins with its kind and a colon, see `rlctl.envs.host.events.Events`.
        """
        return self._events.drain()

    def follow(self) -> None:
        """Put groups that came under control, some at a time while half of the period is left; the watchdog too."""
        while self._follow is not None and self._follow(time.monotonic()):
            self._plan_is_old = True
            self._learn_weight()
            if self._deadline - time.monotonic() < 0.5 * self.tick_seconds:
                break
        self._renew_plan()
        self._release_killed()

    def _release_killed(self) -> None:
        """Let tasks die that were killed while BE is frozen, some at each tick; see `Group.release_killed`."""
        following = [0]
        for group in self.actuator.groups if self._current.frozen else ():
            with contextlib.suppress(RlctlError):  # it vanished
                following.append(group.release_killed(self._next_killed))
        self._next_killed = max(following)

    def set_weight(self, weight: Weight) -> None:
        """Set BE's CPU weight against the LC's: of the groups that are there, and of those that come."""
        try:
            self.actuator.set_weight(weight)
        except CgroupGone:
            if not self._be_returns:  # else there may be none for a while
                raise
        self._learn_weight()

    def _learn_weight(self) -> None:
        """Whether BE has the least weight, and policies may lean on that: not where it is void, see `BeActuator`."""
        if self.limits.least_weight != self.actuator.least_weight:
            self.limits = replace(self.limits, least_weight=self.actuator.least_weight)

    def wait(self) -> int:
        """Sleep until the period ends on the monotonic clock; deadlines that have gone by are skipped and counted.

        Before that look for groups that came or went, where it holds up no tick.
        """
        try:
            self.follow()
            self._unfollowed = None
        except Exception as error:  # noqa: BLE001 - the next `read` raises it, which keeps BE safe
            self._unfollowed = error
        late_seconds = time.monotonic() - self._deadline
        if late_seconds <= 0.0:
            self._sleep(-late_seconds)
            self._deadline += self.tick_seconds
            return 0
        skipped = int(late_seconds / self.tick_seconds)
        self._deadline += (1 + skipped) * self.tick_seconds
        return 1 + skipped

    def close(self) -> None:
        """Restore the originals and let go of the sensors. Idempotent."""
        close, self._close = self._close, None
        if close is None:
            return
        try:
            if self.watch:
                self.watch.close()
            for lc in (self._first, *self._others):
                for sensor in lc.sensors:
                    sensor.close()
        finally:
            close()

    def _tell_vanished(self) -> None:
        """Report it in the log once and in the record of every tick, as no verdict holds anybody."""
        level = None if self._be_vanished else logging.WARNING
        self._events.tell(BE_VANISHED, "no BE group is left: nothing is held until one comes", level)
        self._be_vanished = True

    def _divide(self, step: Callable[[Divider], object]) -> str:
        """Divide anew; if that fails the division before stays, within the verdict, and the reason is returned."""
        failure = ""
        if self.sharing is not None:
            try:
                step(self.sharing)
            except Exception as error:  # noqa: BLE001 - the verdict is in force, and the tick must go on
                failure = f"BE's budget is not divided anew: {error}"
            self._plan_is_old |= self.sharing.pop_regrouped()
        return failure

    def _renew_plan(self) -> None:
        """Tell the watchdog what takes the groups of now to the safe allocation."""
        if self._plan_is_old and self._replan is not None:
            try:
                self._replan(self.actuator.emergency_plan())
                self._plan_is_old = False
            except RlctlError as error:  # a group vanished meanwhile; the next tick makes another
                log.warning("no new emergency plan yet: %s", error)

    def _tell_escaped(self, readings: Mapping[str, Reading]) -> None:
        """Name, once each, who is no longer in all of BE's groups, when BE used more than all of them allow."""
        used, allowed = readings.get("be_cpus", ABSENT), readings.get(BE_ALLOWED, ABSENT)
        if isinstance(used, Missing) or isinstance(allowed, Missing) or used.value <= allowed.value + ESCAPED_CPUS:
            return
        strays = set[int]()
        for group in self.actuator.groups:
            with contextlib.suppress(RlctlError):  # one that vanished meanwhile is told of by whoever follows them
                strays |= group.strays()
        for pid in sorted(strays - self._escaped):
            task = read_task(pid)
            name = task.name if task else "it has ended"
            self._events.tell("be-escaped", f"process {pid} ({name}) has left a control group of BE: put it back")
        self._escaped = frozenset(strays)

    def _of_other(self, lc: Lc, first: Telemetry) -> Telemetry:
        """A further LC's telemetry: its own readings beside what the host and BE are for the first one."""
        readings = self._readings(lc, first.time_seconds)
        own = {name: readings.get(name, ABSENT) for name in OF_EACH_LC}
        own["lc_cpu_seconds_per_request"] = _cost(lc, readings)
        counters = {**first.counters, **{name: readings.get(name, ABSENT) for name in COUNTERS_OF_EACH_LC}}
        counters.pop(MAX_LOAD, None)  # it is the first one's
        return self._rescale_load(
            lc, first.but(target_seconds=lc.slo.target_seconds, counters=counters, **own), readings
        )

    def _rescale_load(self, lc: Lc, telemetry: Telemetry, readings: Mapping[str, Reading]) -> Telemetry:
        """The telemetry of an LC with its load as a share of what was learned, where nobody said of what."""
        if (max_load := lc.max_load) is None:
            return telemetry
        rps, held = offered_rps(readings), self.limits.is_least(self._verdict)
        # Beside others that are not BE a miss says nothing of the load.
        held &= not is_crowded(telemetry.lc_cpus, telemetry.lc_run_delay_ratio, max_load.usable_cpus)
        max_load.observe(
            telemetry.time_seconds, rps, telemetry.lc_cpu_seconds_per_request, telemetry.latency_ratio, be_held=held,
            busiest=readings.get(BUSIEST_THREAD, ABSENT), window_seconds=window_of(telemetry),
        )  # fmt: skip
        if math.isinf(lc.slo.max_load_rps):
            counters = dict(telemetry.counters)
            if (most := max_load.cautious_rps) is not None:
                counters[MAX_LOAD] = Value(most)
            return telemetry.but(load_ratio=max_load.ratio(rps), counters=counters)
        if (doubt := max_load.contradiction(lc.slo.max_load_rps)) != self._doubts.get(lc.name, ""):
            self._doubts[lc.name] = doubt
            if doubt:
                log.warning("%s: %s", lc.name, doubt)
        return telemetry

    def _readings(self, lc: Lc, now_seconds: float) -> dict[str, Reading]:
        readings = _readings(lc)
        self._quiet.setdefault(lc.name, QuietTimes()).explain(now_seconds, readings)
        if lc.name in self._proposed:
            readings[TARGET_PROPOSED] = Value(1.0)
        return readings

    def _explain(self, readings: dict[str, Reading]) -> None:
        """Give every reading that nobody provides its reason."""
        for name in SENSED:
            reading = readings.get(name, ABSENT)
            if isinstance(reading, Missing) and reading.why is Why.NOT_CONFIGURED and name in self.absent:
                readings[name] = replace(reading, detail=self.absent[name])
            elif name not in readings:
                readings[name] = ABSENT

    def _derive(self, readings: dict[str, Reading]) -> None:
        """Fill the fields that take two sensors to know."""
        be_cpus = readings.get("be_cpus", ABSENT)
        readings["be_work_rate"] = be_cpus
        if isinstance(be_cpus, Value):
            # BE alone would keep all its CPUs busy: that is the whole of its work.
            readings["be_work_rate"] = Value(be_cpus.value / self.limits.cpus, be_cpus.age_seconds)
            readings[BE_ALLOWED] = Value(self._allowed_cpus)
        if (share := self.be_share) is not None:
            readings[BE_SHARE] = Value(share)
        readings["lc_cpu_seconds_per_request"] = _cost(self._first, readings)


def _readings(lc: Lc) -> dict[str, Reading]:
    """All readings, each as of the moment at which its sensor was asked.

    A sensor that breaks its promise not to raise loses its own, and the tick goes on.
    """
    readings: dict[str, Reading] = {}
    for sensor in lc.sensors:
        try:
            readings.update(sensor.read(time.monotonic()))
        except Exception as error:  # noqa: BLE001 - the tick must go on, and the shield takes missing for unsafe
            failed = Missing(Why.MALFORMED, f"{sensor.name}: {error}")
            readings.update(dict.fromkeys(sensor.provides, failed))
    return readings


def _cost(lc: Lc, readings: Mapping[str, Reading]) -> Reading:
    """CPU time per request: both of the window that the latency source tells of, where it does."""
    done_rps = readings.get("done_rps", ABSENT)
    source = next((sensor for sensor in lc.sensors if isinstance(sensor, Windowed)), None)
    cpu_time = next((sensor.lc_time for sensor in lc.sensors if isinstance(sensor, GroupCpus)), None)
    if source is None or source.window is None or cpu_time is None:
        return cpu_seconds_per_request(readings.get("lc_cpus", ABSENT), done_rps)
    # Where both are read in the tick they are of one window, or the tick was held up between the two.
    return request_cost(done_rps, source.window, cpu_time, between=not source.ends_at_ticks)
