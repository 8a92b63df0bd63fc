"""The control loop: read, decide, rule, write, record, once per control period.

What happens in a tick in which one of these fails stands in `rlctl.loop.failsafe`; who can overrule a policy, and where
each of them is recorded, in `docs/concepts/shield.md`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlctl.agents.policy import Policy
from rlctl.agents.policy_runner import SAFE, PolicyRunner
from rlctl.envs.allocation import Allocation, Limits, most_restrictive
from rlctl.envs.errors import in_one_line
from rlctl.envs.experience import SafeLevelMemory
from rlctl.envs.host.events import Seldom
from rlctl.envs.plant import Plant
from rlctl.envs.reins import Rein
from rlctl.log.record import Recorder, Shares, Tick
from rlctl.loop.failsafe import Failsafe, raise_if_lease_lost, reason_unwatched
from rlctl.loop.fast_guard import FastGuard
from rlctl.loop.stopping import Request
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Bound

if TYPE_CHECKING:
    from rlctl.safety.lease import Lease

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """Counts since the start: ticks, and those in which something went wrong.

    Attributes:
        tick_errors: Ticks in which reading, deciding or recording failed for a fault of rlctl or of the host.
        unwatched: Ticks in which the lease was lost, or no watchdog would have stepped in.
        overrides: Ticks in which the shield did not let the proposal through as it was.
    """

    ticks: int = 0
    policy_errors: int = 0
    write_errors: int = 0
    tick_errors: int = 0
    overrides: int = 0
    missed_deadlines: int = 0
    unwatched: int = 0

    def add(self, tick: Tick, *, wrong: bool, policy_failed: bool) -> None:
        """Count one more tick."""
        self.ticks += 1
        self.policy_errors += policy_failed
        self.write_errors += bool(tick.error)
        self.tick_errors += wrong
        self.overrides += tick.verdict.overridden


class Controller:
    """Reads, decides, rules, writes and records, once per control period.

    Whatever goes wrong before the write takes BE to the safe allocation for that tick, and the loop goes on.

    Args:
        shield: Rules on every proposal; None only where a benchmark judges a manager bare, as it was published.
        lease: Of the watchdog, if there is one; renewed after each tick that ends with BE where it should be.
        events: Answers what happened to the host since the last call, a line for each event; recorded with the tick.
        shares: Answers how BE's applications divide what was applied; recorded with the tick.
        said: Answers what the service allows at most, for the shield: what people said, an error budget that is spent.

    Attributes:
        fast_guard: What answers a sign between the ticks; None where there is none.
        restore_state: Given the experience that a policy begins with, to go on with what was known of this host.
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
        said: Callable[[Limits], tuple[Bound, ...]] = lambda _: (),
    ) -> None:
        self.plant = plant
        self.runner = PolicyRunner(policy, shield, plant.limits, plant.tick_seconds, learns=True)
        self.recorder = recorder
        self.lease = lease
        self.events = events
        self.shares = shares
        self._said = said
        self.fast_guard: FastGuard | None = None
        self.restore_state: Callable[[SafeLevelMemory], None] = lambda _: None
        self.totals = Totals()
        self._failsafe = Failsafe(plant)
        self._held = Seldom(logging.ERROR)

    def run(
        self,
        *,
        ticks: int | None = None,
        seconds: float | None = None,
        stop: Request | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Totals:
        """Control until a number of ticks or seconds is over, or a stop is requested.

        Args:
            ticks: Number of ticks after which it ends; None for no such end.
            seconds: Wall-clock time after which it ends; None for no such end.
            stop: Ends it when requested, also during the wait for a tick if the plant's `wait` heeds it.

        Raises:
            HostError: The host refuses every write, tick after tick went wrong, or the lease is lost.
        """
        # Under a shield BE starts at the safe allocation, before any reading is believed.
        self.begin()
        begun = time.monotonic()
        while ticks is None or self.totals.ticks < ticks:
            if seconds is not None and time.monotonic() - begun >= seconds:
                break
            # Slow work, such as a reload or a file, is done before the wait: it then delays no decision.
            between()
            self.totals.missed_deadlines += self.plant.wait()
            # A stop during the wait ends the loop before the next tick, so that nothing more is written.
            if stop and stop.is_set():
                break
            self.tick()
        return self.totals

    def exchange(self, policy: Policy, shield: Shield) -> None:
        """Go on with another policy, under the shield that is there or another one; HostError: the lease is lost.

        Under another one from the safe allocation, for its guards do not know what the others remembered.
        """
        raise_if_lease_lost(self.lease)
        # The old runner stays at hand: what it learned of the host goes on.
        before = self.runner
        self.runner = PolicyRunner(policy, shield, self.plant.limits, self.plant.tick_seconds, learns=True)
        try:
            if shield is before.shield:
                _keep_in_memory()
                policy.start(self.plant.limits)
            else:
                self.begin()
        except Exception as error:  # noqa: BLE001 - the next tick reads, rules and writes as ever
            log.error("the new policy or its first write failed: %s", in_one_line(error))
        # What the host has taught goes on, whatever the disk has of it.
        self.runner.observer.go_on(before.observer)

    def begin(self) -> None:
        """Reset policy and shield and put BE where the policy begins; under a shield that is the safe allocation."""
        _keep_in_memory()
        # Guards remember nothing from here on: the safe allocation is the only start that none of them can forbid.
        start = self.runner.start()
        for rein in Rein:
            self.restore_state(self.runner.observer.experience_on(rein))
        self.plant.apply(start)
        if self.fast_guard:
            self.fast_guard.begin(start)
        # Renewed on both sides of the reset: it reads every sensor once, which may take long on a large host.
        self._renew(safe=True)
        self.plant.reset()
        self._renew(safe=True)

    def tick(self) -> Tick:
        """Run one control period; HostError: no write or no tick has come to its end for long, or the lease is lost."""
        begun = time.perf_counter()
        # 0. What was in force in the period that ends; with an alarm, what was in force before the fast guard cut it.
        alarm, before = self.fast_guard.end() if self.fast_guard else (None, self.plant.current)
        least_weight = self.plant.limits.least_weight
        # 1. Read all sensors.
        telemetry, read_fault = self._failsafe.read()
        read = time.perf_counter()
        # 2. The policy proposes, the shield rules: the verdict is never freer than the proposal nor than any guard, nor
        # than the service's own bounds.
        if self.runner.shield:
            self.runner.shield.hold(self._said(self.plant.limits))
            # Other groups come and go, and with them what a weight is worth.
            self.runner.shield.follow_weight(least=least_weight)
        self.runner.observer.follow_weight(least=least_weight)
        decision, decision_fault = self._failsafe.decide(self.runner, telemetry, before, cut=alarm is not None)
        decided = time.perf_counter()
        # 3. Write. Not at all where somebody else has restored the originals; no more than the safe allocation where a
        # step above failed, or where no watchdog would step in if this process died.
        raise_if_lease_lost(self.lease)
        # Asked in every tick: it restarts a watchdog that died.
        unwatched = reason_unwatched(self.lease)
        self.totals.unwatched += bool(unwatched)
        fault = read_fault or decision_fault
        why_safe = fault or unwatched
        allowed = self._tighten(decision.verdict.allocation, why_safe)
        applied, failure = self._failsafe.apply(allowed)
        if self.fast_guard:
            self.fast_guard.begin(self.plant.limits.safe if failure else allowed)
        # 4. Record what was seen, asked for, allowed and read back.
        tick = Tick(
            index=self.totals.ticks,
            wall_seconds=time.time(),
            telemetry=telemetry,
            before=before,
            proposed=decision.proposed,
            verdict=decision.verdict,
            applied=applied,
            policy=self.runner.policy.name,
            note=why_safe or decision.note,
            error=failure,
            read_seconds=read - begun,
            decision_seconds=decided - read,
            tick_seconds=time.perf_counter() - begun,
            missed_deadlines=self.totals.missed_deadlines,
            acting=SAFE if why_safe else decision.acting,
            fallback=why_safe or decision.fallback,
            events=self.events(),
            shares=self.shares(),
            alarm=alarm,
            price=self.runner.observer.price,
            least_weight=least_weight,
        )
        self._finish(tick, fault, policy_failed=decision.failed)
        return tick

    def _tighten(self, allocation: Allocation, why_safe: str) -> Allocation:
        """The safe allocation where there is a reason to hold BE there, which is logged; else the allocation."""
        self._held.tell(why_safe and f"BE goes to the safe allocation: {why_safe}")
        return most_restrictive(allocation, self.plant.limits.safe) if why_safe else allocation

    def _finish(self, tick: Tick, fault: str, *, policy_failed: bool) -> None:
        """Count and record the tick, and renew the lease if BE is where it should be.

        Raises:
            HostError: One tick too many in a row went wrong; BE is at the safe allocation.
        """
        # Counted before it is recorded, so that a recorder that fails loses no count.
        self.totals.add(tick, wrong=bool(fault), policy_failed=policy_failed)
        try:
            self.recorder.write(tick)
            # The lease is for a BE that is where it should be: after a write that failed, and the retreat with it, the
            # watchdog steps in when the lease ends. After a retreat that was written BE is at the safe allocation.
            if not self._failsafe.unwritten_in_a_row:
                self._renew(safe=bool(tick.error) or tick.applied.frozen)
        except Exception as error:  # noqa: BLE001 - a lost record frees nobody; without the lease the watchdog steps in
            self.totals.tick_errors += not fault
            log.error("tick %d: %s", tick.index, in_one_line(error))
        self._failsafe.count(fault)

    def _renew(self, *, safe: bool) -> None:
        # Without a shield a benchmark judges the policy bare: there is no verdict whose age a lease could bound.
        if self.lease and self.runner.shield:
            self.lease.renew(safe=safe)


def _keep_in_memory() -> None:
    """What is in memory now stays there: no full collection has to find that out in the middle of a tick."""
    gc.collect()
    gc.freeze()
