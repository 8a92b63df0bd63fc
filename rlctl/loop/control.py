"""The control loop: one tick reads as one sentence.

What becomes of a tick in which a word of it cannot be said, because something fails, stands in `rlctl.loop.failsafe`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlctl.agents.policy import Policy
from rlctl.agents.seat import SAFE, Seat
from rlctl.envs.allocation import Allocation, most_restrictive
from rlctl.envs.errors import CgroupBusy, in_one_line
from rlctl.envs.plant import Plant
from rlctl.loop.failsafe import Failsafe, Lease, stay_in_charge, unwatched
from rlctl.loop.record import Recorder, Shares, Tick
from rlctl.loop.stopping import Request
from rlctl.safety.shield import Shield

__all__ = ["Controller", "Totals"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """Counts since the start; ticks, and those in which something went wrong."""

    ticks: int = 0
    policy_errors: int = 0
    write_errors: int = 0
    tick_errors: int = 0
    overrides: int = 0
    missed_deadlines: int = 0

    def add(self, tick: Tick, *, wrong: bool, policy_failed: bool) -> None:
        """Count a tick."""
        self.ticks += 1
        self.policy_errors += policy_failed
        self.write_errors += bool(tick.error)
        self.tick_errors += wrong
        self.overrides += tick.verdict.overridden


class Controller:
    """Reads, decides, rules, writes and records, once per control period.

    Whatever goes wrong before the write takes BE to the safe allocation for that tick, and the loop goes on.

    Args:
        plant: What is controlled.
        policy: Who decides.
        shield: Who has the last word; None only where a benchmark judges a manager bare, as it was published.
        recorder: Where each tick goes.
        lease: A watchdog's; renewed after each tick that ends with BE where it should be.
        events: What happened to the host since it was last asked, a line for each; goes into the tick.
        shares: How BE's applications divide what was applied; goes into the tick too.
    """

    def __init__(
        self,
        plant: Plant,
        policy: Policy,
        shield: Shield | None,
        recorder: Recorder,
        lease: Lease | None = None,
        events: Callable[[], tuple[str, ...]] = tuple,
        shares: Callable[[], Shares] = dict,
    ) -> None:
        self.plant = plant
        self.seat = Seat(policy, shield, plant.limits, plant.tick_seconds)
        self.recorder = recorder
        self.lease = lease
        self.events = events
        self.shares = shares
        self.totals = Totals()
        self._failsafe = Failsafe(plant)
        self._told = ""

    def run(
        self,
        *,
        ticks: int | None = None,
        seconds: float | None = None,
        stop: Request | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Totals:
        """Control until the given number of ticks or seconds is over, or a stop is requested.

        Args:
            ticks: Ends it.
            seconds: Ends it too.
            stop: And this, amid the wait for a tick if the plant's `wait` heeds it.
            between: Called in the idle time before each tick.

        Raises:
            HostError: The host refuses every write, tick after tick went wrong, or the lease is lost.
        """
        self.begin()
        begun = time.monotonic()
        while ticks is None or self.totals.ticks < ticks:
            if seconds is not None and time.monotonic() - begun >= seconds:
                break
            between()
            self.totals.missed_deadlines += self.plant.wait()
            if stop and stop.is_set():
                break
            self.tick()
        return self.totals

    def exchange(self, policy: Policy, shield: Shield) -> None:
        """Go on with others, from the safe allocation: what the old guards remembered is not known to the new ones.

        Raises:
            HostError: The lease is lost.
        """
        stay_in_charge(self.lease)
        self.seat = Seat(policy, shield, self.plant.limits, self.plant.tick_seconds)
        try:
            self.begin()
        except Exception as error:  # noqa: BLE001 - the next tick reads, rules and writes as ever
            log.error("not all is at the safe allocation yet: %s", in_one_line(error))

    def begin(self) -> None:
        """Reset everybody and put BE where the policy begins; under a shield that is the safe allocation."""
        gc.collect()
        gc.freeze()  # what stands now is no garbage, and no full collection has to find that out amid a tick
        start = self.seat.start()
        try:
            self.plant.apply(start)
        except CgroupBusy as error:  # a task deep in the kernel; every tick tries again
            log.warning("the first allocation is not in force yet: %s", error)
        self._renew(safe=True)
        self.plant.reset()
        self._renew(safe=True)

    def tick(self) -> Tick:
        """One control period: the sentence.

        Raises:
            HostError: The host refuses every write, tick after tick went wrong, or the lease is lost.
        """
        begun, before = time.perf_counter(), self.plant.current
        telemetry, unread = self._failsafe.read()
        read = time.perf_counter()
        decision, undecided = self._failsafe.decide(self.seat, telemetry, before)
        decided = time.perf_counter()
        stay_in_charge(self.lease)
        wrong, why_watchdog = unread or undecided, unwatched(self.lease)
        kept = wrong or why_watchdog
        applied, failure = self._failsafe.apply(self._tightened(decision.verdict.allocation, kept))
        tick = Tick(
            index=self.totals.ticks,
            wall_seconds=time.time(),
            telemetry=telemetry,
            before=before,
            proposed=decision.proposed,
            verdict=decision.verdict,
            applied=applied,
            policy=self.seat.policy.name,
            note=kept or decision.note,
            error=failure,
            read_seconds=read - begun,
            decision_seconds=decided - read,
            tick_seconds=time.perf_counter() - begun,
            missed_deadlines=self.totals.missed_deadlines,
            acting=SAFE if kept else decision.acting,
            fallback=kept or decision.fallback,
            events=self.events(),
            shares=self.shares(),
        )
        self._finish(tick, wrong, policy_failed=decision.failed)
        return tick

    def _tightened(self, allocation: Allocation, kept: str) -> Allocation:
        """The safe allocation where something keeps BE there; what, is said once."""
        if kept and kept != self._told:
            log.error("BE goes to the safe allocation: %s", kept)
        self._told = kept
        return most_restrictive(allocation, self.plant.limits.safe) if kept else allocation

    def _finish(self, tick: Tick, wrong: str, *, policy_failed: bool) -> None:
        """Count and record the tick, and renew the lease if BE is where it should be.

        Raises:
            HostError: One tick too many in a row went wrong; BE is at the safe allocation.
        """
        self.totals.add(tick, wrong=bool(wrong), policy_failed=policy_failed)
        try:
            self.recorder.write(tick)
            if not self._failsafe.unwritten_in_a_row:
                self._renew(safe=bool(tick.error) or tick.applied.frozen)
        except Exception as error:  # noqa: BLE001 - a lost record frees nobody; without the lease the watchdog steps in
            self.totals.tick_errors += not wrong
            log.error("tick %d: %s", tick.index, in_one_line(error))
        self._failsafe.count(wrong)

    def _renew(self, *, safe: bool) -> None:
        if self.lease and self.seat.shield:
            self.lease.renew(safe=safe)
