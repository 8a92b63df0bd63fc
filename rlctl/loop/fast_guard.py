"""The guard between two ticks: at a sign that an LC suffers BE is held at once, until the loop decides anew.

It can only tighten. It writes the safe allocation, the most that an operator has just allowed, or the last verdict once
more over what another program has written. The next tick then decides by its readings and the operator's bounds, as
ever. It runs in the loop's own thread, in the wait for the tick, so nothing is written beside a tick.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from rlctl.envs.allocation import Allocation, Limits, most_restrictive
from rlctl.envs.errors import in_one_line
from rlctl.envs.host.poller import HostSample
from rlctl.envs.plant import Plant
from rlctl.envs.workload import SLO
from rlctl.log.record import Tick
from rlctl.loop.failsafe import reason_unwatched
from rlctl.safety.symptoms import Alarm, Sign, Symptoms

if TYPE_CHECKING:
    from rlctl.safety.lease import Lease

log = logging.getLogger(__name__)

HOUR_SECONDS = 3600.0

QUIET_SECONDS = 60.0
"""Between two lines of the log on the same sign; the tick log and the metrics have every alarm."""


class People(Protocol):
    """What people say to the service, of which not all can wait for a tick."""

    def urgent(self, limits: Limits) -> Allocation | None:
        """The most that BE may have by what they said, where somebody restricted it since the last look or tick."""

    def note_written(self, applied: Allocation) -> None:
        """That is in force, and BE has so much."""


class FastGuard:
    """Answers what a watch sees between two ticks. A recorder, which learns from each tick whether its alarm was right.

    A sign that was wrong too often within an hour is not heeded until that is no longer so.

    Args:
        slos: Objectives of the LCs, by name.
        most_false_alarms: Of each sign, in an hour.
        lease: Of the watchdog, if there is one: where it keeps a tick from writing, or from writing more than the safe
            allocation, it does so here.
        people: Whoever pauses or limits BE; None where nobody can.
        note_cut: Told of each alarm, just before its write.
        tighten_cpus: Told what people allow of the CPUs, whatever carries BE's level, just before it is written.

    Attributes:
        unheeded: Signs of an LC that are not answered now, as they were wrong too often.
    """

    def __init__(
        self,
        plant: Plant,
        slos: Mapping[str, SLO],
        most_false_alarms: int,
        lease: Lease | None = None,
        people: People | None = None,
        note_cut: Callable[[], None] = lambda: None,
        tighten_cpus: Callable[[Allocation], None] = lambda _: None,
    ) -> None:
        self._plant, self._lease, self._people = plant, lease, people
        self._note_cut, self._tighten_cpus = note_cut, tighten_cpus
        self._slos = dict(slos)
        self._signs = {name: Symptoms(slo) for name, slo in slos.items()}
        self._most_false = most_false_alarms
        self._false: dict[tuple[str, Sign], deque[float]] = {(name, sign): deque() for name in slos for sign in Sign}
        self._told_seconds: dict[Sign, float] = {}
        self.unheeded: frozenset[tuple[str, Sign]] = frozenset()
        self.begin(plant.limits.safe)

    def set_target(self, lc: str, target_seconds: float) -> None:
        """Judge an LC's requests by another target from the next look on."""
        self._slos[lc] = replace(self._slos[lc], target_seconds=target_seconds)
        self._signs[lc] = Symptoms(self._slos[lc])

    @property
    def heeded(self) -> frozenset[Sign]:
        """Signs that are answered now, whichever LC shows them."""
        return frozenset(Sign) - {sign for _, sign in self.unheeded}

    def begin(self, verdict: Allocation) -> None:
        """A period begins under a verdict that has been written."""
        self._verdict, self._begun_seconds = verdict, time.monotonic()
        self._alarm: Alarm | None = None
        self._held: Allocation | None = None

    def end(self) -> tuple[Alarm | None, Allocation]:
        """A period ends: its alarm, and what was in force in it until then, with which the loop goes on."""
        return self._alarm, self._held or self._plant.current

    def look(self, sample: HostSample) -> bool:
        """Answer a look, at once and only with less for BE; whether the next one is wanted soon, for a sign is near."""
        # An operator's pause comes first: it needs no sign and no sample.
        self._heed_people()
        if sample.foreign:
            safe = self._plant.limits.safe
            # Under an alarm, or without a watchdog, the last verdict is already too much.
            unsafe = self._alarm is not None or reason_unwatched(self._lease)
            if self._write(most_restrictive(self._verdict, safe) if unsafe else self._verdict):
                # As after a tick that could not be written: what another program holds is no ground to grow from.
                self._held = self._verdict = safe
                self._write(safe)
        held = self._plant.limits.is_least(self._plant.current)
        # All of them at every look, so that each knows its last requests.
        for name, lc in sample.lcs.items():
            signs = self._signs[name].observe(sample.now_seconds, lc.newest, waits=lc.waits)
            heeded = next((sign for sign in signs if (name, sign) not in self.unheeded), None)
            # One alarm a period: after the first BE has next to nothing, and there is nothing more to cut.
            if heeded and self._alarm is None and not held:
                self._hold(name, heeded, f"LC {name}: {signs[heeded]}", sample.now_seconds)
        return self._alarm is None and any(signs.near for signs in self._signs.values()) and not held

    def write(self, tick: Tick) -> None:
        """See whether the tick's alarm, if it had one, was right; forget the wrong ones of more than an hour ago."""
        now = tick.telemetry.time_seconds
        # A false alarm is a cut in a window that then met its target.
        if tick.alarm and tick.false_alarm:
            self._false[tick.alarm.lc, tick.alarm.sign].append(now)
        for false in self._false.values():
            while false and false[0] <= now - HOUR_SECONDS:
                false.popleft()
        # Each sign of each LC stands for itself: a noisy source silences itself only.
        unheeded = frozenset(one for one, false in self._false.items() if len(false) >= self._most_false)
        for lc, sign in unheeded - self.unheeded:
            why = f"{self._most_false} false alarms in an hour"
            log.warning("fast guard: %s: %s of LC %s is not heeded for now", why, sign, lc)
        for lc, sign in self.unheeded - unheeded:
            log.info("fast guard: %s of LC %s is heeded again", sign, lc)
        self.unheeded = unheeded

    def _heed_people(self) -> None:
        """A pause or a limit is in force at once; what ends one waits for the tick, as all does that frees BE."""
        plant = self._plant
        if self._people is None or (most := self._people.urgent(plant.limits)) is None:
            return
        # The next tick has the same bound, and goes on from what BE has then: nothing is learned of what it had before.
        # The watchdog may have taken BE further down than this process knows.
        safe = (plant.limits.safe,) if reason_unwatched(self._lease) else ()
        self._verdict = most_restrictive(self._verdict, most, *safe)
        self._tighten_cpus(most)
        if not self._write(most_restrictive(plant.current, self._verdict)):
            self._people.note_written(plant.current)

    def _hold(self, lc: str, sign: Sign, detail: str, seen_seconds: float) -> None:
        # What BE had before the cut is where the next tick goes on from.
        self._held = self._held or self._plant.current
        self._note_cut()
        error = self._write(self._plant.limits.safe)
        after = seen_seconds - self._begun_seconds
        self._alarm = Alarm(sign, detail, after, time.monotonic() - seen_seconds, error, lc)
        if seen_seconds - self._told_seconds.get(sign, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._told_seconds[sign] = seen_seconds
            log.info("fast guard: %s", self._alarm)

    def _write(self, allocation: Allocation) -> str:
        """Write; why not, if that failed. The next tick writes again, and does what is to be done about it."""
        try:
            # As in a tick: after a restore by somebody else a write would never be undone.
            if self._lease and (why := self._lease.why_lost()):
                return why
            self._plant.apply(allocation)
        except Exception as error:  # noqa: BLE001 - as in a tick
            log.error("fast guard: write failed: %s", in_one_line(error))
            return in_one_line(error)
        return ""
