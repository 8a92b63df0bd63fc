"""The control loop: one tick reads as one sentence."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlctl.agents.fallback import SAFE, Fallback, propose
from rlctl.agents.policy import Policy
from rlctl.agents.worker import in_words
from rlctl.envs.allocation import Allocation, most_restrictive
from rlctl.envs.errors import CgroupBusy, HostError, RlctlError
from rlctl.envs.observation import Observation, Observer
from rlctl.envs.plant import Plant
from rlctl.envs.telemetry import Missing, Telemetry, Why
from rlctl.record import Recorder, Shares, Tick
from rlctl.safety.shield import Shield
from rlctl.safety.verdict import Verdict
from rlctl.stopping import Request

__all__ = ["Controller", "Lease", "Totals"]

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 10
"""So many ticks in a row that could not be written, or that went wrong in a way nobody foresaw, end the loop:
something is wrong that time does not heal."""


class Lease(Protocol):
    """What a watchdog lends the loop: while it is renewed, the watchdog leaves BE to the loop."""

    def check(self) -> str:
        """Why BE must be at the safe allocation in this tick; empty if all is well."""
        ...

    def renew(self, *, safe: bool = False) -> None:
        """A tick is complete: the shield ruled, and its verdict is in force; or the safe allocation is, as `safe`."""
        ...

    def lost(self) -> str:
        """Why the loop is no longer in charge: the originals were restored behind its back; empty while it is."""
        ...


@dataclass(slots=True)
class Totals:
    """Counts since the start; ticks, and those in which something went wrong."""

    ticks: int = 0
    policy_errors: int = 0
    write_errors: int = 0
    tick_errors: int = 0
    overrides: int = 0
    missed_deadlines: int = 0


@dataclass(frozen=True, slots=True)
class _Proposal:
    """What is asked for: by whom and why, why not by the policy, and whether that failed."""

    allocation: Allocation
    acting: str
    note: str
    fallback: str = ""
    failed: bool = False


class Controller:
    """Reads, decides, rules, writes and records, once per control period.

    Whatever goes wrong before the write takes BE to the safe allocation for that tick, and the loop goes on.

    Args:
        plant: What is controlled.
        policy: Who decides; a `Fallback` is told what the shield makes of it.
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
        self.policy = policy
        self.shield = shield
        self.recorder = recorder
        self.lease = lease
        self.events = events
        self.shares = shares
        self.observer = Observer(plant.limits, plant.tick_seconds)
        self.totals = Totals()
        self._last = Telemetry(time_seconds=0.0, target_seconds=0.0)
        self._unwritten_in_a_row = self._wrong_in_a_row = 0
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
        self._stay_in_charge()
        self.policy, self.shield = policy, shield
        try:
            self.begin()
        except Exception as error:  # noqa: BLE001 - the next tick reads, rules and writes as ever
            log.error("not all is at the safe allocation yet: %s", _said(error))

    def begin(self) -> None:
        """Reset everybody and put BE where the policy begins; under a shield that is the safe allocation."""
        gc.collect()
        gc.freeze()  # what stands now is no garbage: a full collection amid a tick would take 10 ms to find that out
        self.observer.reset()
        start = self.policy.start(self.plant.limits)
        if self.shield:
            self.shield.reset()
            start = self.plant.limits.safe
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
        begun = time.perf_counter()
        before = self.plant.current
        telemetry, unread = self._telemetry()
        read = time.perf_counter()
        proposal, verdict, undecided = self._ruled(telemetry, before)
        decided = time.perf_counter()
        self._stay_in_charge()
        wrong, unwatched = unread or undecided, self._unwatched()
        kept = wrong or unwatched
        applied, failure = self._apply(self._tightened(verdict.allocation, kept))
        tick = Tick(
            index=self.totals.ticks,
            wall_seconds=time.time(),
            telemetry=telemetry,
            before=before,
            proposed=proposal.allocation,
            verdict=verdict,
            applied=applied,
            policy=self.policy.name,
            note=kept or proposal.note,
            error=failure,
            read_seconds=read - begun,
            decision_seconds=decided - read,
            tick_seconds=time.perf_counter() - begun,
            missed_deadlines=self.totals.missed_deadlines,
            acting=SAFE if kept else proposal.acting,
            fallback=kept or proposal.fallback,
            events=self.events(),
            shares=self.shares(),
        )
        self._finish(tick, wrong, policy_failed=proposal.failed)
        return tick

    def _telemetry(self) -> tuple[Telemetry, str]:
        """All readings; or, one period after the last, none of them and why."""
        try:
            self._last = self.plant.read()
        except Exception as error:  # noqa: BLE001 - of a host that cannot be read nothing is known: the shield's matter
            why = f"reading failed: {_said(error)}"
            lost = Missing(Why.GONE, why)
            self._last = Telemetry(
                self._last.time_seconds + self.plant.tick_seconds,
                self._last.target_seconds,
                tail_latency_seconds=lost,
                oldest_request_seconds=lost,
                load_ratio=lost,
            )
            return self._last, why
        return self._last, ""

    def _ruled(self, telemetry: Telemetry, before: Allocation) -> tuple[_Proposal, Verdict, str]:
        """What is asked for, what may be written, and what went wrong in finding that out."""
        try:
            mask = self.shield.mask(telemetry, before) if self.shield and self.policy.masked else None
            proposal = self._proposed(self.observer.observe(telemetry, before, mask))
            asked = proposal.allocation
            verdict = self.shield.rule(telemetry, before, asked) if self.shield else Verdict(asked, asked)
            if isinstance(self.policy, Fallback):
                self.policy.judged(verdict)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave BE where it is
            safe, why = self.plant.limits.safe, f"deciding failed: {_said(error)}"
            return _Proposal(safe, SAFE, why), Verdict(safe, safe), why
        return proposal, verdict, ""

    def _proposed(self, observation: Observation) -> _Proposal:
        """What the policy asks for; when it fails, the safe allocation."""
        policy, limits = self.policy, self.plant.limits
        try:
            allocation, note = propose(policy, observation, limits)
        except Exception as error:  # noqa: BLE001 - a policy is not trusted to be right, nor to fail in a known way
            log.warning("policy %s failed: %s; BE gets the safe allocation", policy.name, _said(error))
            why = f"policy failed: {in_words(error)}"
            return _Proposal(limits.safe, SAFE, why, why, failed=True)
        if isinstance(policy, Fallback):
            return _Proposal(allocation, policy.acting, note, policy.reason, policy.failed)
        return _Proposal(allocation, policy.name, note)

    def _stay_in_charge(self) -> None:
        """Write nothing where somebody else has put back the originals: the loop would undo it, and for ever."""
        if self.lease and (why := self.lease.lost()):
            raise HostError(f"no longer in charge: {why}")

    def _unwatched(self) -> str:
        """Why the lease keeps BE at the safe allocation; empty if it does not."""
        try:
            return self.lease.check() if self.lease else ""
        except Exception as error:  # noqa: BLE001 - a watchdog that cannot be asked does not watch
            return f"the watchdog cannot be asked: {_said(error)}"

    def _tightened(self, allocation: Allocation, kept: str) -> Allocation:
        """The safe allocation where something keeps BE there; what, is said once."""
        if kept and kept != self._told:
            log.error("BE goes to the safe allocation: %s", kept)
        self._told = kept
        return most_restrictive(allocation, self.plant.limits.safe) if kept else allocation

    def _apply(self, allocation: Allocation) -> tuple[Allocation, str]:
        """Write the verdict; if that fails try the safe allocation, and report what is in force."""
        try:
            applied = self.plant.apply(allocation)
        except Exception as error:  # noqa: BLE001 - whatever it was, BE may be where it should not be
            log.error("write failed: %s", _said(error))
            return self._retreat(), _said(error)
        self._unwritten_in_a_row = 0
        return applied, ""

    def _retreat(self) -> Allocation:
        """Take BE to the safe allocation; a host that keeps refusing even that ends the loop, unless BE is frozen.

        A freeze that is ordered and does not come, with all else in force, is no refusal: a task deep in the kernel or
        out of quota stops when it next runs, and the next tick looks again.
        """
        safe = self.plant.limits.safe
        try:
            applied = self.plant.apply(safe)
        except Exception as error:
            current = self.plant.current
            if current.frozen or (isinstance(error, CgroupBusy) and current.but(frozen=True).at_most(safe)):
                self._unwritten_in_a_row = 0
                return current
            self._unwritten_in_a_row += 1
            if self._unwritten_in_a_row >= FAILURES_IN_A_ROW:
                why = f"{self._unwritten_in_a_row} ticks in a row could not be written: {_said(error)}"
                raise HostError(why) from error
            return current
        self._unwritten_in_a_row = 0
        return applied

    def _finish(self, tick: Tick, wrong: str, *, policy_failed: bool) -> None:
        """Count and record the tick, and renew the lease if BE is where it should be.

        Raises:
            HostError: One tick too many in a row went wrong; BE is at the safe allocation.
        """
        self.totals.ticks += 1
        self.totals.policy_errors += policy_failed
        self.totals.write_errors += bool(tick.error)
        self.totals.tick_errors += bool(wrong)
        self.totals.overrides += tick.verdict.overridden
        try:
            self.recorder.write(tick)
            if not self._unwritten_in_a_row:
                self._renew(safe=bool(tick.error) or tick.applied.frozen)
        except Exception as error:  # noqa: BLE001 - a lost record frees nobody; without the lease the watchdog steps in
            self.totals.tick_errors += not wrong
            log.error("tick %d: %s", tick.index, _said(error))
        self._wrong_in_a_row = self._wrong_in_a_row + 1 if wrong else 0
        if self._wrong_in_a_row >= FAILURES_IN_A_ROW:
            raise HostError(f"{self._wrong_in_a_row} ticks in a row went wrong: {wrong}")

    def _renew(self, *, safe: bool) -> None:
        if self.lease and self.shield:
            self.lease.renew(safe=safe)


def _said(error: Exception) -> str:
    """Our own errors are one line already."""
    return str(error) if isinstance(error, RlctlError) else in_words(error)
